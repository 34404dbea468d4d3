"""Tables of measurements by other tuners, and the search space whose genomes are the rows of a table.

Genes are indices into the sorted values of each column. A neighbour is another row that differs in one
column. Repair replaces a genome that is no row by a row near it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.search.data.defaults import REPLAY
from ekc.search.data.population import Population


@dataclass(frozen=True, eq=False)
class MeasurementTable:
    """Settings of n configurations, and one figure of each."""

    decision_names: tuple[str, ...]
    """Names of the d columns of `settings`."""
    settings: NDArray[np.float64]
    """[n, d] Value of each decision in each configuration."""
    figures: NDArray[np.float64]
    """[n] Figure to minimise; NaN for a failed configuration."""
    trial_costs_s: NDArray[np.float64]
    """[n] Seconds that compiling and benchmarking a configuration took."""
    unit: str = ""
    """Unit of the figures; "" if unknown."""

    @property
    def best_figure(self) -> float:
        """The least figure of the table."""
        return float(np.nanmin(self.figures))


def make_table(
    columns: Mapping[str, Sequence[str]], decisions: Sequence[str], figure: str, costs_ms: Sequence[str] = ()
) -> MeasurementTable:
    """Make a table of text columns. Decisions with a single value are left out; a figure that is no number
    counts as a failure.

    costs_ms: names of columns with the milliseconds of trying a row, which are added up. Raises
    `InvalidInput` for a missing column, a setting that is no number, equal rows, or a table without a figure.
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
    """Parse a figure above 0; other text is a failure, NaN: tuners write nothing, a word or 1e20."""
    try:
        value = float(text)
    except ValueError:
        return float("nan")
    return value if 0 < value < 1e20 else float("nan")


MAX_KEYS = 2**62
"""Combinations of values that a table may have, at most: keys are int64."""


