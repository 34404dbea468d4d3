"""How a broken rule is mended: which decisions can be made smaller, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.search.sketches.decisions import Decision

_LEVELS_BY_RULE = {
    "registers": ("vthread", "tile"),
    "unrolling": ("vthread", "tile", "reduce"),
    "threads per block": ("thread",),
    "threads along z": ("thread",),
    "shared memory": ("vthread", "thread", "tile", "reduce"),
    "reduction on the spot": (),
}
"""Which tile levels a resource depends on. A rule not named here may be mended by any."""
_CHOICES_BY_RULE = {
    "unrolling": ("unroll", "written"),
    "registers": ("stages",),
    "shared memory": ("stages", "depth"),
    "reduction on the spot": ("warps",),
}
"""Choices that it depends on too."""
_MAX_HALVINGS = 6


@dataclass(frozen=True, eq=False)
class RepairOperator:
    """Columns of the genome that can mend one rule. What a structure does not use stands at 0, below which
    nothing goes."""

    halvings: tuple[tuple[int, NDArray[np.int64]], ...]
    """(column, row -> smaller row) for tile levels."""
    lowerable_columns: tuple[int, ...]
    """Columns whose index may go down: vector widths, pads, unrolling, pipeline depth."""
    starts_at_max: tuple[bool, ...] = ()
    """Which of these go down by one value at a time, to stay as near their last as may be."""

    def apply(
        self,
        random: np.random.Generator,
        genes: NDArray[np.int64],
        rows: NDArray[np.intp],
        violation: NDArray[np.float64],
    ) -> None:
        """Bring some rows of `genes` one step closer to legal, where they stand: tiles halved as often as the
        `excess` of each of the rows asks, choices lowered."""
        wanted = np.minimum(np.ceil(np.log2(np.maximum(violation, 1.001))), _MAX_HALVINGS)
        if self.lowerable_columns:
            wanted[self._lower_choices(random, genes, rows)] = 0
        if self.halvings:
            for number in range(int(wanted.max(initial=0))):
                self._halve_tiles(random, genes, rows[wanted > number])

    def _lower_choices(
        self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Lower one choice of each row, any that can go down, by any amount but for the eager; only half the
        rows where tiles could shrink instead. Which of the rows were lowered."""
        own = _take_columns(genes, rows, self._lowerable_columns)
        at, pick = _pick_columns(random, own > 0)
        if self.halvings:
            chosen = random.random(len(at)) < 0.5
            at, pick = at[chosen], pick[chosen]
        before = _take_elements(own, at, pick)
        left = (random.random(len(at)) * before).astype(np.int64)
        if any(self.starts_at_max):
            left = np.where(self._starts_at_max.take(pick), before - 1, left)
        genes[rows[at], self._lowerable_columns.take(pick)] = left
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
        """Halve one tile level of each row, any of those that can still shrink."""
        columns, begins, smaller = self._halving_tables
        own = _take_columns(genes, rows, columns)
        halved = smaller.take(own + begins)
        at, pick = _pick_columns(random, halved != own)
        genes[rows[at], columns.take(pick)] = _take_elements(halved, at, pick)

    @cached_property
    def _halving_tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The columns of `halvings`, and their tables end to end: where each begins, and all of them."""
        columns = np.array([column for column, _ in self.halvings])
        lengths = [len(smaller) for _, smaller in self.halvings]
        return (
            columns,
            np.cumsum([0, *lengths[:-1]]),
            np.concatenate([smaller for _, smaller in self.halvings]),
        )


def _pick_columns(
    random: np.random.Generator, is_possible: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """One of the columns that each row can take, and the rows that can take any."""
    pick = np.where(is_possible, random.random(is_possible.shape), -1.0).argmax(axis=1)
    rows = _take_elements(is_possible, np.arange(len(is_possible)), pick).nonzero()[0]
    return rows, pick.take(rows)


def _take_columns(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.int64]) -> NDArray[Any]:
    """`table[rows[:, None], columns]`; `take` finds its numbers sooner."""
    return np.asarray(table.ravel().take(rows[:, None] * table.shape[1] + columns))


def _take_elements(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Any]:
    """`table[rows, columns]`, likewise."""
    return np.asarray(table.ravel().take(rows * table.shape[1] + columns))


def make_repair_operator(rule: str, decisions: Sequence[Decision]) -> RepairOperator:
    """The remedy for a rule among the decisions of a space, told by genome column."""
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
    extra = _CHOICES_BY_RULE.get(rule, ())
    columns = tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in extra)
    return _build_repair_operator(halvings, columns, decisions)


def _build_repair_operator(
    halvings: tuple[tuple[int, NDArray[np.int64]], ...],
    columns: tuple[int, ...],
    decisions: Sequence[Decision],
) -> RepairOperator:
    return RepairOperator(halvings, columns, tuple(decisions[c].starts_at_max for c in columns))


def _find_vector_columns(rule: str, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """The widths and pads behind a vector rule. The least width with pad 0 is always legal."""
    what = rule.removeprefix("vector width of ").removeprefix("write of ")
    if what == rule:
        return ()
    tensor, _, scope = what.partition(".")
    kinds = {"register": ("move",), "shared": ("vector", "flight", "pad"), "": ("vector",)}[scope]
    names = {f"{kind}.{tensor}" for kind in kinds}
    return tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in names)
