"""Lags that may be the period."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.similarity import Similarity
from ekc.governor.samples import Values

REPEATS = 4
"""A period is judged by how alike the signal is so many periods later, too; the k-th counts 1/k."""
PRIOR, WEIGHT = 0.3, 0.5
"""What is thought of likeness before any is seen, and how heavy: a long lag, that was seen to repeat once,
must be better than a short one."""


@dataclass(frozen=True)
class Candidates:
    """Peaks of likeness, from short to long."""

    lag_s: Values
    score: Values
    """Mean likeness at the lag and its multiples; at most 1."""


def candidates(alike: Similarity, shortest_s: float, longest_s: float) -> Candidates:
    """The peaks between two lags."""
    at = alike.likeness
    peak = np.flatnonzero((at[1:-1] >= at[:-2]) & (at[1:-1] > at[2:])) + 1
    peak = peak[(at[peak] > 0.0) & (alike.lag_s[peak] >= shortest_s) & (alike.lag_s[peak] <= longest_s)]
    lags = _between(alike, peak)
    return Candidates(lags, scores(alike, lags))


def _between(alike: Similarity, peak: NDArray[np.intp]) -> Values:
    """Where a parabola through each peak and its neighbours is highest."""
    left, top, right = (alike.likeness[peak + step] for step in (-1, 0, 1))
    bend = np.minimum(left - 2.0 * top + right, -1e-12)
    step = 0.5 * (alike.lag_s[peak + 1] - alike.lag_s[peak - 1])
    lags: Values = alike.lag_s[peak] + step * np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return lags


def scores(alike: Similarity, lags: Values) -> Values:
    """Of lags."""
    times = np.arange(1, REPEATS + 1)[:, None]
    weights = (lags * times <= alike.lag_s[-1]) / times
    total = (alike.at(lags * times) * weights).sum(axis=0)
    judged: Values = (total + PRIOR * WEIGHT) / (weights.sum(axis=0) + WEIGHT)
    return judged
