"""A space over a table of measurements: the legal genomes are its rows.

Nothing here knows what was measured. Genes are indices into the sorted values of each column; a
neighbour is another row that differs in one column; a genome that is no row becomes a row near it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.search.population import Population
from ekc.search.recordings.table import Table

MOST_KEYS = 2**62
"""Keys are int64."""
FAR_MOVES, SECOND_MOVE = 0.5, 0.4
"""Share of moves to any value of a column instead of the next one; share of mutations that move twice."""


class RecordedSpace:
    """The rows of a Table as genomes: draw, cross, mutate, repair; `rows` finds a genome in the table."""

    def __init__(self, recorded: Table) -> None:
        columns = [np.unique(c, return_inverse=True) for c in recorded.settings.T]
        self.sizes = np.array([len(values) for values, _ in columns], dtype=np.int64)
        if float(self.sizes.astype(np.float64).prod()) > MOST_KEYS:
            raise InvalidInput(
                f"table: {len(self.sizes)} columns have more than {MOST_KEYS} combinations; leave some out"
            )
        self.genes = np.stack([inverse for _, inverse in columns], axis=1).astype(np.int64)
        self._scale = _radix(self.sizes)
        keys = self.genes @ self._scale
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        self._lines = [
            _lines(keys - self.genes[:, i] * self._scale[i], self.genes[:, i]) for i in range(len(self.sizes))
        ]
        self._features = describe(recorded.settings)

    def draw(self, random: np.random.Generator, count: int) -> Population:
        """Uniform over the rows."""
        return self._of(random.integers(0, len(self.genes), count))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Each gene of either parent. Not yet a row."""
        taken = random.random(mothers.genes.shape) < 0.5
        return Population(mothers.structure, np.where(taken, fathers.genes, mothers.genes))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Move one column, sometimes two, to another row; a genome that is no row is mended first."""
        rows = self._nearby(random, parents.genes)
        rows = self._moved(random, rows)
        twice = random.random(len(rows)) < SECOND_MOVE
        rows[twice] = self._moved(random, rows[twice])
        return self._of(rows)

    def _moved(self, random: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        moved = rows.copy()
        column = random.integers(0, len(self.sizes), len(rows))
        for i, line in enumerate(self._lines):
            mine = np.flatnonzero(column == i)
            moved[mine] = line.other(random, rows[mine])
        return moved

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Every genome a row: itself, or one near it. Nothing is dropped."""
        return self._of(self._nearby(random, population.genes)), Counter()

    def _nearby(self, random: np.random.Generator, genes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each genome; for one that is none, a row that agrees in a long run of columns, taken in
        an order that is drawn afresh."""
        rows = self.rows(genes)
        strange = np.flatnonzero(rows < 0)
        if strange.size:
            shuffled = random.permutation(len(self.sizes))
            scale = np.empty_like(self._scale)
            scale[shuffled] = _radix(self.sizes[shuffled])
            keys = self.genes @ scale
            order = np.argsort(keys, kind="stable")
            place = np.searchsorted(keys[order], genes[strange] @ scale)
            rows[strange] = order[np.minimum(place, len(order) - 1)]
        return rows

    def rows(self, genes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each genome in the table, -1 for what is none."""
        keys = genes @ self._scale
        place = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return np.where(self._sorted[place] == keys, self._order[place], -1)

    def keys(self, population: Population) -> NDArray[np.int64]:
        """Mixed radix: one number per combination of values."""
        return np.asarray(population.genes @ self._scale)

    def features(self, population: Population) -> NDArray[np.float32]:
        """What models see of each genome, all of which must be rows."""
        return self.features_of(self.rows(population.genes))

    def features_of(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """What models see of rows of the table."""
        return self._features[rows]

    def _of(self, rows: NDArray[np.int64]) -> Population:
        return Population(np.zeros(len(rows), dtype=np.int64), self.genes[rows])


@dataclass(frozen=True, eq=False)
class _Lines:
    """The rows sorted into lines along one column: those of a line agree in all the other columns."""

    order: NDArray[np.int64]
    place: NDArray[np.int64]
    first: NDArray[np.int64]
    length: NDArray[np.int64]

    def other(self, random: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """A row of the same line: any, or the next up or down; itself where it stands alone."""
        first, length = self.first[rows], self.length[rows]
        anywhere = first + (random.random(len(rows)) * length).astype(np.int64)
        step = random.choice([-1, 1], len(rows))
        next_one = np.clip(self.place[rows] + step, first, first + length - 1)
        return self.order[np.where(random.random(len(rows)) < FAR_MOVES, anywhere, next_one)]


def _lines(line: NDArray[np.int64], value: NDArray[np.int64]) -> _Lines:
    order = np.lexsort((value, line))
    _, first, inverse, length = np.unique(
        line[order], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return _Lines(order, place, first[inverse][place], length[inverse][place])


def _radix(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What one step of each gene is worth, the first gene counting most."""
    return np.asarray(np.append(np.cumprod(sizes[:0:-1])[::-1], 1), dtype=np.int64)


def describe(settings: NDArray[np.float64]) -> NDArray[np.float32]:
    """Features of `settings[n, d]`: every setting, every product and quotient of two that take more than two
    values (threads in a block, elements a thread), on a log scale where a column allows it, and of sizes that
    are not all powers of two the largest one that divides them: warps and lines of memory come in those."""
    columns = [_scaled(column) for column in settings.T]
    sizes = [i for i, c in enumerate(settings.T) if len(np.unique(c)) > 2]
    pairs = list(itertools.combinations(sizes, 2))
    evenness = [_evenness(settings[:, i]) for i in sizes if _counts(settings[:, i])]
    columns += [columns[a] + columns[b] for a, b in pairs] + [columns[a] - columns[b] for a, b in pairs]
    columns += [e for e in evenness if not any(np.array_equal(e, c) for c in columns)]
    return np.stack(columns, axis=1).astype(np.float32)


def _counts(column: NDArray[np.float64]) -> bool:
    """Whether all are whole numbers above 0."""
    return bool((column >= 1).all() and (column == np.round(column)).all() and column.max() < MOST_KEYS)


def _evenness(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log2 of the largest power of two that divides each."""
    whole = column.astype(np.int64)
    return np.asarray(np.log2(whole & -whole))


def _scaled(column: NDArray[np.float64]) -> NDArray[np.float64]:
    if column.min() > 0:
        return np.log2(column)
    return np.log2(1 + column) if column.min() >= 0 else column
