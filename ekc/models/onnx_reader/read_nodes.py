"""Reads the nodes of an ONNX graph in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ekc.errors import InvalidInput
from ekc.models.onnx_reader import contrib, elementwise, norms, pools, products, quantized, views
from ekc.models.onnx_reader.definitions import define_by_nodes
from ekc.models.onnx_reader.import_onnx import import_onnx
from ekc.models.onnx_reader.infer import (
    BRANCHES,
    FOLDED_ELEMENTS,
    LARGEST_FOLDED_ELEMENTS,
    fold_constant,
    infer_types,
    list_read,
    settle_shapes,
)
from ekc.models.onnx_reader.operation import NotExpressible, Operation
from ekc.models.onnx_reader.state import ReaderState, has_fixed_shape, is_tensor

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

HANDLERS: Mapping[str, Callable[[Operation], Any]] = {
    **elementwise.HANDLERS,
    **products.HANDLERS,
    **norms.HANDLERS,
    **views.HANDLERS,
    **pools.HANDLERS,
    **quantized.HANDLERS,
}
"""Readers of operators of the standard domain."""


def read_nodes(state: ReaderState, nodes: Sequence[NodeProto], opsets: Mapping[str, int]) -> None:
    """Read nodes in order; `opsets` has the version of each domain."""
    for proto in nodes:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        if any(proto.output):
            _read_node(Operation(state, proto, opsets.get(domain, 1)), opsets)


def _read_node(op: Operation, opsets: Mapping[str, int]) -> None:
    if op.proto.op_type == "If" and _read_branch(op, opsets):
        return
    is_standard = op.proto.domain in ("", "ai.onnx")
    if op.proto.domain == contrib.DOMAIN and all(_is_fixed(op, name) for name in op.inputs):
        contrib.infer_types(op)
    infer_types(op)
    if is_standard and fold_constant(op, FOLDED_ELEMENTS):
        return
    if _is_about_sequences(op):
        _read_sequence(op)
        return
    settle_shapes(op)
    handlers = HANDLERS if is_standard else contrib.HANDLERS if op.proto.domain == contrib.DOMAIN else {}
    reason = _explain_missing(op)
    if handler := handlers.get(op.proto.op_type):
        try:
            handler(op)
            return
        except NotExpressible as problem:
            reason = str(problem)
    if is_standard and fold_constant(op, LARGEST_FOLDED_ELEMENTS):
        return
    definition = define_by_nodes(op) if is_standard else None
    if definition is None:
        _add_opaque(op, reason)
        return
    for name in op.proto.output:
        op.state.aliases.pop(name, None)
    inner, versions = definition
    read_nodes(op.state, inner, {**opsets, **versions})


def _is_fixed(op: Operation, name: str | None) -> bool:
    return name is None or has_fixed_shape(op.state.types.get(name))


def _explain_missing(op: Operation) -> str:
    if op.proto.op_type in BRANCHES:
        return f"control flow: {op.proto.op_type}"
    if op.proto.domain not in ("", "ai.onnx"):
        return f"an operator of the domain {op.proto.domain}"
    return "no kind of node for this operator"


def _read_branch(op: Operation, opsets: Mapping[str, int]) -> bool:
    """Read the branch of an If whose condition is constant."""
    condition = op.constant(0)
    if condition is None:
        return False
    branch: GraphProto = op.get("then_branch" if condition.reshape(()) else "else_branch")
    onnx = import_onnx()
    for tensor in branch.initializer:
        op.state.set_constant(tensor.name, onnx.numpy_helper.to_array(tensor))
    read_nodes(op.state, branch.node, opsets)
    for outer, inner in zip(op.proto.output, branch.output, strict=True):
        if outer:
            op.state.aliases[outer] = op.state.resolve(inner.name)
    return True


def _is_about_sequences(op: Operation) -> bool:
    return any(
        name and op.state.has_type(name) and not is_tensor(op.state.find_type(name))
        for name in (*op.proto.input, *op.proto.output)
    )


def _read_sequence(op: Operation) -> None:
    """A sequence is the tensors that it is made of; what makes a tensor of it is opaque."""
    tensors = tuple(
        part for name in op.inputs if name is not None for part in op.state.parts.get(name, (name,))
    )
    outputs = [name for name in op.proto.output if name]
    made = [name for name in outputs if op.state.has_type(name) and is_tensor(op.state.find_type(name))]
    for name in outputs:
        if name not in made:
            op.state.parts[name] = tensors
    if made:
        settle_shapes(op)
        _add_opaque(op, "sequences and optional values")


def _add_opaque(op: Operation, reason: str) -> None:
    """A node without a kind, once for each output."""
    state = op.state
    parts = [part for name in list_read(op) for part in _list_parts(op, name)]
    names = [name for name in dict.fromkeys(parts) if _is_numeric(op, name)]
    for index, output in enumerate(op.proto.output):
        if not output or not is_tensor(state.types.get(output)):
            continue
        if output in state.aliases or output in state.builder.values:
            continue
        if not _is_numeric(op, output):
            raise InvalidInput(f"{state.file}: {op.label}: tensors of text are not supported")
        op.finish("opaque", names, index, target=op.target, reason=reason)


def _list_parts(op: Operation, name: str) -> tuple[str, ...]:
    found = op.state.resolve(name)
    return op.state.parts.get(found, (found,))


def _is_numeric(op: Operation, name: str) -> bool:
    return has_fixed_shape(op.state.find_type(name)) and op.state.find_file_dtype(name).kind not in "OSU"
