"""Tables of counted patterns, and float64 arithmetic of extents, for a Program or a population.

A population repeats patterns, so each distinct one is counted once and stored. Products of extents are taken
in float64, as integers would overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.trace.recorder import record_as_one_call

_SLOT_BITS, _PROBES = 17, 6
"""Bits of the number of a slot, and further slots that a key may be in."""
_SLOTS = 1 << _SLOT_BITS
_SLOT_SHIFT = np.array(64 - _SLOT_BITS, dtype=np.uint64)
"""The slot of a key is its highest bits, as these depend on every column."""
_ODD_MULTIPLIERS = (np.random.default_rng(20241118).integers(1, 2**62, 256, dtype=np.int64) * 2 + 1).tolist()
_ODD_MULTIPLIER_ARRAYS = tuple(np.array(number) for number in _ODD_MULTIPLIERS)
"""`_ODD_MULTIPLIERS` as arrays: converting a Python number costs NumPy more than multiplying a column."""
_ODD_BIT = np.array(1)
_UINT64_RANGE = 1 << 64


class Lookup:
    """A hash table of a function of integers: `count_patterns` takes patterns as rows and gives figures as
    rows.

    A pattern is in the slot that its key gives, or in one of the next few; when all of these are used, one of
    them is overwritten.
    """

    def __init__(
        self, count_patterns: Callable[[NDArray[np.int64]], NDArray[np.float64]], figure_count: int
    ) -> None:
        self.count_patterns = count_patterns
        self.single_figures: dict[tuple[Any, ...], NDArray[np.float64]] = {}
        """Figures of patterns that were asked for one at a time."""
        self.keys = np.zeros(_SLOTS + _PROBES, dtype=np.int64)
        self.figures = np.zeros((_SLOTS + _PROBES, figure_count))

    def __call__(self, *columns: Any) -> NDArray[np.float64]:
        """Figures (first axis) of patterns; each column of the patterns is an integer or a vector. One number
        for each figure where all columns are integers."""
        found: NDArray[np.float64] | None
        try:
            found = self.single_figures.get(columns)
        except TypeError:
            # A vector has no hash.
            found = _look_up_figures(self, *columns)
        if found is None:
            if len(self.single_figures) >= _SLOTS:
                self.single_figures.clear()
            pattern = np.array([[int(c) for c in columns]], dtype=np.int64)
            found = self.single_figures[columns] = self.count_patterns(pattern)[0]
        return found

    def find_slots(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """The slot of each key, and indices of the keys that are not in the table (without a slot)."""
        slot = _hash_to_slot(keys)
        missing = np.flatnonzero(self.keys.take(slot) != keys)
        for _ in range(_PROBES):
            if not missing.size:
                break
            slot[missing] += 1
            missing = missing[self.keys[slot[missing]] != keys[missing]]
        return slot, missing

    def store_figures(self, keys: NDArray[np.int64], figures: NDArray[np.float64]) -> None:
        """Store the figures (as rows) of new keys, each given once."""
        left = np.arange(len(keys))
        for probe in range(_PROBES + 1):
            if not left.size:
                return
            slot = _hash_to_slot(keys[left]) + probe
            # Where several keys map to one free slot, the first gets it.
            _, first = np.unique(slot, return_index=True)
            first = first[self.keys[slot[first]] == 0]
            self.keys[slot[first]], self.figures[slot[first]] = keys[left[first]], figures[left[first]]
            left = left[self.keys[slot] != keys[left]]
        slot = _hash_to_slot(keys[left]) + keys[left] % (_PROBES + 1)
        self.keys[slot], self.figures[slot] = keys[left], figures[left]


def _hash_to_slot(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.right_shift(keys.view(np.uint64), _SLOT_SHIFT).view(np.int64)


@record_as_one_call
def _look_up_figures(table: Lookup, *columns: Any) -> NDArray[np.float64]:
    """Look up figures, and count the patterns that are new; one call in a trace."""
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
    """A 64-bit key for each pattern, never 0: the sum of columns times odd constants."""
    same, varying = len(columns) * _ODD_MULTIPLIERS[-1], []
    for position, array in enumerate(columns):
        if array.size != 1:
            column = array if array.dtype == np.int64 else array.astype(np.int64)
            varying.append((column, _ODD_MULTIPLIER_ARRAYS[position]))
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
    """An extent, or one extent for each member, in float64."""
    if isinstance(value, np.float64):
        return value
    # A number of NumPy takes part in arithmetic faster than an array of one number.
    is_number = isinstance(value, (int, np.generic))
    return np.float64(value) if is_number else np.asanyarray(value, dtype=np.float64)


def multiply_extents(values: Iterable[Any]) -> PopulationValue:
    """Product of extents in float64; 1 where there are none."""
    return prod(map(to_float64, values), start=1.0)
