"""How fast a job goes, from the best source there is: its steps, its period, or the memory it moves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from ekc.governor.period import Period, detect_period
from ekc.governor.samples import Samples
from ekc.governor.tempo import tempo

Source = Literal["steps", "period", "throughput", "none"]
CLEAR = 0.25
"""Least share of the signals' variance that a period must explain to be trusted as progress."""
LEAST_MEMORY = 3.0
"""Percent of memory use below which rounding hides progress."""
BLOCK_S = 2.5
FLOOR = 0.002
"""No pace is known better than this share."""


@dataclass(frozen=True)
class Beat:
    """What tells progress, settled at the default limits."""

    source: Source
    period_s: float = float("nan")
    """At the default limits, where the source is a period."""
    verdict: str = "aperiodic"

    def window_s(self) -> float:
        """How long a reading must be, at least."""
        if self.source == "period":
            return max(10.0, min(3.2 * self.period_s, 6.0 + 2.2 * self.period_s))
        return 20.0 if self.source == "throughput" else 12.0


@dataclass(frozen=True)
class Pace:
    """Progress per second and its standard error as a share."""

    per_s: float
    error: float
    period_s: float = float("nan")


def joined(first: Samples, second: Samples) -> Samples:
    """Two stretches, one after the other."""
    names = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")
    both = (np.concatenate([getattr(first, n), getattr(second, n)]) for n in names)
    return Samples(*both, power_limit_w=first.power_limit_w, sensor_s=first.sensor_s)


def sampling_hz(samples: Samples) -> float:
    """Readings per second, by the median gap."""
    return 1.0 / max(1e-3, float(np.median(np.diff(samples.time_s)))) if len(samples) > 1 else 10.0


def beat_of(samples: Samples, hooked: bool) -> tuple[Beat, Period]:
    """The source of progress of a job, from a stretch at the default limits."""
    period = detect_period(samples, sampling_hz(samples))
    if hooked:
        return Beat("steps", verdict=period.verdict), period
    if period.verdict in ("periodic", "multiple"):
        found = tempo(samples, period.seconds, 0.9, 1.1)
        if found is not None and found.clarity >= CLEAR:
            return Beat("period", found.seconds, period.verdict), period
    moving = float(np.nanmean(samples.memory_util)) if len(samples) else 0.0
    return Beat("throughput" if moving >= LEAST_MEMORY else "none", verdict=period.verdict), period


def pace_of(beat: Beat, samples: Samples, most_stretch: float) -> Pace | None:
    """Progress per second over a stretch (steps are counted elsewhere); None where it cannot be told.

    `most_stretch`: how much longer than at the default an iteration can be at most.
    """
    if beat.source == "period":
        found = tempo(samples, beat.period_s, 0.96, 1.03 * most_stretch)
        if found is None or found.clarity < CLEAR / 2:
            return None
        return Pace(1 / found.seconds, max(FLOOR, found.error), found.seconds)
    if beat.source == "throughput":
        return _moved(samples)
    return None


def _moved(samples: Samples) -> Pace | None:
    """Memory use stands for progress: at one memory clock, the same work moves the same bytes."""
    mean = float(np.nanmean(samples.memory_util))
    if not mean >= 1:
        return None
    begin, end = samples.time_s[0], samples.time_s[-1]
    edges = np.searchsorted(samples.time_s, np.arange(begin, end, BLOCK_S))
    blocks = [samples.memory_util[a:b] for a, b in pairwise(edges) if b > a]
    blocks = [np.nanmean(b) for b in blocks if np.isfinite(b).any()]
    if len(blocks) < 3:
        return None
    error = float(np.std(blocks, ddof=1) / np.sqrt(len(blocks)) / mean)
    return Pace(mean, max(FLOOR, error))
