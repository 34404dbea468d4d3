"""A period to better than the distance between two readings."""

from __future__ import annotations

import numpy as np

from ekc.governor.period.similarity import SelfSimilarity

PEAK_WINDOW_SHARE = 0.12
"""A peak belongs to a multiple of the period if it is within this share of the period."""
MIN_LIKENESS_SHARE = 0.6
"""Multiples are followed while they stay this share as alike as the first."""


def refine_period(similarity: SelfSimilarity, first_s: float) -> float:
    """The period from the peaks at it and its multiples: the line from 0 through them."""
    top, height = _find_peak(similarity, first_s, PEAK_WINDOW_SHARE * first_s)
    seconds, tops = top, [top]
    while (at := (len(tops) + 1) * seconds) < similarity.lag_s[-1]:
        top, likeness = _find_peak(similarity, at, PEAK_WINDOW_SHARE * seconds)
        if likeness < MIN_LIKENESS_SHARE * height:
            break
        tops.append(top)
        count = np.arange(1, len(tops) + 1)
        seconds = float(np.dot(count, tops) / np.dot(count, count))
    return seconds


def _find_peak(similarity: SelfSimilarity, around_s: float, within_s: float) -> tuple[float, float]:
    """(lag, likeness) of the highest point around a lag, between lags by a parabola."""
    low, high = np.searchsorted(similarity.lag_s, (around_s - within_s, around_s + within_s))
    low, high = max(int(low), 1), min(max(int(high), int(low) + 1), len(similarity.lag_s) - 1)
    if low >= high:
        return around_s, -1.0
    top = low + int(np.argmax(similarity.likeness[low:high]))
    left, mid, right = (float(v) for v in similarity.likeness[top - 1 : top + 2])
    bend = left - 2.0 * mid + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    step = float(similarity.lag_s[top + 1] - similarity.lag_s[top - 1]) / 2.0
    return float(similarity.lag_s[top]) + min(max(shift, -0.5), 0.5) * step, mid
