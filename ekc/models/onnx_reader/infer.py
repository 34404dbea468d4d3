"""Types of the outputs of a node, and the elements of those that are constant."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.models.onnx_reader import onnx
from ekc.models.onnx_reader.operation import (
    Array,
    Operation,
    ReaderState,
    has_fixed_shape,
    is_tensor,
    refuse_type,
)

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TypeProto

FOLDED_ELEMENTS = 65_536
"""Constants of at most this many elements are computed while reading; larger ones only where the node has no
kind. Fusion computes the others."""
LARGEST_FOLDED_ELEMENTS = 1 << 26
DATA_ELEMENTS = 4096
"""Constants of at most this many elements are shown to shape inference."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
SAME_AS_FIRST_INPUT = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
"""Operators for which onnx has no inference."""
BRANCHES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def infer_model(
    model: ModelProto, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]
) -> dict[str, TypeProto]:
    """Types that the file states and that inference over the whole model finds, the inputs' shapes and values
    set."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.name in shapes:
            value.type.tensor_type.ClearField("shape")
            for size in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    shown = {name: data for name, data in values.items() if data.size <= DATA_ELEMENTS}
    copy.graph.initializer.extend(onnx.numpy_helper.from_array(data, name) for name, data in shown.items())
    kept = [value for value in copy.graph.input if value.name not in shown]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    # Where this fails, the reader infers node by node, and names the node.
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        # Without data_prop, which would keep a message for each element of a constant.
        copy = onnx.shape_inference.infer_shapes(copy, check_type=False, strict_mode=False, data_prop=False)
    return {
        value.name: value.type
        for value in (*copy.graph.value_info, *copy.graph.output)
        if value.HasField("type") and value.type.WhichOneof("value") is not None
    }


def list_captured(graph: GraphProto) -> Iterator[str]:
    """Names that a branch reads and does not make."""
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        for name in node.input:
            if name and name not in made:
                yield name
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from (name for name in list_captured(attribute.g) if name not in made)
        made.update(node.output)
    for value in graph.output:
        if value.name not in made:
            yield value.name


def list_read(op: Operation) -> list[str]:
    """All names of the outer graph that a node reads, those of its branches included."""
    names = [name for name in op.proto.input if name]
    for attribute in op.proto.attribute:
        if attribute.HasField("g"):
            names += list_captured(attribute.g)
    return list(dict.fromkeys(names))


def infer_types(op: Operation) -> None:
    """Register the types of a node's outputs. Raises `InvalidInput` where a shape stays unknown."""
    state, found = op.state, _infer_by_schema(op)
    for output in (name for name in op.proto.output if name):
        hint = state.hints.get(output)
        chosen = next((t for t in (found.get(output), hint) if has_fixed_shape(t)), None)
        chosen = chosen or found.get(output) or hint
        if chosen is not None:
            refuse_type(state.file, op.label, chosen)
            state.types[output] = chosen


def _infer_by_schema(op: Operation) -> dict[str, TypeProto]:
    state = op.state
    if not op.schema:
        return {}
    if op.proto.op_type in SAME_AS_FIRST_INPUT:
        return {op.output: state.find_type(op.proto.input[0])}
    names = list_read(op)
    known = {name: state.find_type(name) for name in names if state.has_type(name)}
    data = {}
    for name in op.proto.input:
        elements = state.find_constant(name) if name else None
        if elements is not None and elements.size <= DATA_ELEMENTS:
            data[name] = onnx.numpy_helper.from_array(np.ascontiguousarray(elements).reshape(elements.shape))
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in state.opsets.items()]
    try:
        found: dict[str, Any] = onnx.shape_inference.infer_node_outputs(
            op.schema, op.proto, known, input_data=data, opset_imports=opsets
        )
    except KeyError:
        return {}
    except onnx.shape_inference.InferenceError as problem:
        text = " ".join(str(problem).split()).removesuffix(".")
        raise InvalidInput(f"{state.file}: {op.label}: its shape cannot be inferred: {text}") from problem
    return found


def settle_shapes(op: Operation) -> None:
    """Give outputs of operators of other domains a shape where none is known; refuse the others."""
    state = op.state
    for output in (name for name in op.proto.output if name):
        found = state.types.get(output)
        if has_fixed_shape(found) or (found is not None and not is_tensor(found)):
            continue
        first = next((n for n in op.inputs if n is not None and has_fixed_shape(state.types.get(n))), None)
        if op.proto.domain not in ("", "ai.onnx") and first is not None:
            state.types[output] = state.types[first]
            state.builder.notes.append(
                f"{op.label}: the file does not say the shape of {format_value(output)}; that of"
                f" {format_value(first)} is taken"
            )
            continue
        raise InvalidInput(
            f"{state.file}: {op.label}: the shape of {format_value(output)} depends on data or is not in the"
            " file; ekc needs fixed shapes: state it as value_info, or take the operator out of the model"
        )


def fold_constant(op: Operation, limit: int) -> bool:
    """Compute a node whose inputs are all constant, if its outputs have at most `limit` elements."""
    if op.proto.op_type in RANDOM | BRANCHES or op.proto.domain not in ("", "ai.onnx"):
        return False
    state = op.state
    if any(name is not None and not state.is_constant(name) for name in op.inputs):
        return False
    outputs = [name for name in op.proto.output if name]
    known = [name for name in outputs if has_fixed_shape(state.types.get(name))]
    sizes = [prod(state.find_shape(name)) for name in known]
    are_large = any(name is not None and state.constants[name].size > limit for name in op.inputs)
    if sum(sizes) > limit or (len(sizes) < len(outputs) and are_large):
        return False
    need = sum(n * state.find_file_dtype(name).itemsize for n, name in zip(sizes, known, strict=True))
    if not state.budget.take(bytes=need):
        return False
    results = _evaluate(op, outputs)
    if results is None:
        return False
    for name, data in zip(outputs, results, strict=True):
        state.set_constant(name, data)
    return True


def _evaluate(op: Operation, outputs: list[str]) -> list[Array] | None:
    """The outputs by `onnx.reference`; None where it cannot compute them."""
    from onnx.reference import ReferenceEvaluator

    state = op.state
    names = list(dict.fromkeys(name for name in op.proto.input if name))
    infos = [onnx.helper.make_value_info(name, state.find_type(name)) for name in names]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = onnx.helper.make_graph([op.proto], "node", infos, results)
    opsets = [onnx.helper.make_opsetid("", op.version)]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    feeds = {name: state.find_constant(name) for name in names}
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception:
        # An operator that onnx.reference cannot compute; the node stays in the graph.
        return None
    arrays = [_as_array(state, name, value) for name, value in zip(outputs, found, strict=True)]
    return None if any(a is None for a in arrays) else [a for a in arrays if a is not None]


def _as_array(state: ReaderState, name: str, value: Any) -> Array | None:
    """A result in the type that inference found."""
    if not isinstance(value, np.ndarray | np.generic):
        return None
    data = np.asarray(value)
    known = state.types.get(name)
    if known is not None and known.tensor_type.elem_type and data.dtype != state.find_file_dtype(name):
        return data.astype(state.find_file_dtype(name))
    return data
