"""Text of accumulators: initial values, updates, reductions over lanes and warps, and the store of the
result.

A result goes to global memory as it is, by atomic addition, or through an epilogue.
"""

from __future__ import annotations

import math
from typing import Any

from ekc.codegen.emit.copies import format_box, format_coordinates, shift_cell
from ekc.codegen.emit.names import CNames, to_c_name
from ekc.codegen.emit.scope import NodeText, Scope
from ekc.codegen.emit.types import Arithmetic, choose_move_type, format_conversion, format_zero
from ekc.ir.affine import AffineForm, make_variable
from ekc.ir.analysis.issued_accesses import compute_fetch_width
from ekc.ir.dtypes import find_read_type, find_reduction_identity
from ekc.ir.hardware.memory import WARP
from ekc.ir.lowering.buffers import TensorAccess, substitute_access
from ekc.ir.lowering.memory_access import map_axes_to_element
from ekc.ir.lowering.nodes import ComputeNode, InitNode, LaneCombineNode, ReduceNode, WriteNode
from ekc.ir.lowering.regions import make_segment_variables

_MAX_UNROLLED_WALKS = 8
"""Most iterations of the outer axes of a fused reduction that are unrolled; its last axis is by 8."""


def build_init_text(scope: Scope, node: InitNode) -> NodeText:
    """Initial value of a reduction: in its accumulator, or in the result itself."""
    compute = scope.kernel.nest.compute
    acc = compute.acc_dtype
    start = Arithmetic(acc).format_literal(find_reduction_identity(compute.combine, acc))
    names, loops = scope.make_tile_loops(node.region, None, 1)
    if node.buffer is not None:
        target, guard = names.format_cell(node.buffer, make_segment_variables(node.region)), ""
    else:
        target, guard = names.format_element(node.target), names.format_condition(node.target.guards)
        start = format_conversion(start, acc, compute.output.dtype)
    return NodeText("init", {"loops": loops, "target": target, "start": start, "guard": guard})


def build_compute_text(scope: Scope, node: ComputeNode) -> NodeText:
    """One value computed, and stored or combined with the accumulator."""
    compute = node.nest.compute
    value = scope.format_body(compute, node.nest.axis_forms, node.reads, scope.names)
    target = scope.format_access(node.target, scope.names)
    guard = scope.names.format_condition(node.guards)
    statement = f"{target} = {format_conversion(value, compute.acc_dtype, node.target.dtype)};"
    if compute.reduction_axes:
        statement = scope.make_arithmetic(compute).format_combine(compute.combine, target, value)
    return NodeText("compute", {"statement": statement, "guard": guard})


def build_combine_text(scope: Scope, node: LaneCombineNode) -> NodeText:
    """Accumulators of lanes combined by shuffles."""
    names, loops = scope.make_tile_loops(node.buffer.region, None, 1)
    target = names.format_cell(node.buffer, make_segment_variables(node.buffer.region))
    lanes = math.prod(int(loop.extent) for loop in node.reduction_lanes)
    step = int(scope.kernel.reduction_lane_stride)
    other = f"__shfl_xor_sync(0xffffffffu, {target}, lane)"
    compute = scope.kernel.nest.compute
    text = {
        "loops": loops,
        "half": lanes // 2 * step,
        "step": step,
        "update": scope.make_arithmetic(compute).format_combine(compute.combine, target, other),
        "lanes": lanes,
        "combine": compute.combine,
    }
    return NodeText("combine", text)


