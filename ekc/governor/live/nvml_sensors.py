"""What NVML reads of one GPU: power, utilisation, clock, and on Hopper and later its counters (GPM).

Power is the instantaneous reading (field 186) where the card has it. Where it has not,
`nvmlDeviceGetPowerUsage` is a mean over one second on Ampere and later, except on the GA100 (NVML's
documentation of that call), and instantaneous before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ekc.errors import ActuatorError
from ekc.governor.actuators.nvml_board import NvmlBoard

INSTANT_S, MEAN_S = 0.1, 1.0
"""Windows of the two kinds of power readings."""
_AMPERE = 7
_GA100 = re.compile(r"\b(A100|A800|A30)\b")
_NAN = float("nan")
_COUNTERS = {
    "sm_active": ("NVML_GPM_METRIC_SM_UTIL",),
    "dram": ("NVML_GPM_METRIC_DRAM_BW_UTIL",),
    "tensor": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL",),
    "fma": ("NVML_GPM_METRIC_FP64_UTIL", "NVML_GPM_METRIC_FP32_UTIL", "NVML_GPM_METRIC_FP16_UTIL"),
}
"""Each the sum of these metrics."""

Reading = tuple[float, float, float, float]
"""Watts, SM and memory utilisation in percent, SM clock in MHz; NaN where the card did not tell."""


class NvmlSensors:
    """The sensors of one GPU, named by its UUID. Raises `ActuatorError` where there is none or it is lost."""

    def __init__(self, uuid: str) -> None:
        self._board = NvmlBoard(uuid)
        self._library = self._board.library
        self.name = self._board.name
        self.problem = ""
        """Why the last reading that failed did."""
        self._instant = not math.isnan(self._instant_w())
        self.sensor_s = INSTANT_S if self._instant or not self._averages() else MEAN_S

    def read(self) -> Reading:
        """What the sensors tell now."""
        watts = self._instant_w() if self._instant else self._mean_w()
        use = self._ask("nvmlDeviceGetUtilizationRates")
        clock = self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM)
        sm, memory = (_NAN, _NAN) if use is None else (float(use.gpu), float(use.memory))
        return watts, sm, memory, _NAN if clock is None else float(clock)

    def limit_w(self) -> float:
        """The power cap in force; NaN where the card has none."""
        cap = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return _NAN if cap is None else cap / 1000.0

    def energy_j(self) -> float:
        """The board's total-energy counter (Volta and later)."""
        counted = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if counted is None:
            raise ActuatorError(f"{self.name} counts no energy: {self.problem}")
        return float(counted) / 1000.0

    def counters(self, wait: Callable[[], None]) -> dict[str, float] | None:
        """Their means while `wait` waits; None where the card or a permission lacks."""
        support = self._ask("nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return None
        samples = [self._library.nvmlGpmSampleAlloc() for _ in range(2)]
        try:
            if self._ask("nvmlGpmSampleGet", samples[0]) is None:
                return None
            wait()
            if self._ask("nvmlGpmSampleGet", samples[1]) is None:
                return None
            return self._between(*samples)
        finally:
            for sample in samples:
                self._library.nvmlGpmSampleFree(sample)

    def _between(self, first: Any, second: Any) -> dict[str, float] | None:
        names = [name for parts in _COUNTERS.values() for name in parts]
        wanted = self._library.c_nvmlGpmMetricsGet_t()
        wanted.version = self._library.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics, wanted.sample1, wanted.sample2 = len(names), first, second
        for slot, name in enumerate(names):
            wanted.metrics[slot].metricId = getattr(self._library, name)
        try:
            told = self._library.nvmlGpmMetricsGet(wanted)
        except self._library.NVMLError as problem:
            self._failed("nvmlGpmMetricsGet", problem)
            return None
        slots = {name: told.metrics[slot] for slot, name in enumerate(names)}
        if any(slot.nvmlReturn != self._library.NVML_SUCCESS for slot in slots.values()):
            return None
        return {key: min(100.0, sum(slots[p].value for p in parts)) for key, parts in _COUNTERS.items()}

    def _instant_w(self) -> float:
        fields = self._ask("nvmlDeviceGetFieldValues", [self._library.NVML_FI_DEV_POWER_INSTANT])
        if fields is None or fields[0].nvmlReturn != self._library.NVML_SUCCESS:
            return _NAN
        return float(fields[0].value.uiVal) / 1000.0

    def _mean_w(self) -> float:
        told = self._ask("nvmlDeviceGetPowerUsage")
        return _NAN if told is None else told / 1000.0

    def _averages(self) -> bool:
        """Whether `nvmlDeviceGetPowerUsage` is a mean here; yes where the architecture is not told."""
        arch = self._ask("nvmlDeviceGetArchitecture")
        return (arch is None or arch >= _AMPERE) and not _GA100.search(self.name)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """None where the call failed."""
        try:
            return getattr(self._library, function)(self._board.handle, *arguments)
        except self._library.NVMLError as problem:
            return self._failed(function, problem)

    def _failed(self, function: str, problem: Any) -> None:
        self.problem = f"{function}: {problem}"
        if problem.value == self._library.NVML_ERROR_GPU_IS_LOST:
            raise ActuatorError(f"{self.name}, {self.problem}; reset it or restart the machine") from problem
