"""What a governor reads of one GPU: power, utilisation, clock, and on Hopper and later its counters (GPM)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ekc.devices.nvml.sensors import GpuSensors

INSTANT_WINDOW_S = 0.1
"""Window of a power reading that is no mean."""
_NAN = float("nan")
_COUNTERS = {
    "sm_active": ("NVML_GPM_METRIC_SM_UTIL",),
    "dram": ("NVML_GPM_METRIC_DRAM_BW_UTIL",),
    "tensor": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL",),
    "fma": ("NVML_GPM_METRIC_FP64_UTIL", "NVML_GPM_METRIC_FP32_UTIL", "NVML_GPM_METRIC_FP16_UTIL"),
}
"""Each the sum of these metrics."""

NvmlReading = tuple[float, float, float, float]
"""Watts, SM and memory utilisation in percent, SM clock in MHz; NaN where the card did not tell."""


class GovernorSensors:
    """The sensors of one GPU, named by its UUID. Raises `ActuatorError` where there is none or it is lost."""

    def __init__(self, uuid: str) -> None:
        self._sensors = GpuSensors(uuid)
        self._library = self._sensors.library
        self.name = self._sensors.name
        self.sensor_s = self._sensors.averaging_s or INSTANT_WINDOW_S

    @property
    def problem(self) -> str:
        """Why the last reading that failed did."""
        return self._sensors.last_problem

    def read_sensors(self) -> NvmlReading:
        """What the sensors tell now."""
        watts = self._sensors.power_w()
        use = self._sensors.query("nvmlDeviceGetUtilizationRates")
        sm, memory = (_NAN, _NAN) if use is None else (float(use.gpu), float(use.memory))
        return watts, sm, memory, self._sensors.clock_mhz()

    def read_limit_w(self) -> float:
        """The power cap in force; NaN where the card has none."""
        cap = self._sensors.power_cap_w()
        return _NAN if cap is None else cap

    def read_counter_j(self) -> float | None:
        """The board's total-energy counter (Volta and later); None where it has none."""
        counted = self._sensors.counter_mj()
        return None if counted is None else counted / 1000.0

    def read_counters(self, wait: Callable[[], None]) -> dict[str, float] | None:
        """Their means while `wait` waits; None where the card or a permission lacks."""
        support = self._sensors.query("nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return None
        samples = [self._library.nvmlGpmSampleAlloc() for _ in range(2)]
        try:
            if self._sensors.query("nvmlGpmSampleGet", samples[0]) is None:
                return None
            wait()
            if self._sensors.query("nvmlGpmSampleGet", samples[1]) is None:
                return None
            return self._compute_counters(*samples)
        finally:
            for sample in samples:
                self._library.nvmlGpmSampleFree(sample)

    def _compute_counters(self, first: Any, second: Any) -> dict[str, float] | None:
        names = [name for parts in _COUNTERS.values() for name in parts]
        wanted = self._library.c_nvmlGpmMetricsGet_t()
        wanted.version = self._library.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics, wanted.sample1, wanted.sample2 = len(names), first, second
        for slot, name in enumerate(names):
            wanted.metrics[slot].metricId = getattr(self._library, name)
        try:
            told = self._library.nvmlGpmMetricsGet(wanted)
        except self._library.NVMLError as problem:
            self._sensors.record_failure("nvmlGpmMetricsGet", problem)
            return None
        slots = {name: told.metrics[slot] for slot, name in enumerate(names)}
        if any(slot.nvmlReturn != self._library.NVML_SUCCESS for slot in slots.values()):
            return None
        return {key: min(100.0, sum(slots[p].value for p in parts)) for key, parts in _COUNTERS.items()}