def build_reduce_text(scope: Scope, node: ReduceNode) -> NodeText:
    """A reduction by groups of warps, an element each; a copy of the buffer has the part of one warp."""
    compute, buffer, region = node.compute, node.buffer, node.buffer.region
    names = scope.names.for_region(region, scope.names.name_shared_coordinates(scope.kernel, region))
    size, warps = int(region.size), int(node.staging.warps)
    group, per_round = WARP * warps, scope.thread_count // (WARP * warps)
    *others, last = compute.reduction_axes
    cell = make_segment_variables(region)
    scope.copy_indices[buffer.name] = "0" if warps > 1 else ""
    axes = map_axes_to_element(compute, node.source.index)
    axes |= {a.name: make_variable(a.name) for a in compute.reduction_axes}
    acc, arithmetic = compute.acc_dtype, scope.make_arithmetic(compute)
    value = scope.format_body(compute, axes, node.reads, names)
    steps = -(-last.extent // group)
    box = format_box(scope.names, node.staging.tensor, region)
    other, part = "__shfl_xor_sync(0xffffffffu, accumulator, lane)", names.format_cell(buffer, cell, "part")
    text = {
        "what": f"{compute.combine} at {box} -> {names[buffer.name]}",
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
        "update": arithmetic.format_combine(compute.combine, "accumulator", value),
        "meet": arithmetic.format_combine(compute.combine, "accumulator", other),
        "guard": names.format_condition(node.source.guards),
        "type": buffer.dtype.cuda_name,
        "zero": format_zero(buffer.dtype),
        "part": names.format_cell(buffer, cell, f"thread / {WARP} % {warps}" if warps > 1 else ""),
        "warps": warps,
        "threads": scope.thread_count,
        "join_rounds": -(-size // scope.thread_count),
        "result": names.format_cell(buffer, cell, scope.copy_indices[buffer.name]),
        "join": arithmetic.format_combine(compute.combine, "accumulator", part),
    }
    return NodeText("reduce", text)


def build_write_text(scope: Scope, node: WriteNode) -> NodeText:
    """Store of an accumulator: as it is, by atomic addition, or through an epilogue."""
    vector, spec = int(node.vector), node.target.spec
    names, loops = scope.make_tile_loops(node.region, node.vector_segment, vector)
    cell = make_segment_variables(node.region)
    cells = [names.format_cell(node.buffer, shift_cell(cell, node.vector_segment, v)) for v in range(vector)]
    first = [f"{names[x.name]} == 0" for x in node.reduction_lanes]
    guards = [*first, *filter(None, [names.format_condition(node.target.guards)])]
    text = {
        "loops": loops,
        "guard": " && ".join(guards),
        "vector": vector,
        "move": choose_move_type(spec.dtype, vector),
        "target": names.format_element(node.target),
        "type": spec.dtype.cuda_name,
        "bytes": spec.dtype.bytes * vector,
        "same": spec.dtype is node.buffer.dtype,
        "source": cells[0],
        "values": [format_conversion(c, node.buffer.dtype, spec.dtype) for c in cells],
        "what": f"{names[node.buffer.name]} -> {names[spec.name]}",
    }
    if node.is_atomic:
        return NodeText("add", text)
    if scope.kernel.nest.epilogue is None:
        return NodeText("write", text)
    return NodeText("write_through", text | _build_epilogue(scope, node, names))


def _build_epilogue(scope: Scope, node: WriteNode, names: CNames) -> dict[str, Any]:
    """Values of an epilogue: what it reads, and the value of element `part` of the vector that is stored."""
    vector, spec, axis = int(node.vector), node.target.spec, f"#{node.vector_segment}"
    move = {axis: AffineForm(((axis, 1), ("part", 1)))} if vector > 1 else {}
    inside = names.with_names({"part": "part"}, {"part": vector})
    tensors = [to_c_name(x.tensor) for x in node.reads]
    free = (names.find_free_names([f"{t}_{kind}" for t in tensors]) for kind in ("value", "vector"))
    values_by_read, vectors = (dict(zip(node.reads, own, strict=True)) for own in free)
    compute = scope.kernel.nest.epilogue or scope.kernel.nest.compute
    acc = compute.acc_dtype
    fetches, values = [], []
    for load, access in node.reads.items():
        width, kind = int(compute_fetch_width(node, access)), find_read_type(access.dtype, acc)
        text = scope.format_read(substitute_access(access, move), acc, inside)
        if width > 1:
            fetches.append(_build_fetch(scope, access, vectors[load], width, vector, axis, names))
            text = format_conversion(f"{vectors[load]}[part]", access.dtype, kind)
        values.append({"name": values_by_read[load], "text": text, "type": kind.cuda_name})
    index = (form.substitute(move) for form in node.target.index)
    axes = dict(zip((a.name for a in scope.kernel.nest.compute.spatial_axes), index, strict=True))
    value = inside.format_value(node.value, scope.make_arithmetic(compute), axes, lambda x: values_by_read[x])
    return {"fetches": fetches, "reads": values, "value": format_conversion(value, acc, spec.dtype)}


def _build_fetch(
    scope: Scope, access: TensorAccess, array: str, width: int, vector: int, axis: str, names: CNames
) -> dict[str, Any]:
    """A read of the elements that a vector needs, `width` at a time."""
    dtype = access.dtype
    moves = ({axis: AffineForm(((axis, 1),), at)} for at in range(0, vector, width))
    starts = [substitute_access(access, move) for move in moves]
    return {
        "declare": f"alignas({dtype.bytes * width}) {dtype.cuda_name} {array}[{vector}];",
        "move": choose_move_type(dtype, width),
        "parts": [(f"{array}[{i * width}]", names.format_element(start)) for i, start in enumerate(starts)],
    }
