"""Structures: step lists with holes, derived by rules from what a compute reads, never from its name.

The rules, in the order they apply:

0. *divide*: an axis that a read divides, such as that of a channel in groups, is cut where its
   quotients turn over (`divided.py`); the other rules see two axes. A group is a block's number, but where
   a sector holds several; tiles within it leave no rest; what a read still divides is not cut. Structures
   with the axis whole stay beside these.
1. *tile*: every spatial axis that some read does not depend on (so that its data are reused) is cut
   into blocks, vthreads, threads and a tile per thread; the others into blocks and threads, the
   last output axis also into a tile per thread.
2. *reduce*: every reduction axis is cut into an outer and an inner loop.
3. *stage*: each tensor with reuse across threads may go through shared memory, in its own order or
   with its last spatial dimension fastest; any tensor may go through registers.
4. *lanes*: the reduction may be spread over the lanes of a warp instead of kept in one thread; that comes
   first where rows are read once, along their neighbours. Where neighbours are other sums, as in the columns
   of a matrix, four lanes may stand side by side along them. What is read goes through registers where it
   can, for only so are loads of global memory vectors.
5. *hold*: results stay in registers until complete; computes that are elementwise in them, and their only
   readers, are put behind them, so that one launch makes both.
6. *fly*: where every tensor with reuse goes through shared memory and registers, the tiles may also come by
   asynchronous copies, if the target has them and they can move each tensor: elements of 4 bytes in any
   order, narrower ones side by side.
7. *fuse*: where the last compute goes over rows that all computes before it reduce, those may be computed
   on the spot, in the same launch; a tensor that both read then goes through shared memory, or not.
8. *multiply*: a sum of products of two tensors, of a type that tensor cores take, may be done by products of
   a warp: rows and columns cut into warps, tiles, and the instruction's lanes and registers, both factors
   through shared memory into fragments (`tensorized.py`). Outputs that only one of them has are fused into
   one dimension, where there are several, or the largest of them is taken. Where the target has products of
   a warpgroup, they may do it too, of factors that stay in shared memory (`warpgroups.py`).
9. *parts*: where the outputs are too few to fill the device, the longest sum may be cut into parts, which
   are outputs of a launch of their own, and summed by another (`in_parts.py`).
10. *pack*: where a window moves over the last dimension of what tensor cores are to multiply, it may be
   copied into another order first, the depth last (`packed.py`).
11. *leave out*: a structure whose stagings no size makes legal (a region along a fused index, reads of
   one tensor that move apart) is dropped; where none is left, everything is read where it lies.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.hardware.limits import Limits
from ekc.ir.lowering.fusion import group_fusable_computes
from ekc.ir.operator import Operator
from ekc.ir.schedule import CacheRead, ComputeAt, Hole, Pipeline, Unroll, Vectorize
from ekc.search.sketches.async_copy import (
    PIPELINE_DEPTHS,
    can_copy_async,
    find_axis_alignments,
    find_copy_alignment,
)
from ekc.search.sketches.builder import (
    COLUMN_LANES,
    WARP_LANES,
    ComputeChain,
    Structure,
    StructureBuilder,
    has_legal_member,
    is_buildable,
    list_vector_widths,
)
from ekc.search.sketches.divided_axes import divide_compute, find_groups, find_part_axes
from ekc.search.sketches.packing import derive_packed
from ekc.search.sketches.split_k import derive_split_k, rename_conflicting_decisions
from ekc.search.sketches.tensor_cores import derive_tensor_core, derive_warpgroup

MAX_ROW_BYTES = 36 * 1024
"""A row that goes through shared memory: 48 KiB with what a tile may round up."""
LANE_REGISTERS_NAME = "lanes registers"
"""What a structure over lanes is called whose data come through registers."""
MAX_STAGING_PLANS = 32
"""Ways of staging the tensors of one compute that become structures."""


@dataclass(frozen=True)
class StagingRoute:
    """How one tensor reaches the arithmetic."""

    tensor: str
    uses_shared: bool
    dimension_order: tuple[int, ...] = ()
    """Dimensions as stored in shared memory; () is the tensor's own."""
    uses_registers: bool = False

    def __str__(self) -> str:
        path = ("shared" + ("'" if self.dimension_order else "") if self.uses_shared else "global") + (
            "+register" if self.uses_registers else ""
        )
        return f"{self.tensor}:{path}"


