"""Reads the nodes of an ONNX graph in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.file_limits import UNPACKED_NODES
from ekc.models.graph import describe_internal_error
from ekc.models.node_writer import NotExpressible
from ekc.models.onnx_reader import contrib, elementwise, onnx, products, reductions, views
from ekc.models.onnx_reader.infer import (
    BRANCHES,
    FOLDED_ELEMENTS,
    LARGEST_FOLDED_ELEMENTS,
    fold_constant,
    infer_types,
    list_read,
    settle_shapes,
)
from ekc.models.onnx_reader.operation import Operation, ReaderState, has_fixed_shape, is_tensor

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto

HANDLERS: Mapping[str, Callable[[Operation], Any]] = {
    **elementwise.HANDLERS,
    **products.HANDLERS,
    **views.HANDLERS,
    **reductions.HANDLERS,
}
"""Readers of operators of the standard domain."""

_INFERRED = "shape inference reads it: the output has the shape and type that it says"
IGNORED: Mapping[str, Mapping[str | int, str]] = {
    "Reshape": {1: _INFERRED, "allowzero": _INFERRED},
    "Flatten": {"axis": _INFERRED},
    "Squeeze": {1: _INFERRED},
    "Unsqueeze": {1: _INFERRED},
    "Expand": {1: _INFERRED},
    "Split": {1: _INFERRED, "num_outputs": _INFERRED},
    "Size": {0: "its shape is all that is read"},
    "Cast": {"to": _INFERRED, "round_mode": "of casts to float8_e8m0fnu, which are opaque"},
    "CastLike": {1: _INFERRED, "round_mode": "of casts to float8_e8m0fnu, which are opaque"},
    "Dropout": {"seed": "inference draws no random numbers", 1: "the share is of training"},
    "BatchNormalization": {"momentum": "running statistics change in training alone"},
    "Conv": {"kernel_shape": "that of the weight"},
    "ConvTranspose": {"kernel_shape": "that of the weight"},
    "MaxPool": {"ceil_mode": _INFERRED, "storage_order": "of the indices, which are opaque"},
    "AveragePool": {"ceil_mode": _INFERRED},
    "Attention": {"qk_matmul_output_mode": "of the scores, which are opaque"},
    "Resize": {
        **dict.fromkeys((1, "extrapolation_value"), "of tf_crop_and_resize, which is opaque"),
        **dict.fromkeys(("cubic_coeff_a", "exclude_outside", "antialias"), "of linear and cubic modes"),
        **dict.fromkeys((3, "keep_aspect_ratio_policy"), _INFERRED),
    },
    "QuantizeLinear": {"output_dtype": _INFERRED},
    "DequantizeLinear": {"output_dtype": _INFERRED},
    "SimplifiedLayerNormalization": {"stash_type": "norms are computed in float32"},
}  # fmt: skip
"""Operator -> attributes by name and inputs by number that its handler need not read, with the reason."""


def read_nodes(state: ReaderState, nodes: Sequence[NodeProto], opsets: Mapping[str, int]) -> None:
    """Read nodes in order; `opsets` has the version of each domain."""
    for proto in nodes:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        if any(proto.output):
            _read_node(Operation(state, proto, opsets.get(domain, 1)), opsets)


def _read_node(op: Operation, opsets: Mapping[str, int]) -> None:
    """Read a node; one at which the reader fails becomes opaque."""
    count = len(op.state.builder.nodes)
    try:
        _read_known_node(op, opsets)
    except (InvalidInput, MemoryError):
        raise
    except Exception as problem:
        reason = describe_internal_error(problem)
        _forget(op, count)
        if not all(_is_fixed(op, name) and name in op.state.types for name in op.proto.output if name):
            raise InvalidInput(f"{op.state.file}: {op.label}: {reason}") from problem
        _add_opaque(op, reason)


def _try_handler(op: Operation, handler: Callable[[Operation], Any]) -> str | None:
    """Let a handler read a node; the reason where it cannot, or where it did not read all of it. An output
    that it does not make becomes opaque."""
    count = len(op.state.builder.nodes)
    try:
        handler(op)
        reason = _explain_unread(op)
    except NotExpressible as problem:
        reason = str(problem)
    if reason is not None:
        _forget(op, count)
        return reason
    _add_opaque(op, "an output that ekc does not compute")
    return None


def _forget(op: Operation, count: int) -> None:
    """Take back the nodes after the first `count`, and what the outputs of a node are."""
    state = op.state
    for node in state.builder.nodes[count:]:
        del state.builder.values[node.output]
    del state.builder.nodes[count:]
    for name in op.proto.output:
        state.aliases.pop(name, None)
        state.constants.pop(name, None)


def _explain_unread(op: Operation) -> str | None:
    """Which attribute or input of a node its handler did not read; None where it read all that matter."""
    ignored = IGNORED.get(op.proto.op_type, {})
    op.attributes.drop(*(name for name in ignored if isinstance(name, str)))
    op.attributes.drop(*_list_defaults(op))
    unread = [
        index
        for index, name in enumerate(op.inputs)
        if name is not None and index not in op.read_inputs and index not in ignored
    ]
    if unread:
        return f"input {unread[0]} ({format_value(op.proto.input[unread[0]])}) is not supported"
    return op.attributes.describe_unread("attribute")


def _list_defaults(op: Operation) -> list[str]:
    """The attributes that have their default value."""
    entries = op.schema.attributes if op.schema else {}
    defaults = {name: entry.default_value for name, entry in entries.items()}
    return [
        attribute.name
        for attribute in op.proto.attribute
        if (default := defaults.get(attribute.name)) is not None
        and default.type
        and onnx.helper.get_attribute_value(default) == onnx.helper.get_attribute_value(attribute)
    ]


def _read_known_node(op: Operation, opsets: Mapping[str, int]) -> None:
    if op.proto.op_type == "If" and _read_branch(op, opsets):
        return
    is_standard = op.proto.domain in ("", "ai.onnx")
    if op.proto.domain == contrib.DOMAIN and all(_is_fixed(op, name) for name in op.inputs):
        contrib.infer_types(op)
    infer_types(op)
    if is_standard and fold_constant(op, FOLDED_ELEMENTS):
        return
    named = [name for name in (*op.proto.input, *op.proto.output) if name and op.state.has_type(name)]
    if not all(is_tensor(op.state.find_type(name)) for name in named):
        _read_sequence(op)
        return
    settle_shapes(op)
    handlers = HANDLERS if is_standard else contrib.HANDLERS if op.proto.domain == contrib.DOMAIN else {}
    reason = _explain_missing(op)
    if handler := handlers.get(op.proto.op_type):
        found = _try_handler(op, handler)
        if found is None:
            return
        reason = found
    if is_standard and fold_constant(op, LARGEST_FOLDED_ELEMENTS):
        return
    definition = define_by_nodes(op) if is_standard else None
    if definition is None:
        _add_opaque(op, reason)
        return
    inner, versions = definition
    if not op.state.budget.take(nodes=len(inner)):
        raise InvalidInput(
            f"{op.state.file}: {op.label}: operators that are defined by others are more than"
            f" {UNPACKED_NODES} nodes"
        )
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
    for tensor in branch.initializer:
        op.state.set_constant(tensor.name, onnx.numpy_helper.to_array(tensor))
    read_nodes(op.state, branch.node, opsets)
    results = [op.state.resolve(inner.name) for inner in branch.output]
    op.state.aliases.update((o, name) for o, name in zip(op.proto.output, results, strict=True) if o)
    return True


def _read_sequence(op: Operation) -> None:
    """A sequence is the tensors that it is made of; what makes a tensor of it is opaque."""
    tensors = tuple(
        part for name in op.inputs if name is not None for part in op.state.parts.get(name, (name,))
    )
    outputs = [name for name in op.proto.output if name]
    made = [name for name in outputs if op.state.has_type(name) and is_tensor(op.state.find_type(name))]
    op.state.parts.update((name, tensors) for name in outputs if name not in made)
    if made:
        settle_shapes(op)
        _add_opaque(op, "sequences and optional values")


def _add_opaque(op: Operation, reason: str) -> None:
    """A node without a kind, once for each output."""
    state = op.state
    parts = [part for name in list_read(op) for part in _list_parts(op, name)]
    names = [name for name in dict.fromkeys(parts) if _is_numeric(op, name)]
    for index, output in enumerate(op.proto.output):
        is_made = output in state.aliases or output in state.builder.values or state.is_constant(output)
        if not output or is_made or not is_tensor(state.types.get(output)):
            continue
        if not _is_numeric(op, output):
            raise InvalidInput(f"{state.file}: {op.label}: tensors of text are not supported")
        op.finish("opaque", names, index, target=op.target, reason=reason)


def _list_parts(op: Operation, name: str) -> tuple[str, ...]:
    found = op.state.resolve(name)
    return op.state.parts.get(found, (found,))


def _is_numeric(op: Operation, name: str) -> bool:
    return has_fixed_shape(op.state.find_type(name)) and op.state.find_file_dtype(name).kind not in "OSU"


def define_by_nodes(op: Operation) -> tuple[list[NodeProto], dict[str, int]] | None:
    """The nodes that define a node, and their opsets; None where ONNX has no definition by others.

    Values inside get new names; inputs and outputs those of the node.
    """
    schema = op.schema
    function = _find_function(op, schema) if schema else None
    if function is None:
        return None
    names = dict.fromkeys(function.input, "")
    names.update(zip(function.input, op.proto.input, strict=False))
    names.update(zip(function.output, op.proto.output, strict=False))
    attributes = {name: entry.default_value for name, entry in schema.attributes.items()}
    attributes.update({attribute.name: attribute for attribute in op.proto.attribute})
    prefix = op.state.make_name(op.output)
    nodes = []
    for inner in function.node:
        node = onnx.NodeProto()
        node.CopyFrom(inner)
        node.name = op.name
        del node.input[:], node.output[:], node.attribute[:]
        node.input.extend(names.get(name, f"{prefix}/{name}") if name else "" for name in inner.input)
        node.output.extend(names.get(name) or f"{prefix}/{name}" if name else "" for name in inner.output)
        for attribute in inner.attribute:
            source = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if source is not None and source.type:
                node.attribute.add().CopyFrom(source)
                node.attribute[-1].name = attribute.name
            if attribute.HasField("g"):
                return None
        nodes.append(node)
    return nodes, {entry.domain: entry.version for entry in function.opset_import}


def _find_function(op: Operation, schema: Any) -> FunctionProto | None:
    state = op.state
    if schema.has_context_dependent_function:
        types = [
            state.find_type(name).SerializeToString() if name else onnx.TypeProto().SerializeToString()
            for name in op.proto.input
        ]
        try:
            data = schema.get_context_dependent_function(op.proto.SerializeToString(), types)
        except (RuntimeError, onnx.defs.SchemaError):
            data = b""
        if data:
            function: FunctionProto = onnx.FunctionProto.FromString(data)
            return function
    if schema.has_function:
        body: FunctionProto = schema.function_body
        return body if body.node else None
    return None
