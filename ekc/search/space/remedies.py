"""How a broken rule is mended: which decisions can be made smaller, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.search.space.decisions import Decision

_LEVELS = {
    "registers": ("vthread", "tile"),
    "unrolling": ("vthread", "tile", "reduce"),
    "threads per block": ("thread",),
    "threads along z": ("thread",),
    "shared memory": ("vthread", "thread", "tile", "reduce"),
    "reduction on the spot": (),
}
"""Which tile levels a resource depends on. A rule not named here may be mended by any."""
_CHOICES = {
    "unrolling": ("unroll", "written"),
    "registers": ("stages",),
    "shared memory": ("stages", "depth"),
    "reduction on the spot": ("warps",),
}
"""Choices that it depends on too."""
_MOST_HALVINGS = 6


@dataclass(frozen=True, eq=False)
class Remedy:
    """Columns of the genome that can mend one rule. What a structure does not use stands at 0, below which
    nothing goes."""

    halvings: tuple[tuple[int, NDArray[np.int64]], ...]
    """(column, row -> smaller row) for tile levels."""
    lowered: tuple[int, ...]
    """Columns whose index may go down: vector widths, pads, unrolling, pipeline depth."""
    eager: tuple[bool, ...] = ()
    """Which of these go down by one value at a time, to stay as near their last as may be."""

    def ease(
        self,
        random: np.random.Generator,
        genes: NDArray[np.int64],
        rows: NDArray[np.intp],
        excess: NDArray[np.float64],
    ) -> None:
        """Bring some rows of `genes` one step closer to legal, where they stand: tiles halved as often as the
        `excess` of each of the rows asks, choices lowered."""
        wanted = np.minimum(np.ceil(np.log2(np.maximum(excess, 1.001))), _MOST_HALVINGS)
        if self.lowered:
            wanted[self._lower(random, genes, rows)] = 0
        if self.halvings:
            for number in range(int(wanted.max(initial=0))):
                self._halve(random, genes, rows[wanted > number])

    def _lower(
        self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Lower one choice of each row, any that can go down, by any amount but for the eager; only half the
        rows where tiles could shrink instead. Which of the rows were lowered."""
        own = _part(genes, rows, self._lowered)
        at, pick = _picked(random, own > 0)
        if self.halvings:
            chosen = random.random(len(at)) < 0.5
            at, pick = at[chosen], pick[chosen]
        before = _at(own, at, pick)
        left = (random.random(len(at)) * before).astype(np.int64)
        if any(self.eager):
            left = np.where(self._eager.take(pick), before - 1, left)
        genes[rows[at], self._lowered.take(pick)] = left
        return at

    @cached_property
    def _lowered(self) -> NDArray[np.int64]:
        return np.array(self.lowered)

    @cached_property
    def _eager(self) -> NDArray[np.bool_]:
        return np.array(self.eager)

    def _halve(self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.intp]) -> None:
        """Halve one tile level of each row, any of those that can still shrink."""
        columns, begins, smaller = self._tables
        own = _part(genes, rows, columns)
        halved = smaller.take(own + begins)
        at, pick = _picked(random, halved != own)
        genes[rows[at], columns.take(pick)] = _at(halved, at, pick)

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The columns of `halvings`, and their tables end to end: where each begins, and all of them."""
        columns = np.array([column for column, _ in self.halvings])
        lengths = [len(smaller) for _, smaller in self.halvings]
        return (
            columns,
            np.cumsum([0, *lengths[:-1]]),
            np.concatenate([smaller for _, smaller in self.halvings]),
        )


def _picked(
    random: np.random.Generator, able: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """One of the columns that each row can take, and the rows that can take any."""
    pick = np.where(able, random.random(able.shape), -1.0).argmax(axis=1)
    rows = _at(able, np.arange(len(able)), pick).nonzero()[0]
    return rows, pick.take(rows)


def _part(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.int64]) -> NDArray[Any]:
    """`table[rows[:, None], columns]`; `take` finds its numbers sooner."""
    return np.asarray(table.ravel().take(rows[:, None] * table.shape[1] + columns))


def _at(table: NDArray[Any], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Any]:
    """`table[rows, columns]`, likewise."""
    return np.asarray(table.ravel().take(rows * table.shape[1] + columns))


def remedy_for(rule: str, decisions: Sequence[Decision]) -> Remedy:
    """The remedy for a rule among the decisions of a space, told by genome column."""
    vector = _vector_columns(rule, decisions)
    if vector:
        return _lowering((), vector, decisions)
    kinds = _LEVELS.get(rule)
    halvings = tuple(
        (column, d.halved[i])
        for column, d in enumerate(decisions)
        for i, kind in enumerate(d.kinds)
        if kind != "lane" and (kinds is None or kind in kinds)
    )
    extra = _CHOICES.get(rule, ())
    columns = tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in extra)
    return _lowering(halvings, columns, decisions)


def _lowering(
    halvings: tuple[tuple[int, NDArray[np.int64]], ...],
    columns: tuple[int, ...],
    decisions: Sequence[Decision],
) -> Remedy:
    return Remedy(halvings, columns, tuple(decisions[c].eager for c in columns))


def _vector_columns(rule: str, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """The widths and pads behind a vector rule. The least width with pad 0 is always legal."""
    what = rule.removeprefix("vector width of ").removeprefix("write of ")
    if what == rule:
        return ()
    tensor, _, scope = what.partition(".")
    kinds = {"register": ("move",), "shared": ("vector", "flight", "pad"), "": ("vector",)}[scope]
    names = {f"{kind}.{tensor}" for kind in kinds}
    return tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in names)
