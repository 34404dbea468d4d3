"""Repair of genomes that break a rule: which decisions are lowered, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.search.data.defaults import SPACE
from ekc.search.sketches.decisions import Decision

_LEVELS_BY_RULE = {
    "registers": ("vthread", "tile"),
    "unrolling": ("vthread", "tile", "reduce"),
    "threads per block": ("thread",),
    "threads along z": ("thread",),
    "shared memory": ("vthread", "thread", "tile", "reduce"),
    "reduction on the spot": (),
}
"""Rule -> kinds of the tile levels that it depends on. A rule not named here may depend on all."""
_CHOICES_BY_RULE = {
    "unrolling": ("unroll", "written"),
    "registers": ("stages",),
    "shared memory": ("stages", "depth"),
    "reduction on the spot": ("warps",),
}
"""Rule -> last part of the names of the choices that it depends on."""


@dataclass(frozen=True, eq=False)
class RepairOperator:
    """The decisions whose lower values can repair one rule, as columns of the genome. Decisions that a
    structure does not use are 0 and stay 0."""

    halvings: tuple[tuple[int, NDArray[np.int64]], ...]
    """(column, table row -> row with one tile level halved) of every tile level."""
    lowerable_columns: tuple[int, ...]
    """Columns whose index may be lowered: vector widths, pads, unrolling, pipeline depth."""
    starts_at_max: tuple[bool, ...] = ()
    """Whether each lowerable column goes down by one value at a time, to stay close to its maximum."""

    def apply(
        self,
        random: np.random.Generator,
        genes: NDArray[np.int64],
        rows: NDArray[np.intp],
        violation: NDArray[np.float64],
    ) -> None:
        """Bring some rows of `genes` one step closer to legal, in place: lower a choice, or halve tile levels
        log2(`violation`) times, where `violation` is need over limit."""
        halvings = np.minimum(np.ceil(np.log2(np.maximum(violation, 1.001))), SPACE.max_halvings)
        if self.lowerable_columns:
            halvings[self._lower_choices(random, genes, rows)] = 0
        if self.halvings:
            for number in range(int(halvings.max(initial=0))):
                self._halve_tiles(random, genes, rows[halvings > number])

    def _lower_choices(
        self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Lower one random choice of each row by a random amount, or by one value if it starts at its
        maximum. Only half of the rows are lowered where tiles can shrink instead. Returns positions in
        `rows`."""
        values = _take_columns(genes, rows, self._lowerable_columns)
        at, pick = _pick_columns(random, values > 0)
        if self.halvings:
            chosen = random.random(len(at)) < 0.5
            at, pick = at[chosen], pick[chosen]
        before = _take_elements(values, at, pick)
        lowered = (random.random(len(at)) * before).astype(np.int64)
        if any(self.starts_at_max):
            lowered = np.where(self._starts_at_max.take(pick), before - 1, lowered)
        genes[rows[at], self._lowerable_columns.take(pick)] = lowered
        return at

    @cached_property
    def _lowerable_columns(self) -> NDArray[np.int64]:
        return np.array(self.lowerable_columns)

    @cached_property
    def _starts_at_max(self) -> NDArray[np.bool_]:
        return np.array(self.starts_at_max)

    def _halve_tiles(
        self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]
    ) -> None:
        """Halve one random tile level of each row, among those that can still shrink."""
        columns, begins, smaller = self._halving_tables
        values = _take_columns(genes, rows, columns)
        halved = smaller.take(values + begins)
        at, pick = _pick_columns(random, halved != values)
        genes[rows[at], columns.take(pick)] = _take_elements(halved, at, pick)

    @cached_property
    def _halving_tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(columns of `halvings`, first element of each table, all tables end to end)."""
        columns = np.array([column for column, _ in self.halvings])
        tables = [smaller for _, smaller in self.halvings]
        return columns, np.cumsum([0, *map(len, tables[:-1])]), np.concatenate(tables)


def _pick_columns(
    random: np.random.Generator, is_possible: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows with a possible column, a random possible column of each)."""
    pick = np.where(is_possible, random.random(is_possible.shape), -1.0).argmax(axis=1)
    rows = _take_elements(is_possible, np.arange(len(is_possible)), pick).nonzero()[0]
    return rows, pick.take(rows)


def _take_columns(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.int64]) -> NDArray[Any]:
    """`table[rows[:, None], columns]`, faster with `take`."""
    return np.asarray(table.ravel().take(rows[:, None] * table.shape[1] + columns))


def _take_elements(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Any]:
    """`table[rows, columns]`, faster with `take`."""
    return np.asarray(table.ravel().take(rows * table.shape[1] + columns))


def make_repair_operator(rule: str, decisions: Sequence[Decision]) -> RepairOperator:
    """Make the repair operator of a rule from the decisions of a space, in the order of genome columns."""
    vector = _find_vector_columns(rule, decisions)
    if vector:
        return _build_repair_operator((), vector, decisions)
    kinds = _LEVELS_BY_RULE.get(rule)
    halvings = tuple(
        (column, d.halved_rows[i])
        for column, d in enumerate(decisions)
        for i, kind in enumerate(d.kinds)
        if kind != "lane" and (kinds is None or kind in kinds)
    )
    choices = _CHOICES_BY_RULE.get(rule, ())
    columns = tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in choices)
    return _build_repair_operator(halvings, columns, decisions)


def _build_repair_operator(
    halvings: tuple[tuple[int, NDArray[np.int64]], ...],
    columns: tuple[int, ...],
    decisions: Sequence[Decision],
) -> RepairOperator:
    return RepairOperator(halvings, columns, tuple(decisions[c].starts_at_max for c in columns))


def _find_vector_columns(rule: str, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """Columns of the widths and pads of a rule on vectors; the smallest width with pad 0 is always legal."""
    subject = rule.removeprefix("vector width of ").removeprefix("write of ")
    if subject == rule:
        return ()
    tensor, _, scope = subject.partition(".")
    kinds = {"register": ("move",), "shared": ("vector", "flight", "pad"), "": ("vector",)}[scope]
    names = {f"{kind}.{tensor}" for kind in kinds}
    return tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in names)
