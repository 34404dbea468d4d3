"""Looking at a board that runs: ticks of its energy counter, and readings of everything else beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

LOOK_S = 0.001
"""Between two looks at the counter."""
READING_S = 0.02
"""Between two readings of instantaneous power; sensors refresh no faster."""
FEWEST_TICKS = 8
FEWEST_MEANS = 6
"""Lengths of the averaging that a window of averaged readings has at least."""
STALL_S = 1.0
"""A counter that did not move for so long, while a kernel ran, stands still: they tick every 20 to 100 ms."""


class Gauges(Protocol):
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
class Tick:
    """The counter moved, in the middle between two looks."""

    at_s: float
    counter_mj: int


@dataclass(frozen=True)
class Reading:
    """The other sensors at one moment."""

    at_s: float
    watts: float
    clock_mhz: float


@dataclass
class Log:
    """What the looks of one window found."""

    ticks: list[Tick] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    throttle: set[str] = field(default_factory=set)
    uncounted: str = ""
    """Why the counter cannot be used, if so."""

    def complete(self, length_s: float, averaging_s: float) -> bool:
        """Is there enough, over a span that is long enough?"""
        if self.uncounted:
            least = max(length_s, FEWEST_MEANS * averaging_s)
            return bool(self.readings) and self.readings[-1].at_s - self.readings[0].at_s >= least
        return len(self.ticks) > FEWEST_TICKS and self.ticks[-1].at_s - self.ticks[0].at_s >= length_s


def record(board: Gauges, length_s: float) -> Log:
    """Look from the first tick that is seen to the first one after `length_s`.

    Without a counter, or where it stalls or runs backwards: from the first reading, for as long.
    """
    log = Log()
    shown = board.counter_mj()
    if shown is None:
        log.uncounted = "the board counts no energy"
    looked = moved = next_reading = board.now_s()
    while not log.complete(length_s, board.averaging_s):
        board.wait(READING_S if log.uncounted else LOOK_S)
        now = board.now_s()
        if not log.uncounted:
            counter = board.counter_mj()
            if counter != shown:
                log.uncounted = _broken(shown, counter)
                if counter is not None and not log.uncounted:
                    log.ticks.append(Tick(0.5 * (looked + now), counter))
                shown, moved = counter, now
            elif now - moved > STALL_S:
                log.uncounted = f"the energy counter stood still for {now - moved:.1f} s"
        looked = now
        if (log.ticks or log.uncounted) and now >= next_reading:
            log.readings.append(Reading(now, board.power_w(), board.clock_mhz()))
            log.throttle.update(board.throttle())
            next_reading = now + READING_S
    return log


def _broken(before: int | None, now: int | None) -> str:
    if now is None:
        return "the energy counter stopped answering"
    return "the energy counter ran backwards" if before is not None and now < before else ""
