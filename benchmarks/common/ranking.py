"""Scores of predictions: rank correlation, median error, and intervals over groups, with NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


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


def compute_rank(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Rank correlation; 0 where a side ranks nothing."""
    return spearman(a, b) or 0.0


def compute_error(predicted: NDArray[np.float64], real: NDArray[np.float64]) -> float:
    """Median relative error."""
    return float(np.median(np.abs(predicted / real - 1.0)))


def resample_groups(groups: ArrayLike, seed: int, draws: int) -> Iterator[NDArray[np.int64]]:
    """Rows of as many groups as there are, drawn with replacement; `groups` names the group of each row."""
    random, (names, index) = np.random.default_rng(seed), np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(index == number) for number in range(len(names))]
    for _ in range(draws):
        yield np.concatenate([members[n] for n in random.integers(len(names), size=len(names))])


def compute_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of drawn values."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
