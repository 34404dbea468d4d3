"""Which of many measured kernels a model learns from, where learning from all would cost too much."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def select_training_rows(figures: NDArray[np.float64], max_rows: int) -> NDArray[np.int64]:
    """Rows of at most `most` figures, in their order: the lowest half, and an even share of the rest."""
    order = np.argsort(figures, kind="stable")
    if len(order) <= max_rows:
        return np.sort(order)
    half = max_rows // 2
    rest = order[half:][np.linspace(0, len(order) - half - 1, max_rows - half).astype(np.int64)]
    return np.sort(np.concatenate([order[:half], rest]))
