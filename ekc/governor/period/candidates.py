"""Lags that may be the period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.similarity import SelfSimilarity
from ekc.governor.samples import Values

MAX_MULTIPLES = 4
"""A period is judged by how alike the signal is so many periods later, too; the k-th counts 1/k."""
PRIOR_LIKENESS, PRIOR_WEIGHT = 0.3, 0.5
"""What is thought of likeness before any is seen, and how heavy: a long lag, that was seen to repeat once,
must be better than a short one."""


@dataclass(frozen=True)
class PeriodCandidates:
    """Peaks of likeness, from short to long."""

    lag_s: Values
    score: Values
    """Mean likeness at the lag and its multiples; at most 1."""


def find_candidates(similarity: SelfSimilarity, shortest_s: float, longest_s: float) -> PeriodCandidates:
    """The peaks between two lags."""
    at = similarity.likeness
    peak = np.flatnonzero((at[1:-1] >= at[:-2]) & (at[1:-1] > at[2:])) + 1
    peak = peak[
        (at[peak] > 0.0) & (similarity.lag_s[peak] >= shortest_s) & (similarity.lag_s[peak] <= longest_s)
    ]
    lags = _interpolate_peaks(similarity, peak)
    return PeriodCandidates(lags, score_lags(similarity, lags))


def _interpolate_peaks(similarity: SelfSimilarity, peak: NDArray[np.intp]) -> Values:
    """Where a parabola through each peak and its neighbours is highest."""
    left, top, right = (similarity.likeness[peak + step] for step in (-1, 0, 1))
    bend = np.minimum(left - 2.0 * top + right, -1e-12)
    step = 0.5 * (similarity.lag_s[peak + 1] - similarity.lag_s[peak - 1])
    lags: Values = similarity.lag_s[peak] + step * np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return lags


def score_lags(similarity: SelfSimilarity, lags: Values) -> Values:
    """Of lags."""
    times = np.arange(1, MAX_MULTIPLES + 1)[:, None]
    weights = (lags * times <= similarity.lag_s[-1]) / times
    total = (similarity.interpolate(lags * times) * weights).sum(axis=0)
    judged: Values = (total + PRIOR_LIKENESS * PRIOR_WEIGHT) / (weights.sum(axis=0) + PRIOR_WEIGHT)
    return judged
