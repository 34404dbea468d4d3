"""One measured stretch of a job: power, use and progress under fixed limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.governor.protocols import Settings

NOT_MEASURED = float("nan")
TARGET_ERROR = 0.006
"""A pace that is known this well needs no longer look."""
MIN_WATTS_ERROR = 0.005
"""No mean of watts is known better than this share: a sensor sees part of the time."""


@dataclass(frozen=True)
class ProgressRate:
    """Two independent witnesses of progress, each per second with its standard error as a share; NaN if
    untold."""

    beats: float = NOT_MEASURED
    """Steps or periods per second."""
    beats_error: float = NOT_MEASURED
    moved: float = NOT_MEASURED
    """Memory use per second in which a kernel ran: at one memory clock, the same kernels move the same bytes,
    and what the host waits for has no part in it."""
    moved_error: float = NOT_MEASURED
    period_s: float = NOT_MEASURED
    """Of one beat."""


@dataclass(frozen=True)
class JobReading:
    """Means over a stretch under settled limits."""

    settings: Settings
    at_s: float
    """Its middle, on the probe's clock."""
    seconds: float
    watts: float
    """Of the whole board."""
    pace: ProgressRate
    sm_util: float
    memory_util: float
    clock_mhz: float
    watts_error: float = MIN_WATTS_ERROR
    """Standard error of the watts, as a share."""


def get_rate_error(pace: ProgressRate) -> float:
    """Standard error of the better witness; 0 where there is none, as waiting would not help."""
    errors = [e for e in (pace.beats_error, pace.moved_error) if math.isfinite(e)]
    return min(errors, default=0.0)
