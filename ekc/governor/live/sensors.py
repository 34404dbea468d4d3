"""What a governor reads of one GPU: power, utilisation, clock, and on Hopper and later its counters (GPM).

Joules of a board: what its counter says, or where that says nothing, what its power readings come to.

Reads sensors again and again, in a thread of its own that takes little time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from ekc.devices.nvml.sensors import GpuSensors
from ekc.governor.samples import Values

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


STALL_S = 5.0
"""A counter that has not moved for so long while power was read stands still: they are updated within one."""


class BoardEnergy:
    """Of one board, from `add` to `add`: every recording is told, and the counter looked at after it.

    `counted` is the counter, None where the card tells none. It is not believed again once it stood still:
    what it left out is in no later count. `tell` gets one line then.
    """

    def __init__(
        self, read_counter_j: Callable[[], float | None], name: str, on_message: Callable[[str], None]
    ) -> None:
        self._read_counter_j, self._name, self._on_message = read_counter_j, name, on_message
        self._is_counter_trusted = True
        self._last_reading: tuple[float, float] | None = None
        """Second and watts of the last reading."""
        self._integrated_j = 0.0
        """By the readings, up to that one."""
        self._last_counter_j: float | None = None
        self._moved_s: float | None = None
        """When the counter was last seen to have moved, or first looked at."""
        self._offset_j = 0.0
        """The counter at that time, less what was drawn by the readings."""

    def compute_joules(self, now_s: float) -> float:
        """Up to now; only differences mean something."""
        if self._is_counter_trusted:
            self._update_counter(now_s)
        return self._offset_j + self._integrate_until(now_s)

    def add_readings(self, time_s: Values, power_w: Values) -> None:
        """What was read since the last time; NaN where a reading failed."""
        for at, watts in zip(time_s.tolist(), power_w.tolist(), strict=True):
            if watts >= 0:
                before, were = self._last_reading or (at, watts)
                self._integrated_j += 0.5 * (were + watts) * (at - before)
                self._last_reading = at, watts
        if self._is_counter_trusted and self._last_reading is not None:
            self._check_counter(self._last_reading[0])

    def _check_counter(self, at_s: float) -> None:
        if at_s - self._update_counter(at_s) < STALL_S:
            return
        self._is_counter_trusted = False
        why = (
            "counts no energy"
            if self._read_counter_j() is None
            else "has an energy counter that stands still"
        )
        self._on_message(f"{self._name} {why}; its power readings are added up instead")

    def _update_counter(self, at_s: float) -> float:
        """When the counter last moved; what is drawn is counted on from there."""
        counted = self._read_counter_j()
        if counted is not None and counted != self._last_counter_j:
            self._moved_s, self._last_counter_j = at_s, counted
            self._offset_j = counted - self._integrate_until(at_s)
        if self._moved_s is None:
            self._moved_s = at_s
        return self._moved_s

    def _integrate_until(self, at_s: float) -> float:
        """The last reading holds until the next one."""
        return self._integrated_j + (
            0.0 if self._last_reading is None else self._last_reading[1] * (at_s - self._last_reading[0])
        )


T = TypeVar("T")
MAX_CORE_SHARE = 0.005
"""Of one core: where readings cost more than this, they are made less often."""
EXIT_TIMEOUT_S = 1.0
"""A driver that does not answer is not waited for longer than this."""


class SensorSampler(Generic[T]):
    """`with Sampler(read, 0.1) as sampler: ...`; then `sampler.rows`: (second of the reading, what was read).

    A reading that comes late is not made up for. What `read` raises ends the sampling and stays in `failure`.
    `due_s`: when (by `time.monotonic`) the first reading may be made; afterwards, when the next one might.
    """

    def __init__(self, read: Callable[[], T], interval_s: float, due_s: float = 0.0) -> None:
        self.rows: list[tuple[float, T]] = []
        self.failure: Exception | None = None
        self.core_s = 0.0
        """Processor time of the readings."""
        self.due_s = due_s
        self._read_start_s: float | None = None
        """Since when a reading is under way."""
        self._read, self._interval_s = read, interval_s
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ekc-sampler", daemon=True)

    def compute_pending_s(self) -> float:
        """For how long a reading has been under way."""
        asked_s = self._read_start_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    def __enter__(self) -> SensorSampler[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_event.set()
        self._thread.join(max(0.0, EXIT_TIMEOUT_S - self.compute_pending_s()))

    def _run(self) -> None:
        begun = time.thread_time()
        self.due_s = max(self.due_s, time.monotonic())
        try:
            while not self._stop_event.wait(max(0.0, self.due_s - time.monotonic())):
                self._read_start_s = before = time.monotonic()
                value = self._read()
                self._read_start_s = None
                self.rows.append((0.5 * (before + time.monotonic()), value))
                self.core_s = time.thread_time() - begun
                self.due_s = max(self.due_s + self._compute_spacing_s(), time.monotonic())
        except Exception as problem:  # Whoever waits for the rows raises it.
            self.failure = problem

    def _compute_spacing_s(self) -> float:
        return max(self._interval_s, self.core_s / len(self.rows) / MAX_CORE_SHARE)
