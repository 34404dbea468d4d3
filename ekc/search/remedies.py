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
        if self.lowered and (not self.halvings or random.random() < 0.5):
            column = self.lowered[int(random.integers(len(self.lowered)))]
            out[:, column] = np.maximum(out[:, column] - 1, 0)
            return out
        if not self.halvings:
            return out
        wanted = np.minimum(np.ceil(np.log2(np.maximum(excess, 1.001))), _MOST_HALVINGS)
        for number in range(int(wanted.max())):
            pick = random.integers(0, len(self.halvings), len(out))
            for i, (column, smaller) in enumerate(self.halvings):
                rows = (pick == i) & (wanted > number)
                out[rows, column] = smaller[out[rows, column]]
        return out


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
