"""The median and a 95 % interval of it that assumes no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ekc.devices.base import Interval

_TAIL_PROBABILITY = 1 / 128
"""By so much at most one look misses the median on either side. `timing.enough` looks again and again, and
ends when it likes what it sees. With 2.5 % it could end on an interval that misses in 14 of 100 cases; with
this, and looks after 8, 16, 32, ... samples, in 4 (a test adds them up)."""


def compute_median(samples: Sequence[float]) -> float:
    """The middle of the samples."""
    return float(np.median(samples))


def compute_median_interval(samples: Sequence[float]) -> Interval:
    """Two of the samples that hold the median with at least 95 %, however often it was looked before: how
    many lie below it is binomial.

    Fewer than eight samples leave their range, which alone holds it with 1 - 2**(1 - n): 97 % of six.
    """
    ranked = np.sort(np.asarray(samples, dtype=np.float64))
    rank = _find_interval_rank(len(ranked))
    return Interval(float(ranked[rank]), float(ranked[-1 - rank]))


def compute_relative_width(samples: Sequence[float]) -> float:
    """Width of the interval over the median."""
    found = compute_median_interval(samples)
    return (found.high - found.low) / compute_median(samples)


@lru_cache(maxsize=1024)
def _find_interval_rank(number: int) -> int:
    """The largest rank (from 0) whose sample lies above the median with no more than `_TAIL`."""
    below, rank = 0.0, 0
    for k in range(number // 2):
        below += math.comb(number, k) / 2.0**number
        if below > _TAIL_PROBABILITY:
            break
        rank = k
    return rank
