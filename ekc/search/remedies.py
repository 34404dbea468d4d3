"""How a broken rule is mended: which decisions can be made smaller, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
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
}
"""Which tile levels a resource depends on. A rule not named here may be mended by any."""
_MOST_HALVINGS = 6


@dataclass(frozen=True, eq=False)
class Remedy:
    """Columns of the genome that can mend one rule in one structure."""

    halvings: tuple[tuple[int, NDArray[np.int64]], ...]
    """(column, row -> smaller row) for tile levels."""
    lowered: tuple[int, ...]
    """Columns whose index may go down one: vector widths, pads, unrolling, pipeline depth."""

    def ease(
        self, random: np.random.Generator, genes: NDArray[np.int64], excess: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Genomes one step closer to legal: tiles halved as often as the excess asks, choices lowered."""
        out = genes.copy()
        wanted = np.minimum(np.ceil(np.log2(np.maximum(excess, 1.001))), _MOST_HALVINGS)
        if self.lowered:
            column = self.lowered[int(random.integers(len(self.lowered)))]
            lower = (out[:, column] > 0) & (random.random(len(out)) < (0.5 if self.halvings else 1.0))
            out[lower, column] -= 1
            wanted[lower] = 0
        for number in range(int(wanted.max(initial=0)) if self.halvings else 0):
            self._halve(random, out, np.flatnonzero(wanted > number))
        return out

    def _halve(self, random: np.random.Generator, genes: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Halve one tile level of each row, any of those that can still shrink."""
        halved = np.stack([smaller[genes[rows, column]] for column, smaller in self.halvings], axis=1)
        columns = np.array([column for column, _ in self.halvings])
        able = halved != genes[rows[:, None], columns[None, :]]
        pick = np.where(able, random.random(able.shape), -1.0).argmax(axis=1)
        genes[rows, columns[pick]] = halved[np.arange(len(rows)), pick]


def remedy_for(rule: str, own: Mapping[int, Decision]) -> Remedy:
    """The remedy for a rule among the decisions of a structure, given by genome column."""
    vector = _vector_columns(rule, own)
    if vector:
        return Remedy((), vector)
    kinds = _LEVELS.get(rule)
    halvings = tuple(
        (column, d.halved[i])
        for column, d in own.items()
        for i, kind in enumerate(d.kinds)
        if kind != "lane" and (kinds is None or kind in kinds)
    )
    extra = {"unrolling": ("unroll",), "registers": ("stages",), "shared memory": ("stages",)}.get(rule, ())
    return Remedy(halvings, tuple(c for c, d in own.items() if d.name.split("/")[-1] in extra))


def _vector_columns(rule: str, own: Mapping[int, Decision]) -> tuple[int, ...]:
    """The widths and pads behind a vector rule. Width 1 with pad 0 is always legal."""
    what = rule.removeprefix("vector width of ").removeprefix("write of ")
    if what == rule:
        return ()
    tensor, _, scope = what.partition(".")
    kinds = {"register": ("move",), "shared": ("vector", "vector", "pad"), "": ("vector",)}[scope]
    return tuple(c for k in kinds for c, d in own.items() if d.name.split("/")[-1] == f"{k}.{tensor}")
