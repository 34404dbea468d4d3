"""Structures of an operator: multi-level tiling, and the combination of all rules.

A structure is a list of steps with holes. Rules derive structures from the reads of a compute, never from the
name of an operator. `rules.py` lists them, in the order in which they apply. Rules 3, 4, 7 and 11 are here,
rule 0 is in `divided_axes.py`, rule 8 in `tensor_cores.py`, rules 9 and 10 in `rewritten_operators.py`, the
others in `builder.py`.

Rule 0: a group is a block's number, except where a sector of memory holds several groups. Tiles inside a
group are exact divisors. Axes that a read still divides are not tiled. Structures without `divide` stay.

Rule 4: spreading over lanes comes first where rows are read once, along contiguous elements. Where contiguous
elements belong to different sums, as in the columns of a matrix, adjacent lanes may take adjacent columns.
Loads go through registers where possible: only such loads are vectors.

Rule 6 needs a target with `cp.async`, every tensor with reuse in shared memory and registers, and copies that
can move each of them: elements of 4 bytes in any order, narrower ones in the tensor's own order.

Rule 7: where the last compute runs along rows that all earlier computes reduce, these are computed in its
launch. A tensor that both read may go through shared memory.

Rule 11: structures that no tile size makes legal are dropped. If none is left, one is built that reads every
tensor from global memory.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.fusion import group_fusable_computes
from ekc.ir.operator import Operator
from ekc.ir.schedule import CacheRead, ComputeAt, Hole, Pipeline, Unroll, Vectorize
from ekc.search.data.defaults import TILING
from ekc.search.sketches.builder import (
    WARP_LANES,
    ComputeChain,
    Structure,
    StructureBuilder,
    can_copy_async,
    compute_axis_alignments,
    has_legal_member,
    is_buildable,
    list_vector_widths,
    note_rule,
)
from ekc.search.sketches.divided_axes import derive_part_axes, divide_compute, find_groups
from ekc.search.sketches.rewritten_operators import (
    derive_packed,
    derive_split_k,
    rename_conflicting_decisions,
)
from ekc.search.sketches.rules import DROP, SINGLE_LAUNCH, STAGE
from ekc.search.sketches.tensor_cores import derive_tensor_core, derive_warpgroup

LANE_REGISTERS_NAME = "lanes registers"
"""Name of a structure over lanes whose loads go through registers."""


@dataclass(frozen=True)
class StagingRoute:
    """Path of one tensor from global memory to the arithmetic."""

    tensor: str
    uses_shared: bool
    dimension_order: tuple[int, ...] = ()
    """Order of the dimensions in shared memory; (): the tensor's own order."""
    uses_registers: bool = False

    def __str__(self) -> str:
        path = ("shared" + ("'" if self.dimension_order else "") if self.uses_shared else "global") + (
            "+register" if self.uses_registers else ""
        )
        return f"{self.tensor}:{path}"


def derive_structures(op: Operator, limits: LaunchLimits) -> tuple[Structure, ...]:
    """Derive all structures of an operator on a target."""
    found = _combine_launches(op, limits)
    rewritten = [rule(op, limits, found, _combine_launches) for rule in (derive_split_k, derive_packed)]
    return (*found, *_derive_single_launch(op), *itertools.chain(*rewritten))


def _combine_launches(op: Operator, limits: LaunchLimits) -> list[Structure]:
    """Structures with a launch for each sum: all structures of the largest, with one of every other."""
    launches = group_fusable_computes(op)
    per_launch = [
        _derive_launch(op, c, f"{c[0].output.name}/" if len(launches) > 1 else "", limits) for c in launches
    ]
    main = max(range(len(launches)), key=lambda i: launches[i][0].flops)
    minor = [
        _choose_minor_launch(options, c[0], limits) for options, c in zip(per_launch, launches, strict=True)
    ]
    found = []
    for chosen in per_launch[main]:
        parts = [chosen if i == main else minor[i] for i in range(len(launches))]
        steps = tuple(s for p in parts for s in p.steps)
        decisions = tuple(d for p in parts for d in p.decisions)
        found.append(Structure(chosen.name, steps, decisions, frozenset().union(*(p.rules for p in parts))))
    return found


def derive_minor_launch(op: Operator, chain: ComputeChain, limits: LaunchLimits) -> Structure:
    """Derive the structure of a launch that is not the largest of an operator."""
    options = _derive_launch(op, chain, f"{chain[0].output.name}/", limits)
    return _choose_minor_launch(options, chain[0], limits)


