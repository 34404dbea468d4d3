"""Accumulators: how they begin, take in a value, and are joined over lanes and warps."""

from __future__ import annotations

import math

from ekc.codegen.region_text import format_box, format_coordinates
from ekc.codegen.scope import Scope
from ekc.codegen.types import Arithmetic, format_conversion, format_zero
from ekc.codegen.view import NodeView
from ekc.ir.affine import make_variable
from ekc.ir.analysis.coalescing import WARP
from ekc.ir.dtypes import find_reduction_identity
from ekc.ir.lowering.memory_access import map_axes_to_element
from ekc.ir.lowering.nodes import ComputeNode, InitNode, LaneCombineNode, ReduceNode
from ekc.ir.lowering.regions import make_segment_variables

_MAX_UNROLLED_WALKS = 8
"""A reduction on the spot over several axes walks along its last one so often in a row, without loops; each
walk is one of up to 8 steps itself."""


def make_init_view(scope: Scope, node: InitNode) -> NodeView:
    """Where a sum begins: in its accumulator, or in the result itself."""
    compute = scope.kernel.nest.compute
    acc = compute.acc_dtype
    start = Arithmetic(acc).format_literal(find_reduction_identity(compute.combine, acc))
    names, loops = scope.make_tile_loops(node.region, None, 1)
    if node.buffer is not None:
        target = names.format_cell(node.buffer, make_segment_variables(node.region))
        return NodeView("init", {"loops": loops, "target": target, "start": start, "guard": ""})
    guard, start = (
        names.format_condition(node.target.guards),
        format_conversion(start, acc, compute.output.dtype),
    )
    return NodeView(
        "init", {"loops": loops, "target": names.format_element(node.target), "start": start, "guard": guard}
    )


def make_compute_view(scope: Scope, node: ComputeNode) -> NodeView:
    """One value worked out, and set or combined with what was there."""
    compute = node.nest.compute
    acc = compute.acc_dtype
    arithmetic = Arithmetic.for_compute(compute, scope.kernel.tensors)
    value = scope.names.format_value(
        compute.body,
        arithmetic,
        node.nest.axis_forms,
        lambda x: scope.format_read(node.reads[x], acc, scope.names),
    )
    target = scope.format_access(node.target, scope.names)
    guard = scope.names.format_condition(node.guards)
    if not compute.reduction_axes:
        statement = f"{target} = {format_conversion(value, acc, node.target.dtype)};"
        return NodeView("compute", {"statement": statement, "guard": guard})
    statement = arithmetic.format_combine(compute.combine, target, value)
    return NodeView("compute", {"statement": statement, "guard": guard})


def make_combine_view(scope: Scope, node: LaneCombineNode) -> NodeView:
    """Accumulators of lanes joined by shuffles."""
    names, loops = scope.make_tile_loops(node.buffer.region, None, 1)
    target = names.format_cell(node.buffer, make_segment_variables(node.buffer.region))
    lanes = 1
    for loop in node.reduction_lanes:
        lanes *= int(loop.extent)
    step = int(scope.kernel.reduction_lane_stride)
    other = f"__shfl_xor_sync(0xffffffffu, {target}, lane)"
    compute = scope.kernel.nest.compute
    update = Arithmetic.for_compute(compute, scope.kernel.tensors).format_combine(
        compute.combine, target, other
    )
    return NodeView(
        "combine",
        {
            "loops": loops,
            "half": lanes // 2 * step,
            "step": step,
            "update": update,
            "lanes": lanes,
            "combine": compute.combine,
        },
    )


def make_reduce_view(scope: Scope, node: ReduceNode) -> NodeView:
    """Elements of a region dealt out to groups of warps; each copy of the buffer is what one warp has."""
    compute, buffer, region = node.compute, node.buffer, node.buffer.region
    names = scope.names.for_region(region, scope.names.name_shared_coordinates(scope.kernel, region))
    size, warps = int(region.size), int(node.staging.warps)
    group, per_round = WARP * warps, scope.thread_count // (WARP * warps)
    *others, last = compute.reduction_axes
    cell = make_segment_variables(region)
    scope.copy_indices[buffer.name] = "0" if warps > 1 else ""
    axes = map_axes_to_element(compute, node.source.index) | {
        a.name: make_variable(a.name) for a in compute.reduction_axes
    }
    acc = compute.acc_dtype
    arithmetic = Arithmetic.for_compute(compute, scope.kernel.tensors)
    value = names.format_value(
        compute.body, arithmetic, axes, lambda x: scope.format_read(node.reads[x], acc, names)
    )
    steps = -(-last.extent // group)
    here = format_box(scope.names, node.staging.tensor, region)
    text = {
        "what": f"{compute.combine} at {here} -> {names[buffer.name]}",
        "rounds": -(-size // per_round),
        "per_round": per_round,
        "exact": size % per_round == 0,
        "size": size,
        "group": group,
        "coordinates": format_coordinates(region, names),
        "start": arithmetic.format_literal(find_reduction_identity(compute.combine, acc)),
        "others": [{"name": names[a.name], "extent": a.extent, "step": 1} for a in others],
        "unroll": "" if math.prod(a.extent for a in others) <= _MAX_UNROLLED_WALKS else " 1",
        "last": names[last.name],
        "steps": steps,
        "tail": f"{names[last.name]} < {last.extent}" if steps * group != last.extent else "",
        "update": arithmetic.format_combine(compute.combine, "reduced", value),
        "meet": arithmetic.format_combine(
            compute.combine, "reduced", "__shfl_xor_sync(0xffffffffu, reduced, lane)"
        ),
        "guard": names.format_condition(node.source.guards),
        "type": buffer.dtype.cuda_name,
        "zero": format_zero(buffer.dtype),
        "part": names.format_cell(buffer, cell, f"thread / {WARP} % {warps}" if warps > 1 else ""),
        "warps": warps,
        "threads": scope.thread_count,
        "join_rounds": -(-size // scope.thread_count),
        "result": names.format_cell(buffer, cell, scope.copy_indices[buffer.name]),
        "join": arithmetic.format_combine(
            compute.combine, "reduced", names.format_cell(buffer, cell, "part")
        ),
    }
    return NodeView("reduce", text)
