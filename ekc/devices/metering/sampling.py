"""Readings of a board that runs: ticks of its energy counter, and the other sensors beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ekc.devices.metering.checked_energy import CheckedEnergy, compute_max_power_w

POLL_INTERVAL_S = 0.001
"""Seconds between two reads of the energy counter."""
READING_INTERVAL_S = 0.02
"""Seconds between two readings of instantaneous power; sensors refresh no faster."""
MIN_TICKS = 8
MIN_AVERAGING_PERIODS = 6
"""Averaging times of the power sensor that a window has, at least."""
STALL_S = 1.0
"""Seconds after which an unmoved counter counts as stalled; counters tick every 20 to 100 ms."""
MAX_FIRST_READS = 5
"""Reads of the counter that fail where the board has none; a single one also fails elsewhere."""


class BoardSensors(Protocol):
    """The sensors of a board. Power and energy are those of the whole board."""

    averaging_s: float
    """Averaging time of a power reading in seconds; 0 where readings are instantaneous."""

    def now_s(self) -> float:
        """Seconds of a steady clock."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def counter_mj(self) -> int | None:
        """Total energy in millijoules, which changes only on its own ticks; None without a counter."""

    def power_w(self) -> float:
        """Power in watts, as the sensor reports it; NaN where the reading failed."""

    def power_cap_w(self) -> float | None:
        """Power cap of the board in watts; None where the board has no cap or does not report it."""

    def temperature_c(self) -> float:
        """Temperature of the die in degrees Celsius."""

    def clock_mhz(self) -> float:
        """Present SM clock in MHz."""

    def throttle(self) -> tuple[str, ...]:
        """Reasons why the clock is lower than requested, if any."""


@dataclass(frozen=True)
class CounterTick:
    """One tick of the counter; its time is the middle between two reads."""

    time_s: float
    counter_mj: int


@dataclass(frozen=True)
class BoardReading:
    """Readings of the other sensors at one moment."""

    time_s: float
    power_w: float
    clock_mhz: float


@dataclass
class BoardLog:
    """Ticks and readings of one window."""

    ticks: list[CounterTick] = field(default_factory=list)
    readings: list[BoardReading] = field(default_factory=list)
    throttle: set[str] = field(default_factory=set)
    counter_problem: str = ""
    """Why the counter cannot be used; "" where it can."""

    def is_complete(self, length_s: float, averaging_s: float, min_ticks: int) -> bool:
        """Whether there are enough samples over a span that is long enough."""
        if self.counter_problem:
            least = max(length_s, MIN_AVERAGING_PERIODS * averaging_s)
            return bool(self.readings) and self.readings[-1].time_s - self.readings[0].time_s >= least
        return len(self.ticks) > min_ticks and self.ticks[-1].time_s - self.ticks[0].time_s >= length_s


def record_board(board: BoardSensors, length_s: float, min_ticks: int = MIN_TICKS) -> BoardLog:
    """Record the board from the first tick to the first one after `length_s` and `min_ticks`; for as long
    from the first reading where the counter is absent, or is wrong (`CheckedEnergy`)."""
    log, energy = BoardLog(), CheckedEnergy(STALL_S, compute_max_power_w(board.power_cap_w()))
    looked = next_reading = board.now_s()
    if not _read_first_count(board, energy):
        log.counter_problem = "the board counts no energy"
    while not log.is_complete(length_s, board.averaging_s, min_ticks):
        board.wait(READING_INTERVAL_S if log.counter_problem else POLL_INTERVAL_S)
        now = board.now_s()
        if not log.counter_problem:
            counter = board.counter_mj()
            if energy.add_count(now, None if counter is None else counter / 1000.0) and counter is not None:
                log.ticks.append(CounterTick(0.5 * (looked + now), counter))
            log.counter_problem = f"the board {energy.problem}" if energy.problem else ""
        looked = now
        if (log.ticks or log.counter_problem) and now >= next_reading:
            log.readings.append(BoardReading(now, board.power_w(), board.clock_mhz()))
            energy.add_power(now, log.readings[-1].power_w)
            log.throttle.update(board.throttle())
            next_reading = now + READING_INTERVAL_S
    return log


def _read_first_count(board: BoardSensors, energy: CheckedEnergy) -> bool:
    """Read the counter until it answers, `MAX_FIRST_READS` times at most."""
    for _ in range(MAX_FIRST_READS):
        if (counter := board.counter_mj()) is not None:
            energy.add_count(board.now_s(), counter / 1000.0)
            return True
        board.wait(POLL_INTERVAL_S)
    return False