def _choose_minor_launch(options: list[Structure], compute: Compute, limits: LaunchLimits) -> Structure:
    """Choose the structure of a launch that is not the largest. The last one over lanes, if the launch reads
    every element once and has fewer outputs than the device has threads; else the first."""
    reads_once = not any(_is_reused(compute, load) for load in ex.find_loads(compute.body))
    has_few_outputs = math.prod(a.extent for a in compute.spatial_axes) < limits.sms * limits.threads_per_sm
    over_lanes = [s for s in options if LANE_REGISTERS_NAME in s.name]
    return over_lanes[-1] if over_lanes and reads_once and has_few_outputs else options[0]


def _derive_launch(op: Operator, chain: ComputeChain, prefix: str, limits: LaunchLimits) -> list[Structure]:
    """Structures of one launch that can be built, those with `divide` first (rules 0 and 11)."""
    undivided = [s for s in _derive_candidates(op, chain, prefix, limits) if is_buildable(op, s)]
    unstaged = dict.fromkeys(StagingRoute(x.tensor, False) for x in ex.find_loads(chain[0].body))
    found = [*_derive_divided(op, chain, prefix, limits, undivided), *undivided]
    return found or [note_rule(_build_tiled(op, chain, tuple(unstaged), prefix), DROP)]


def _derive_divided(
    op: Operator, chain: ComputeChain, prefix: str, limits: LaunchLimits, undivided: list[Structure]
) -> list[Structure]:
    """Structures of one launch with its axes divided (rule 0); none where no read divides an axis."""
    compute = divide_compute(op, chain[0])
    if compute is chain[0]:
        return []
    tables = {d.name: d.table for s in undivided for d in s.decisions}
    divided = _derive_candidates(op, (compute, *chain[1:]), prefix, limits)
    named = (replace(s, name=f"{s.name} divided") for s in divided)
    found = [rename_conflicting_decisions(s, tables, "divided/") for s in named]
    return [s for s in found if is_buildable(op, s) and has_legal_member(op, s, limits)]


def _derive_candidates(
    op: Operator, chain: ComputeChain, prefix: str, limits: LaunchLimits
) -> list[Structure]:
    """Structures that rules 1 to 6 and 8 make of one launch; some may not be buildable."""
    compute = chain[0]
    reads = {x.tensor: x for x in ex.find_loads(compute.body)}
    plans = _enumerate_staging_plans(op, compute, reads)
    found = [_build_tiled(op, chain, routes, prefix) for routes in plans]
    if limits.async_copies:
        async_plans = [plan for plan in plans if _can_copy_plan_async(op, compute, plan, reads)]
        found += [_build_tiled(op, chain, routes, prefix, is_async=True) for routes in async_plans]
    if compute.reduction_axes:
        lane_axis = max(compute.reduction_axes, key=lambda a: (_count_contiguous_reads(a, reads), a.extent))
        columns = _find_column_axis(compute, reads, lane_axis)
        if columns and lane_axis.extent >= WARP_LANES // TILING.column_lanes:
            found.append(_build_over_lanes(op, chain, lane_axis, tuple(reads), prefix, columns))
        if lane_axis.extent >= WARP_LANES:
            lanes = _build_over_lanes(op, chain, lane_axis, tuple(reads), prefix)
            if not is_buildable(op, lanes):
                lanes = _build_over_lanes(op, chain, lane_axis, (), prefix)
            found = [lanes, *found] if _is_streamed(compute, reads, lane_axis) else [*found, lanes]
    if not limits.tensor_cores:
        return found
    with_wgmma = derive_warpgroup(op, chain, prefix, limits)
    return [*with_wgmma, *derive_tensor_core(op, chain, prefix, limits), *found]


def _is_streamed(compute: Compute, reads: dict[str, ex.Load], axis: Axis) -> bool:
    """Whether a reduction axis runs along contiguous elements that are read for one output only."""
    along = [x for x in reads.values() if axis.name in ex.find_variables(x)]
    return any(axis.name in ex.find_variables(x.index[-1]) for x in along) and all(
        a.name in ex.find_variables(x) for x in along for a in compute.spatial_axes if a.extent > 1
    )


def _find_column_axis(compute: Compute, reads: dict[str, ex.Load], sum_axis: Axis) -> Axis | None:
    """The output axis along which the terms of a sum are contiguous in a tensor that is read once. None if
    there is no such axis, or it is shorter than `column_lanes`."""
    once = [x for x in reads.values() if not _is_reused(compute, x) and sum_axis.name in ex.find_variables(x)]
    for axis in compute.spatial_axes:
        if axis.extent >= TILING.column_lanes and any(
            ex.find_variables(x.index[-1]) == {axis.name} for x in once
        ):
            return axis
    return None


def _count_contiguous_reads(axis: Axis, reads: dict[str, ex.Load]) -> int:
    """Number of reads that are contiguous along an axis."""
    return sum(axis.name in ex.find_variables(x.index[-1]) for x in reads.values())


