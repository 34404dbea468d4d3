"""Memory traffic of a launch: requests, sectors, wavefronts and bytes of its accesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ekc.ir.affine import (
    AffineForm,
    Extent,
    ceil_div,
    compute_atom_range,
    compute_carry_period,
    compute_displacement,
    max_extent,
    min_extent,
)
from ekc.ir.analysis.bank_conflicts import (
    WarpAccessPattern,
    count_sectors_and_passes,
    count_swizzled_wavefronts,
    count_wavefronts,
)
from ekc.ir.analysis.guards import LaneSteps, compute_pass_shares, map_lane_steps
from ekc.ir.analysis.population_math import PopulationValue, to_float64
from ekc.ir.compute import Axis
from ekc.ir.hardware.memory import WARP
from ekc.ir.hardware.mma import LANE_GROUPS, LDMATRIX_ROW_BYTES
from ekc.ir.lowering.buffers import BoundsGuard, TensorAccess
from ekc.ir.lowering.fragments import LANE_MATRIX_HIGH, LDMATRIX_LANES
from ekc.ir.lowering.nodes import LaunchTree, StageNode, choose_strip_width
from ekc.ir.lowering.regions import Region
from ekc.ir.program import Nest


@dataclass(frozen=True, eq=False)
class WarpRequest:
    """An access of `vector` elements by each lane that some lanes make together."""

    access: TensorAccess
    kind: str
    """Kind of access: "load" or "store"."""
    vector: Any
    """Elements per lane."""
    rounds: tuple[tuple[PopulationValue, Any], ...]
    """(number of requests, lanes in each); the last round of a copy by all threads has fewer lanes."""
    extents: Sequence[Any]
    """Extents of the digits of a lane's number, fastest first."""
    steps: Sequence[Any]
    """Elements that a step of each digit moves the address."""
    lane_moves: Sequence[tuple[Any, Any, Any]] = ()
    """Digits over which one lane repeats the access: (step of the address, 1, count) each."""

    def make_pattern(self, extents: Mapping[str, Extent], lane_steps: LaneSteps) -> WarpAccessPattern:
        """The access pattern of a warp; in an unswizzled shared tile the start address changes nothing."""
        itemsize, buffer = self.access.dtype.bytes, self.access.buffer
        if buffer is not None and not buffer.is_swizzled:
            return WarpAccessPattern(itemsize, self.vector, self.extents, self.steps)
        moves = list(self.lane_moves)
        for atom, coefficient in self.access.address.terms:
            first, last = compute_atom_range(atom, extents)
            moves.append((coefficient, lane_steps.get(atom, 1), last - first + 1))
        first, chunks = self.access.address.const, None if buffer is None else buffer.swizzle
        return WarpAccessPattern(itemsize, self.vector, self.extents, self.steps, first, tuple(moves), chunks)