def derive_structures(op: Operator, limits: Limits) -> tuple[Structure, ...]:
    """Every structure of an operator on a target."""
    found = _combine_launches(op, limits)
    more = [way(op, limits, found, _combine_launches) for way in (derive_split_k, derive_packed)]
    return (*found, *_derive_single_launch(op), *itertools.chain(*more))


def _combine_launches(op: Operator, limits: Limits) -> list[Structure]:
    """A launch for each sum. Those beside the largest get one structure each."""
    launches = group_fusable_computes(op)
    per_launch = [
        _derive_launch(op, c, f"{c[0].output.name}/" if len(launches) > 1 else "", limits) for c in launches
    ]
    main = max(range(len(launches)), key=lambda i: launches[i][0].flops)
    beside = [
        _choose_minor_launch(options, c[0], limits) for options, c in zip(per_launch, launches, strict=True)
    ]
    found = []
    for chosen in per_launch[main]:
        parts = [chosen if i == main else beside[i] for i in range(len(launches))]
        steps = tuple(s for p in parts for s in p.steps)
        found.append(Structure(chosen.name, steps, tuple(d for p in parts for d in p.decisions)))
    return found


def _choose_minor_launch(options: list[Structure], compute: Compute, limits: Limits) -> Structure:
    """The structure of a launch beside the largest: over lanes, as many as go, where it reads everything once
    and has fewer outputs than the device has threads, else the first."""
    once = not any(_is_reused(compute, load) for load in ex.find_loads(compute.body))
    few = math.prod(a.extent for a in compute.spatial_axes) < limits.sms * limits.threads_per_sm
    lanes = [s for s in options if LANE_REGISTERS_NAME in s.name]
    return lanes[-1] if lanes and once and few else options[0]


def _derive_launch(op: Operator, chain: ComputeChain, prefix: str, limits: Limits) -> list[Structure]:
    """Those that can be built; of an axis that is divided some with it cut there, others with it whole."""
    whole = [s for s in _derive_candidates(op, chain, prefix, limits) if is_buildable(op, s)]
    in_place = dict.fromkeys(StagingRoute(x.tensor, False) for x in ex.find_loads(chain[0].body))
    found = [*_derive_divided(op, chain, prefix, limits, whole), *whole]
    return found or [_build_tiled(op, chain, tuple(in_place), prefix)]


def _derive_divided(
    op: Operator, chain: ComputeChain, prefix: str, limits: Limits, undivided: list[Structure]
) -> list[Structure]:
    """Those of rule 0, beside the others of the launch."""
    compute = divide_compute(op, chain[0])
    if compute is chain[0]:
        return []
    tables = {d.name: d.table for s in undivided for d in s.decisions}
    cut = _derive_candidates(op, (compute, *chain[1:]), prefix, limits)
    named = [
        rename_conflicting_decisions(replace(s, name=f"{s.name} divided"), tables, "divided/") for s in cut
    ]
    return [s for s in named if is_buildable(op, s) and has_legal_member(op, s, limits)]


def _derive_candidates(op: Operator, chain: ComputeChain, prefix: str, limits: Limits) -> list[Structure]:
    """What the rules make of a launch, whether it can be built or not."""
    compute = chain[0]
    reads = {x.tensor: x for x in ex.find_loads(compute.body)}
    routings = _enumerate_staging_plans(op, compute, reads)
    found = [_build_tiled(op, chain, routes, prefix) for routes in routings]
    if limits.async_copies:
        able = [r for r in routings if _can_copy_plan_async(op, compute, r, reads)]
        found += [_build_tiled(op, chain, routes, prefix, is_async=True) for routes in able]
    if compute.reduction_axes:
        lane_axis = max(compute.reduction_axes, key=lambda a: (_count_contiguous_reads(a, reads), a.extent))
        columns = _find_column_axis(compute, reads, lane_axis)
        if columns and lane_axis.extent >= WARP_LANES // COLUMN_LANES:
            found.append(_build_over_lanes(op, chain, lane_axis, tuple(reads), prefix, columns))
        if lane_axis.extent >= WARP_LANES:
            lanes = _build_over_lanes(op, chain, lane_axis, tuple(reads), prefix)
            if not is_buildable(op, lanes):
                lanes = _build_over_lanes(op, chain, lane_axis, (), prefix)
            found = [lanes, *found] if _is_streamed(compute, reads, lane_axis) else [*found, lanes]
    if not limits.tensor_cores:
        return found
    grouped = derive_warpgroup(op, chain, prefix, limits)
    return [*grouped, *derive_tensor_core(op, chain, prefix, limits), *found]