def _enumerate_staging_plans(
    op: Operator, compute: Compute, reads: dict[str, ex.Load]
) -> list[tuple[StagingRoute, ...]]:
    """Every combination of routes, those with most staging first, at most `max_staging_plans`."""
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
    # The first stages every tensor and the last none. Their number grows exponentially with the tensors.
    plans = list(itertools.product(*options))
    kept = TILING.max_staging_plans - 1
    return [*plans[:kept], *plans[kept:][-1:]]


def _can_copy_plan_async(
    op: Operator, compute: Compute, routes: tuple[StagingRoute, ...], reads: dict[str, ex.Load]
) -> bool:
    """Whether each tensor with reuse is staged by asynchronous copies in shared memory (rule 6)."""
    reused = [r for r in routes if _is_reused(compute, reads[r.tensor])]
    return bool(reused) and all(
        r.uses_shared and r.uses_registers and can_copy_async(op, compute, reads[r.tensor], r.dimension_order)
        for r in reused
    )


def _is_reused(compute: Compute, load: ex.Load) -> bool:
    """Whether several outputs read the same element: some spatial axis does not index the read."""
    return any(a.name not in ex.find_variables(load) for a in compute.spatial_axes)


def _move_spatial_last(op: Operator, compute: Compute, load: ex.Load) -> tuple[int, ...]:
    """Order of the dimensions with the last spatial one moved to the end; () if it is there already."""
    spatial = {a.name for a in compute.spatial_axes if a.extent > 1}
    spatial -= derive_part_axes(compute) | find_groups(op, compute)
    is_spatial = [bool(ex.find_variables(i) & spatial) for i in load.index]
    if is_spatial[-1] or not any(is_spatial):
        return ()
    last = max(d for d, spatial_dimension in enumerate(is_spatial) if spatial_dimension)
    return (*(d for d in range(len(is_spatial)) if d != last), last)


def _build_tiled(
    op: Operator, chain: ComputeChain, routes: tuple[StagingRoute, ...], prefix: str, is_async: bool = False
) -> Structure:
    """Tiling with the staging of `routes` (rules 1, 2, 3, 5 and 6)."""
    b = StructureBuilder(op, chain, prefix)
    if is_async:
        b.alignments = compute_axis_alignments(op, chain[0])
    _cut_axes(b)
    b.order_and_bind()
    b.cache_results()
    at = b.loops["outer"][-1] if b.loops["outer"] else None
    # Without an inner loop, registers are filled once in every outer iteration.
    inner_at = b.loops["inner"][-1] if b.loops["inner"] else at
    for r in routes:
        if r.uses_shared:
            vector = b.add_copy_width(r.tensor, r.dimension_order, is_async)
            pad = b.add_choice(f"pad.{r.tensor}", TILING.pads)
            b.steps.append(CacheRead(r.tensor, "shared", at, vector, r.dimension_order, pad))
    for r in routes:
        if r.uses_registers:
            b.rules.add(STAGE)
            vector = b.add_vector_width("move", r.tensor)
            source = f"{r.tensor}.shared" if r.uses_shared else r.tensor
            b.steps.append(
                CacheRead(source, "register", inner_at, vector, reader=b.find_reader(r.tensor, inner_at))
            )
    if is_async and at is not None:
        b.steps.append(Pipeline(at, b.add_choice("depth", TILING.pipeline_depths), "async"))
    elif any(r.uses_shared for r in routes) and at is not None:
        b.steps.append(Pipeline(at, b.add_choice("stages", TILING.buffer_counts)))
    _add_unroll(b)
    return b.build(" ".join(map(str, routes)) + (" flying" if is_async else ""))


def _build_over_lanes(
    op: Operator,
    chain: ComputeChain,
    lane_axis: Axis,
    registers: tuple[str, ...],
    prefix: str,
    columns: Axis | None = None,
) -> Structure:
    """Spread the innermost part of one reduction axis over lanes, with a vector in each lane (rule 4). With
    `columns`, adjacent lanes also take adjacent elements of that output axis."""
    b = StructureBuilder(op, chain, prefix)
    column_lanes: tuple[str, ...] = ()
    for axis in b.compute.spatial_axes:
        if b.is_block_axis(axis):
            b.loops["block"].append(axis.name)
        elif axis is columns:
            block, thread, column_lane, tile = b.split_into_columns(axis)
            b.assign_roles(block=block, thread=thread, tile=tile)
            column_lanes = (column_lane,)
        else:
            block, thread, tile = b.tile_axis(axis, {"thread": 32, "tile": 8}, "tile.rows")
            b.assign_roles(block=block, thread=thread, tile=tile)
    for axis in b.compute.reduction_axes:
        if axis is not lane_axis:
            b.cut_reduction(axis)
    outer, lane, vector = b.split_over_lanes(
        lane_axis, WARP_LANES // TILING.column_lanes if column_lanes else WARP_LANES
    )
    b.loops["outer"].append(outer)
    b.loops["inner"].append(vector)
    b.order_and_bind((lane, *column_lanes))
    b.cache_results()
    for tensor in registers:
        b.steps.append(CacheRead(tensor, "register", outer, b.add_vector_width("move", tensor)))
    if not registers:
        b.steps.append(Unroll(vector))
    b.steps.append(Unroll(outer, b.add_choice("unroll", TILING.unroll_factors)))
    return b.build(("column " if column_lanes else "") + (LANE_REGISTERS_NAME if registers else "lanes"))


