"""A period to better than the distance between two readings."""

from __future__ import annotations

import numpy as np

from ekc.governor.period.similarity import Similarity

NEAR = 0.12
"""A peak belongs to a multiple of the period if it is within this share of the period."""
LOST = 0.6
"""Multiples are followed while they stay this share as alike as the first."""


def refined(alike: Similarity, first_s: float) -> float:
    """The period from the peaks at it and its multiples: the line from 0 through them."""
    top, height = _peak(alike, first_s, NEAR * first_s)
    seconds, tops = top, [top]
    while (at := (len(tops) + 1) * seconds) < alike.lag_s[-1]:
        top, likeness = _peak(alike, at, NEAR * seconds)
        if likeness < LOST * height:
            break
        tops.append(top)
        count = np.arange(1, len(tops) + 1)
        seconds = float(np.dot(count, tops) / np.dot(count, count))
    return seconds


def _peak(alike: Similarity, around_s: float, within_s: float) -> tuple[float, float]:
    """(lag, likeness) of the highest point around a lag, between lags by a parabola."""
    low, high = np.searchsorted(alike.lag_s, (around_s - within_s, around_s + within_s))
    low, high = max(int(low), 1), min(max(int(high), int(low) + 1), len(alike.lag_s) - 1)
    if low >= high:
        return around_s, -1.0
    top = low + int(np.argmax(alike.likeness[low:high]))
    left, mid, right = (float(v) for v in alike.likeness[top - 1 : top + 2])
    bend = left - 2.0 * mid + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    step = float(alike.lag_s[top + 1] - alike.lag_s[top - 1]) / 2.0
    return float(alike.lag_s[top]) + min(max(shift, -0.5), 0.5) * step, mid