class TrafficCounter:
    """Adds up the traffic of one launch for each block; sums go to `add_quantity(name, value)`."""

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
        """An access that every thread makes `count` times.

        `region` has the tile over which it runs, if any; `lane_moves` the elements that its address does not
        have.
        """
        digits = [d for x in self.kernel.thread_loops for d in _list_digits(access.address, x.name, x.extent)]
        extents, steps = [d[0] for d in digits], [d[1] for d in digits]
        issue = WarpRequest(access, kind, vector, ((count, self.thread_count),), extents, steps, lane_moves)
        self._count_request(issue, guards, collect_extents(self.kernel.nest, region), self.lane_steps)

    def count_matrix_loads(
        self, row: TensorAccess, matrix_count: int, count: PopulationValue, together: LaneSteps
    ) -> None:
        """`ldmatrix` that every warp issues `count` times: `matrix_count` matrices of rows of 16 bytes.

        `row` is the row of a lane, in terms of `LDMATRIX_LANES` and of loops; `together` has the iterations
        of loops that one instruction covers.
        """
        steps, lanes = dict(row.address.terms), dict[Any, int](LDMATRIX_LANES)
        if matrix_count == 2:
            lanes[LANE_MATRIX_HIGH] = 1
        rounds = ((count * ceil_div(self.thread_count, WARP), to_float64(LANE_GROUPS * matrix_count)),)
        vector = LDMATRIX_ROW_BYTES // row.dtype.bytes
        moves = [steps.get(part, 0) for part in lanes]
        issue = WarpRequest(row, "load", vector, rounds, list(lanes.values()), moves)
        self._count_request(issue, (), collect_extents(self.kernel.nest, None) | lanes, {**lanes, **together})

    def count_copy(self, node: StageNode, trips: PopulationValue) -> None:
        """A copy by all threads, round by round: its reads, and its stores to shared memory."""
        region, vector = node.buffer.region, node.staging.vector
        moves = to_float64(region.size) / to_float64(vector)
        full = moves // self.thread_count
        rounds = ((trips * full, self.thread_count), (trips, moves - full * self.thread_count))
        strip_width = choose_strip_width(node, self.kernel.thread_count)
        lane_steps = map_segment_lane_steps(region, vector, strip_width)
        loop_extents = collect_extents(self.kernel.nest, region)
        for access in [node.source] if node.producer_reads is None else list(node.producer_reads.values()):
            extents, steps = list_segment_digits(access.address, region, vector, strip_width)
            issue = WarpRequest(access, "load", vector, rounds, extents, steps)
            self._count_request(issue, access.guards, loop_extents, lane_steps)
        extents, steps = list_segment_digits(node.target_address, region, vector, strip_width)
        is_contiguous = node.buffer.fastest_segment == node.vector_segment
        target = TensorAccess(node.source.spec, node.buffer, (), node.target_address, ())
        if node.is_async:
            self.add_quantity("async_copies", sum(count * ceil_div(number, WARP) for count, number in rounds))
        width, times = (vector, 1.0) if is_contiguous else (1, to_float64(vector))
        store_rounds = tuple((count * times, number) for count, number in rounds)
        last = f"#{len(region.segments) - 1}"
        lane_moves = () if is_contiguous else ((dict(node.target_address.terms).get(last, 0), 1, vector),)
        issue = WarpRequest(target, "store", width, store_rounds, extents, steps, lane_moves)
        self._count_request(issue, (), loop_extents, lane_steps)

    def count_warp_walk(
        self, access: TensorAccess, axis: Axis, count: PopulationValue, region: Region
    ) -> None:
        """A read that full warps make `count` times, neighbouring lanes side by side along an axis."""
        step = dict(access.address.terms).get(axis.name, 0)
        issue = WarpRequest(access, "load", 1, ((count, to_float64(WARP)),), [WARP], [step])
        extents = collect_extents(self.kernel.nest, region)
        self._count_request(issue, access.guards, extents, {axis.name: WARP})

    def _count_request(
        self,
        request: WarpRequest,
        guards: Sequence[BoundsGuard],
        extents: Mapping[str, Extent],
        lane_steps: LaneSteps,
    ) -> None:
        """Add a request. A warp that fails a guard requests nothing, a lane adds no sectors or bytes."""
        passed = compute_pass_shares(guards, extents, lane_steps)
        pattern = request.make_pattern(extents, lane_steps)
        prefix = f"{'global' if request.access.buffer is None else 'shared'}_{request.kind}_"
        for count, number in request.rounds:
            warps = ceil_div(number, WARP)
            requests = count * warps * passed.warp_share
            self.add_quantity(prefix + "requests", requests)
            if request.access.buffer is None:
                each, turns = count_sectors_and_passes(pattern, number)
                self.add_quantity(prefix + "sectors", max_extent(count * each * passed.lane_share, requests))
                self.add_quantity("global_passes", count * turns * passed.warp_share)
            else:
                count_waves = count_wavefronts if pattern.swizzle is None else count_swizzled_wavefronts
                turns = count_waves(pattern, number)
                self.add_quantity(prefix + "wavefronts", count * turns * passed.warp_share)
            single = max_extent(2.0 * warps - turns, 0.0)
            self.add_quantity("one_pass_requests", count * single * passed.warp_share)
            if request.kind == "load":
                size = to_float64(request.vector) * request.access.dtype.bytes
                self.add_quantity(prefix + "bytes", count * number * passed.lane_share * size)


def collect_extents(nest: Nest, region: Region | None) -> dict[str, Extent]:
    """Extents of the loops, and of the segment coordinates of a region."""
    segments = region.segments if region is not None else ()
    coordinates = {f"#{i}": s.extent for i, s in enumerate(segments)}
    return nest.extents | nest.fused_reduction_extents | coordinates


def map_thread_lane_steps(kernel: LaunchTree) -> LaneSteps:
    """Steps of each thread loop that the lanes of one warp take."""
    return map_lane_steps([x.name for x in kernel.thread_loops], [x.extent for x in kernel.thread_loops])


def map_segment_lane_steps(region: Region, vector: Any, strip_width: Any) -> LaneSteps:
    """Steps of each segment that the lanes of a warp take in a copy by all threads, strip by strip."""
    order = list(reversed(range(len(region.segments))))
    moves = [region.segments[i].extent for i in order]
    moves[0] = max_extent(strip_width // vector, 1)
    lanes = map_lane_steps([f"#{i}" for i in order], moves)
    lanes[f"#{order[0]}"] = lanes[f"#{order[0]}"] * vector
    return lanes


def list_segment_digits(
    address: AffineForm, region: Region, vector: Any, strip_width: Any
) -> tuple[list[Any], list[Any]]:
    """Extents, and elements per step, of the digits of a copy, fastest first: vectors of a strip, rows."""
    *rows, last = range(len(region.segments))
    digits = _list_digits(address, f"#{last}", max_extent(strip_width // vector, 1), vector)
    for i in reversed(rows):
        digits += _list_digits(address, f"#{i}", region.segments[i].extent)
    return [d[0] for d in digits], [d[1] for d in digits]


def _list_digits(address: AffineForm, name: str, extent: Extent, width: Any = 1) -> list[tuple[Any, Any]]:
    """(extent, step of the address) of a variable that moves by `width`.

    A variable in quotients or remainders gives two digits: the iterations until the first of these carries,
    and the carries.
    """
    step = dict(address.terms).get(name, 0)
    divisions = [a for a, _ in address.terms if not isinstance(a, str) and name in a.find_variables()]
    if not divisions:
        return [(extent, step * width)]
    carries = reduce(min_extent, [compute_carry_period(a, name) for a in divisions]) // width
    period = min_extent(max_extent(carries, 1), extent)
    low, high = (
        compute_displacement(address, name, width),
        compute_displacement(address, name, period * width),
    )
    return [(period, low), (ceil_div(extent, period), high)]
