"""A scripted NVML: put this folder on PYTHONPATH, and every process that imports pynvml sees one board.

What the boards are is in the JSON file that EKC_SCRIPTED_GPU names; what is set on them is one file per limit
beside it, so that no process can be stopped or killed between reading and writing. `scripted_nvml.py` beside
this folder makes and reads them. Error classes and constants are those of the real package. Power is a square
wave of two seconds or more, by the SM clock, which no GPU draws: scripted, not simulated.
"""

import importlib.util
import json
import math
import os
import sys
import threading
import time
from pathlib import Path

_HERE = Path(__file__).parent
_CANDIDATES = (Path(entry or ".") / "pynvml.py" for entry in sys.path)
_REAL = next(path for path in _CANDIDATES if path.is_file() and path.parent != _HERE)
_spec = importlib.util.spec_from_file_location("real_pynvml", _REAL)
_real = importlib.util.module_from_spec(_spec)
sys.modules["real_pynvml"] = _real
_spec.loader.exec_module(_real)
globals().update({name: getattr(_real, name) for name in dir(_real) if name.startswith("NVML")})
nvmlClocksEventReasonNone = 0
_FILE = Path(os.environ["EKC_SCRIPTED_GPU"])
_cached_board = (-1, None)


def _read_board():
    """The contents of the file, read again only when it has changed."""
    global _cached_board
    changed = _FILE.stat().st_mtime_ns
    if changed != _cached_board[0]:
        _cached_board = (changed, json.loads(_FILE.read_text()))
    return _cached_board[1]


def _fail_as_scripted(function):
    """Raise the error that the script of the board has for a function."""

    def call(*arguments):
        board = _read_board()
        code = board["fail"].get(function.__name__)
        if board["lost"] and arguments:
            code = _real.NVML_ERROR_GPU_IS_LOST
        if code is not None:
            raise _real.NVMLError(code)
        return function(*arguments)

    call.__name__ = function.__name__
    return call


def _read_state(index, name):
    return json.loads((_FILE.parent / f"{index}.{name}").read_text())


def _write_state(index, name, value):
    fresh = _FILE.parent / f"{index}.{name}.{os.getpid()}.{threading.get_ident()}"
    fresh.write_text(json.dumps(value))
    fresh.replace(_FILE.parent / f"{index}.{name}")


def _set_limit(handle, name, value, caller):
    now = time.time()
    _write_state(handle, "energy", [_compute_energy_mj(handle), now])
    _write_state(handle, name, value)
    call = json.dumps([now, os.getpid(), caller, handle, value]) + "\n"
    with open(_FILE.parent / "calls", "ab", buffering=0) as log:
        log.write(call.encode())


def _compute_energy_mj(index):
    """Total-energy counter in millijoules."""
    counted, at = _read_state(index, "energy")
    return counted + 1000 * _compute_mean_power_w(index) * (time.time() - at)


def _get_top_clock(index):
    return _read_board()["gpus"][index]["graphics"][-1]


def _get_clock(index, *_):
    locked = _read_state(index, "sm_lock")
    return min(_get_top_clock(index), locked[1]) if locked else _get_top_clock(index)


def _compute_busy(index):
    """Index of a board: 0 or 1."""
    period = 2.0 * (0.5 + 0.5 * _get_top_clock(index) / _get_clock(index))
    return 1.0 if math.fmod(time.time(), period) < 0.7 * period else 0.0


def _compute_power_w(index, busy):
    share = _get_clock(index) / _get_top_clock(index)
    return min(60.0 + 240.0 * share**2.4 * (0.3 + 0.7 * busy), _read_state(index, "limit_mw") / 1000)


def _compute_mean_power_w(index):
    return 0.7 * _compute_power_w(index, 1.0) + 0.3 * _compute_power_w(index, 0.0)


@_fail_as_scripted
def nvmlInit():
    return None


@_fail_as_scripted
def nvmlShutdown():
    return None


@_fail_as_scripted
def nvmlSystemGetDriverVersion():
    return "570.86.15"


@_fail_as_scripted
def nvmlDeviceGetCount():
    return len(_read_board()["gpus"])


@_fail_as_scripted
def nvmlDeviceGetHandleByIndex(index):
    if _read_board()["gpus"][index].get("refused"):
        raise _real.NVMLError(_real.NVML_ERROR_NO_PERMISSION)
    return index


