"""One measured stretch of a job: what it drew and how fast it went."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.governor.protocols import Settings

UNTOLD = float("nan")
GOOD_ERROR = 0.006
"""A pace that is known this well needs no longer look."""
WATTS_ERROR = 0.005
"""No mean of watts is known better than this share: a sensor sees part of the time."""


@dataclass(frozen=True)
class Pace:
    """Two independent witnesses of progress, each per second with its standard error as a share; NaN if
    untold."""

    beats: float = UNTOLD
    """Steps or periods per second."""
    beats_error: float = UNTOLD
    moved: float = UNTOLD
    """Memory use per second in which a kernel ran: at one memory clock, the same kernels move the same bytes,
    and what the host waits for has no part in it."""
    moved_error: float = UNTOLD
    period_s: float = UNTOLD
    """Of one beat."""


@dataclass(frozen=True)
class Reading:
    """Means over a stretch under settled limits."""

    settings: Settings
    at_s: float
    """Its middle, on the probe's clock."""
    seconds: float
    watts: float
    """Of the whole board."""
    pace: Pace
    sm_util: float
    memory_util: float
    clock_mhz: float
    watts_error: float = WATTS_ERROR
    """Standard error of the watts, as a share."""


def known(pace: Pace) -> float:
    """Standard error of the better witness; 0 where there is none, as waiting would not help."""
    errors = [e for e in (pace.beats_error, pace.moved_error) if math.isfinite(e)]
    return min(errors, default=0.0)
