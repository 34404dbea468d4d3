"""Which values of a decision are one small move apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

MOVABLE_FACTORS = (2, 3, 5, 7)
"""Factors that move between two levels of a tile."""


class NeighbourTable:
    """The neighbours of every value of some decisions, for drawing one of them."""

    def __init__(self, tables: Sequence[NDArray[np.int64]]) -> None:
        found = [find_neighbours(t) for t in tables]
        self._rows = np.concatenate([rows for rows, _ in found])
        self._neighbour_counts = np.concatenate([count for _, count in found])
        self._first_neighbours = np.cumsum(self._neighbour_counts) - self._neighbour_counts
        self._first_rows = np.cumsum([0, *(len(t) for t in tables[:-1])])

    def sample_neighbour(
        self, random: np.random.Generator, decision: NDArray[np.int64], value: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """A neighbour of each value of these decisions; the value itself where it has none."""
        at = self._first_rows[decision] + value
        count = self._neighbour_counts[at]
        drawn = self._first_neighbours[at] + random.integers(0, np.maximum(count, 1))
        return np.where(count > 0, self._rows[np.minimum(drawn, len(self._rows) - 1)], value)


def find_neighbours(table: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows one move away, one list after the other; how many there are for each row of the table).

    A move hands a small factor from one column to another, so that the product stays, or takes one
    column to its next smaller or larger value. A choice has one column: its neighbours are the next values.
    """
    values = [np.unique(column) for column in table.T]
    keys = _encode_rows(table, values)
    order = np.argsort(keys)
    pairs = []
    for moved, legal in _generate_moves(table, values):
        rows = np.flatnonzero(legal)
        wanted = _encode_rows(moved[rows], values)
        at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
        found = (wanted >= 0) & (keys[at] == wanted)
        pairs.append(np.stack([rows[found], at[found]]))
    every = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return every[1], np.bincount(every[0], minlength=len(table))


def _generate_moves(
    table: NDArray[np.int64], values: list[NDArray[np.int64]]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """The table after each kind of move, and where that move exists."""
    for column, known in enumerate(values):
        at = np.searchsorted(known, table[:, column])
        for step in (-1, 1):
            moved = table.copy()
            moved[:, column] = known[np.clip(at + step, 0, len(known) - 1)]
            yield moved, moved[:, column] != table[:, column]
    for giver, taker in permutations(range(len(values)), 2):
        for factor in MOVABLE_FACTORS:
            moved = table.copy()
            moved[:, giver] //= factor
            moved[:, taker] *= factor
            yield moved, table[:, giver] % factor == 0


def _encode_rows(rows: NDArray[np.int64], values: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """A number per row, equal for equal rows; -1 for a row with a number that no column has."""
    key, known = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=bool)
    for column, numbers in enumerate(values):
        at = np.minimum(np.searchsorted(numbers, rows[:, column]), len(numbers) - 1)
        known &= numbers[at] == rows[:, column]
        key = key * len(numbers) + at
    return np.where(known, key, -1)
