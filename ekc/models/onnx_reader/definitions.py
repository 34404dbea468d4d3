"""Operators that ONNX defines by others: their definition as nodes of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ekc.models.onnx_reader import import_onnx
from ekc.models.onnx_reader.operation import Operation

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto


def define_by_nodes(op: Operation) -> tuple[list[NodeProto], dict[str, int]] | None:
    """The nodes that define a node, and their opsets; None where ONNX has no definition by others.

    Values inside get new names; inputs and outputs those of the node.
    """
    onnx = import_onnx()
    try:
        schema = onnx.defs.get_schema(op.proto.op_type, op.version, op.proto.domain)
    except onnx.defs.SchemaError:
        return None
    function = _find_function(op, schema)
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
    onnx, state = import_onnx(), op.state
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
