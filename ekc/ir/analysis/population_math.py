"""Figures of patterns that a population repeats: each different pattern is counted once and remembered.

What is counted of a Program: a float, or a float64 vector over a population. Products of extents are taken
here, where whole numbers would overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.trace.recorder import record_as_one_call

_SLOT_BITS, _PROBES = 17, 6
_SLOTS = 1 << _SLOT_BITS
_SLOT_SHIFT = np.array(64 - _SLOT_BITS, dtype=np.uint64)
"""Slots are told by the highest bits of a key: those that every column has moved."""
_ODD_MULTIPLIERS = (np.random.default_rng(20241118).integers(1, 2**62, 256, dtype=np.int64) * 2 + 1).tolist()
_ODD_MULTIPLIER_ARRAYS = tuple(np.array(number) for number in _ODD_MULTIPLIERS)
"""The same as arrays: NumPy takes longer to look at a Python number than to multiply a column by it."""
_ODD_BIT = np.array(1)
_UINT64_RANGE = 1 << 64


class Lookup:
    """A counted function of integers: `count` takes patterns as rows and gives their figures as rows.

    A pattern lives in the slot of a table that its key names, or a few further on; when all of these are
    taken, one of them makes room.
    """

    def __init__(
        self, count_patterns: Callable[[NDArray[np.int64]], NDArray[np.float64]], figure_count: int
    ) -> None:
        self.count_patterns = count_patterns
        self.keys = np.zeros(_SLOTS + _PROBES, dtype=np.int64)
        self.figures = np.zeros((_SLOTS + _PROBES, figure_count))

    def __call__(self, *columns: Any) -> NDArray[np.float64]:
        """The figures (first axis) of patterns, given by integers or vectors of them."""
        found: NDArray[np.float64] = _look_up_figures(self, *columns)
        return found

    def find_slots(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """The slot of each key, and which of the keys are not known: their slots mean nothing."""
        slot = _hash_to_slot(keys)
        away = np.flatnonzero(self.keys.take(slot) != keys)
        for _ in range(_PROBES):
            if not away.size:
                break
            slot[away] += 1
            away = away[self.keys[slot[away]] != keys[away]]
        return slot, away

    def store_figures(self, keys: NDArray[np.int64], figures: NDArray[np.float64]) -> None:
        """Remember the figures (as rows) of new keys, each given once."""
        left = np.arange(len(keys))
        for probe in range(_PROBES + 1):
            if not left.size:
                return
            slot = _hash_to_slot(keys[left]) + probe
            # Of keys that want one free slot, the first gets it.
            _, first = np.unique(slot, return_index=True)
            first = first[self.keys[slot[first]] == 0]
            self._write_slots(slot[first], keys[left[first]], figures[left[first]])
            left = left[self.keys[slot] != keys[left]]
        self._write_slots(_hash_to_slot(keys[left]) + keys[left] % (_PROBES + 1), keys[left], figures[left])

    def _write_slots(
        self, slots: NDArray[np.int64], keys: NDArray[np.int64], figures: NDArray[np.float64]
    ) -> None:
        self.keys[slots], self.figures[slots] = keys, figures


def _hash_to_slot(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.right_shift(keys.view(np.uint64), _SLOT_SHIFT).view(np.int64)


@record_as_one_call
def _look_up_figures(table: Lookup, *columns: Any) -> NDArray[np.float64]:
    """One call on a tape, whatever is new in it."""
    arrays = [np.asarray(c) for c in columns]
    keys = _hash_columns(arrays)
    slot, missing = table.find_slots(keys)
    found = table.figures.take(slot, axis=0)
    if missing.size:
        new, first, inverse = np.unique(keys[missing], return_index=True, return_inverse=True)
        rows, at = np.empty((len(new), len(arrays)), dtype=np.int64), missing[first]
        for number, array in enumerate(arrays):
            rows[:, number] = array[at] if array.size != 1 else array
        figures = table.count_patterns(rows)
        table.store_figures(new, figures)
        found[missing] = figures[inverse]
    return found.T


def _hash_columns(columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """A 64-bit key per pattern, never 0: columns times odd constants, summed."""
    same, varying = len(columns) * _ODD_MULTIPLIERS[-1], []
    for position, array in enumerate(columns):
        if array.size != 1:
            whole = array if array.dtype == np.int64 else array.astype(np.int64)
            varying.append((whole, _ODD_MULTIPLIER_ARRAYS[position]))
        else:
            same += int(array.item()) * _ODD_MULTIPLIERS[position]
    key = np.empty(max((len(array) for array, _ in varying), default=1), dtype=np.int64)
    key.fill((same + _UINT64_RANGE // 2) % _UINT64_RANGE - _UINT64_RANGE // 2)
    product = np.empty_like(key)
    for array, odd in varying:
        np.add(key, np.multiply(array, odd, product), key)
    key |= _ODD_BIT
    return key


PopulationValue = Any
"""A float, or a float64 vector over a population."""


def to_float64(value: Any) -> PopulationValue:
    """An extent, or one of each member, as a figure."""
    return np.asanyarray(value, dtype=np.float64)


def multiply_extents(values: Iterable[Any]) -> PopulationValue:
    """Of extents; 1 where there are none."""
    total: PopulationValue = 1.0
    for v in values:
        total = total * to_float64(v)
    return total
