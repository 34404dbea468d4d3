"""Looking at a board that runs: ticks of its energy counter, and readings of everything else beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

POLL_INTERVAL_S = 0.001
"""Between two looks at the counter."""
READING_INTERVAL_S = 0.02
"""Between two readings of instantaneous power; sensors refresh no faster."""
MIN_TICKS = 8
MIN_AVERAGING_PERIODS = 6
"""Lengths of the averaging that a window of averaged readings has at least."""
STALL_S = 1.0
"""A counter that did not move for so long, while a kernel ran, stands still: they tick every 20 to 100 ms."""


class BoardSensors(Protocol):
    """What is looked at. Power and energy are the whole board's."""

    averaging_s: float
    """Over which a power reading is a mean; 0 where it is instantaneous."""

    def now_s(self) -> float:
        """A steady clock."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def counter_mj(self) -> int | None:
        """Total energy; moves only on its own ticks. None where there is no counter."""

    def power_w(self) -> float:
        """Power as the sensor tells it; NaN where one reading failed."""

    def temperature_c(self) -> float:
        """Die temperature."""

    def clock_mhz(self) -> float:
        """SM clock now."""

    def throttle(self) -> tuple[str, ...]:
        """Reasons why the clock is lower than asked, if any."""


@dataclass(frozen=True)
class CounterTick:
    """The counter moved, in the middle between two looks."""

    time_s: float
    counter_mj: int


@dataclass(frozen=True)
class BoardReading:
    """The other sensors at one moment."""

    time_s: float
    power_w: float
    clock_mhz: float


@dataclass
class BoardLog:
    """What the looks of one window found."""

    ticks: list[CounterTick] = field(default_factory=list)
    readings: list[BoardReading] = field(default_factory=list)
    throttle: set[str] = field(default_factory=set)
    counter_problem: str = ""
    """Why the counter cannot be used, if so."""

    def is_complete(self, length_s: float, averaging_s: float) -> bool:
        """Is there enough, over a span that is long enough?"""
        if self.counter_problem:
            least = max(length_s, MIN_AVERAGING_PERIODS * averaging_s)
            return bool(self.readings) and self.readings[-1].time_s - self.readings[0].time_s >= least
        return len(self.ticks) > MIN_TICKS and self.ticks[-1].time_s - self.ticks[0].time_s >= length_s


def record_board(board: BoardSensors, length_s: float) -> BoardLog:
    """Look from the first tick that is seen to the first one after `length_s`.

    Without a counter, or where it stalls or runs backwards: from the first reading, for as long.
    """
    log = BoardLog()
    shown = board.counter_mj()
    if shown is None:
        log.counter_problem = "the board counts no energy"
    looked = moved = next_reading = board.now_s()
    while not log.is_complete(length_s, board.averaging_s):
        board.wait(READING_INTERVAL_S if log.counter_problem else POLL_INTERVAL_S)
        now = board.now_s()
        if not log.counter_problem:
            counter = board.counter_mj()
            if counter != shown:
                log.counter_problem = _explain_counter_failure(shown, counter)
                if counter is not None and not log.counter_problem:
                    log.ticks.append(CounterTick(0.5 * (looked + now), counter))
                shown, moved = counter, now
            elif now - moved > STALL_S:
                log.counter_problem = f"the energy counter stood still for {now - moved:.1f} s"
        looked = now
        if (log.ticks or log.counter_problem) and now >= next_reading:
            log.readings.append(BoardReading(now, board.power_w(), board.clock_mhz()))
            log.throttle.update(board.throttle())
            next_reading = now + READING_INTERVAL_S
    return log


def _explain_counter_failure(previous_mj: int | None, current_mj: int | None) -> str:
    if current_mj is None:
        return "the energy counter stopped answering"
    return "the energy counter ran backwards" if previous_mj is not None and current_mj < previous_mj else ""
