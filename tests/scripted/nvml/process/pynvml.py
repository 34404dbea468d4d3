"""The scripted NVML for other processes: with this folder on PYTHONPATH, `import pynvml` gives scripted
boards.

The boards are in the JSON file that EKC_SCRIPTED_GPU names. Limits that are set are one file each beside it,
so that no process can be stopped or killed between reading and writing. `boards.py` makes and reads these
files. Power is a square wave with a period of two seconds or more, which depends on the SM clock: scripted,
not simulated.
"""

import importlib.util
import json
import math
import os
import random
import sys
import threading
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

_HERE = Path(__file__).parent
_FILE = Path(os.environ["EKC_SCRIPTED_GPU"])
_read_boards_at = cache(lambda modified_ns: json.loads(_FILE.read_text()))


def _load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _find_real_pynvml():
    candidates = (Path(entry or ".") / "pynvml.py" for entry in sys.path)
    return next(path for path in candidates if path.is_file() and path.parent != _HERE)


def _read_boards():
    """The script of all boards, parsed again only when the file has changed."""
    return _read_boards_at(_FILE.stat().st_mtime_ns)


def _read_state(index, name):
    return json.loads((_FILE.parent / f"{index}.{name}").read_text())


def _write_state(index, name, value):
    fresh = _FILE.parent / f"{index}.{name}.{os.getpid()}.{threading.get_ident()}"
    fresh.write_text(json.dumps(value))
    fresh.replace(_FILE.parent / f"{index}.{name}")


class _FileGpu:
    """One board: script and state from its files, power by the real clock. It is its own `card`."""

    counts, capability = True, (8, 6)

    def __init__(self, index):
        self.index, self.card = index, self

    @property
    def script(self):
        return _read_boards()["gpus"][self.index]

    name = property(lambda self: self.script["name"])
    arch = property(lambda self: self.script["arch"])
    mig = property(lambda self: self.script.get("mig", [0])[0])
    instantaneous = property(lambda self: self.script.get("instant", False))
    cap_mw = property(lambda self: _read_state(self.index, "limit_mw"))
    reasons = property(lambda self: self.script.get("reasons", 0))
    top_mhz = property(lambda self: self.script["graphics"][-1])

    @property
    def clock_mhz(self):
        lock = _read_state(self.index, "sm_lock")
        return min(self.top_mhz, lock[1]) if lock else self.top_mhz

    @property
    def memory_mhz(self):
        lock = _read_state(self.index, "memory_lock")
        return min(self.script["memory"][-1], lock[1]) if lock else self.script["memory"][-1]

    def is_busy(self):
        period = 2.0 * (0.5 + 0.5 * self.top_mhz / self.clock_mhz)
        return math.fmod(time.time(), period) < 0.7 * period

    def compute_power_w(self, busy):
        share = self.clock_mhz / self.top_mhz
        return min(60.0 + 240.0 * share**2.4 * (0.3 + 0.7 * busy), self.cap_mw / 1000)

    def instant_w(self):
        return self.compute_power_w(float(self.is_busy()))

    mean_w = instant_w

    def counter_mj(self):
        mean_w = 0.7 * self.compute_power_w(1.0) + 0.3 * self.compute_power_w(0.0)
        counted, at = _read_state(self.index, "energy")
        return counted + 1000 * mean_w * (time.time() - at)

    def set_limit(self, caller, name, value):
        now = time.time()
        _write_state(self.index, "energy", [self.counter_mj(), now])
        _write_state(self.index, name, value)
        call = json.dumps([now, os.getpid(), caller, self.index, value]) + "\n"
        with open(_FILE.parent / "calls", "ab", buffering=0) as log:
            log.write(call.encode())


# By its path: a process of a test may have another folder named tests on its path.
_library = _load_module("scripted_nvml_library", _HERE.parent / "library.py")


class _ProcessNvml(_library.ScriptedNvml):
    """The scripted NVML over the files, with the functions that set limits or look at other processes."""

    def call(self, name, function, *arguments):
        """As scripted by `trouble`: a share of the calls fails, from and until some time, of all functions
        or of those that set limits; with `takes_effect` a limit is set first."""
        trouble = _read_boards().get("trouble")
        if trouble and trouble["from"] <= time.time() < trouble["until"]:
            is_setting = name.startswith(("nvmlDeviceSet", "nvmlDeviceReset"))
            if (is_setting or not trouble["only_set"]) and random.random() < trouble["share"]:
                if is_setting and trouble["takes_effect"]:
                    function(*arguments)
                raise self.real.NVMLError(trouble["code"])
        return super().call(name, function, *arguments)

    def find_failure(self, function, arguments):
        boards = _read_boards()
        while function in boards.get("hang", []) and boards["hanging_pid"] == os.getpid():
            time.sleep(0.02)
            boards = _read_boards()
        if boards["lost"] and arguments:
            return self.real.NVML_ERROR_GPU_IS_LOST
        is_setting = function.startswith(("nvmlDeviceSet", "nvmlDeviceReset"))
        if is_setting and boards.get("root_only") and os.geteuid() != 0:
            return self.real.NVML_ERROR_NO_PERMISSION
        return boards["fail"].get(function)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index].script.get("refused"):
            raise self.real.NVMLError(self.real.NVML_ERROR_NO_PERMISSION)
        return index

    def nvmlDeviceGetUUID(self, handle):
        return self.gpus[handle].script["uuid"]

    def nvmlDeviceGetMinorNumber(self, handle):
        return self.gpus[handle].script.get("minor", handle)

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"0000{self.gpus[handle].script['bus']}")

    def nvmlDeviceGetSupportedMemoryClocks(self, handle):
        return self.gpus[handle].script["memory"][::-1]

    def nvmlDeviceGetSupportedGraphicsClocks(self, handle, memory_mhz):
        return self.gpus[handle].script["graphics"][::-1]

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle):
        return self.gpus[handle].script["limits_mw"]

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):
        return self.gpus[handle].script["default_mw"]

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return self.gpus[handle].cap_mw

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.gpus[handle].script["pids"]]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle):
        pids = self.gpus[handle].script.get("mps_pids", [])
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]

    def nvmlDeviceGetUtilizationRates(self, handle):
        busy = self.gpus[handle].is_busy()
        return SimpleNamespace(gpu=95 * busy, memory=40 * busy)

    def nvmlGpmQueryDeviceSupport(self, handle):
        raise self.real.NVMLError(self.real.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceSetGpuLockedClocks(self, handle, low, high):
        self.gpus[handle].set_limit("nvmlDeviceSetGpuLockedClocks", "sm_lock", [low, high])

    def nvmlDeviceResetGpuLockedClocks(self, handle):
        self.gpus[handle].set_limit("nvmlDeviceResetGpuLockedClocks", "sm_lock", None)

    def nvmlDeviceSetMemoryLockedClocks(self, handle, low, high):
        self.gpus[handle].set_limit("nvmlDeviceSetMemoryLockedClocks", "memory_lock", [low, high])

    def nvmlDeviceResetMemoryLockedClocks(self, handle):
        self.gpus[handle].set_limit("nvmlDeviceResetMemoryLockedClocks", "memory_lock", None)

    def nvmlDeviceSetPowerManagementLimit(self, handle, milliwatts):
        self.gpus[handle].set_limit("nvmlDeviceSetPowerManagementLimit", "limit_mw", milliwatts)


_nvml = _ProcessNvml(
    *(_FileGpu(index) for index in range(len(_read_boards()["gpus"]))),
    real=_load_module("real_pynvml", _find_real_pynvml()),
)


def __getattr__(name):
    return getattr(_nvml, name)
