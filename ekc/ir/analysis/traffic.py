"""Requests, sectors and wavefronts of a kernel's accesses, from how the lanes of a warp fall on memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ekc.ir.affine import (
    AffineForm,
    Extent,
    ceil_div,
    find_atom_range,
    find_carry_period,
    find_displacement,
    min_extent,
)
from ekc.ir.analysis import coalescing
from ekc.ir.analysis.coalescing import WarpAccessPattern, count_sectors, count_wavefronts
from ekc.ir.analysis.guards import LaneSteps, compute_pass_shares, map_lane_steps
from ekc.ir.analysis.population_math import PopulationValue, to_float64
from ekc.ir.compute import Axis
from ekc.ir.hardware.memory import WARP
from ekc.ir.hardware.mma import LANE_GROUPS, LDMATRIX_ROW_BYTES
from ekc.ir.lowering.buffers import BoundsGuard, TensorAccess
from ekc.ir.lowering.copy_order import find_strip_width
from ekc.ir.lowering.fragments import LANE_MATRIX_HIGH, LDMATRIX_LANES
from ekc.ir.lowering.nodes import LaunchTree, StageNode
from ekc.ir.lowering.regions import Region
from ekc.ir.program import Nest


@dataclass(frozen=True, eq=False)
class WarpRequest:
    """An access of `vector` elements a lane that some lanes make together.

    `rounds` is how often, and by how many lanes each time: a copy by all threads has a last round of fewer.
    """

    access: TensorAccess
    kind: str
    """"load" or "store"."""
    vector: Any
    rounds: tuple[tuple[PopulationValue, Any], ...]
    extents: Sequence[Any]
    """Digits that tell the lanes apart, fastest first, ..."""
    steps: Sequence[Any]
    """... and the elements that a step of each moves the address."""
    lane_moves: Sequence[tuple[Any, Any, Any]] = ()
    """What a lane runs through by itself: step, 1, and how many."""

    def make_pattern(self, extents: Mapping[str, Extent], lane_steps: LaneSteps) -> WarpAccessPattern:
        """How the lanes fall on memory, over all that their loops do. Where shared memory's banks begin
        makes no difference, but in a swizzled tile."""
        itemsize, buffer = self.access.dtype.bytes, self.access.buffer
        if buffer is not None and not buffer.is_swizzled:
            return WarpAccessPattern(itemsize, self.vector, self.extents, self.steps)
        moves = list(self.lane_moves)
        for atom, coefficient in self.access.address.terms:
            first, last = find_atom_range(atom, extents)
            moves.append((coefficient, lane_steps.get(atom, 1), last - first + 1))
        first, chunks = self.access.address.const, None if buffer is None else buffer.swizzle
        return WarpAccessPattern(itemsize, self.vector, self.extents, self.steps, first, tuple(moves), chunks)


class TrafficCounter:
    """Adds up what the accesses of one launch ask for, per block; `add(name, value)` takes the sums."""

    def __init__(self, kernel: LaunchTree, add_quantity: Callable[[str, PopulationValue], None]) -> None:
        self.kernel, self.add_quantity = kernel, add_quantity
        self.thread_count = to_float64(kernel.thread_count)
        self.lane_steps = map_thread_lane_steps(kernel)

    def count_access(
        self,
        access: TensorAccess,
        kind: str,
        vector: Any,
        count: PopulationValue,
        guards: Sequence[BoundsGuard],
        region: Region | None = None,
        lane_moves: Sequence[tuple[Any, Any, Any]] = (),
    ) -> None:
        """An access that every thread makes `count` times for itself; `region` where it runs over a tile,
        `turns` where over elements that its address does not tell."""
        digits = [d for x in self.kernel.thread_loops for d in _list_digits(access.address, x.name, x.extent)]
        extents, steps = [d[0] for d in digits], [d[1] for d in digits]
        issue = WarpRequest(access, kind, vector, ((count, self.thread_count),), extents, steps, lane_moves)
        self._count_request(issue, guards, collect_extents(self.kernel.nest, region), self.lane_steps)

    def count_matrix_loads(
        self, row: TensorAccess, matrix_count: int, count: PopulationValue, together: LaneSteps
    ) -> None:
        """Matrices that every warp loads `count` times, `number` at once: rows of 16 bytes, each pointed at
        by a lane; `row` in terms of `fragment_loads.LANES`, and of loops, of which some take iterations
        `together`."""
        steps = dict(row.address.terms)
        lanes: dict[Any, int] = (
            {**LDMATRIX_LANES, LANE_MATRIX_HIGH: 1} if matrix_count == 2 else dict(LDMATRIX_LANES)
        )
        rounds = ((count * np.ceil(self.thread_count / WARP), to_float64(LANE_GROUPS * matrix_count)),)
        vector = LDMATRIX_ROW_BYTES // row.dtype.bytes
        issue = WarpRequest(
            row, "load", vector, rounds, list(lanes.values()), [steps.get(p, 0) for p in lanes]
        )
        self._count_request(issue, (), collect_extents(self.kernel.nest, None) | lanes, {**lanes, **together})

    def count_copy(self, node: StageNode, trips: PopulationValue) -> None:
        """A copy by all threads, round by round: what it reads, and what it puts into shared memory."""
        region, vector = node.buffer.region, node.staging.vector
        moves = to_float64(region.size) / to_float64(vector)
        full = np.floor_divide(moves, self.thread_count)
        rounds = ((trips * full, self.thread_count), (trips, moves - full * self.thread_count))
        wide = find_strip_width(node, self.kernel.thread_count)
        lanes, extents_of = (
            map_segment_lane_steps(region, vector, wide),
            collect_extents(self.kernel.nest, region),
        )
        for access in [node.source] if node.producer_reads is None else list(node.producer_reads.values()):
            extents, steps = _list_segment_digits(access.address, region, vector, wide)
            issue = WarpRequest(access, "load", vector, rounds, extents, steps)
            self._count_request(issue, access.guards, extents_of, lanes)
        extents, steps = _list_segment_digits(node.target_address, region, vector, wide)
        whole = node.buffer.fastest_segment == node.vector_segment
        into = TensorAccess(node.source.spec, node.buffer, (), node.target_address, ())
        if node.is_async:
            self.add_quantity("async_copies", sum(count * np.ceil(number / WARP) for count, number in rounds))
        width, times = (vector, 1.0) if whole else (1, to_float64(vector))
        times_each = tuple((count * times, number) for count, number in rounds)
        last = f"#{len(region.segments) - 1}"
        turns = () if whole else ((dict(node.target_address.terms).get(last, 0), 1, vector),)
        self._count_request(
            WarpRequest(into, "store", width, times_each, extents, steps, turns), (), extents_of, lanes
        )

    def count_warp_walk(
        self, access: TensorAccess, axis: Axis, count: PopulationValue, region: Region
    ) -> None:
        """A read that whole warps make `count` times, their lanes side by side along an axis."""
        step = dict(access.address.terms).get(axis.name, 0)
        issue = WarpRequest(access, "load", 1, ((count, to_float64(WARP)),), [WARP], [step])
        self._count_request(
            issue, access.guards, collect_extents(self.kernel.nest, region), {axis.name: WARP}
        )

    def _count_request(
        self,
        request: WarpRequest,
        guards: Sequence[BoundsGuard],
        extents: Mapping[str, Extent],
        lane_steps: LaneSteps,
    ) -> None:
        """A warp that a guard stops asks for nothing; a lane that it stops, for no sector of its own."""
        passed = compute_pass_shares(guards, extents, lane_steps)
        pattern = request.make_pattern(extents, lane_steps)
        of = f"{'global' if request.access.buffer is None else 'shared'}_{request.kind}_"
        for count, number in request.rounds:
            asking = count * np.ceil(number / WARP) * passed.warp_share
            self.add_quantity(of + "requests", asking)
            if request.access.buffer is None:
                whole = count * count_sectors(pattern, number) * passed.lane_share
                self.add_quantity(of + "sectors", np.maximum(whole, asking))
            else:
                counted = count_wavefronts if pattern.swizzle is None else coalescing.swizzled_wavefronts
                self.add_quantity(of + "wavefronts", count * counted(pattern, number) * passed.warp_share)
            if request.kind == "load":
                size = to_float64(request.vector) * request.access.dtype.bytes
                self.add_quantity(of + "bytes", count * number * passed.lane_share * size)


def collect_extents(nest: Nest, region: Region | None) -> dict[str, Extent]:
    """Extents of the loops, and of the segment coordinates of a region."""
    segments = region.segments if region is not None else ()
    return {
        **nest.extents,
        **nest.fused_reduction_extents,
        **{f"#{i}": s.extent for i, s in enumerate(segments)},
    }


def map_thread_lane_steps(kernel: LaunchTree) -> LaneSteps:
    """The lanes of a warp along the thread loops."""
    return map_lane_steps([x.name for x in kernel.thread_loops], [x.extent for x in kernel.thread_loops])


def map_segment_lane_steps(region: Region, vector: Any, strip_width: Any) -> LaneSteps:
    """The lanes of a warp along the segments of a region that all threads copy, `vector` elements each, in
    strips so wide: rows enough for all lanes."""
    order = list(reversed(range(len(region.segments))))
    moves = [region.segments[i].extent for i in order]
    moves[0] = np.maximum(np.asanyarray(strip_width) // vector, 1)
    lanes = map_lane_steps([f"#{i}" for i in order], moves)
    lanes[f"#{order[0]}"] = lanes[f"#{order[0]}"] * vector
    return lanes


def _list_segment_digits(
    address: AffineForm, region: Region, vector: Any, strip_width: Any
) -> tuple[list[Any], list[Any]]:
    """Extents, and elements per step, of the digits that tell the moves of a copy apart, fastest first: whole
    vectors of a strip so wide, and the rows. No warp moves pieces of two strips."""
    *rows, last = range(len(region.segments))
    digits = _list_digits(address, f"#{last}", np.maximum(np.asanyarray(strip_width) // vector, 1), vector)
    for i in reversed(rows):
        digits += _list_digits(address, f"#{i}", region.segments[i].extent)
    return [d[0] for d in digits], [d[1] for d in digits]


def _list_digits(address: AffineForm, name: str, extent: Extent, width: Any = 1) -> list[tuple[Any, Any]]:
    """(extent, step of the address) of a variable that moves by `width`. One that enters quotients or
    remainders counts as two digits: the iterations until the first of them turns over, and the turns."""
    step = dict(address.terms).get(name, 0)
    through = [a for a, _ in address.terms if not isinstance(a, str) and name in a.find_variables()]
    if not through:
        return [(extent, np.asanyarray(step) * width)]
    period = np.clip(reduce(min_extent, [find_carry_period(a, name) for a in through]) // width, 1, extent)
    low, high = find_displacement(address, name, width), find_displacement(address, name, period * width)
    return [(period, low), (ceil_div(extent, period), high)]
