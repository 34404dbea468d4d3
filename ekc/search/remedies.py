"""How a broken rule is mended: which decisions can be made smaller, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.search.decisions import Decision

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
    "unrolling": ("unroll",),
    "registers": ("stages",),
    "shared memory": ("stages", "depth"),
    "reduction on the spot": ("warps",),
}
"""Choices that it depends on too."""
_MOST_HALVINGS = 6


@dataclass(frozen=True, eq=False)
class Remedy:
    """Columns of the genome that can mend one rule."""

    halvings: tuple[tuple[int, NDArray[np.int64]], ...]
    """(column, row -> smaller row) for tile levels."""
    lowered: tuple[int, ...]
    """Columns whose index may go down: vector widths, pads, unrolling, pipeline depth."""

    def ease(
        self,
        random: np.random.Generator,
        genes: NDArray[np.int64],
        uses: NDArray[np.bool_],
        excess: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Genes one step closer to legal: tiles halved as often as the excess asks, choices lowered.

        `uses[row, column]`: which genes mean something, each row by its structure.
        """
        out = genes.copy()
        wanted = np.minimum(np.ceil(np.log2(np.maximum(excess, 1.001))), _MOST_HALVINGS)
        if self.lowered:
            wanted[self._lower(random, out, uses)] = 0
        if self.halvings:
            able = uses[:, [column for column, _ in self.halvings]]
            for number in range(int(wanted.max(initial=0))):
                self._halve(random, out, able, np.flatnonzero(wanted > number))
        return out

    def _lower(
        self, random: np.random.Generator, genes: NDArray[np.int64], uses: NDArray[np.bool_]
    ) -> NDArray[np.intp]:
        """Lower one choice of each row, any that can go down, by any amount; only half the rows where
        tiles could shrink instead. The rows that were lowered."""
        columns = np.array(self.lowered)
        rows, column = _picked(random, (genes[:, columns] > 0) & uses[:, columns])
        if self.halvings:
            chosen = random.random(len(rows)) < 0.5
            rows, column = rows[chosen], column[chosen]
        column = columns[column]
        genes[rows, column] = (random.random(len(rows)) * genes[rows, column]).astype(np.int64)
        return rows

    def _halve(
        self,
        random: np.random.Generator,
        genes: NDArray[np.int64],
        able: NDArray[np.bool_],
        rows: NDArray[np.intp],
    ) -> None:
        """Halve one tile level of each row, any of those that can still shrink."""
        columns = np.array([column for column, _ in self.halvings])
        halved = np.stack([smaller[genes[rows, column]] for column, smaller in self.halvings], axis=1)
        at, pick = _picked(random, able[rows] & (halved != genes[rows[:, None], columns[None, :]]))
        genes[rows[at], columns[pick]] = halved[at, pick]


def _picked(
    random: np.random.Generator, able: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """One of the columns that each row can take, and the rows that can take any."""
    pick = np.where(able, random.random(able.shape), -1.0).argmax(axis=1)
    rows = np.flatnonzero(able[np.arange(len(able)), pick])
    return rows, pick[rows]


def remedy_for(rule: str, decisions: Sequence[Decision]) -> Remedy:
    """The remedy for a rule among the decisions of a space, told by genome column."""
    vector = _vector_columns(rule, decisions)
    if vector:
        return Remedy((), vector)
    kinds = _LEVELS.get(rule)
    halvings = tuple(
        (column, d.halved[i])
        for column, d in enumerate(decisions)
        for i, kind in enumerate(d.kinds)
        if kind != "lane" and (kinds is None or kind in kinds)
    )
    extra = _CHOICES.get(rule, ())
    return Remedy(halvings, tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in extra))


def _vector_columns(rule: str, decisions: Sequence[Decision]) -> tuple[int, ...]:
    """The widths and pads behind a vector rule. The least width with pad 0 is always legal."""
    what = rule.removeprefix("vector width of ").removeprefix("write of ")
    if what == rule:
        return ()
    tensor, _, scope = what.partition(".")
    kinds = {"register": ("move",), "shared": ("vector", "flight", "pad"), "": ("vector",)}[scope]
    names = {f"{kind}.{tensor}" for kind in kinds}
    return tuple(c for c, d in enumerate(decisions) if d.name.split("/")[-1] in names)
