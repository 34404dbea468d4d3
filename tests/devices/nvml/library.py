"""A scripted NVML within the process: the functions of pynvml that ekc calls, for scripted GPUs.

Error classes, constants and structures are those of the real package. `tests/governor/scripted/pynvml.py` is
the other one: for other processes, on the real clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pynvml

from tests.devices.nvml.card import ScriptedGpu


class ScriptedNvml:
    """In place of the module pynvml. `fails` holds NVML's error codes by function."""

    def __init__(self, *gpus: ScriptedGpu) -> None:
        self.gpus = gpus
        self.fails: dict[str, int] = {}
        self.cuda = 13000
        self.lost_from_s = float("inf")
        """On the GPUs' clock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("nvml"):
            return found
        if self.gpus[0].clock.seconds >= self.lost_from_s:
            return _failing(pynvml.NVML_ERROR_GPU_IS_LOST)
        return _failing(self.fails[name]) if name in self.fails else found

    def nvmlInit(self) -> None:
        return None

    def nvmlShutdown(self) -> None:
        return None

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.gpus[handle].card.capability

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        known = [f"GPU-{index}" for index in range(len(self.gpus))]
        if uuid not in known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return known.index(uuid)

    def nvmlDeviceIsMigDeviceHandle(self, handle: int) -> int:
        return 0

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:
        # Whether a driver refuses this is not written: nobody should have to know.
        return handle

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.gpus[handle].card.name

    def nvmlDeviceGetArchitecture(self, handle: int) -> int:
        return self.gpus[handle].card.arch

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.gpus[handle].card.mig)] * 2

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        gpu = self.gpus[handle]
        if not gpu.card.counts:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu.counter_mj()

    def nvmlDeviceGetFieldValues(self, handle: int, fields: Sequence[int]) -> Any:
        gpu = self.gpus[handle]
        if not gpu.card.instantaneous:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for slot, wanted in enumerate(fields):
            known = wanted == pynvml.NVML_FI_DEV_POWER_INSTANT
            values[slot].nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            values[slot].value.uiVal = round(1000 * gpu.instant_w())
        return values

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return round(1000 * self.gpus[handle].mean_w())

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return 51

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        assert kind == pynvml.NVML_CLOCK_SM
        return 1410

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self.gpus[handle].card.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.gpus[handle].card.reasons

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        cap = self.gpus[handle].card.cap_mw
        if cap is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return cap


def _failing(code: int) -> Any:
    def fail(*_: Any) -> None:
        raise pynvml.NVMLError(code)

    return fail