def _is_streamed(compute: Compute, reads: dict[str, ex.Load], axis: Axis) -> bool:
    """Whether a reduction walks along neighbours that no other output needs: rows of a tensor, read once."""
    along = [x for x in reads.values() if axis.name in ex.find_variables(x)]
    return any(axis.name in ex.find_variables(x.index[-1]) for x in along) and all(
        a.name in ex.find_variables(x) for x in along for a in compute.spatial_axes if a.extent > 1
    )


def _find_column_axis(compute: Compute, reads: dict[str, ex.Load], sum_axis: Axis) -> Axis | None:
    """The output axis along which the terms of a sum have their neighbours, where each is read once and they
    fill lanes."""
    once = [x for x in reads.values() if not _is_reused(compute, x) and sum_axis.name in ex.find_variables(x)]
    for axis in compute.spatial_axes:
        if axis.extent >= COLUMN_LANES and any(ex.find_variables(x.index[-1]) == {axis.name} for x in once):
            return axis
    return None


def _count_contiguous_reads(axis: Axis, reads: dict[str, ex.Load]) -> int:
    """How many reads have neighbours along an axis."""
    return sum(axis.name in ex.find_variables(x.index[-1]) for x in reads.values())


def _enumerate_staging_plans(
    op: Operator, compute: Compute, reads: dict[str, ex.Load]
) -> list[tuple[StagingRoute, ...]]:
    """Every combination of routes, most staging first."""
    if not compute.reduction_axes:
        return [tuple(StagingRoute(t, False, uses_registers=r) for t in reads) for r in (False, True)]
    options = []
    for tensor, load in reads.items():
        routes = []
        if _is_reused(compute, load):
            order = _move_spatial_last(op, compute, load)
            routes += [StagingRoute(tensor, True, order, uses_registers=True)] if order else []
            routes += [StagingRoute(tensor, True, uses_registers=True), StagingRoute(tensor, True)]
        options.append([*routes, StagingRoute(tensor, False, uses_registers=True)])
    # Staging everything comes first, nothing last; in between the count grows with every tensor.
    routings = list(itertools.product(*options))
    return [*routings[: MAX_STAGING_PLANS - 1], *routings[MAX_STAGING_PLANS - 1 :][-1:]]


def _can_copy_plan_async(
    op: Operator, compute: Compute, routes: tuple[StagingRoute, ...], reads: dict[str, ex.Load]
) -> bool:
    """Whether all that is reused comes through shared memory and registers, by copies (rule 6)."""
    reused = [r for r in routes if _is_reused(compute, reads[r.tensor])]
    ways = [
        r.uses_shared and r.uses_registers and can_copy_async(op, compute, reads[r.tensor], r.dimension_order)
        for r in reused
    ]
    return bool(ways) and all(ways)


def _is_reused(compute: Compute, load: ex.Load) -> bool:
    """Whether some spatial axis does not enter a read."""
    return any(a.name not in ex.find_variables(load) for a in compute.spatial_axes)


def _move_spatial_last(op: Operator, compute: Compute, load: ex.Load) -> tuple[int, ...]:
    """The dimensions with a spatial one moved last; () where the last is spatial already."""
    spatial = {a.name for a in compute.spatial_axes if a.extent > 1}
    spatial -= find_part_axes(compute) | find_groups(op, compute)
    touches = [bool(ex.find_variables(i) & spatial) for i in load.index]
    if touches[-1] or not any(touches):
        return ()
    last = max(d for d, t in enumerate(touches) if t)
    return (*(d for d in range(len(touches)) if d != last), last)


