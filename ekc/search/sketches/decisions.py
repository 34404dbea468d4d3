"""Decisions: the named numbers that a structure leaves open, each with a table of allowed values.

`NeighbourTable` has the values of a decision that one small move reaches from each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.ir.validate import check_int, to_tuple
from ekc.search.data.defaults import TILING

MAX_TILES = 2**20
"""Most tuples that `list_tiles` chooses from."""


@dataclass(frozen=True, eq=False)
class TileLevel:
    """One column of a tile decision: the loop whose extent it is, and its allowed values."""

    kind: str
    """Role of the loop: "raster", "vthread", "thread", "tile", "reduce", "vector" or "lane"."""
    values: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Decision:
    """One gene of a genome: an index into `table`, whose columns fill the holes of steps."""

    name: str
    holes: tuple[str, ...]
    """Name of the hole that each column fills."""
    table: NDArray[np.int64]
    """[rows, columns]: one row per allowed value, sorted so that earlier rows need less of the hardware."""
    kinds: tuple[str, ...] = ()
    """Kind of the `TileLevel` of each column; empty for a choice of one number."""
    starts_at_max: bool = False
    """Whether random genomes have the last value, which only repair and mutation lower."""
    uses: tuple[str, ...] = ()
    """Uses of the numbers, such as "vector.A"; () where the last part of the name is the use."""

    @cached_property
    def halved_rows(self) -> NDArray[np.int64]:
        """[columns, rows]: index of the row with that column at most half as large and the other columns
        unchanged; the row's own index where the table has no such row."""
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

    @cached_property
    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `compute_neighbours`."""
        return compute_neighbours(self.table)

    @property
    def size(self) -> int:
        """Number of allowed values."""
        return len(self.table)

    def get_values(self, index: int) -> tuple[int, ...]:
        """The numbers of one row of the table, one for each hole."""
        return tuple(int(x) for x in self.table[index])


def make_choice(name: str, values: tuple[int, ...], starts_at_max: bool = False) -> Decision:
    """A decision for one number out of a few."""
    return Decision(
        name, (name,), np.array(sorted(values), dtype=np.int64).reshape(-1, 1), starts_at_max=starts_at_max
    )


def make_tiling(name: str, extent: int, levels: tuple[TileLevel, ...], alignment: int = 1) -> Decision:
    """A decision for the inner factors of a split, one per level, whose product rounds the axis up by little.

    Tiles are multiples of `alignment` elements; the table is empty if the axis is shorter than that. Hole
    names are `<name>.1` and so on, from outer to inner.
    """
    grid = np.stack([g.ravel() for g in np.meshgrid(*(x.values for x in levels), indexing="ij")], axis=1)
    grid = grid[grid.prod(axis=1) % alignment == 0]
    tile = grid.prod(axis=1)
    waste = -(-extent // tile) * tile / extent
    fits = waste <= max(TILING.max_padding_ratio, float(waste.min(initial=np.inf)))
    grid, waste = grid[fits], waste[fits]
    if len(grid) > TILING.max_table_rows:
        keep = np.sort(np.lexsort((np.arange(len(grid)), waste))[: TILING.max_table_rows])
        grid = grid[keep]
    holes = tuple(f"{name}.{i + 1}" for i in range(len(levels)))
    return Decision(name, holes, sort_rows(grid), tuple(x.kind for x in levels))


def sort_rows(table: NDArray[Any]) -> NDArray[np.int64]:
    """The rows of a table by their product, then by their last column and those before it."""
    order = np.lexsort((*table.T, table.prod(axis=1)))
    return np.asarray(table[order], dtype=np.int64)


def list_tiles(extent: int, most: Sequence[int]) -> list[tuple[int, ...]]:
    """Inner extents for a split of an axis: the values of a hole such as `ekc.hole("tile.i", ...)`.

    >>> ekc.list_tiles(512, (8, 32, 8))

    extent: of the axis. most: the largest extent of each inner loop, outer loop first. Each extent is a power
    of two, three times one, or a divisor of the axis, and a product rounds the axis up by no more than a
    third. Of more than 4,096 tuples those with the least padding stay. Raises `InvalidInput`.
    """
    check_int("list_tiles: extent", extent, 2**31 - 1)
    numbers = to_tuple(most)
    if not numbers:
        raise InvalidInput(f"list_tiles: most={format_value(most)} is no list of numbers; write (8, 32, 8)")
    levels = tuple(
        make_level("tile", extent, check_int("list_tiles: a number of most", n, 1024)) for n in numbers
    )
    check_int("list_tiles: tuples to choose from", prod(len(x.values) for x in levels), MAX_TILES)
    return [tuple(row) for row in make_tiling("tile", extent, levels).table.tolist()]


def keep_exact_rows(decision: Decision, extent: int) -> Decision:
    """The decision with only the rows whose product divides the extent; there may be none."""
    return replace(decision, table=decision.table[extent % decision.table.prod(axis=1) == 0])


def make_level(kind: str, extent: int, max_value: int) -> TileLevel:
    """A level with powers of two, three times those, and divisors of the extent, up to `max_value`."""
    top = min(max_value, extent)
    divisors = [d for d in range(1, top + 1) if extent % d == 0]
    powers = [2**e for e in range(12)] + [3 * 2**e for e in range(8)]
    return TileLevel(kind, tuple(sorted({1, *divisors, *(p for p in powers if p <= top)})))


class NeighbourTable:
    """The neighbours of every value of some decisions, to sample one of them."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        found = [d.neighbours for d in decisions]
        # The last row is for values without neighbours, also where there are no others.
        self._rows = np.concatenate([*(rows for rows, _ in found), np.zeros(1, np.int64)])
        self._neighbour_counts = np.concatenate([count for _, count in found])
        self._first_neighbours = np.cumsum(self._neighbour_counts) - self._neighbour_counts
        self._first_rows = np.cumsum([0, *(d.size for d in decisions[:-1])])

    def sample_neighbour(
        self, random: np.random.Generator, decision: NDArray[np.int64], value: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """A random neighbour of each value of these decisions; the same value where it has none."""
        at = self._first_rows[decision] + value
        count = self._neighbour_counts[at]
        sampled = self._first_neighbours[at] + random.integers(0, np.maximum(count, 1))
        return np.where(count > 0, self._rows[np.minimum(sampled, len(self._rows) - 1)], value)

    def list_neighbours(self, decision: int, value: int) -> NDArray[np.int64]:
        """All neighbours of a value of a decision."""
        at = self._first_rows[decision] + value
        first = self._first_neighbours[at]
        return self._rows[first : first + self._neighbour_counts[at]]


def compute_neighbours(table: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows one move away, the lists of all rows end to end; length of the list of each row).

    A move shifts a small factor from one column to another, so that the product stays, or changes one column
    to its next smaller or larger value. A choice has one column: its neighbours are the next values.
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
    moves = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return moves[1], np.bincount(moves[0], minlength=len(table))


def _generate_moves(
    table: NDArray[np.int64], values: list[NDArray[np.int64]]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """(table after one kind of move, rows for which that move exists)."""
    for column, levels in enumerate(values):
        at = np.searchsorted(levels, table[:, column])
        for step in (-1, 1):
            moved = table.copy()
            moved[:, column] = levels[np.clip(at + step, 0, len(levels) - 1)]
            yield moved, moved[:, column] != table[:, column]
    for giver, taker in permutations(range(len(values)), 2):
        for factor in TILING.movable_factors:
            moved = table.copy()
            moved[:, giver] //= factor
            moved[:, taker] *= factor
            yield moved, table[:, giver] % factor == 0


def _encode_rows(rows: NDArray[np.int64], values: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """A number per row, equal for equal rows; -1 for a row with a value that its column never takes."""
    key, valid = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=bool)
    for column, numbers in enumerate(values):
        at = np.minimum(np.searchsorted(numbers, rows[:, column]), len(numbers) - 1)
        valid &= numbers[at] == rows[:, column]
        key = key * len(numbers) + at
    return np.where(valid, key, -1)
