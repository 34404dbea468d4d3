"""A space over a table of measurements: the legal genomes are its rows.

Nothing here knows what was measured. Genes are indices into the sorted values of each column; a
neighbour is another row that differs in one column; a genome that is no row becomes a row near it.

Tables of measurements made by others: decisions, one figure a row, and what trying a row cost.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.search.data.population import Population


@dataclass(frozen=True, eq=False)
class MeasurementTable:
    """Measurements by others: `settings[n, d]` of the decisions `names`, and one figure per row."""

    decision_names: tuple[str, ...]
    settings: NDArray[np.float64]
    figures: NDArray[np.float64]
    """What is to be made small; NaN where the configuration failed."""
    trial_costs_s: NDArray[np.float64]
    """What trying a row cost: compiling and benchmarking."""
    unit: str = ""
    """Of the figures, where it is known."""

    @property
    def best_figure(self) -> float:
        """The least figure of the table."""
        return float(np.nanmin(self.figures))


def make_table(
    columns: Mapping[str, Sequence[str]], decisions: Sequence[str], figure: str, costs_ms: Sequence[str] = ()
) -> MeasurementTable:
    """A Table out of text columns; decisions with one value are left out, figures that are no number failed.

    costs_ms: columns of milliseconds that trying a row took, added up. Raises `InvalidInput` for a column
    that is missing, a setting that is no number, equal rows, or a table without a figure.
    """
    for name in (*decisions, figure, *costs_ms):
        if name not in columns:
            raise InvalidInput(f"table: no column {name!r}; it has {', '.join(columns)}")
    settings = np.stack([_parse_settings(name, columns[name]) for name in decisions], axis=1)
    vary = [i for i in range(len(decisions)) if len(np.unique(settings[:, i])) > 1]
    figures = np.array([parse_figure(text) for text in columns[figure]])
    if not np.isfinite(figures).any():
        raise InvalidInput(
            f"table: column {figure!r} has no figure above 0; at least one row must have worked"
        )
    settings = settings[:, vary]
    if len(np.unique(settings, axis=0)) < len(settings):
        raise InvalidInput(f"table: two rows have the same {', '.join(decisions)}; keep one of them")
    costs = [[parse_figure(text) for text in columns[name]] for name in costs_ms]
    seconds = np.nansum(np.array(costs), axis=0) / 1e3 if costs else np.zeros(len(figures))
    return MeasurementTable(tuple(decisions[i] for i in vary), settings, figures, seconds)


def _parse_settings(name: str, texts: Sequence[str]) -> NDArray[np.float64]:
    try:
        return np.array([float(t) for t in texts])
    except ValueError as problem:
        raise InvalidInput(f"table: column {name!r} holds a setting that is no number: {problem}") from None


def parse_figure(text: str) -> float:
    """A figure above 0, or NaN: recordings write failures as empty, as a word or as a huge constant."""
    try:
        value = float(text)
    except ValueError:
        return float("nan")
    return value if 0 < value < 1e20 else float("nan")


MAX_KEYS = 2**62
"""Keys are int64."""
FAR_MOVE_SHARE, SECOND_MOVE_SHARE = 0.5, 0.4
"""Share of moves to any value of a column instead of the next one; share of mutations that move twice."""


class TableSpace:
    """The rows of a Table as genomes: draw, cross, mutate, repair; `rows` finds a genome in the table."""

    def __init__(self, table: MeasurementTable) -> None:
        columns = [np.unique(c, return_inverse=True) for c in table.settings.T]
        self.value_counts = np.array([len(values) for values, _ in columns], dtype=np.int64)
        if float(self.value_counts.astype(np.float64).prod()) > MAX_KEYS:
            raise InvalidInput(
                f"table: {len(self.value_counts)} columns have more than {MAX_KEYS} combinations; leave some out"
            )
        self.genes = np.stack([inverse for _, inverse in columns], axis=1).astype(np.int64)
        self._radix_weights = _compute_radix_weights(self.value_counts)
        keys = self.genes @ self._radix_weights
        self._sorted_rows = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[self._sorted_rows]
        self._axis_lines = [
            _group_lines(keys - self.genes[:, i] * self._radix_weights[i], self.genes[:, i])
            for i in range(len(self.value_counts))
        ]
        self._features = compute_table_features(table.settings)

    def sample(self, random: np.random.Generator, count: int) -> Population:
        """Uniform over the rows."""
        return self._make_population(random.integers(0, len(self.genes), count))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Each gene of either parent. Not yet a row."""
        taken = random.random(mothers.genes.shape) < 0.5
        return Population(mothers.structure, np.where(taken, fathers.genes, mothers.genes))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Move one column, sometimes two, to another row; a genome that is no row is mended first."""
        rows = self._find_nearby_rows(random, parents.genes)
        rows = self._move(random, rows)
        twice = random.random(len(rows)) < SECOND_MOVE_SHARE
        rows[twice] = self._move(random, rows[twice])
        return self._make_population(rows)

    def _move(self, random: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        moved = rows.copy()
        column = random.integers(0, len(self.value_counts), len(rows))
        for i, line in enumerate(self._axis_lines):
            mine = np.flatnonzero(column == i)
            moved[mine] = line.sample_other(random, rows[mine])
        return moved

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Every genome a row: itself, or one near it. Nothing is dropped."""
        return self._make_population(self._find_nearby_rows(random, population.genes)), Counter()

    def _find_nearby_rows(self, random: np.random.Generator, genes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each genome; for one that is none, a row that agrees in a long run of columns, taken in
        an order that is drawn afresh."""
        rows = self.find_rows(genes)
        strange = np.flatnonzero(rows < 0)
        if strange.size:
            shuffled = random.permutation(len(self.value_counts))
            scale = np.empty_like(self._radix_weights)
            scale[shuffled] = _compute_radix_weights(self.value_counts[shuffled])
            keys = self.genes @ scale
            order = np.argsort(keys, kind="stable")
            place = np.searchsorted(keys[order], genes[strange] @ scale)
            rows[strange] = order[np.minimum(place, len(order) - 1)]
        return rows

    def find_rows(self, genes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each genome in the table, -1 for what is none."""
        keys = genes @ self._radix_weights
        place = np.minimum(np.searchsorted(self._sorted_keys, keys), len(self._sorted_keys) - 1)
        return np.where(self._sorted_keys[place] == keys, self._sorted_rows[place], -1)

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        """Mixed radix: one number per combination of values."""
        return np.asarray(population.genes @ self._radix_weights)

    def get_features(self, population: Population) -> NDArray[np.float32]:
        """What models see of each genome, all of which must be rows."""
        return self.get_row_features(self.find_rows(population.genes))

    def get_row_features(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """What models see of rows of the table."""
        return self._features[rows]

    def _make_population(self, rows: NDArray[np.int64]) -> Population:
        return Population(np.zeros(len(rows), dtype=np.int64), self.genes[rows])


@dataclass(frozen=True, eq=False)
class _AxisLines:
    """The rows sorted into lines along one column: those of a line agree in all the other columns."""

    sorted_rows: NDArray[np.int64]
    position: NDArray[np.int64]
    first: NDArray[np.int64]
    length: NDArray[np.int64]

    def sample_other(self, random: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """A row of the same line: any, or the next up or down; itself where it stands alone."""
        first, length = self.first[rows], self.length[rows]
        anywhere = first + (random.random(len(rows)) * length).astype(np.int64)
        step = random.choice([-1, 1], len(rows))
        next_one = np.clip(self.position[rows] + step, first, first + length - 1)
        return self.sorted_rows[np.where(random.random(len(rows)) < FAR_MOVE_SHARE, anywhere, next_one)]


def _group_lines(line_keys: NDArray[np.int64], values: NDArray[np.int64]) -> _AxisLines:
    order = np.lexsort((values, line_keys))
    _, first, inverse, length = np.unique(
        line_keys[order], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return _AxisLines(order, place, first[inverse][place], length[inverse][place])


def _compute_radix_weights(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What one step of each gene is worth, the first gene counting most."""
    return np.asarray(np.append(np.cumprod(sizes[:0:-1])[::-1], 1), dtype=np.int64)


def compute_table_features(settings: NDArray[np.float64]) -> NDArray[np.float32]:
    """Features of `settings[n, d]`: every setting, every product and quotient of two that take more than two
    values (threads in a block, elements a thread), on a log scale where a column allows it, and of sizes that
    are not all powers of two the largest one that divides them: warps and lines of memory come in those."""
    columns = [_to_log_scale(column) for column in settings.T]
    sizes = [i for i, c in enumerate(settings.T) if len(np.unique(c)) > 2]
    pairs = list(itertools.combinations(sizes, 2))
    evenness = [_compute_evenness(settings[:, i]) for i in sizes if _is_count_column(settings[:, i])]
    columns += [columns[a] + columns[b] for a, b in pairs] + [columns[a] - columns[b] for a, b in pairs]
    columns += [e for e in evenness if not any(np.array_equal(e, c) for c in columns)]
    return np.stack(columns, axis=1).astype(np.float32)


def _is_count_column(column: NDArray[np.float64]) -> bool:
    """Whether all are whole numbers above 0."""
    return bool((column >= 1).all() and (column == np.round(column)).all() and column.max() < MAX_KEYS)


def _compute_evenness(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log2 of the largest power of two that divides each."""
    whole = column.astype(np.int64)
    return np.asarray(np.log2(whole & -whole))


def _to_log_scale(column: NDArray[np.float64]) -> NDArray[np.float64]:
    if column.min() > 0:
        return np.log2(column)
    return np.log2(1 + column) if column.min() >= 0 else column