def _build_tiled(
    op: Operator, chain: ComputeChain, routes: tuple[StagingRoute, ...], prefix: str, is_async: bool = False
) -> Structure:
    b = StructureBuilder(op, chain, prefix)
    if is_async:
        b.alignments = find_axis_alignments(op, chain[0])
    _cut_axes(b)
    b.order_and_bind()
    b.cache_results()
    at = b.outer_loops[-1] if b.outer_loops else None
    # Without an inner loop a register tile is filled once an outer iteration.
    close = b.inner_loops[-1] if b.inner_loops else at
    for r in routes:
        if r.uses_shared:
            vector = _add_copy_width(b, r) if is_async else b.add_vector_width("vector", r.tensor)
            pad = b.add_choice(f"pad.{r.tensor}", (0, 1, 2, 4, 8))
            b.steps.append(CacheRead(r.tensor, "shared", at, vector, r.dimension_order, pad))
    for r in routes:
        if r.uses_registers:
            vector = b.add_vector_width("move", r.tensor)
            source = f"{r.tensor}.shared" if r.uses_shared else r.tensor
            b.steps.append(
                CacheRead(source, "register", close, vector, reader=b.find_reader(r.tensor, close))
            )
    if is_async and at is not None:
        b.steps.append(Pipeline(at, b.add_choice("depth", PIPELINE_DEPTHS), "async"))
    elif any(r.uses_shared for r in routes) and at is not None:
        b.steps.append(Pipeline(at, b.add_choice("stages", (1, 2))))
    _add_unroll(b)
    return b.build(" ".join(map(str, routes)) + (" flying" if is_async else ""))


def _add_copy_width(builder: StructureBuilder, route: StagingRoute) -> Hole | int:
    """Elements that one asynchronous copy moves: one where the order changes."""
    least = find_copy_alignment(builder.op, route.tensor)
    return (
        1
        if route.dimension_order
        else builder.add_vector_width("vector" if least == 1 else "flight", route.tensor, least)
    )


