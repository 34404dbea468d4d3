"""`read_onnx` and `from_onnx`: an ONNX model as a `Graph`, and as the layers of a `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ekc.argument_checks import check_choice, check_text, format_value
from ekc.errors import InvalidInput
from ekc.models.build import build_model
from ekc.models.graph import READ_DTYPES, Graph, GraphBuilder, list_needed, parse_value_dtype
from ekc.models.model import Model
from ekc.models.norm_patterns import join_group_norms
from ekc.models.onnx_reader.file import OnnxFile, open_onnx
from ekc.models.onnx_reader.infer import infer_model
from ekc.models.onnx_reader.input_shapes import find_input_shapes, find_input_values
from ekc.models.onnx_reader.read_nodes import read_nodes
from ekc.models.onnx_reader.state import ReaderState, is_tensor, refuse_type

if TYPE_CHECKING:
    from onnx import ModelProto


def read_onnx(
    source: str | os.PathLike[str] | ModelProto,
    *,
    dtype: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Graph:
    """Read an ONNX model of opset 13 or newer; older ones are converted.

    `dtype`: type that all floating tensors get; without it that of the file.
    `shapes`: sizes of the inputs that have symbolic dimensions, such as `{"x": (8, 3, 224, 224)}`.
    `values`: elements of inputs, which are then constants: numbers, lists or arrays, such as
    `{"sampling_rate": 16000}`. `name`: of the model; without it that of the file. Raises `InvalidInput` for
    files that are no ONNX model, for inputs without a size, and for tensors that ekc has no type for.
    """
    if dtype is not None:
        check_choice("dtype", dtype, READ_DTYPES)
    if name is not None:
        check_text("name", name, 'name="my model"')
    try:
        return _read_file(open_onnx(source, name), dtype, shapes, values)
    except MemoryError as problem:
        raise InvalidInput(
            f"{format_value(source)}: reading this model takes more memory than there is"
        ) from problem


def _read_file(
    file: OnnxFile,
    dtype: str | None,
    shapes: Mapping[str, Sequence[int]] | None,
    values: Mapping[str, Any] | None,
) -> Graph:
    wanted = None if dtype is None else parse_value_dtype("dtype", dtype)
    state = ReaderState(
        file.label, GraphBuilder(file.name), file.opsets, file.written_opset, file.budget, wanted
    )
    state.builder.notes.extend(file.notes)
    for weight_name, weight in file.weights.items():
        state.add_weight(weight_name, weight)
    _add_inputs(state, file, shapes, values)
    read_nodes(state, file.graph.node, file.opsets)
    stored = [weight.data.nbytes for weight in file.weights.values() if weight.data is not None]
    return join_group_norms(_build_graph(state, [value.name for value in file.graph.output], sum(stored)))


def from_onnx(
    source: str | os.PathLike[str] | ModelProto,
    *,
    dtype: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Model:
    """The layers of an ONNX model, to tune with `ekc.tune_model`.

    Needs the extra `onnx`. Arguments are those of `read_onnx`. Raises `InvalidInput` as it does, and where no
    layer covers anything of the model.
    """
    return build_model(read_onnx(source, dtype=dtype, shapes=shapes, values=values, name=name))


def _add_inputs(
    state: ReaderState,
    file: OnnxFile,
    shapes: Mapping[str, Sequence[int]] | None,
    values: Mapping[str, Any] | None,
) -> None:
    inputs = [value for value in file.graph.input if value.name not in file.weights]
    for value in inputs:
        what = f"input {value.name!r}"
        if not is_tensor(value.type):
            kind = (value.type.WhichOneof("value") or "unknown").removesuffix("_type")
            raise InvalidInput(f"{file.label}: {what} has the type {kind}; only tensors are supported")
        refuse_type(file.label, what, value.type)
    given = find_input_values(file.label, inputs, values)
    found = find_input_shapes(file.label, inputs, shapes, given)
    state.hints.update(infer_model(file.model, found, given))
    for value in inputs:
        if value.name in given:
            state.set_constant(value.name, given[value.name])
            continue
        state.types[value.name] = value.type
        raw = state.find_file_dtype(value.name)
        parse_value_dtype(f"{file.label}: input {value.name!r}", raw.name)
        state.set_type(value.name, found[value.name], raw)
        state.builder.inputs.append(state.add_activation(value.name))


def _build_graph(state: ReaderState, outputs: Sequence[str], file_bytes: int) -> Graph:
    """The graph of the nodes that outputs need; outputs keep their names."""
    builder = state.builder
    made = {node.output for node in builder.nodes}
    for name in outputs:
        if name in made:
            continue
        found = state.resolve(name)
        if found in state.parts or not state.has_type(found) or not is_tensor(state.find_type(found)):
            raise InvalidInput(f"{state.file}: output {name!r} is no tensor; only tensors are supported")
        if name not in builder.values and found != name:
            value = state.use(found)
            builder.add_value(name, builder.values[value].shape, builder.values[value].dtype)
            builder.add_node("reshape", name, [value], name)
        else:
            state.use(name)
    nodes, needed = list_needed(builder.nodes, outputs)
    left = len(builder.nodes) - len(nodes)
    values = {name: v for name, v in builder.values.items() if name in needed or name in builder.inputs}
    notes = [*builder.notes, *state.list_notes()]
    if left:
        notes.append(f"{left} nodes are left out, as no output needs them")
    ends = (tuple(builder.inputs), tuple(outputs))
    return Graph(builder.name, values, nodes, *ends, tuple(notes), file_bytes)
