"""Readings of a board that runs: ticks of its energy counter, and the other sensors beside them. The counter
is checked against the power readings; the readings replace it where it is wrong. Also the bounds of a power
reading that is believed.

A counter is wrong that runs backwards (it wrapped, or the driver was loaded again), jumps, stays the same, or
differs from the power readings. It is not used again then, since the energy that it missed is in no later
count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

POWER_MARGIN = 0.3
"""Share by which a power reading may exceed the board's power cap: a cap holds for a mean, not at once."""
MAX_BOARD_W = 3000.0
"""Watts that a board draws at most where its cap is not known; the largest cap today is 1,400 W."""
COUNTER_TOLERANCE = 0.15
"""Relative difference of the counter from the integral of power above which it is not believed."""
LAG_S = 1.0
"""Seconds by which counter and power reading may lag; slow counters tick, and slow sensors average, for so
long."""
COMPARISON_S = 30.0
"""Seconds of one comparison; the next one starts where it ends."""
MAX_GAP_S = 1.0
"""Seconds between two power readings above which their integral shows nothing."""


def compute_max_power_w(cap_w: float | None) -> float:
    """Greatest power reading in watts that is believed of a board with this power cap, None where the cap is
    unknown."""
    if cap_w is None or not 0 < cap_w <= MAX_BOARD_W:
        return MAX_BOARD_W
    return (1 + POWER_MARGIN) * cap_w


def is_believable_power(watts: float, max_power_w: float) -> bool:
    """Whether a board may draw this power: above 0 W, since a board that runs draws some; NaN is not."""
    return 0 < watts <= max_power_w


@dataclass(frozen=True)
class _Count:
    """The counter at one moment, and the integral of power up to then, in joules."""

    at_s: float
    counter_j: float
    integral_j: float


class CheckedEnergy:
    """Joules of one board, from all readings of its counter and its power in the order of time.

    `stall_s`: seconds without a change after which the counter counts as stopped. `max_power_w`: watts that
    the board draws at most.
    """

    def __init__(self, stall_s: float, max_power_w: float = MAX_BOARD_W) -> None:
        self._stall_s = stall_s
        self.max_power_w = max_power_w
        self.problem = ""
        """Why the counter is not used any more, after the name of the board; "" while it is used."""
        self._last_reading: tuple[float, float] | None = None
        """(time in seconds, watts) of the last power reading."""
        self._integrated_j = 0.0
        """Integral of the power readings up to the last one."""
        self._largest_w = 0.0
        self._silent_s: float | None = None
        """Time of the first failed reading of the counter since the last one that did not fail."""
        self._last: _Count | None = None
        """The last change of the counter, or its first value."""
        self._base: _Count | None = None
        """The beginning of the comparison; None where it begins with the next count."""
        self._offset_j = 0.0
        """The counter less the integral of power, at the last change."""
        self._shown_j = -math.inf

    def add_power(self, at_s: float, watts: float) -> None:
        """Add a power reading; one that is not believable is left out."""
        if not is_believable_power(watts, self.max_power_w):
            return
        last_s, last_w = self._last_reading or (at_s, watts)
        # Over a gap the last reading continues, as in `_integrate_until`: joules shown never go back.
        mean_w = last_w if self._is_gap(at_s) else 0.5 * (last_w + watts)
        self._integrated_j += mean_w * (at_s - last_s)
        if self._is_gap(at_s):
            self._base = None
        self._last_reading, self._largest_w = (at_s, watts), max(self._largest_w, watts)

    def add_count(self, at_s: float, counter_j: float | None) -> bool:
        """Add a reading of the counter, None where it gave none. Returns whether it has changed and is
        believed."""
        if self.problem:
            return False
        if counter_j is None:
            self._silent_s = at_s if self._silent_s is None else self._silent_s
            if at_s - self._silent_s > self._stall_s:
                self.problem = self._explain_silence(at_s - self._silent_s)
            return False
        self._silent_s = None
        if self._last is not None and counter_j == self._last.counter_j:
            if (still_s := at_s - self._last.at_s) > self._stall_s:
                self.problem = f"has an energy counter that did not move for {still_s:.1f} s"
            return False
        count = _Count(at_s, counter_j, self._integrate_until(at_s))
        if self._is_gap(at_s):
            self._base = None
        self.problem = self._explain_count(count)
        if self.problem:
            return False
        is_first, self._last = self._last is None, count
        self._offset_j = counter_j - count.integral_j
        if self._base is None or at_s - self._base.at_s > COMPARISON_S:
            self._base = count
        return not is_first

    def compute_joules(self, at_s: float) -> float:
        """Joules up to a time, never less than before; only differences have a meaning."""
        self._shown_j = max(self._shown_j, self._offset_j + self._integrate_until(at_s))
        return self._shown_j

    def _explain_silence(self, seconds: float) -> str:
        if self._last is None:
            return "counts no energy"
        return f"has an energy counter that did not answer for {seconds:.1f} s"

    def _explain_count(self, count: _Count) -> str:
        """Why a new value of the counter is not believed; "" where it is."""
        if not math.isfinite(count.counter_j):
            return "has an energy counter that gives no number"
        last, base = self._last, self._base
        if last is None:
            return ""
        counted_j, seconds = count.counter_j - last.counter_j, count.at_s - last.at_s
        if counted_j < 0:
            return (
                f"has an energy counter that ran backwards, from {last.counter_j:,.0f} J to "
                f"{count.counter_j:,.0f} J"
            )
        if counted_j > self.max_power_w * (seconds + LAG_S):
            return (
                f"has an energy counter that rose by {counted_j:,.0f} J in {seconds:.1f} s, more than the "
                f"board can draw ({self.max_power_w:,.0f} W)"
            )
        return "" if base is None else self._compare(count, base)

    def _compare(self, count: _Count, base: _Count) -> str:
        """Compare the counter with the integral of power since `base`."""
        counted_j, integral_j = count.counter_j - base.counter_j, count.integral_j - base.integral_j
        if abs(counted_j - integral_j) <= COUNTER_TOLERANCE * integral_j + LAG_S * self._largest_w:
            return ""
        # The integral replaces the counter since then.
        self._offset_j = base.counter_j - base.integral_j
        seconds = count.at_s - base.at_s
        return (
            f"has an energy counter that says {counted_j / seconds:,.0f} W, where its power readings say "
            f"{integral_j / seconds:,.0f} W"
        )

    def _is_gap(self, at_s: float) -> bool:
        """Whether too much time has passed since the last power reading for a comparison."""
        return self._last_reading is None or at_s - self._last_reading[0] > MAX_GAP_S

    def _integrate_until(self, at_s: float) -> float:
        """Integral of power up to a time; the last reading continues until the next one."""
        last_s, last_w = self._last_reading or (at_s, 0.0)
        return self._integrated_j + last_w * (at_s - last_s)


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
