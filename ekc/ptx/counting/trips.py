"""Trips of a loop whose registers grow by the same amount in each, as arrays over the trips.

    i = 0, 4, 8, ... and i < 1000 -> the comparison changes between trips 249 and 250

A long loop need not run in all its trips: between two events, in which a comparison changes its result or a
number leaves the range of its type, all trips take the same path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.ptx.counting.integers import IntegerType, Value, fit, view_as

Numbers = NDArray[np.int64]


class Comparison(NamedTuple):
    """The two numbers of a comparison, in some trips."""

    left: Value
    right: Value
    kind: IntegerType


@dataclass(frozen=True)
class Trips:
    """The trips of a loop that are run, and the registers at their starts."""

    numbers: Numbers
    """Trips, ascending from 0, [n]."""
    weights: Numbers
    """Trips that each of them stands for, [n]."""
    starts: Mapping[str, Value]
    """Registers that change from trip to trip; arrays have the trips as their first axis."""
    last: int | Numbers
    """The last trip of each thread: a number, or an array without the axis of the trips."""
    depth: int
    """Axes of the threads, of the blocks and of the loops around."""

    @property
    def running(self) -> Value:
        """Which threads run in each of these trips: True or an array."""
        if isinstance(self.last, int):
            return True
        return self.numbers.reshape(-1, *(1,) * self.depth) <= self.last

    def select_last(self, value: Value) -> Value:
        """A value as it is after the last trip."""
        if not isinstance(value, np.ndarray) or value.ndim <= self.depth:
            return value
        place = np.searchsorted(self.numbers, self.last)
        if isinstance(self.last, int):
            return shorten(value[int(place)])
        shape = np.broadcast_shapes(value.shape[1:], place.shape)
        whole = np.broadcast_to(value, (len(value), *shape))
        return shorten(np.take_along_axis(whole, np.broadcast_to(place, (1, *shape)), 0)[0])


def shorten(value: NDArray[Any]) -> Value:
    """An array without leading axes of one element; one element as a number."""
    if value.size == 1:
        return value.item()
    first = next(place for place, extent in enumerate(value.shape) if extent > 1)
    return value.reshape(value.shape[first:])


def find_growth(before: Value, after: Value, bits: int) -> Value:
    """By how much a register grew in a trip; None for a predicate that changed and for unknown values."""
    if before is None or after is None:
        return None
    if bits == 1:
        return 0 if np.array_equal(before, after) else None
    grown = after - before
    return fit(grown, bits)


def extend_line(start: Value, growth: Value, numbers: Numbers, bits: int, depth: int) -> Value:
    """A register in the given trips: arrays have these as their first axis."""
    if bits == 1 or (isinstance(growth, int) and growth == 0):
        return start
    column = numbers.reshape(-1, *(1,) * depth)
    with np.errstate(over="ignore"):
        return fit(np.asarray(column * growth + start), bits)


def find_events(comparisons: Iterable[Comparison], numbers: Numbers, depth: int) -> Numbers | None:
    """Trips after the given consecutive ones at which a comparison may change, with their neighbours,
    ascending; None where a compared number does not grow evenly."""
    found = [np.zeros(0, np.int64)]
    for left, right, kind in comparisons:
        sides = [_find_line(view_as(side, kind), depth) for side in (left, right)]
        if any(side is None for side in sides):
            return None
        (a, grow_a), (b, grow_b) = (side for side in sides if side is not None)
        found.append(_find_zero(a - b, grow_a - grow_b))
        low, high = (
            (-(1 << kind.bits - 1), (1 << kind.bits - 1) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
        )
        if kind.bits < 64:
            found += [
                _find_zero(x - edge, grow) for x, grow in ((a, grow_a), (b, grow_b)) for edge in (low, high)
            ]
    near = np.unique(np.concatenate(found))
    around = np.unique(np.concatenate([near - 1, near, near + 1, near + 2]))
    return int(numbers[-1]) + around[around > 0]


def _find_line(value: Value, depth: int) -> tuple[Value, Value] | None:
    """The last of some numbers, and their growth; None where they do not grow evenly."""
    if not isinstance(value, np.ndarray) or value.ndim <= depth:
        return (value.astype(np.int64) if isinstance(value, np.ndarray) else value), 0
    steps = np.diff(value.astype(np.int64), axis=0)
    return (value[-1].astype(np.int64), steps[-1]) if (steps == steps[-1]).all() else None


def _find_zero(number: Value, growth: Value) -> Numbers:
    """Trips after which a number that grows has reached zero."""
    number, growth = np.broadcast_arrays(np.asarray(number, np.int64), np.asarray(growth, np.int64))
    is_met = (growth != 0) & ((number > 0) != (growth > 0))
    return np.unique(np.abs(number[is_met]) // np.abs(growth[is_met]))


def sample_trips(count: int, events: Sequence[Numbers], most: int) -> tuple[Numbers, Numbers]:
    """Trips to run of so many, and the trips that each stands for. All, or the events and some even ones."""
    if count <= most:
        return np.arange(count), np.ones(count, np.int64)
    even = np.linspace(0, count - 1, most).astype(np.int64)
    numbers = np.unique(np.concatenate([even, *events]))
    numbers = numbers[numbers < count]
    return numbers, np.diff(np.append(numbers, count))
