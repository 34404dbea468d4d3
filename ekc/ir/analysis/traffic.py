"""Requests, sectors and wavefronts of a kernel's accesses, from how the lanes of a warp fall on memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ekc.ir.access import Access, Guard
from ekc.ir.analysis.figures import Array, f64
from ekc.ir.fragment_loads import HIGH, LANES
from ekc.ir.linear import Extent, Linear, atom_range, ceil_div, moved_by, smaller, turns_over
from ekc.ir.nodes import Kernel, StageNode
from ekc.ir.operator import Axis
from ekc.ir.patterns import swizzled_warp
from ekc.ir.patterns.guards import Lanes, reaches, shares
from ekc.ir.patterns.warp import WARP, Pattern, sectors, wavefronts
from ekc.ir.program import Nest
from ekc.ir.region import Region
from ekc.ir.strips import strip
from ekc.ir.tensor_core import GROUPS, ROW_BYTES


@dataclass(frozen=True, eq=False)
class Issue:
    """An access of `vector` elements a lane that some lanes make together.

    `rounds` is how often, and by how many lanes each time: a copy by all threads has a last round of fewer.
    """

    access: Access
    kind: str
    """"load" or "store"."""
    vector: Any
    rounds: tuple[tuple[Array, Any], ...]
    extents: Sequence[Any]
    """Digits that tell the lanes apart, fastest first, ..."""
    steps: Sequence[Any]
    """... and the elements that a step of each moves the address."""
    turns: Sequence[tuple[Any, Any, Any]] = ()
    """What a lane runs through by itself: step, 1, and how many."""

    def pattern(self, extents: Mapping[str, Extent], lanes: Lanes) -> Pattern:
        """How the lanes fall on memory, over all that their loops do. Where shared memory's banks begin
        makes no difference, but in a swizzled tile."""
        itemsize, buffer = self.access.dtype.bytes, self.access.buffer
        if buffer is not None and not buffer.may_swizzle:
            return Pattern(itemsize, self.vector, self.extents, self.steps)
        moves = list(self.turns)
        for atom, coefficient in self.access.address.terms:
            first, last = atom_range(atom, extents)
            moves.append((coefficient, lanes.get(atom, 1), last - first + 1))
        first, chunks = self.access.address.const, None if buffer is None else buffer.swizzle
        return Pattern(itemsize, self.vector, self.extents, self.steps, first, tuple(moves), chunks)


class Traffic:
    """Adds up what the accesses of one launch ask for, per block; `add(name, value)` takes the sums."""

    def __init__(self, kernel: Kernel, add: Callable[[str, Array], None]) -> None:
        self.kernel, self.add = kernel, add
        self.threads = f64(kernel.threads)
        self.lanes = thread_reaches(kernel)

    def touch(
        self,
        access: Access,
        kind: str,
        vector: Any,
        count: Array,
        guards: Sequence[Guard],
        region: Region | None = None,
        turns: Sequence[tuple[Any, Any, Any]] = (),
    ) -> None:
        """An access that every thread makes `count` times for itself; `region` where it runs over a tile,
        `turns` where over elements that its address does not tell."""
        digits = [d for x in self.kernel.thread_loops for d in _digits(access.address, x.name, x.extent)]
        extents, steps = [d[0] for d in digits], [d[1] for d in digits]
        issue = Issue(access, kind, vector, ((count, self.threads),), extents, steps, turns)
        self._count(issue, guards, known(self.kernel.nest, region), self.lanes)

    def matrices(self, row: Access, number: int, count: Array, together: Lanes) -> None:
        """Matrices that every warp loads `count` times, `number` at once: rows of 16 bytes, each pointed at
        by a lane; `row` in terms of `fragment_loads.LANES`, and of loops, of which some take iterations
        `together`."""
        steps = dict(row.address.terms)
        lanes: dict[Any, int] = {**LANES, HIGH: 1} if number == 2 else dict(LANES)
        rounds = ((count * np.ceil(self.threads / WARP), f64(GROUPS * number)),)
        vector = ROW_BYTES // row.dtype.bytes
        issue = Issue(row, "load", vector, rounds, list(lanes.values()), [steps.get(p, 0) for p in lanes])
        self._count(issue, (), known(self.kernel.nest, None) | lanes, {**lanes, **together})

    def copy(self, node: StageNode, trips: Array) -> None:
        """A copy by all threads, round by round: what it reads, and what it puts into shared memory."""
        region, vector = node.buffer.region, node.staging.vector
        moves = f64(region.size) / f64(vector)
        full = np.floor_divide(moves, self.threads)
        rounds = ((trips * full, self.threads), (trips, moves - full * self.threads))
        wide = strip(node, self.kernel.threads)
        lanes, extents_of = segment_reaches(region, vector, wide), known(self.kernel.nest, region)
        for access in [node.source] if node.produced is None else list(node.produced.values()):
            extents, steps = _segment_digits(access.address, region, vector, wide)
            issue = Issue(access, "load", vector, rounds, extents, steps)
            self._count(issue, access.guards, extents_of, lanes)
        extents, steps = _segment_digits(node.address, region, vector, wide)
        whole = node.buffer.fastest == node.vector_segment
        into = Access(node.source.spec, node.buffer, (), node.address, ())
        if node.asynchronous:
            self.add("async_copies", sum(count * np.ceil(number / WARP) for count, number in rounds))
        width, times = (vector, 1.0) if whole else (1, f64(vector))
        times_each = tuple((count * times, number) for count, number in rounds)
        last = f"#{len(region.segments) - 1}"
        turns = () if whole else ((dict(node.address.terms).get(last, 0), 1, vector),)
        self._count(Issue(into, "store", width, times_each, extents, steps, turns), (), extents_of, lanes)

    def walk(self, access: Access, axis: Axis, count: Array, region: Region) -> None:
        """A read that whole warps make `count` times, their lanes side by side along an axis."""
        step = dict(access.address.terms).get(axis.name, 0)
        issue = Issue(access, "load", 1, ((count, f64(WARP)),), [WARP], [step])
        self._count(issue, access.guards, known(self.kernel.nest, region), {axis.name: WARP})

    def _count(
        self, issue: Issue, guards: Sequence[Guard], extents: Mapping[str, Extent], lanes: Lanes
    ) -> None:
        """A warp that a guard stops asks for nothing; a lane that it stops, for no sector of its own."""
        passed = shares(guards, extents, lanes)
        pattern = issue.pattern(extents, lanes)
        of = f"{'global' if issue.access.buffer is None else 'shared'}_{issue.kind}_"
        for count, number in issue.rounds:
            asking = count * np.ceil(number / WARP) * passed.warps
            self.add(of + "requests", asking)
            if issue.access.buffer is None:
                whole = count * sectors(pattern, number) * passed.lanes
                self.add(of + "sectors", np.maximum(whole, asking))
            else:
                counted = wavefronts if pattern.swizzle is None else swizzled_warp.wavefronts
                self.add(of + "wavefronts", count * counted(pattern, number) * passed.warps)
            if issue.kind == "load":
                size = f64(issue.vector) * issue.access.dtype.bytes
                self.add(of + "bytes", count * number * passed.lanes * size)


def known(nest: Nest, region: Region | None) -> dict[str, Extent]:
    """Extents of the loops, and of the segment coordinates of a region."""
    segments = region.segments if region is not None else ()
    return {**nest.extents, **nest.reduced_inside, **{f"#{i}": s.extent for i, s in enumerate(segments)}}


def thread_reaches(kernel: Kernel) -> Lanes:
    """The lanes of a warp along the thread loops."""
    return reaches([x.name for x in kernel.thread_loops], [x.extent for x in kernel.thread_loops])


def segment_reaches(region: Region, vector: Any, wide: Any) -> Lanes:
    """The lanes of a warp along the segments of a region that all threads copy, `vector` elements each, in
    strips so wide: rows enough for all lanes."""
    order = list(reversed(range(len(region.segments))))
    moves = [region.segments[i].extent for i in order]
    moves[0] = np.maximum(np.asanyarray(wide) // vector, 1)
    lanes = reaches([f"#{i}" for i in order], moves)
    lanes[f"#{order[0]}"] = lanes[f"#{order[0]}"] * vector
    return lanes


def _segment_digits(address: Linear, region: Region, vector: Any, wide: Any) -> tuple[list[Any], list[Any]]:
    """Extents, and elements per step, of the digits that tell the moves of a copy apart, fastest first: whole
    vectors of a strip so wide, and the rows. No warp moves pieces of two strips."""
    *rows, last = range(len(region.segments))
    digits = _digits(address, f"#{last}", np.maximum(np.asanyarray(wide) // vector, 1), vector)
    for i in reversed(rows):
        digits += _digits(address, f"#{i}", region.segments[i].extent)
    return [d[0] for d in digits], [d[1] for d in digits]


def _digits(address: Linear, name: str, extent: Extent, width: Any = 1) -> list[tuple[Any, Any]]:
    """(extent, step of the address) of a variable that moves by `width`. One that enters quotients or
    remainders counts as two digits: the iterations until the first of them turns over, and the turns."""
    step = dict(address.terms).get(name, 0)
    through = [a for a, _ in address.terms if not isinstance(a, str) and name in a.variables()]
    if not through:
        return [(extent, np.asanyarray(step) * width)]
    period = np.clip(reduce(smaller, [turns_over(a, name) for a in through]) // width, 1, extent)
    low, high = moved_by(address, name, width), moved_by(address, name, period * width)
    return [(period, low), (ceil_div(extent, period), high)]
