"""Of cells that several lanes touched between two barriers, those where their order can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.memory import Index

CHANGING_KINDS = ("write", "atomic")
_KIND_CODES = {"read": 0, "look": 1, "atomic": 2, "write": 3}
"""A look is a read that goes with atomics."""


class CellAccesses:
    """All accesses to some cells, flat: one element for every lane and cell."""

    def __init__(self) -> None:
        self.cells: list[Any] = []
        self.lanes: list[Any] = []
        self.warps: list[Any] = []
        self.epochs: list[Any] = []
        self.kinds: list[Any] = []
        self.values: list[Any] = []

    def add_accesses(self, cell: Index, lane: Any, warp: Any, epoch: Any, kind: str, values: Any) -> None:
        """Accesses of one kind; `values` of writes only."""
        self.cells.append(cell)
        self.lanes.append(lane)
        self.warps.append(warp)
        self.epochs.append(epoch)
        self.kinds.append(np.full(cell.size, _KIND_CODES[kind]))
        self.values.append(np.zeros(cell.size, np.uint64) if values is None else values.astype(np.uint64))

    def find_conflicts(self, kind: str) -> Index:
        """Cells that a change of this kind (a plain write or an atomic) shares with another lane, unordered.

        Lanes of several warps are never ordered here; those of one warp are by its meetings. Writes of one
        value may come in any order.
        """
        cell, lane, warp, epoch, what, value = (
            np.concatenate(x)
            for x in (self.cells, self.lanes, self.warps, self.epochs, self.kinds, self.values)
        )
        apart = _find_mixed_groups([cell], warp, what, value, _KIND_CODES[kind])
        close = _find_mixed_groups([cell, warp, epoch], lane, what, value, _KIND_CODES[kind])
        return np.unique(np.concatenate([apart, close]))


def _find_mixed_groups(groups: list[Any], who: Any, what: Any, value: Any, kind: int) -> Index:
    """First keys of the groups that hold a change of this kind, several of `who`, and not only atomics or
    only writes of one value."""
    order = np.lexsort(groups[::-1])
    keys = [g[order] for g in groups]
    new = np.ones(order.size, np.bool_)
    new[1:] = np.logical_or.reduce([k[1:] != k[:-1] for k in keys])
    first = np.flatnonzero(new)
    who, what, value = who[order], what[order], value[order]

    def differ(row: NDArray[Any]) -> Any:
        return np.minimum.reduceat(row, first) != np.maximum.reduceat(row, first)

    changed = np.logical_or.reduceat(what == kind, first)
    strong = np.logical_and.reduceat((what == _KIND_CODES["atomic"]) | (what == _KIND_CODES["look"]), first)
    same = np.logical_and.reduceat(what == _KIND_CODES["write"], first) & ~differ(value)
    return np.asarray(keys[0][first][changed & differ(who) & ~strong & ~same])
