"""The trips of a loop, from runs of its body that count nothing.

Two trips tell by how much each register grows. With all trips at once the body then shows when each thread
leaves, and whether each trip ended as the next one began. If not, the trips are followed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.errors import EkcError
from ekc.ptx.counting.integers import Value
from ekc.ptx.counting.loops import ControlFlowGraph
from ekc.ptx.counting.regions import Region
from ekc.ptx.counting.register_values import Path
from ekc.ptx.counting.trips import (
    Comparison,
    Numbers,
    Trips,
    extend_line,
    find_events,
    find_growth,
    sample_trips,
)

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
    """What one run of the body of a loop gave, in one trip or many."""

    going: Path | None
    """The threads that go on to the next trip."""
    leaving: Sequence[Path]
    """Those that leave."""
    ends: Mapping[str, Value]
    """Registers at the end, of those that begin the next trip."""


RunBody = Callable[[Mapping[str, Value], Pass], Body]
"""Runs the body from registers at the start of a trip, or of many."""


@dataclass(frozen=True)
class TripFinder:
    """Finds the trips of loops of one kernel."""

    graph: ControlFlowGraph
    bits: Mapping[str, int]
    """Bits of each register; 1 of a predicate."""

    def find_trips(
        self, region: Region, path: Path, start: Mapping[str, Value], run_body: RunBody, around: int
    ) -> Trips:
        """The trips of a loop that threads enter on `path` with `start`. `around`: trips that are run of the
        loops around it. Raises `UncountableLoop`."""
        if not region.exits and not region.may_return:
            raise self._refuse(region, "it has no exit")
        search = _Search(self, region, path, run_body, around)
        first = search.run(start)
        if first.going is None:
            once = np.zeros(1, np.int64)
            return Trips(once, once + 1, start, 0, region.depth + 1)
        growth = self._find_growth(start, first, search.run(first.ends))
        if growth is None:
            return search.follow(start)
        known = {name: value if name in growth else None for name, value in start.items()}
        try:
            return search.measure(known, growth)
        except _UnevenGrowth:
            return search.follow(start)

    def _find_growth(self, start: Mapping[str, Value], first: Body, second: Body) -> dict[str, Value] | None:
        """By how much each known register grows in a trip; None where one grows unevenly."""
        growth = {}
        for name, value in start.items():
            end = first.ends[name]
            if value is None or end is None:
                continue
            grown = find_growth(value, end, self.bits[name])
            again = find_growth(end, second.ends[name], self.bits[name])
            if grown is None or not _agree(grown, again, second.going):
                return None
            growth[name] = grown
        return growth

    def _refuse(self, region: Region, reason: str) -> UncountableLoop:
        return UncountableLoop(self.graph, region.header, reason)


@dataclass(frozen=True)
class _Search:
    """The search for the trips of one loop."""

    finder: TripFinder
    region: Region
    path: Path
    run_body: RunBody
    around: int

    @property
    def depth(self) -> int:
        """Axes of the threads, of the blocks and of the loops around."""
        return self.region.depth + 1

    def run(self, starts: Mapping[str, Value], comparisons: list[Comparison] | None = None) -> Body:
        """Run what decides the trips."""
        body = self.run_body(starts, Pass(False, True, comparisons))
        for one in (*body.leaving, body.going):
            if one is not None and (sides := one.sides - self.path.sides):
                end = self.finder.graph.blocks[min(block for block, _ in sides)].exit.instruction
                line = end.line if end is not None else 0
                raise self._refuse(f"its exit on line {line} depends on run-time data")
        return body

    def measure(self, start: Mapping[str, Value], growth: Mapping[str, Value]) -> Trips:
        """The trips of a loop whose registers grow evenly. Raises `_UnevenGrowth` where they do not."""

        def extend(numbers: Numbers) -> dict[str, Value]:
            bits = self.finder.bits
            return {
                name: None
                if value is None
                else extend_line(value, growth[name], numbers, bits[name], self.depth)
                for name, value in start.items()
            }

        events = np.zeros(0, np.int64)
        for size in _CHUNKS:
            compared: list[Comparison] = []
            numbers = np.arange(size)
            last = self._find_even_last(extend(numbers), numbers, compared)
            if last is None and (found := find_events(compared, numbers, self.depth)) is not None:
                if len(found) > _MOST_EVENTS:
                    raise self._refuse("the trips of its threads differ in too many ways")
                events = np.concatenate([numbers, found])
                last = self._find_even_last(extend(events), events, [])
                if last is None:
                    raise self._refuse("it does not end")
            if last is not None:
                break
        else:
            raise self._refuse(f"it runs more than {_CHUNKS[-1]} times, each trip unlike the others")
        count, most = int(np.max(last)) + 1, max(_LEAST_RUN, _MOST_RUN // self.around)
        more = [events, np.unique(np.concatenate([np.ravel(last), np.ravel(last) + 1]))]
        if count > most:
            compared, numbers = [], np.arange(_CHUNKS[0])
            self.run_body(extend(numbers), Pass(False, False, compared))
            found = find_events(compared, numbers, self.depth)
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
                raise self._refuse(f"it runs more than {_MOST_FOLLOWED} times, each trip unlike the others")
            alive, start = going, body.ends
        numbers, bits = np.arange(len(starts)), self.finder.bits
        stacked = {name: self._stack([one[name] for one in starts], bits[name]) for name in start}
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
        return UncountableLoop(self.finder.graph, self.region.header, reason)


def _agree(one: Value, other: Value, going: Path | None) -> bool:
    """Whether two growths are equal where a thread goes on."""
    if going is None:
        return True
    return other is not None and bool(np.all((np.asarray(one) == other) | np.logical_not(going.lanes)))
