"""Made-up figures for the tests of what learns."""

from __future__ import annotations

import numpy as np


def bumps(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows[count, 4], figures[count]): smooth in two of the columns, the others do not matter."""
    rows = np.random.default_rng(seed).uniform(-2, 2, (count, 4))
    return rows, np.sin(2 * rows[:, 0]) + 0.5 * rows[:, 1] ** 2
