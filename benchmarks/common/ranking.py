"""Rank correlation and median error."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model import row_weights

spearman = partial(row_weights.spearman, min_pairs=2)
"""Rank correlation, also of two pairs."""


def compute_error(predicted: NDArray[np.float64], real: NDArray[np.float64]) -> float:
    """Median relative error."""
    return float(np.median(np.abs(predicted / real - 1.0)))