def _build_over_lanes(
    op: Operator,
    chain: ComputeChain,
    lane_axis: Axis,
    registers: tuple[str, ...],
    prefix: str,
    columns: Axis | None = None,
) -> Structure:
    """Rule 4: the innermost part of one reduction axis over lanes, a vector of it in each; with `columns`,
    lanes side by side along these too."""
    b = StructureBuilder(op, chain, prefix)
    side: tuple[str, ...] = ()
    for axis in b.compute.spatial_axes:
        if b.is_block_axis(axis):
            b.block_loops.append(axis.name)
        elif axis is columns:
            block, thread, beside, tile = b.split_into_columns(axis)
            b.assign_roles(block=block, thread=thread, tile=tile)
            side = (beside,)
        else:
            block, thread, tile = b.tile_axis(axis, {"thread": 32, "tile": 8}, "tile.rows")
            b.assign_roles(block=block, thread=thread, tile=tile)
    for axis in b.compute.reduction_axes:
        if axis is not lane_axis:
            b.cut_reduction(axis)
    outer, lane, vector = b.split_over_lanes(lane_axis, WARP_LANES // COLUMN_LANES if side else WARP_LANES)
    b.outer_loops.append(outer)
    b.inner_loops.append(vector)
    b.order_and_bind((lane, *side))
    b.cache_results()
    for tensor in registers:
        width = b.add_vector_width("move", tensor)
        b.steps.append(CacheRead(tensor, "register", outer, width))
    if not registers:
        b.steps.append(Unroll(vector))
    b.steps.append(Unroll(outer, b.add_choice("unroll", (1, 2, 4, 8, 16))))
    return b.build(("column " if side else "") + (LANE_REGISTERS_NAME if registers else "lanes"))


def _derive_single_launch(op: Operator) -> list[Structure]:
    """Rule 7: the last compute goes over rows, and the computes before it reduce them on the spot."""
    *before, last = op.computes
    if not before or last.reduction_axes or not all(map(_is_row_reduction, before)):
        return []
    made = {c.output.name for c in before}
    rows = {v for x in ex.find_loads(last.body) if x.tensor in made for v in ex.find_variables(x)}
    if last.spatial_axes[-1].name in rows or last.spatial_axes[-1].extent == 1:
        return []
    again = dict.fromkeys(x.tensor for c in before for x in ex.find_loads(c.body))
    read = {x.tensor for x in ex.find_loads(last.body)} - made
    copied = tuple(t for t in again if t in read and _count_row_bytes(op, t, rows) <= MAX_ROW_BYTES)
    found = [_build_single_launch(op, rows, tensors) for tensors in dict.fromkeys((copied, ()))]
    return [s for s in found if is_buildable(op, s)]


def _is_row_reduction(compute: Compute) -> bool:
    reads = {x.tensor: x for x in ex.find_loads(compute.body)}
    return bool(compute.reduction_axes) and any(
        _is_streamed(compute, reads, a) for a in compute.reduction_axes
    )


def _count_row_bytes(op: Operator, tensor: str, rows: set[str]) -> int:
    """The part of a tensor that the last compute goes along for one row."""
    spec = op.tensors[tensor]
    read = next(x for x in ex.find_loads(op.computes[-1].body) if x.tensor == tensor)
    along = [e for i, e in zip(read.index, spec.shape, strict=True) if not ex.find_variables(i) <= rows]
    return math.prod(along) * spec.dtype.bytes


def _build_single_launch(op: Operator, rows: set[str], copied: tuple[str, ...]) -> Structure:
    """One launch: rows over blocks and threads, each row within a block, `copied` in shared memory."""
    last = op.computes[-1]
    b = StructureBuilder(op, (last,), f"{last.output.name}/")
    vectors: tuple[int, ...] = ()
    for axis in last.spatial_axes:
        if axis.extent == 1:
            b.block_loops.append(axis.name)
        elif axis.name in rows:
            block, thread = b.tile_axis(axis, {"thread": WARP_LANES}, "tile.rows")
            b.assign_roles(block=block, thread=thread)
        elif axis is last.spatial_axes[-1]:
            vectors = tuple(
                v for v in list_vector_widths(op, last.output.name) if v > 1 and axis.extent % v == 0
            )
            outer, thread, *tile = b.split_row(axis, vectors)
            b.assign_roles(outer=outer, thread=thread)
            b.tile_loops += tile
        else:
            b.outer_loops.append(axis.name)
    b.order_and_bind()
    width = Hole(b.decisions[-1].holes[-1]) if vectors else 1
    for tensor in copied:
        vector = b.add_vector_width("vector", tensor)
        b.steps.append(CacheRead(tensor, "shared", None, vector, reader=last.output.name))
    warps = b.add_choice("warps", (1, 2, 4, 8, 16, 32))
    b.steps += [ComputeAt(c.output.name, None, warps) for c in reversed(op.computes[:-1])]
    if vectors:
        at = b.outer_loops[-1]
        b.steps += [CacheRead(f"{tensor}.shared", "register", at, width) for tensor in copied]
        b.steps.append(Vectorize(b.tile_loops[-1]))
    return b.build("one launch" + "".join(f" {t}:shared" for t in copied))


def _cut_axes(builder: StructureBuilder) -> None:
    reads = ex.find_loads(builder.compute.body)
    wide = [a for a in builder.compute.spatial_axes if a.extent > 1]
    for axis in builder.compute.spatial_axes:
        reused = bool(builder.compute.reduction_axes) and any(
            axis.name not in ex.find_variables(x) for x in reads
        )
        builder.cut_spatial(axis, reused, is_last=bool(wide) and axis is wide[-1])
    for axis in builder.compute.reduction_axes:
        builder.cut_reduction(axis)


def _add_unroll(builder: StructureBuilder) -> None:
    for loop in builder.inner_loops[-1:]:
        builder.steps.append(Unroll(loop, builder.add_choice("unroll", (1, 2, 4, 8, 16))))
