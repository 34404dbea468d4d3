"""Readings of the sensors of one GPU: power, utilisation, clock and energy.

`BoardEnergy` has the joules of the board from its counter or from power readings, and `SensorSampler` reads
repeatedly in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ekc.devices.metering.checked_energy import MAX_BOARD_W, CheckedEnergy
from ekc.devices.nvml.sensors import GpuSensors
from ekc.governor.samples import Values

INSTANT_WINDOW_S = 0.1
"""Averaging window in seconds that is assumed for an instantaneous power reading."""
_NAN = float("nan")

NvmlReading = tuple[float, float, float, float]
"""(watts, SM use in percent, memory use in percent, SM clock in MHz); NaN where a reading failed."""


def read_sensors(sensors: GpuSensors) -> NvmlReading:
    """Read all sensors now."""
    watts, use = sensors.power_w(), sensors.poll("nvmlDeviceGetUtilizationRates")
    sm, memory = (_NAN, _NAN) if use is None else (float(use.gpu), float(use.memory))
    return watts, sm, memory, sensors.clock_mhz()


def read_counter_j(sensors: GpuSensors) -> float | None:
    """Total-energy counter of the board (Volta and later); None where it has none."""
    counter_mj = sensors.counter_mj()
    return None if counter_mj is None else counter_mj / 1000.0


STALL_S = 5.0
"""Seconds without a change after which the energy counter counts as stopped; cards update it every second."""


class BoardEnergy:
    """Joules of one board, by its counter as long as that agrees with the power readings
    (`ekc.devices.metering.checked_energy`), then by the readings; `on_message` gets one line.

    `read_counter_j` is the counter, None where the card has none or the reading failed. Every recording is
    added by `add_readings`. `read_max_power_w`: watts that the board draws at most, which a higher power cap
    raises.
    """

    def __init__(
        self,
        read_counter_j: Callable[[], float | None],
        name: str,
        on_message: Callable[[str], None],
        read_max_power_w: Callable[[], float] = lambda: MAX_BOARD_W,
    ) -> None:
        self._read_counter_j, self._name, self._on_message = read_counter_j, name, on_message
        self._read_max_power_w = read_max_power_w
        self._checked = CheckedEnergy(STALL_S, read_max_power_w())

    def compute_joules(self, now_s: float) -> float:
        """Joules up to now, never less than before; only differences have a meaning."""
        self._read_counter(now_s)
        return self._checked.compute_joules(now_s)

    def add_readings(self, time_s: Values, power_w: Values) -> None:
        """Add the power readings since the last call; NaN where a reading failed."""
        if (power_w > self._checked.max_power_w).any():
            self._checked.max_power_w = self._read_max_power_w()
        for at_s, watts in zip(time_s.tolist(), power_w.tolist(), strict=True):
            self._checked.add_power(at_s, watts)
        if len(time_s):
            self._read_counter(float(time_s[-1]))

    def _read_counter(self, at_s: float) -> None:
        if self._checked.problem:
            return
        self._checked.add_count(at_s, self._read_counter_j())
        if self._checked.problem:
            self._on_message(f"{self._name} {self._checked.problem}; its power readings are added up instead")


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
