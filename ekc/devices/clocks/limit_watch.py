"""Notices limits that others set while a governor runs.

A power cap can be read back, a clock limit cannot: no NVML call returns it. The clock of a busy board tells
of it. A clock above our limit means that the limit was reset or raised. A clock that stays well below what
the limit allows, while the driver names no reason (power, heat, hardware), means that someone has set a lower
one. Where that is uncertain, nothing is noticed: a limit close to ours, or one that is set on an idle board.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ekc.devices.clocks.limits import LimitReading

INTERVAL_S = 0.5
"""Seconds between two readings."""
SETTLE_S = 1.0
"""Seconds after a change of ours until a clock shows it."""
ABOVE_MHZ = 20.0
"""MHz above our limit that no rounding to a clock of the board explains."""
BOUND_MHZ = 45.0
"""MHz below our limit where the clock was seen to be bound by it before."""
LOW_SHARE = 0.93
"""Share of the highest clock seen below which the clock of a busy, unthrottled board is unusual."""
STEADY_MHZ = 20.0
"""MHz within which readings under a clock limit lie."""
READINGS_ABOVE, READINGS_BELOW = 2, 6
"""Readings in a row that show another's limit. Readings below ours also have other causes for a moment."""
CAP_TOLERANCE_W = 1.0
"""Watts by which a cap that is read back may differ from the one that was set."""


@dataclass
class ClockWatch:
    """Watches one clock of a board; `add_reading` says once others have set its limit."""

    highest_mhz: float = 0.0
    """Highest clock seen on the busy board, under any limit."""
    _limit_mhz: float | None = None
    _is_bound: bool = False
    """Whether the clock was at our limit since that was set."""
    _above: int = 0
    _below_mhz: list[float] = field(default_factory=list)
    _since_s: float = 0.0

    def note_limit(self, limit_mhz: float | None, at_s: float) -> None:
        """Our limit has been set, None for that of before."""
        self._limit_mhz, self._since_s, self._is_bound = limit_mhz, at_s, False
        self._above, self._below_mhz = 0, []

    @property
    def is_suspicious(self) -> bool:
        """Whether the last readings may be those of another's limit."""
        return self._above > 0 or bool(self._below_mhz)

    def add_reading(self, mhz: float | None, reading: LimitReading, at_s: float) -> str:
        """The sign that others have set the limit; empty where nothing does."""
        if mhz is None or at_s < self._since_s + SETTLE_S:
            return ""
        limit = self._limit_mhz
        is_above = limit is not None and mhz > limit + ABOVE_MHZ
        self._above = self._above + 1 if is_above else 0
        if self._above >= READINGS_ABOVE:
            return f"it runs at {mhz:g} MHz, above the limit of {limit:g} MHz"
        if not reading.is_busy or is_above:
            return ""
        self.highest_mhz = max(self.highest_mhz, mhz)
        self._is_bound |= limit is not None and abs(mhz - limit) <= STEADY_MHZ
        return self._judge_low_clock(mhz, reading.is_throttled)

    def _judge_low_clock(self, mhz: float, is_throttled: bool) -> str:
        limit = self._limit_mhz
        usual = self.highest_mhz if limit is None else min(limit, self.highest_mhz)
        least = usual - BOUND_MHZ if self._is_bound else LOW_SHARE * usual
        if is_throttled or mhz >= least:
            self._below_mhz = []
            return ""
        if self._below_mhz and abs(mhz - self._below_mhz[0]) > STEADY_MHZ:
            self._below_mhz = []
        self._below_mhz.append(mhz)
        if len(self._below_mhz) < READINGS_BELOW:
            return ""
        return f"it stays at {mhz:g} MHz, below {usual:g} MHz, and the driver gives no reason"


def find_foreign_cap(reading: LimitReading, possible_caps_w: Sequence[float]) -> str:
    """The sign that others have set the power cap; empty where nothing does."""
    cap = reading.power_w
    if cap is None or any(abs(cap - ours) <= CAP_TOLERANCE_W for ours in possible_caps_w):
        return ""
    return f"it is {cap:g} W, and not {' or '.join(f'{x:g} W' for x in sorted(set(possible_caps_w)))}"
