"""The trips of a loop, from runs of its body that count nothing.

Two trips tell by how much each register grows. With all trips at once the body then shows when each thread
leaves, and whether each trip ended as the next one began. If not, the trips are followed one by one.

A long loop need not run in all its trips: between two events, in which a comparison changes its result or a
number leaves the range of its type, all trips take the same path.

    i = 0, 4, 8, ... and i < 1000 -> the comparison changes between trips 249 and 250
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.errors import EkcError
from ekc.ptx.counting.integers import IntegerType, Path, Value, fit, view_as
from ekc.ptx.counting.loops import ControlFlowGraph
from ekc.ptx.counting.regions import LoopRegion

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
    """Trips that each of them represents, [n]."""
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


def measure_growth(before: Value, after: Value, bits: int) -> Value:
    """By how much a register grew in a trip; None for a predicate that changed and for unknown values."""
    if before is None or after is None:
        return None
    if bits == 1:
        return 0 if np.array_equal(before, after) else None
    return fit(after - before, bits)


def extend_line(start: Value, growth: Value, numbers: Numbers, bits: int, depth: int) -> Value:
    """A register in the given trips: arrays have these as their first axis."""
    if bits == 1 or (isinstance(growth, int) and growth == 0):
        return start
    column = numbers.reshape(-1, *(1,) * depth)
    with np.errstate(over="ignore"):
        return fit(np.asarray(column * growth + start), bits)


def compute_events(comparisons: Iterable[Comparison], numbers: Numbers, depth: int) -> Numbers | None:
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
    """Trips to run of so many, and the trips that each represents. All, or the events and some even ones."""
    if count <= most:
        return np.arange(count), np.ones(count, np.int64)
    even = np.linspace(0, count - 1, most).astype(np.int64)
    numbers = np.unique(np.concatenate([even, *events]))
    numbers = numbers[numbers < count]
    return numbers, np.diff(np.append(numbers, count))


_CHUNKS = (16, 256, 4096, 1 << 16)
"""First trips of a loop that are run to find its last one, in turn."""
_MOST_RUN, _LEAST_RUN = 4096, 64
"""Trips that are run of nested loops, all together, and of one loop at least; further ones are sampled."""
_MOST_FOLLOWED = 1 << 16
"""Trips of a loop that are followed one by one."""
_MOST_EVENTS = 1 << 14
"""Trips in which the comparisons of one loop may change."""


class UncountableLoop(EkcError):
    """The trips of the loop with this header cannot be counted."""

    def __init__(self, graph: ControlFlowGraph, header: int, reason: str) -> None:
        block = graph.blocks[header]
        super().__init__(
            f"PTX of {graph.kernel!r}: the trip count of the loop at {block.label} (line {block.line}) "
            f"cannot be found: {reason}; give the loop constant bounds"
        )
        self.header = header


class _UnevenGrowth(Exception):
    """A register grew by another amount than in the first trips."""


@dataclass(frozen=True)
class Pass:
    """One way to run a region."""

    is_counted: bool
    is_slice: bool = False
    """Whether only that runs on which the trips of the loop depend."""
    comparisons: list[Comparison] | None = None
    """Where to note what the region compares, nested loops left out."""


@dataclass(frozen=True)
class Body:
    """Result of one run of the body of a loop, in one trip or many."""

    going: Path | None
    """The threads that go on to the next trip."""
    leaving: Sequence[Path]
    """Those that leave."""
    ends: Mapping[str, Value]
    """Registers at the end, of those that begin the next trip."""


RunBody = Callable[[Path, Mapping[str, Value], Pass], Body]
"""Runs the body on a path, from registers at the start of a trip, or of many."""


@dataclass(frozen=True)
class TripSearch:
    """The search for the trips of one loop that threads enter on `path`."""

    graph: ControlFlowGraph
    bits: Mapping[str, int]
    """Bits of each register; 1 of a predicate."""
    region: LoopRegion
    path: Path
    run_body: RunBody
    around: int
    """Trips that are run of the loops around it."""

    @property
    def depth(self) -> int:
        """Axes of the threads, of the blocks and of the loops around."""
        return self.region.depth + 1

    def measure_trips(self, start: Mapping[str, Value]) -> Trips:
        """The trips of the loop, which threads enter with these registers. Raises `UncountableLoop`.

        The threads that enter in any trip of the loops around are tried first. Mostly they take as many trips
        as those on `path`, and their arrays are smaller.
        """
        if not self.region.exits and not self.region.may_return:
            raise self._refuse("it has no exit")
        wide = self.path.unite_trips()
        if wide is not self.path:
            try:
                trips = replace(self, path=wide)._find_even_trips(start)
            except (UncountableLoop, _UnevenGrowth):
                pass
            else:
                return replace(trips, last=np.where(self.path.lanes, trips.last, 0))
        try:
            return self._find_even_trips(start)
        except _UnevenGrowth:
            return self.follow(start)

    def _find_even_trips(self, start: Mapping[str, Value]) -> Trips:
        """The trips of a loop whose registers grow evenly. Raises `_UnevenGrowth` where they do not."""
        first = self.run(start)
        if first.going is None:
            once = np.zeros(1, np.int64)
            return Trips(once, once + 1, start, 0, self.depth)
        growth = self._find_growth(start, first, self.run(first.ends))
        return self.measure({name: start[name] if name in growth else None for name in start}, growth)

    def _find_growth(self, start: Mapping[str, Value], first: Body, second: Body) -> dict[str, Value]:
        """By how much each known register grows in a trip. Raises `_UnevenGrowth`."""
        growth = {}
        for name, value in start.items():
            end = first.ends[name]
            if value is None or end is None:
                continue
            grown = measure_growth(value, end, self.bits[name])
            again = measure_growth(end, second.ends[name], self.bits[name])
            if grown is None or not _agree(grown, again, second.going):
                raise _UnevenGrowth
            growth[name] = _unite_growth(grown, first.going)
        return growth

    def run(self, starts: Mapping[str, Value], comparisons: list[Comparison] | None = None) -> Body:
        """Run what decides the trips."""
        body = self.run_body(self.path, starts, Pass(False, True, comparisons))
        for one in (*body.leaving, body.going):
            if one is not None and (sides := one.sides - self.path.sides):
                end = self.graph.blocks[min(block for block, _ in sides)].exit.instruction
                line = end.line if end is not None else 0
                raise self._refuse(f"its exit on line {line} depends on run-time data")
        return body

    def measure(self, start: Mapping[str, Value], growth: Mapping[str, Value]) -> Trips:
        """The trips of a loop whose registers grow evenly. Raises `_UnevenGrowth` where they do not."""

        def extend(numbers: Numbers) -> dict[str, Value]:
            return {
                name: None
                if value is None
                else extend_line(value, growth[name], numbers, self.bits[name], self.depth)
                for name, value in start.items()
            }

        events = np.zeros(0, np.int64)
        for size in _CHUNKS:
            compared: list[Comparison] = []
            numbers = np.arange(size)
            last = self._find_even_last(extend(numbers), numbers, compared)
            if last is None and (found := compute_events(compared, numbers, self.depth)) is not None:
                if len(found) > _MOST_EVENTS:
                    raise self._refuse("the trips of its threads differ in too many ways")
                events = np.concatenate([numbers, found])
                last = self._find_even_last(extend(events), events, [])
                if last is None:
                    raise self._refuse("it does not end")
            if last is not None:
                break
        else:
            raise self._refuse(f"it runs more than {_CHUNKS[-1]} times, and its trips differ from each other")
        count, most = int(np.max(last)) + 1, max(_LEAST_RUN, _MOST_RUN // self.around)
        more = [events, np.unique(np.concatenate([np.ravel(last), np.ravel(last) + 1]))]
        if count > most:
            compared, numbers = [], np.arange(_CHUNKS[0])
            self.run_body(self.path, extend(numbers), Pass(False, False, compared))
            found = compute_events(compared, numbers, self.depth)
            more += [] if found is None else [found[:_MOST_EVENTS]]
        numbers, weights = sample_trips(count, more, most)
        return Trips(numbers, weights, extend(numbers), last, self.depth)

    def _find_even_last(
        self, starts: Mapping[str, Value], numbers: Numbers, comparisons: list[Comparison]
    ) -> int | Numbers | None:
        """As `_find_last`. Raises `_UnevenGrowth` where a trip did not end as the next one began."""
        body = self.run(starts, comparisons)
        if not self._is_even(starts, body, numbers):
            raise _UnevenGrowth
        return self._find_last(body.going, numbers)

    def _is_even(self, starts: Mapping[str, Value], body: Body, numbers: Numbers) -> bool:
        """Whether each trip ended as the next one began, where a thread goes on."""
        if body.going is None:
            return True
        places = np.flatnonzero(np.diff(numbers) == 1)
        stops = np.logical_not(self._take_trips(body.going.lanes, places))
        for name, value in starts.items():
            end = body.ends[name]
            if value is None:
                continue
            if end is None:
                return False
            follow, before = self._take_trips(value, places + 1), self._take_trips(end, places)
            if not np.all((follow == before) | stops):
                return False
        return True

    def _take_trips(self, value: Value, places: Numbers) -> Value:
        return value[places] if isinstance(value, np.ndarray) and value.ndim > self.depth else value

    def follow(self, start: Mapping[str, Value]) -> Trips:
        """The trips of a loop, one by one."""
        starts: list[Mapping[str, Value]] = []
        going_on: list[Value] = []
        alive = self.path
        while True:
            body = self.run(start)
            starts.append(start)
            going = None if body.going is None else alive.narrow(body.going.lanes)
            going_on.append(False if going is None else going.lanes)
            if going is None:
                break
            if all(np.array_equal(start[name], body.ends[name]) for name in start):
                raise self._refuse("it does not end")
            if len(starts) >= _MOST_FOLLOWED:
                raise self._refuse(
                    f"it runs more than {_MOST_FOLLOWED} times, and its trips differ from each other"
                )
            alive, start = going, body.ends
        numbers = np.arange(len(starts))
        stacked = {name: self._stack([one[name] for one in starts], self.bits[name]) for name in start}
        last = self._find_last(Path(self._stack(going_on, 1)), numbers)
        assert last is not None
        return Trips(numbers, np.ones(len(starts), np.int64), stacked, last, self.depth)

    def _find_last(self, going: Path | None, numbers: Numbers) -> int | Numbers | None:
        """The last trip of each thread; None where one goes on after all these."""
        if going is None:
            return 0
        lanes = going.lanes
        if lanes is True or lanes.ndim <= self.depth:
            return None
        stops = ~lanes
        if not stops.any(axis=0).all():
            return None
        last = numbers[stops.argmax(axis=0)]
        return int(last.max()) if last.min() == last.max() else last

    def _stack(self, values: Sequence[Value], bits: int) -> Value:
        """One array of the values of several trips; None where one is unknown."""
        if any(value is None for value in values):
            return None
        dtype = np.bool_ if bits == 1 else np.dtype(f"i{bits // 8}")
        arrays = [np.asarray(value, dtype) for value in values]
        shape = np.broadcast_shapes((1,) * self.depth, *(each.shape for each in arrays))
        return np.stack([np.broadcast_to(each, shape) for each in arrays])

    def _refuse(self, reason: str) -> UncountableLoop:
        return UncountableLoop(self.graph, self.region.header, reason)


def _unite_growth(grown: Value, going: Path | None) -> Value:
    """One number where all threads that go on have the same growth."""
    if not isinstance(grown, np.ndarray) or going is None:
        return grown
    found = grown
    if going.lanes is not True:
        every, lanes = np.broadcast_arrays(grown, going.lanes)
        found = every[lanes]
    return found.flat[0].item() if (found == found.flat[0]).all() else grown


def _agree(one: Value, other: Value, going: Path | None) -> bool:
    """Whether two growths are equal where a thread goes on."""
    if going is None:
        return True
    return other is not None and bool(np.all((np.asarray(one) == other) | np.logical_not(going.lanes)))
