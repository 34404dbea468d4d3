"""Decisions: the named numbers that a structure leaves open, each with a table of allowed values.

Which values of a decision are one small move apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

MAX_TABLE_ROWS = 4096
"""Rows of one table; larger factor tables keep the rows that waste least."""
MAX_PADDING_RATIO = 1.34
"""A tile may round an axis up by at most this factor (or to the next legal size of a tiny axis)."""


@dataclass(frozen=True, eq=False)
class TileLevel:
    """One column of a tile decision: what it sizes, and the largest value it takes."""

    kind: str
    """"raster", "vthread", "thread", "tile", "reduce" or "lane"."""
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Decision:
    """One gene: an index into `table`, whose columns fill the holes `holes`."""

    name: str
    holes: tuple[str, ...]
    table: NDArray[np.int64]
    """One row per allowed value, sorted so that smaller rows ask less of the hardware."""
    kinds: tuple[str, ...] = ()
    """What each column sizes; empty for a choice."""
    starts_at_max: bool = False
    """Whether it is drawn at its last value, for rules and mutations to lower."""

    @cached_property
    def halved_rows(self) -> NDArray[np.int64]:
        """`halved[column, row]`: the row with that column at most half as large and the others as they are;
        the row itself where the table has none."""
        rows = {tuple(r): i for i, r in enumerate(self.table.tolist())}
        out = np.tile(np.arange(self.size), (self.table.shape[1], 1))
        for column in range(self.table.shape[1]):
            values = sorted(set(self.table[:, column].tolist()), reverse=True)
            for i, row in enumerate(self.table.tolist()):
                for smaller in (v for v in values if 2 * v <= row[column]):
                    found = rows.get((*row[:column], smaller, *row[column + 1 :]))
                    if found is not None:
                        out[column, i] = found
                        break
        return out

    @property
    def size(self) -> int:
        """How many values there are."""
        return len(self.table)

    def get_values(self, index: int) -> tuple[int, ...]:
        """The numbers of one row."""
        return tuple(int(x) for x in self.table[index])


def make_choice(name: str, values: tuple[int, ...], starts_at_max: bool = False) -> Decision:
    """One number out of a few."""
    return Decision(
        name, (name,), np.array(sorted(values), dtype=np.int64).reshape(-1, 1), starts_at_max=starts_at_max
    )


def make_tiling(name: str, extent: int, levels: tuple[TileLevel, ...], alignment: int = 1) -> Decision:
    """The inner factors of a split, one per level, rounding the axis up by little; tiles are multiples of
    `grain` elements: none if the axis is shorter.

    Hole names are `<name>.1` and so on, from outer to inner.
    """
    grid = np.stack([g.ravel() for g in np.meshgrid(*(x.values for x in levels), indexing="ij")], axis=1)
    grid = grid[grid.prod(axis=1) % alignment == 0]
    tile = grid.prod(axis=1)
    waste = -(-extent // tile) * tile / extent
    fits = waste <= max(MAX_PADDING_RATIO, float(waste.min(initial=np.inf)))
    grid, tile, waste = grid[fits], tile[fits], waste[fits]
    if len(grid) > MAX_TABLE_ROWS:
        keep = np.sort(np.lexsort((np.arange(len(grid)), waste))[:MAX_TABLE_ROWS])
        grid, tile = grid[keep], tile[keep]
    order = np.lexsort((*grid.T, tile))
    holes = tuple(f"{name}.{i + 1}" for i in range(len(levels)))
    return Decision(name, holes, np.asarray(grid[order], dtype=np.int64), tuple(x.kind for x in levels))


def keep_exact_rows(decision: Decision, extent: int) -> Decision:
    """A tiling without those that leave a rest of the axis; maybe none is left."""
    return replace(decision, table=decision.table[extent % decision.table.prod(axis=1) == 0])


def make_level(kind: str, extent: int, max_value: int) -> TileLevel:
    """Powers of two, three times powers of two, and divisors of the extent, up to a limit."""
    top = min(max_value, extent)
    divisors = [d for d in range(1, top + 1) if extent % d == 0]
    powers = [2**e for e in range(12)] + [3 * 2**e for e in range(8)]
    return TileLevel(kind, tuple(sorted({1, *divisors, *(p for p in powers if p <= top)})))


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
