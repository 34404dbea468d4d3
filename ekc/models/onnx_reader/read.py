"""`read_onnx` and `from_onnx`: an ONNX model as a `Graph`, and as the layers of a `Model`. Its inputs have
the shapes of the file, with given ones for symbols."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.argument_checks import check_choice, check_mapping, check_text, format_value, refuse_mask
from ekc.errors import InvalidInput
from ekc.models.build import build_model
from ekc.models.graph import READ_DTYPES, Graph, GraphBuilder, list_needed, parse_value_dtype
from ekc.models.model import Model
from ekc.models.onnx_reader import onnx
from ekc.models.onnx_reader.file import OnnxFile, open_onnx
from ekc.models.onnx_reader.infer import infer_model
from ekc.models.onnx_reader.operation import ReaderState, is_tensor, refuse_type
from ekc.models.onnx_reader.read_nodes import read_nodes
from ekc.models.patterns import join_group_norms

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto


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
    given = convert_input_values(file.label, inputs, values)
    found = derive_input_shapes(file.label, inputs, shapes, given)
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


EXAMPLE = 'shapes={"x": (8, 3, 224, 224)}'
EXAMPLE_VALUE = 'values={"sampling_rate": 16000}'
UNNAMED = ("", "?")
"""Texts of dimensions that name no symbol: two of them may differ."""
Array = np.ndarray[Any, Any]


def derive_input_shapes(
    label: str,
    inputs: Sequence[ValueInfoProto],
    shapes: Mapping[str, Sequence[int]] | None,
    values: Mapping[str, Array],
) -> dict[str, tuple[int, ...]]:
    """The shape of each input of a model.

    `shapes` gives those of inputs with symbolic dimensions, by name; a symbol that one input gives counts for
    all. `values` are inputs that are given whole. Raises `InvalidInput` for unknown names, for shapes that
    differ from fixed dimensions, and for dimensions without a size.
    """
    given = {} if shapes is None else dict(check_mapping("shapes", shapes, EXAMPLE))
    _check_names("shapes", label, given, inputs)
    for name in given:
        if name in values:
            raise InvalidInput(
                f"shapes of {label}: {name} has a value, which has a shape; leave the shape out"
            )
        _check_sizes(f"shapes of {label}: {name}", given[name])
    given |= {name: array.shape for name, array in values.items()}
    symbols: dict[str, int] = {}
    for value in inputs:
        if value.name in given:
            _match_given(f"shapes of {label}: {value.name}", value, given[value.name], symbols)
    return {value.name: _find_shape(label, value, given, symbols) for value in inputs}


def convert_input_values(
    label: str, inputs: Sequence[ValueInfoProto], values: Mapping[str, Any] | None
) -> dict[str, Array]:
    """The elements of inputs that are given whole, in the types of the file. Raises `InvalidInput` for
    unknown names, and for elements that the type of an input cannot hold."""
    given = {} if values is None else check_mapping("values", values, EXAMPLE_VALUE)
    _check_names("values", label, given, inputs)
    types = {value.name: value.type.tensor_type.elem_type for value in inputs}
    found = {}
    for name, elements in given.items():
        refuse_mask(name, elements)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(types[name]))
        array = _convert_elements(elements, dtype)
        if array is None:
            raise InvalidInput(
                f"values of {label}: {name}: {format_value(elements)} does not fit the type {dtype} of the"
                f" input; write for example {EXAMPLE_VALUE}"
            )
        found[name] = array
    return found


def _convert_elements(elements: Any, dtype: np.dtype[Any]) -> Array | None:
    """Numbers in a type; None for what is no number, and where the type cannot hold one. Floats may be
    rounded."""
    try:
        array = np.asarray(elements)
        if array.dtype.kind not in "biufV":
            return None
        with np.errstate(all="ignore"):
            found = array.astype(dtype)
            finite = [np.isfinite(a.astype(np.float64)) for a in (found, array)]
    except (TypeError, ValueError, OverflowError):
        return None
    is_kept = found == array if dtype.kind in "iub" else finite[0] == finite[1]
    return found if np.all(is_kept) else None


def _check_names(what: str, label: str, given: Mapping[str, Any], inputs: Sequence[ValueInfoProto]) -> None:
    """Raise `InvalidInput` for a name that no input has."""
    names = [value.name for value in inputs]
    for name in given:
        if not names:
            raise InvalidInput(f"{what}: {label} has no inputs, and {format_value(name)} is given")
        check_choice(f"{what} of {label}", name, names)


def _check_sizes(what: str, given: Any) -> None:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidInput(f"{what}: {format_value(given)} is no shape; write {EXAMPLE}")
    for size in given:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"{what}: {format_value(size)} is no size; use whole numbers of at least 1")


def _match_given(what: str, value: ValueInfoProto, given: Sequence[int], symbols: dict[str, int]) -> None:
    """Compare a given shape with the file, and learn the sizes of its symbols."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return
    dims = tensor.shape.dim
    if len(dims) != len(given):
        raise InvalidInput(f"{what}: {len(given)} dimensions are given, the file has {len(dims)}")
    for axis, (dim, size) in enumerate(zip(dims, given, strict=True)):
        if dim.dim_value > 0 and dim.dim_value != size:
            raise InvalidInput(f"{what}: dimension {axis} is {dim.dim_value} in the file, not {size}")
        if dim.dim_param not in UNNAMED and symbols.setdefault(dim.dim_param, size) != size:
            raise InvalidInput(
                f"{what}: dimension {axis} is {dim.dim_param!r}, which is {symbols[dim.dim_param]} in another"
                f" place, not {size}"
            )


def _find_shape(
    label: str, value: ValueInfoProto, given: Mapping[str, Sequence[int]], symbols: Mapping[str, int]
) -> tuple[int, ...]:
    if value.name in given:
        return tuple(given[value.name])
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise InvalidInput(
            f"{label}: input {value.name!r} has no shape; give it with shapes={{{value.name!r}: (...)}} or"
            f" --input {value.name}=8x3x224x224"
        )
    shape, open_axis = [], None
    for axis, dim in enumerate(tensor.shape.dim):
        size = dim.dim_value if dim.dim_value > 0 else symbols.get(dim.dim_param)
        if size is None and open_axis is None:
            open_axis = axis
        shape.append(size or 1)
    if open_axis is None:
        return tuple(shape)
    symbol = tensor.shape.dim[open_axis].dim_param
    example = tuple(
        size if dim.dim_value > 0 or dim.dim_param in symbols else 8
        for dim, size in zip(tensor.shape.dim, shape, strict=True)
    )
    called = f"({symbol!r}) " if symbol else ""
    # Some exporters write 0 for a dimension that is not known.
    lacks = "is 0 in the file" if tensor.shape.dim[open_axis].HasField("dim_value") else "has no size"
    raise InvalidInput(
        f"{label}: dimension {open_axis} {called}of input {value.name!r} {lacks}; give for example"
        f" shapes={{{value.name!r}: {example}}} or --input {value.name}={'x'.join(map(str, example))}"
    )
