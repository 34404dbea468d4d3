"""A batch picked one by one, each as though those picked before it had been measured already.

The best of a ranking look alike: a pad more, another width. To measure one of them tells most of what the
others would, so each pick makes what it tells of less urgent, by as much as it tells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHORTLIST = 32
"""Genomes that a batch is picked from, for each that is wanted."""
ITS_OWN = 1e-3
"""Of the variance of a figure: what no other figure tells, however like."""


def one_by_one(scores: Array, count: int, correlation: Array) -> list[int]:
    """Up to `count` rows, in the order they were picked.

    scores[n]: minus the log of an expected improvement, or what else says how urgent a row is; lower is more.
    correlation[n + m, n + m]: of what is not known yet of the figures; the last m rows are in the batch
    already. With each pick the others keep the spread that will be left of them (the conditional variance of
    a normal law), and an improvement shrinks as its spread does.
    """
    left, chosen = correlation.copy(), list[int]()
    for given in range(len(scores), len(left)):
        _tell(left, given)
    taken = np.zeros(len(scores))
    for _ in range(min(count, len(scores))):
        unknown = np.clip(np.diagonal(left)[: len(scores)], ITS_OWN, 1.0)
        chosen.append(int(np.argmin(scores - np.log(unknown) / 2 + taken)))
        taken[chosen[-1]] = np.inf
        _tell(left, chosen[-1])
    return chosen


def _tell(left: Array, row: int) -> None:
    """Take out what a row tells of the others."""
    left -= np.outer(left[:, row], left[row]) / (left[row, row] + ITS_OWN)
