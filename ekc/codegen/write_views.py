"""Results on their way to global memory, through an epilogue where there is one."""

from __future__ import annotations

from typing import Any

from ekc.codegen.names import Names, c_name
from ekc.codegen.region_text import stepped
from ekc.codegen.scope import Scope
from ekc.codegen.types import Arithmetic, converted, move_type
from ekc.codegen.view import View
from ekc.ir.access import Access, moved
from ekc.ir.analysis.issue import fetched
from ekc.ir.dtypes import find_read_type
from ekc.ir.linear import Linear
from ekc.ir.nodes import WriteNode
from ekc.ir.region import segment_cell


def write_view(scope: Scope, node: WriteNode) -> View:
    """An accumulator into its tensor: as it is, added to what is there, or through an epilogue."""
    vector, spec = int(node.vector), node.target.spec
    names, loops = scope.tile_loops(node.region, node.vector_segment, vector)
    cell = segment_cell(node.region)
    cells = [names.cell(node.buffer, stepped(cell, node.vector_segment, v)) for v in range(vector)]
    first = [f"{names[x.name]} == 0" for x in node.lanes]
    guards = [*first, *filter(None, [names.condition(node.target.guards)])]
    text = {
        "loops": loops,
        "guard": " && ".join(guards),
        "vector": vector,
        "move": move_type(spec.dtype, vector),
        "target": names.element(node.target),
        "type": spec.dtype.cuda,
        "bytes": spec.dtype.bytes * vector,
        "same": spec.dtype is node.buffer.dtype,
        "source": cells[0],
        "values": [converted(c, node.buffer.dtype, spec.dtype) for c in cells],
        "what": f"{names[node.buffer.name]} -> {names[spec.name]}",
    }
    if node.atomic:
        return View("add", text)
    if scope.kernel.nest.epilogue is None:
        return View("write", text)
    return View("write_through", text | _through(scope, node, names))


def _through(scope: Scope, node: WriteNode, names: Names) -> dict[str, Any]:
    """An element worked out when it is written: what is read for it, and the value, in element `part`
    of the vector."""
    vector, spec, axis = int(node.vector), node.target.spec, f"#{node.vector_segment}"
    move = {axis: Linear(((axis, 1), ("part", 1)))} if vector > 1 else {}
    inside = names.also({"part": "part"}, {"part": vector})
    here = dict(zip(node.reads, names.free([f"{c_name(x.tensor)}_here" for x in node.reads]), strict=True))
    near = dict(zip(node.reads, names.free([f"{c_name(x.tensor)}_near" for x in node.reads]), strict=True))
    compute = scope.kernel.nest.epilogue or scope.kernel.nest.compute
    acc = compute.acc_dtype
    fetches, values = [], []
    for load, access in node.reads.items():
        width, kind = int(fetched(node, access)), find_read_type(access.dtype, acc)
        text = scope.read(moved(access, move), acc, inside)
        if width > 1:
            fetches.append(_fetch(scope, access, near[load], width, vector, axis, names))
            text = converted(f"{near[load]}[part]", access.dtype, kind)
        values.append({"name": here[load], "text": text, "type": kind.cuda})
    index = (form.substitute(move) for form in node.target.index)
    axes = dict(zip((a.name for a in scope.kernel.nest.compute.spatial), index, strict=True))
    value = inside.value(node.value, Arithmetic.of(compute, scope.kernel.tensors), axes, lambda x: here[x])
    return {
        "fetches": fetches,
        "reads": values,
        "value": converted(value, acc, spec.dtype),
    }


def _fetch(
    scope: Scope, access: Access, near: str, width: int, vector: int, axis: str, names: Names
) -> dict[str, Any]:
    """A read of the neighbours that a vector needs, `width` at a time."""
    dtype = access.dtype
    starts = [moved(access, {axis: Linear(((axis, 1),), at)}) for at in range(0, vector, width)]
    return {
        "declare": f"alignas({dtype.bytes * width}) {dtype.cuda} {near}[{vector}];",
        "move": move_type(dtype, width),
        "parts": [(f"{near}[{i * width}]", names.element(start)) for i, start in enumerate(starts)],
    }
