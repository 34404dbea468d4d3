"""Sensors of one GPU: power, utilisation, clock, energy, and on Hopper and later its counters (GPM).

`GovernorSensors` reads them, `BoardEnergy` has the joules of the board from its counter or from power
readings, and `SensorSampler` reads repeatedly in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ekc.devices.nvml.sensors import GpuSensors
from ekc.governor.samples import Values

INSTANT_WINDOW_S = 0.1
"""Averaging window in seconds that is assumed for an instantaneous power reading."""
_NAN = float("nan")
_COUNTERS = {
    "sm_active": ("NVML_GPM_METRIC_SM_UTIL",),
    "dram": ("NVML_GPM_METRIC_DRAM_BW_UTIL",),
    "tensor": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL",),
    "fma": ("NVML_GPM_METRIC_FP64_UTIL", "NVML_GPM_METRIC_FP32_UTIL", "NVML_GPM_METRIC_FP16_UTIL"),
}
"""NVML metrics whose sum is each counter."""

NvmlReading = tuple[float, float, float, float]
"""(watts, SM use in percent, memory use in percent, SM clock in MHz); NaN where a reading failed."""


class GovernorSensors:
    """The sensors of one GPU, named by its UUID. Raises `ActuatorError` where there is none or it is lost."""

    def __init__(self, uuid: str) -> None:
        self._sensors = GpuSensors(uuid)
        self._library = self._sensors.library
        self.name = self._sensors.name
        self.sensor_s = self._sensors.averaging_s or INSTANT_WINDOW_S

    @property
    def problem(self) -> str:
        """Reason of the last failed reading."""
        return self._sensors.last_problem

    def read_sensors(self) -> NvmlReading:
        """Read all sensors now."""
        watts = self._sensors.power_w()
        use = self._sensors.query("nvmlDeviceGetUtilizationRates")
        sm, memory = (_NAN, _NAN) if use is None else (float(use.gpu), float(use.memory))
        return watts, sm, memory, self._sensors.clock_mhz()

    def read_limit_w(self) -> float:
        """Power cap in force; NaN where the card has none."""
        cap = self._sensors.power_cap_w()
        return _NAN if cap is None else cap

    def read_counter_j(self) -> float | None:
        """Total-energy counter of the board (Volta and later); None where it has none."""
        counter_mj = self._sensors.counter_mj()
        return None if counter_mj is None else counter_mj / 1000.0

    def read_counters(self, wait: Callable[[], None]) -> dict[str, float] | None:
        """Mean counters while `wait` waits; None where the card has none or permission is missing."""
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
        request = self._library.c_nvmlGpmMetricsGet_t()
        request.version = self._library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics, request.sample1, request.sample2 = len(names), first, second
        for slot, name in enumerate(names):
            request.metrics[slot].metricId = getattr(self._library, name)
        try:
            answer = self._library.nvmlGpmMetricsGet(request)
        except self._library.NVMLError as problem:
            self._sensors.record_failure("nvmlGpmMetricsGet", problem)
            return None
        slots = {name: answer.metrics[slot] for slot, name in enumerate(names)}
        if any(slot.nvmlReturn != self._library.NVML_SUCCESS for slot in slots.values()):
            return None
        return {key: min(100.0, sum(slots[p].value for p in parts)) for key, parts in _COUNTERS.items()}


STALL_S = 5.0
"""Seconds without a change after which the energy counter counts as stopped; cards update it every second."""


class BoardEnergy:
    """Joules of one board. Every recording is added by `add_readings`, which then checks the counter.

    `read_counter_j` is the counter, None where the card has none. A counter that stopped once is never used
    again, since the energy that it missed is in no later count; power readings are integrated instead, and
    `on_message` gets one line.
    """

    def __init__(
        self, read_counter_j: Callable[[], float | None], name: str, on_message: Callable[[str], None]
    ) -> None:
        self._read_counter_j, self._name, self._on_message = read_counter_j, name, on_message
        self._is_counter_trusted = True
        self._last_reading: tuple[float, float] | None = None
        """(time in seconds, watts) of the last power reading."""
        self._integrated_j = 0.0
        """Integral of the power readings up to the last one."""
        self._last_counter_j: float | None = None
        self._moved_s: float | None = None
        """Time at which the counter last changed, or was first read."""
        self._offset_j = 0.0
        """The counter at that time, less the integral of the readings."""

    def compute_joules(self, now_s: float) -> float:
        """Joules up to now; only differences have a meaning."""
        if self._is_counter_trusted:
            self._update_counter(now_s)
        return self._offset_j + self._integrate_until(now_s)

    def add_readings(self, time_s: Values, power_w: Values) -> None:
        """Add the power readings since the last call; NaN where a reading failed."""
        for at_s, watts in zip(time_s.tolist(), power_w.tolist(), strict=True):
            if watts >= 0:
                last_s, last_w = self._last_reading or (at_s, watts)
                self._integrated_j += 0.5 * (last_w + watts) * (at_s - last_s)
                self._last_reading = at_s, watts
        if self._is_counter_trusted and self._last_reading is not None:
            self._check_counter(self._last_reading[0])

    def _check_counter(self, at_s: float) -> None:
        if at_s - self._update_counter(at_s) < STALL_S:
            return
        self._is_counter_trusted = False
        has_counter = self._read_counter_j() is not None
        why = "has an energy counter that has stopped" if has_counter else "counts no energy"
        self._on_message(f"{self._name} {why}; its power readings are added up instead")

    def _update_counter(self, at_s: float) -> float:
        """Read the counter; the time at which it last changed, from which readings are integrated."""
        counter_j = self._read_counter_j()
        if counter_j is not None and counter_j != self._last_counter_j:
            self._moved_s, self._last_counter_j = at_s, counter_j
            self._offset_j = counter_j - self._integrate_until(at_s)
        if self._moved_s is None:
            self._moved_s = at_s
        return self._moved_s

    def _integrate_until(self, at_s: float) -> float:
        """Integral of power up to a time; the last reading continues until the next one."""
        last_s, last_w = self._last_reading or (at_s, 0.0)
        return self._integrated_j + last_w * (at_s - last_s)


T = TypeVar("T")
MAX_CORE_SHARE = 0.005
"""Largest share of one core for readings; expensive readings are made less often."""
EXIT_TIMEOUT_S = 1.0
"""Longest wait in seconds for a driver that does not answer."""


class SensorSampler(Generic[T]):
    """Reads in a thread: `with SensorSampler(read, 0.1) as sampler: ...`, then `sampler.rows` has (time,
    value) rows.

    Late readings are not repeated. An exception of `read` ends the sampling and is kept in `failure`.
    `due_s`: time (by `time.monotonic`) of the first reading; afterwards, of the next one.
    """

    def __init__(self, read: Callable[[], T], interval_s: float, due_s: float = 0.0) -> None:
        self.rows: list[tuple[float, T]] = []
        self.failure: Exception | None = None
        self.core_s = 0.0
        """Processor seconds of the readings."""
        self.due_s = due_s
        self._read_start_s: float | None = None
        """Start of the reading in progress; None between readings."""
        self._read, self._interval_s = read, interval_s
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ekc-sampler", daemon=True)

    def compute_pending_s(self) -> float:
        """Seconds since the start of the reading in progress; 0 between readings."""
        start_s = self._read_start_s
        return 0.0 if start_s is None else time.monotonic() - start_s

    def __enter__(self) -> SensorSampler[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self._thread.join(max(0.0, EXIT_TIMEOUT_S - self.compute_pending_s()))

    def _run(self) -> None:
        start_core_s = time.thread_time()
        self.due_s = max(self.due_s, time.monotonic())
        try:
            while not self._stop_event.wait(max(0.0, self.due_s - time.monotonic())):
                self._read_start_s = before = time.monotonic()
                value = self._read()
                self._read_start_s = None
                self.rows.append((0.5 * (before + time.monotonic()), value))
                self.core_s = time.thread_time() - start_core_s
                self.due_s = max(self.due_s + self._compute_spacing_s(), time.monotonic())
        except Exception as problem:  # The thread that uses the rows raises it.
            self.failure = problem

    def _compute_spacing_s(self) -> float:
        return max(self._interval_s, self.core_s / len(self.rows) / MAX_CORE_SHARE)
