"""Figures of patterns that a population repeats: each different pattern is counted once and remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.tape import recorded

_SLOTS, _PROBES = 1 << 15, 6
_ODD = np.random.default_rng(20241118).integers(1, 2**62, 64, dtype=np.int64) * 2 + 1


class Lookup:
    """A counted function of integers: `count` takes patterns as rows and gives their figures as rows.

    A pattern lives in the slot of a table that the low bits of its key name, or a few further on; when all
    of these are taken, one of them makes room.
    """

    def __init__(self, count: Callable[[NDArray[np.int64]], NDArray[np.float64]], figures: int) -> None:
        self.count = count
        self.keys = np.zeros(_SLOTS + _PROBES, dtype=np.int64)
        self.figures = np.zeros((figures, _SLOTS + _PROBES))

    def __call__(self, *columns: Any) -> NDArray[np.float64]:
        """The figures (first axis) of patterns, given by integers or vectors of them."""
        found: NDArray[np.float64] = _looked_up(self, *columns)
        return found

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each key, -1 for one that is not known."""
        slot = keys & (_SLOTS - 1)
        away = np.flatnonzero(self.keys[slot] != keys)
        for _ in range(_PROBES):
            if not away.size:
                break
            slot[away] += 1
            away = away[self.keys[slot[away]] != keys[away]]
        slot[away] = -1
        return slot

    def learn(self, keys: NDArray[np.int64], figures: NDArray[np.float64]) -> None:
        """Remember the figures (as rows) of new keys."""
        for key, row in zip(keys.tolist(), figures, strict=True):
            slot = key & (_SLOTS - 1)
            free = np.flatnonzero(self.keys[slot : slot + _PROBES + 1] == 0)
            slot += int(free[0]) if free.size else key % (_PROBES + 1)
            self.keys[slot], self.figures[:, slot] = key, row


@recorded
def _looked_up(table: Lookup, *columns: Any) -> NDArray[np.float64]:
    """One call on a tape, whatever is new in it."""
    keys = _keys(columns)
    slot = table.find(keys)
    found = table.figures[:, slot]
    missing = np.flatnonzero(slot < 0)
    if missing.size:
        new, first, inverse = np.unique(keys[missing], return_index=True, return_inverse=True)
        rows = [np.broadcast_to(np.asarray(c, np.int64), keys.shape)[missing[first]] for c in columns]
        figures = table.count(np.stack(rows, axis=-1))
        table.learn(new, figures)
        found[:, missing] = figures[inverse].T
    return found


def _keys(columns: tuple[Any, ...]) -> NDArray[np.int64]:
    """A 64-bit key per pattern, never 0; wrapping multiplication by odd constants."""
    key: Any = np.int64(len(columns))
    with np.errstate(over="ignore"):
        for column, odd in zip(columns, _ODD[: len(columns)], strict=True):
            key = np.bitwise_xor(key, np.asarray(column, np.int64)) * odd
            key = np.bitwise_xor(key, np.right_shift(key, 29))
    return np.atleast_1d(np.where(key == 0, 1, key))