def _derive_single_launch(op: Operator) -> list[Structure]:
    """Structures with one launch: the last compute runs along rows that the earlier ones reduce (rule 7)."""
    *before, last = op.computes
    if not before or last.reduction_axes or not all(map(_is_row_reduction, before)):
        return []
    reduced = {c.output.name for c in before}
    rows = {v for x in ex.find_loads(last.body) if x.tensor in reduced for v in ex.find_variables(x)}
    if last.spatial_axes[-1].name in rows or last.spatial_axes[-1].extent == 1:
        return []
    reduced_inputs = dict.fromkeys(x.tensor for c in before for x in ex.find_loads(c.body))
    last_inputs = {x.tensor for x in ex.find_loads(last.body)} - reduced
    shared = [t for t in reduced_inputs if t in last_inputs]
    staged = tuple(t for t in shared if _count_row_bytes(op, t, rows) <= TILING.max_staged_row_bytes)
    found = [_build_single_launch(op, rows, tensors) for tensors in dict.fromkeys((staged, ()))]
    return [s for s in found if is_buildable(op, s)]


def _is_row_reduction(compute: Compute) -> bool:
    """Whether a compute reduces contiguous elements that are read for one output only."""
    reads = {x.tensor: x for x in ex.find_loads(compute.body)}
    return bool(compute.reduction_axes) and any(
        _is_streamed(compute, reads, a) for a in compute.reduction_axes
    )


def _count_row_bytes(op: Operator, tensor: str, rows: set[str]) -> int:
    """Bytes of a tensor that the last compute reads for one row."""
    spec = op.tensors[tensor]
    read = next(x for x in ex.find_loads(op.computes[-1].body) if x.tensor == tensor)
    along = [e for i, e in zip(read.index, spec.shape, strict=True) if not ex.find_variables(i) <= rows]
    return math.prod(along) * spec.dtype.bytes


def _build_single_launch(op: Operator, rows: set[str], staged: tuple[str, ...]) -> Structure:
    """One launch with each row within a block, and the rows of the tensors `staged` in shared memory."""
    last = op.computes[-1]
    b = StructureBuilder(op, (last,), f"{last.output.name}/")
    b.rules.add(SINGLE_LAUNCH)
    vectors: tuple[int, ...] = ()
    for axis in last.spatial_axes:
        if axis.extent == 1:
            b.loops["block"].append(axis.name)
        elif axis.name in rows:
            block, thread = b.tile_axis(axis, {"thread": WARP_LANES}, "tile.rows")
            b.assign_roles(block=block, thread=thread)
        elif axis is last.spatial_axes[-1]:
            vectors = tuple(
                v for v in list_vector_widths(op, last.output.name) if v > 1 and axis.extent % v == 0
            )
            outer, thread, *tile = b.split_row(axis, vectors)
            b.assign_roles(outer=outer, thread=thread)
            b.loops["tile"] += tile
        else:
            b.loops["outer"].append(axis.name)
    b.order_and_bind()
    width = Hole(b.decisions[-1].holes[-1]) if vectors else 1
    for tensor in staged:
        vector = b.add_vector_width("vector", tensor)
        b.steps.append(CacheRead(tensor, "shared", None, vector, reader=last.output.name))
    warps = b.add_choice("warps", TILING.row_warps)
    b.steps += [ComputeAt(c.output.name, None, warps) for c in reversed(op.computes[:-1])]
    if vectors:
        at = b.loops["outer"][-1]
        b.steps += [CacheRead(f"{tensor}.shared", "register", at, width) for tensor in staged]
        b.steps.append(Vectorize(b.loops["tile"][-1]))
    return b.build("one launch" + "".join(f" {t}:shared" for t in staged))


def _cut_axes(builder: StructureBuilder) -> None:
    """Tile every axis of a compute (rules 1 and 2)."""
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
    """Unroll the innermost reduction loop by a decision."""
    for loop in builder.loops["inner"][-1:]:
        builder.steps.append(Unroll(loop, builder.add_choice("unroll", TILING.unroll_factors)))
