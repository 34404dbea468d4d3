"""A scripted NVML: the functions of pynvml that ekc calls to read GPUs, for scripted GPUs.

`ScriptedNvml` takes the place of the module pynvml within this process, with GPUs on a virtual clock
(`card.py`). `process/pynvml.py` extends it for other processes, with GPUs in files on the real clock
(`boards.py`). Error classes, constants and structures are those of the real package.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any


class ScriptedNvml:
    """In place of the module pynvml. A GPU has the attributes of `card.Card` and the readings of
    `card.ScriptedGpu`."""

    def __init__(self, *gpus: Any, real: Any = None) -> None:
        self.real = real or importlib.import_module("pynvml")
        self.gpus: Sequence[Any] = gpus
        self.fails: dict[str, int] = {}
        """NVML error codes by function."""
        self.cuda = 13000
        self.lost_from_s = float("inf")
        """Time on the clock of the GPUs from which every call fails."""
        for name in dir(type(self)):
            if name.startswith("nvml"):
                setattr(self, name, partial(self.call, name, getattr(self, name)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "c_nvml", "nvmlClocks")):
            return getattr(self.real, name)
        raise AttributeError(name)

    def call(self, name: str, function: Any, *arguments: Any) -> Any:
        """Call a function of NVML, or fail as scripted."""
        code = self.find_failure(name, arguments)
        if code is not None:
            raise self.real.NVMLError(code)
        return function(*arguments)

    def find_failure(self, function: str, arguments: Sequence[Any]) -> int | None:
        """The error code of a call; None for a call that succeeds."""
        if self.gpus[0].clock.seconds >= self.lost_from_s:
            return int(self.real.NVML_ERROR_GPU_IS_LOST)
        return self.fails.get(function)

    def nvmlInit(self) -> None:
        return None

    def nvmlShutdown(self) -> None:
        return None

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        uuids = [self.nvmlDeviceGetUUID(index) for index in range(len(self.gpus))]
        if uuid not in uuids:
            raise self.real.NVMLError(self.real.NVML_ERROR_NOT_FOUND)
        return uuids.index(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self.gpus[handle].card.name)

    def nvmlDeviceGetArchitecture(self, handle: int) -> int:
        return int(self.gpus[handle].card.arch)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> Any:
        return self.gpus[handle].card.capability

    def nvmlDeviceIsMigDeviceHandle(self, handle: int) -> int:
        return 0

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:
        # NVML does not document whether this call may be refused.
        return handle

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.gpus[handle].card.mig)] * 2

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        gpu = self.gpus[handle]
        if not gpu.card.counts:
            raise self.real.NVMLError(self.real.NVML_ERROR_NOT_SUPPORTED)
        return int(gpu.counter_mj())

    def nvmlDeviceGetFieldValues(self, handle: int, fields: Sequence[int]) -> Any:
        """Instantaneous power alone, where the card has it."""
        gpu = self.gpus[handle]
        if not gpu.card.instantaneous:
            raise self.real.NVMLError(self.real.NVML_ERROR_NOT_SUPPORTED)
        values = (self.real.c_nvmlFieldValue_t * len(fields))()
        for slot, field in enumerate(fields):
            is_power = field == self.real.NVML_FI_DEV_POWER_INSTANT
            values[slot].nvmlReturn = (
                self.real.NVML_SUCCESS if is_power else self.real.NVML_ERROR_NOT_SUPPORTED
            )
            values[slot].value.uiVal = round(1000 * gpu.instant_w())
        return values

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return round(1000 * self.gpus[handle].mean_w())

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == self.real.NVML_TEMPERATURE_GPU
        return 51

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        if kind == self.real.NVML_CLOCK_MEM:
            return int(self.gpus[handle].card.memory_mhz)
        assert kind == self.real.NVML_CLOCK_SM
        return int(self.gpus[handle].card.clock_mhz)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return int(self.gpus[handle].card.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return int(self.gpus[handle].card.reasons)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        cap = self.gpus[handle].card.cap_mw
        if cap is None:
            raise self.real.NVMLError(self.real.NVML_ERROR_NOT_SUPPORTED)
        return int(cap)
