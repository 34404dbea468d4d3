"""Rank correlation, with NumPy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def compute_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0, the mean of theirs for equal values."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    first = np.cumsum(size) - size
    mean: NDArray[np.float64] = (first + (size - 1) / 2)[group]
    return mean


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Rank correlation; None where a side ranks nothing: under two values, or all the same."""
    x, y = compute_ranks(a), compute_ranks(b)
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])
