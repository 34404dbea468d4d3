"""Weights of the rows that a model learns from, the choice of these rows, and rank correlation.

Good rows have more weight, because the search decides among them (the weighted loss of arXiv 2411.18873; its
constants are not public, these are chosen by us).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ekc.search.data.defaults import ROW_WEIGHTS


def compute_weights(objective_values: NDArray[np.float64], sharpness: float) -> NDArray[np.float64]:
    """Weights of rows, 1 for the best: a row of twice the best objective has 2**-`sharpness`. No row has less
    than `min_weight`: a model that never learns bad rows predicts good figures everywhere."""
    relative = objective_values.min() / objective_values
    return np.asarray(np.maximum(relative**sharpness, ROW_WEIGHTS.min_weight))


def spearman(a: NDArray[np.float64], b: NDArray[np.float64], min_pairs: int = 3) -> float | None:
    """Rank correlation; None for fewer pairs than `min_pairs`, or if all ranks of one side are equal."""
    if len(a) < min_pairs:
        return None
    ra, rb = _compute_ranks(a), _compute_ranks(b)
    if ra.std() == 0 or rb.std() == 0:
        return None
    return float(np.corrcoef(ra, rb)[0, 1])


def _compute_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank of each value; ties have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + 1 + last) / 2)[inverse], dtype=np.float64)


def select_training_rows(figures: NDArray[np.float64], max_rows: int) -> NDArray[np.int64]:
    """Select at most `max_rows` rows, in order: those of the lowest figures, and evenly spaced ranks of the
    rest."""
    order = np.argsort(figures, kind="stable")
    if len(order) <= max_rows:
        return np.sort(order)
    half = max_rows // 2
    rest = order[half:][np.linspace(0, len(order) - half - 1, max_rows - half).astype(np.int64)]
    return np.sort(np.concatenate([order[:half], rest]))
