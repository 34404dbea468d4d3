"""One measured stretch of a job: power, use and progress under fixed limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.governor.protocols import Settings

NOT_MEASURED = float("nan")
TARGET_ERROR = 0.006
"""Relative standard error of progress at which a reading is not prolonged."""
MIN_WATTS_ERROR = 0.005
"""Least relative error of a mean of watts: a sensor measures only part of the time."""


@dataclass(frozen=True)
class ProgressRate:
    """Progress per second by two independent measures with relative standard errors; NaN if missing."""

    beats: float = NOT_MEASURED
    """Steps or periods per second."""
    beats_error: float = NOT_MEASURED
    moved: float = NOT_MEASURED
    """Memory use (percent) per second in which a kernel ran: at one memory clock the same kernels move the
    same bytes, however long the host waits."""
    moved_error: float = NOT_MEASURED
    period_s: float = NOT_MEASURED
    """Seconds of one step or period."""


@dataclass(frozen=True)
class JobReading:
    """Means over a stretch of the job after its limits took effect."""

    settings: Settings
    at_s: float
    """Middle of the stretch, in seconds on the probe's clock."""
    seconds: float
    watts: float
    """Mean power of the board."""
    pace: ProgressRate
    sm_util: float
    """SM use in percent."""
    memory_util: float
    """Memory use in percent."""
    clock_mhz: float
    """Median SM clock."""
    watts_error: float = MIN_WATTS_ERROR
    """Relative standard error of the watts."""


def get_rate_error(pace: ProgressRate) -> float:
    """Relative standard error of the better measure; 0 without any, since a longer reading would not help."""
    errors = [e for e in (pace.beats_error, pace.moved_error) if math.isfinite(e)]
    return min(errors, default=0.0)
