"""One measured stretch of a job: what it drew and how fast it went."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.governor.protocols import Settings


@dataclass(frozen=True)
class Reading:
    """Means over a stretch under settled limits."""

    settings: Settings
    at_s: float
    """Its middle, on the probe's clock."""
    seconds: float
    watts: float
    """Of the whole board."""
    pace: float
    """Progress per second, in the unit of its source (steps, periods, percent of memory use); NaN if untold."""
    error: float
    """Standard error of the pace, as a share of it."""
    sm_util: float
    memory_util: float
    clock_mhz: float
    period_s: float = float("nan")
    """Where progress is told by periods."""

    @property
    def joules_per_unit(self) -> float:
        """Joules of the board for one unit of progress."""
        return self.watts / self.pace
