"""Rank correlation and median error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Rank correlation; None where a side ranks nothing: under two values, or all the same."""
    x, y = rankdata(a), rankdata(b)
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def compute_error(predicted: NDArray[np.float64], real: NDArray[np.float64]) -> float:
    """Median relative error."""
    return float(np.median(np.abs(predicted / real - 1.0)))
