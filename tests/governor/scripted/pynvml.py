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
_OTHERS = (Path(entry or ".") / "pynvml.py" for entry in sys.path)
_REAL = next(path for path in _OTHERS if path.is_file() and path.parent != _HERE)
_spec = importlib.util.spec_from_file_location("real_pynvml", _REAL)
_real = importlib.util.module_from_spec(_spec)
sys.modules["real_pynvml"] = _real
_spec.loader.exec_module(_real)
globals().update({name: getattr(_real, name) for name in dir(_real) if name.startswith("NVML")})
nvmlClocksEventReasonNone = 0
_FILE = Path(os.environ["EKC_SCRIPTED_GPU"])
_seen = (-1, None)


def _board():
    """The file, read anew only when it changed."""
    global _seen
    changed = _FILE.stat().st_mtime_ns
    if changed != _seen[0]:
        _seen = (changed, json.loads(_FILE.read_text()))
    return _seen[1]


def _answers(function):
    """Fails as the board's script says."""

    def call(*arguments):
        board = _board()
        code = board["fail"].get(function.__name__)
        if board["lost"] and arguments:
            code = _real.NVML_ERROR_GPU_IS_LOST
        if code is not None:
            raise _real.NVMLError(code)
        return function(*arguments)

    call.__name__ = function.__name__
    return call


def _state(index, name):
    return json.loads((_FILE.parent / f"{index}.{name}").read_text())


def _store(index, name, value):
    fresh = _FILE.parent / f"{index}.{name}.{os.getpid()}.{threading.get_ident()}"
    fresh.write_text(json.dumps(value))
    fresh.replace(_FILE.parent / f"{index}.{name}")


def _put(handle, name, value, caller):
    now = time.time()
    _store(handle, "energy", [_energy(handle), now])
    _store(handle, name, value)
    call = json.dumps([now, os.getpid(), caller, handle, value]) + "\n"
    with open(_FILE.parent / "calls", "ab", buffering=0) as log:
        log.write(call.encode())


def _energy(index):
    """Millijoules."""
    counted, at = _state(index, "energy")
    return counted + 1000 * _mean_power(index) * (time.time() - at)


def _fastest(index):
    return _board()["gpus"][index]["graphics"][-1]


def _clock(index, *_):
    locked = _state(index, "sm_lock")
    return min(_fastest(index), locked[1]) if locked else _fastest(index)


def _wave(index):
    """0 or 1."""
    period = 2.0 * (0.5 + 0.5 * _fastest(index) / _clock(index))
    return 1.0 if math.fmod(time.time(), period) < 0.7 * period else 0.0


def _power(index, busy):
    share = _clock(index) / _fastest(index)
    return min(60.0 + 240.0 * share**2.4 * (0.3 + 0.7 * busy), _state(index, "limit_mw") / 1000)


def _mean_power(index):
    return 0.7 * _power(index, 1.0) + 0.3 * _power(index, 0.0)


@_answers
def nvmlInit():
    return None


@_answers
def nvmlShutdown():
    return None


@_answers
def nvmlSystemGetDriverVersion():
    return "570.86.15"


@_answers
def nvmlDeviceGetCount():
    return len(_board()["gpus"])


@_answers
def nvmlDeviceGetHandleByIndex(index):
    if _board()["gpus"][index].get("refused"):
        raise _real.NVMLError(_real.NVML_ERROR_NO_PERMISSION)
    return index


@_answers
def nvmlDeviceGetHandleByUUID(uuid):
    for index, gpu in enumerate(_board()["gpus"]):
        if gpu["uuid"] == uuid:
            return index
    raise _real.NVMLError(_real.NVML_ERROR_NOT_FOUND)


@_answers
def nvmlDeviceGetIndex(handle):
    return handle


def _reads(name, value):
    def read(handle, *_):
        return value(handle)

    read.__name__ = name
    globals()[name] = _answers(read)


def _tells(name, value):
    _reads(name, lambda index: value(_board()["gpus"][index]))


class _Pci:
    def __init__(self, gpu):
        self.busId = f"0000{gpu['bus']}"


class _Utilization:
    def __init__(self, index):
        self.gpu = int(95 * _wave(index))
        self.memory = int(40 * _wave(index))


class _Process:
    def __init__(self, pid):
        self.pid = pid
        self.usedGpuMemory = None


_tells("nvmlDeviceGetUUID", lambda gpu: gpu["uuid"])
_tells("nvmlDeviceGetName", lambda gpu: gpu["name"])
_tells("nvmlDeviceGetArchitecture", lambda gpu: gpu["arch"])
_tells("nvmlDeviceGetPciInfo", _Pci)
_tells("nvmlDeviceGetSupportedMemoryClocks", lambda gpu: gpu["memory"][::-1])
_tells("nvmlDeviceGetSupportedGraphicsClocks", lambda gpu: gpu["graphics"][::-1])
_tells("nvmlDeviceGetPowerManagementLimitConstraints", lambda gpu: gpu["limits_mw"])
_tells("nvmlDeviceGetPowerManagementDefaultLimit", lambda gpu: gpu["default_mw"])
_tells("nvmlDeviceGetComputeRunningProcesses", lambda gpu: [_Process(pid) for pid in gpu["pids"]])
_tells("nvmlDeviceGetCurrentClocksEventReasons", lambda gpu: 0)
_tells("nvmlDeviceGetMigMode", lambda gpu: gpu.get("mig", [0, 0]))
_reads("nvmlDeviceGetPowerManagementLimit", lambda index: _state(index, "limit_mw"))
_reads("nvmlDeviceGetEnforcedPowerLimit", lambda index: _state(index, "limit_mw"))
_reads("nvmlDeviceGetClockInfo", _clock)
_reads("nvmlDeviceGetPowerUsage", lambda index: int(1000 * _power(index, _wave(index))))
_reads("nvmlDeviceGetUtilizationRates", _Utilization)
_reads("nvmlDeviceGetTotalEnergyConsumption", lambda index: int(_energy(index)))


@_answers
def nvmlDeviceGetFieldValues(handle, fields):
    """Instantaneous power alone, where the board has it."""
    if not _board()["gpus"][handle].get("instant"):
        raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)
    values = (_real.c_nvmlFieldValue_t * len(fields))()
    for slot, wanted in enumerate(fields):
        known = wanted == _real.NVML_FI_DEV_POWER_INSTANT
        values[slot].nvmlReturn = _real.NVML_SUCCESS if known else _real.NVML_ERROR_NOT_SUPPORTED
        values[slot].value.uiVal = int(1000 * _power(handle, _wave(handle)))
    return values


@_answers
def nvmlGpmQueryDeviceSupport(handle):
    raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)


@_answers
def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    _put(handle, "sm_lock", [low, high], "nvmlDeviceSetGpuLockedClocks")


@_answers
def nvmlDeviceResetGpuLockedClocks(handle):
    _put(handle, "sm_lock", None, "nvmlDeviceResetGpuLockedClocks")


@_answers
def nvmlDeviceSetMemoryLockedClocks(handle, low, high):
    _put(handle, "memory_lock", [low, high], "nvmlDeviceSetMemoryLockedClocks")


@_answers
def nvmlDeviceResetMemoryLockedClocks(handle):
    _put(handle, "memory_lock", None, "nvmlDeviceResetMemoryLockedClocks")


@_answers
def nvmlDeviceSetPowerManagementLimit(handle, milliwatts):
    _put(handle, "limit_mw", milliwatts, "nvmlDeviceSetPowerManagementLimit")