@_fail_as_scripted
def nvmlDeviceGetHandleByUUID(uuid):
    for index, gpu in enumerate(_read_board()["gpus"]):
        if gpu["uuid"] == uuid:
            return index
    raise _real.NVMLError(_real.NVML_ERROR_NOT_FOUND)


@_fail_as_scripted
def nvmlDeviceGetIndex(handle):
    return handle


def _register_reader(name, value):
    def read(handle, *_):
        return value(handle)

    read.__name__ = name
    globals()[name] = _fail_as_scripted(read)


def _register_field(name, value):
    _register_reader(name, lambda index: value(_read_board()["gpus"][index]))


class _Pci:
    def __init__(self, gpu):
        self.busId = f"0000{gpu['bus']}"


class _Utilization:
    def __init__(self, index):
        self.gpu = int(95 * _compute_busy(index))
        self.memory = int(40 * _compute_busy(index))


class _Process:
    def __init__(self, pid):
        self.pid = pid
        self.usedGpuMemory = None


_register_field("nvmlDeviceGetUUID", lambda gpu: gpu["uuid"])
_register_field("nvmlDeviceGetName", lambda gpu: gpu["name"])
_register_field("nvmlDeviceGetArchitecture", lambda gpu: gpu["arch"])
_register_field("nvmlDeviceGetPciInfo", _Pci)
_register_field("nvmlDeviceGetSupportedMemoryClocks", lambda gpu: gpu["memory"][::-1])
_register_field("nvmlDeviceGetSupportedGraphicsClocks", lambda gpu: gpu["graphics"][::-1])
_register_field("nvmlDeviceGetPowerManagementLimitConstraints", lambda gpu: gpu["limits_mw"])
_register_field("nvmlDeviceGetPowerManagementDefaultLimit", lambda gpu: gpu["default_mw"])
_register_field("nvmlDeviceGetComputeRunningProcesses", lambda gpu: [_Process(pid) for pid in gpu["pids"]])
_register_field("nvmlDeviceGetCurrentClocksEventReasons", lambda gpu: 0)
_register_field("nvmlDeviceGetMigMode", lambda gpu: gpu.get("mig", [0, 0]))
_register_reader("nvmlDeviceGetPowerManagementLimit", lambda index: _read_state(index, "limit_mw"))
_register_reader("nvmlDeviceGetEnforcedPowerLimit", lambda index: _read_state(index, "limit_mw"))
_register_reader("nvmlDeviceGetClockInfo", _get_clock)
_register_reader(
    "nvmlDeviceGetPowerUsage", lambda index: int(1000 * _compute_power_w(index, _compute_busy(index)))
)
_register_reader("nvmlDeviceGetUtilizationRates", _Utilization)
_register_reader("nvmlDeviceGetTotalEnergyConsumption", lambda index: int(_compute_energy_mj(index)))


@_fail_as_scripted
def nvmlDeviceGetFieldValues(handle, fields):
    """Instantaneous power, where the board has it; no other field."""
    if not _read_board()["gpus"][handle].get("instant"):
        raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)
    values = (_real.c_nvmlFieldValue_t * len(fields))()
    for slot, wanted in enumerate(fields):
        known = wanted == _real.NVML_FI_DEV_POWER_INSTANT
        values[slot].nvmlReturn = _real.NVML_SUCCESS if known else _real.NVML_ERROR_NOT_SUPPORTED
        values[slot].value.uiVal = int(1000 * _compute_power_w(handle, _compute_busy(handle)))
    return values


@_fail_as_scripted
def nvmlGpmQueryDeviceSupport(handle):
    raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)


@_fail_as_scripted
def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    _set_limit(handle, "sm_lock", [low, high], "nvmlDeviceSetGpuLockedClocks")


@_fail_as_scripted
def nvmlDeviceResetGpuLockedClocks(handle):
    _set_limit(handle, "sm_lock", None, "nvmlDeviceResetGpuLockedClocks")


@_fail_as_scripted
def nvmlDeviceSetMemoryLockedClocks(handle, low, high):
    _set_limit(handle, "memory_lock", [low, high], "nvmlDeviceSetMemoryLockedClocks")


@_fail_as_scripted
def nvmlDeviceResetMemoryLockedClocks(handle):
    _set_limit(handle, "memory_lock", None, "nvmlDeviceResetMemoryLockedClocks")


@_fail_as_scripted
def nvmlDeviceSetPowerManagementLimit(handle, milliwatts):
    _set_limit(handle, "limit_mw", milliwatts, "nvmlDeviceSetPowerManagementLimit")
