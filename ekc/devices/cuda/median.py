"""The median and a 95 % interval of it that assumes no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ekc.devices.base import Interval

_TAIL = 0.025


def median(samples: Sequence[float]) -> float:
    """The middle of the samples."""
    return float(np.median(samples))


def interval(samples: Sequence[float]) -> Interval:
    """Two of the samples that hold the median with at least 95 %: how many lie below it is binomial.

    With fewer than six samples there are no such two; their range is returned, which holds it with
    1 - 2**(1 - n).
    """
    ranked = np.sort(np.asarray(samples, dtype=np.float64))
    rank = _rank(len(ranked))
    return Interval(float(ranked[rank]), float(ranked[-1 - rank]))


def relative_width(samples: Sequence[float]) -> float:
    """Width of the interval over the median."""
    found = interval(samples)
    return (found.high - found.low) / median(samples)


@lru_cache(maxsize=1024)
def _rank(number: int) -> int:
    """The largest rank (from 0) whose sample lies below the median with 97.5 % at least."""
    below, rank = 0.0, 0
    for k in range(number // 2):
        below += math.comb(number, k) / 2.0**number
        if below > _TAIL:
            break
        rank = k
    return rank