class TableSpace:
    """The rows of a table as genomes: a `SearchSpace`."""

    def __init__(self, table: MeasurementTable) -> None:
        columns = [np.unique(c, return_inverse=True) for c in table.settings.T]
        self.value_counts = np.array([len(values) for values, _ in columns], dtype=np.int64)
        if float(self.value_counts.astype(np.float64).prod()) > MAX_KEYS:
            raise InvalidInput(
                f"table: {len(self.value_counts)} columns have more than {MAX_KEYS} combinations; "
                "leave some out"
            )
        self.genes = np.stack([inverse for _, inverse in columns], axis=1).astype(np.int64)
        self._radix_weights = _compute_radix_weights(self.value_counts)
        keys = self.genes @ self._radix_weights
        self._sorted_rows = np.argsort(keys, kind="stable")
        self._sorted_keys = keys[self._sorted_rows]
        axes = zip(self.genes.T, self._radix_weights, strict=True)
        self._axis_lines = [_group_lines(keys - genes * weight, genes) for genes, weight in axes]
        self.features = compute_table_features(table.settings)
        """[n, features] Features of the rows."""

    def sample(self, random: np.random.Generator, count: int) -> Population:
        """Sample rows uniformly."""
        return self._make_population(random.integers(0, len(self.genes), count))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Take each gene from either parent. The child may be no row before `repair`."""
        from_father = random.random(mothers.genes.shape) < 0.5
        return Population(mothers.structure, np.where(from_father, fathers.genes, mothers.genes))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Move to another row along one column, or two. A genome that is no row is repaired first."""
        rows = self._find_nearby_rows(random, parents.genes)
        rows = self._move(random, rows)
        twice = random.random(len(rows)) < REPLAY.second_move_share
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
        """Replace each genome that is no row by a row near it. None is dropped."""
        return self._make_population(self._find_nearby_rows(random, population.genes)), Counter()

    def _find_nearby_rows(self, random: np.random.Generator, genes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each genome, or a row that agrees with it in the first columns of a random order."""
        rows = self.find_rows(genes)
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            shuffled = random.permutation(len(self.value_counts))
            weights = np.empty_like(self._radix_weights)
            weights[shuffled] = _compute_radix_weights(self.value_counts[shuffled])
            keys = self.genes @ weights
            order = np.argsort(keys, kind="stable")
            place = np.searchsorted(keys[order], genes[missing] @ weights)
            rows[missing] = order[np.minimum(place, len(order) - 1)]
        return rows

    def find_rows(self, genes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the row of each genome; -1 for a genome that is no row."""
        keys = genes @ self._radix_weights
        place = np.minimum(np.searchsorted(self._sorted_keys, keys), len(self._sorted_keys) - 1)
        return np.where(self._sorted_keys[place] == keys, self._sorted_rows[place], -1)

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        """Compute one number per combination of values, in mixed radix."""
        return np.asarray(population.genes @ self._radix_weights)

    def _make_population(self, rows: NDArray[np.int64]) -> Population:
        return Population(np.zeros(len(rows), dtype=np.int64), self.genes[rows])


@dataclass(frozen=True, eq=False)
class _AxisLines:
    """The rows sorted into lines along one column: rows of a line agree in all other columns."""

    sorted_rows: NDArray[np.int64]
    """[n] Rows, line by line, by their value in the column."""
    position: NDArray[np.int64]
    """[n] Position of each row in `sorted_rows`."""
    first: NDArray[np.int64]
    """[n] Position in `sorted_rows` at which the line of each row begins."""
    length: NDArray[np.int64]
    """[n] Rows in the line of each row."""

    def sample_other(self, random: np.random.Generator, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample another row of the same line: any, or the next up or down. A lone row stays."""
        first, length = self.first[rows], self.length[rows]
        anywhere = first + (random.random(len(rows)) * length).astype(np.int64)
        step = random.choice([-1, 1], len(rows))
        next_one = np.clip(self.position[rows] + step, first, first + length - 1)
        is_far = random.random(len(rows)) < REPLAY.far_move_share
        return self.sorted_rows[np.where(is_far, anywhere, next_one)]


def _group_lines(line_keys: NDArray[np.int64], values: NDArray[np.int64]) -> _AxisLines:
    order = np.lexsort((values, line_keys))
    _, first, inverse, length = np.unique(
        line_keys[order], return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return _AxisLines(order, place, first[inverse][place], length[inverse][place])


def _compute_radix_weights(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compute the weight of each gene in a key, the first gene counting most."""
    return np.asarray(np.append(np.cumprod(sizes[:0:-1])[::-1], 1), dtype=np.int64)


def compute_table_features(settings: NDArray[np.float64]) -> NDArray[np.float32]:
    """Compute the features of `settings` [n, d], on a log scale if the values allow it.

    Every setting is a feature, and every product and quotient of two settings with more than two values, such
    as threads per block and elements per thread. Sizes also have their largest factor that is a power of two,
    as warps and cache lines are powers of two.
    """
    columns = [_to_log_scale(column) for column in settings.T]
    sizes = [i for i, c in enumerate(settings.T) if len(np.unique(c)) > 2]
    pairs = list(itertools.combinations(sizes, 2))
    evenness = [_compute_evenness(settings[:, i]) for i in sizes if _is_count_column(settings[:, i])]
    columns += [columns[a] + columns[b] for a, b in pairs] + [columns[a] - columns[b] for a, b in pairs]
    columns += [e for e in evenness if not any(np.array_equal(e, c) for c in columns)]
    return np.stack(columns, axis=1).astype(np.float32)


def _is_count_column(column: NDArray[np.float64]) -> bool:
    """Whether all values are whole numbers above 0."""
    return bool((column >= 1).all() and (column == np.round(column)).all() and column.max() < MAX_KEYS)


def _compute_evenness(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute log2 of the largest power of two that divides each value."""
    integers = column.astype(np.int64)
    return np.asarray(np.log2(integers & -integers))


def _to_log_scale(column: NDArray[np.float64]) -> NDArray[np.float64]:
    if column.min() > 0:
        return np.log2(column)
    return np.log2(1 + column) if column.min() >= 0 else column
