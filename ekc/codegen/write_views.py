"""Results on their way to global memory, through an epilogue where there is one."""

from __future__ import annotations

from typing import Any

from ekc.codegen.names import CNames, to_c_name
from ekc.codegen.region_text import shift_cell
from ekc.codegen.scope import Scope
from ekc.codegen.types import Arithmetic, choose_move_type, format_conversion
from ekc.codegen.view import NodeView
from ekc.ir.affine import AffineForm
from ekc.ir.analysis.issued_accesses import compute_fetch_width
from ekc.ir.dtypes import find_read_type
from ekc.ir.lowering.buffers import TensorAccess, substitute_access
from ekc.ir.lowering.nodes import WriteNode
from ekc.ir.lowering.regions import make_segment_variables


def make_write_view(scope: Scope, node: WriteNode) -> NodeView:
    """An accumulator into its tensor: as it is, added to what is there, or through an epilogue."""
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
        return NodeView("add", text)
    if scope.kernel.nest.epilogue is None:
        return NodeView("write", text)
    return NodeView("write_through", text | _build_epilogue(scope, node, names))


def _build_epilogue(scope: Scope, node: WriteNode, names: CNames) -> dict[str, Any]:
    """An element worked out when it is written: what is read for it, and the value, in element `part`
    of the vector."""
    vector, spec, axis = int(node.vector), node.target.spec, f"#{node.vector_segment}"
    move = {axis: AffineForm(((axis, 1), ("part", 1)))} if vector > 1 else {}
    inside = names.with_names({"part": "part"}, {"part": vector})
    here = dict(
        zip(
            node.reads,
            names.find_free_names([f"{to_c_name(x.tensor)}_here" for x in node.reads]),
            strict=True,
        )
    )
    near = dict(
        zip(
            node.reads,
            names.find_free_names([f"{to_c_name(x.tensor)}_near" for x in node.reads]),
            strict=True,
        )
    )
    compute = scope.kernel.nest.epilogue or scope.kernel.nest.compute
    acc = compute.acc_dtype
    fetches, values = [], []
    for load, access in node.reads.items():
        width, kind = int(compute_fetch_width(node, access)), find_read_type(access.dtype, acc)
        text = scope.format_read(substitute_access(access, move), acc, inside)
        if width > 1:
            fetches.append(_build_fetch(scope, access, near[load], width, vector, axis, names))
            text = format_conversion(f"{near[load]}[part]", access.dtype, kind)
        values.append({"name": here[load], "text": text, "type": kind.cuda_name})
    index = (form.substitute(move) for form in node.target.index)
    axes = dict(zip((a.name for a in scope.kernel.nest.compute.spatial_axes), index, strict=True))
    value = inside.format_value(
        node.value, Arithmetic.for_compute(compute, scope.kernel.tensors), axes, lambda x: here[x]
    )
    return {
        "fetches": fetches,
        "reads": values,
        "value": format_conversion(value, acc, spec.dtype),
    }


def _build_fetch(
    scope: Scope, access: TensorAccess, near: str, width: int, vector: int, axis: str, names: CNames
) -> dict[str, Any]:
    """A read of the neighbours that a vector needs, `width` at a time."""
    dtype = access.dtype
    starts = [
        substitute_access(access, {axis: AffineForm(((axis, 1),), at)}) for at in range(0, vector, width)
    ]
    return {
        "declare": f"alignas({dtype.bytes * width}) {dtype.cuda_name} {near}[{vector}];",
        "move": choose_move_type(dtype, width),
        "parts": [(f"{near}[{i * width}]", names.format_element(start)) for i, start in enumerate(starts)],
    }
