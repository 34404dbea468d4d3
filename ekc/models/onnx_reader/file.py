"""Opens an ONNX file: parses, checks, converts old opsets, inlines local functions and reads initialisers.

Big initialisers are taken out first and become inputs, so that the copies which onnx makes are small and no
limit of 2 GiB applies. External files are mapped, not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.argument_checks import check_path
from ekc.errors import InvalidInput
from ekc.file_limits import UNPACKED_BYTES, UNPACKED_NODES, UnpackBudget
from ekc.host_memory import format_bytes
from ekc.models.onnx_reader import onnx

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto


OLDEST_OPSET = 13
STANDARD_DOMAINS = ("", "ai.onnx")
DEEPEST_CALL = 100
"""Levels of functions that call functions, at most."""
KEPT_ELEMENTS = 1024
"""Initialisers of at most this many elements stay in the graph: shapes, axes and scales, which onnx reads."""


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """A parsed model."""

    label: str
    """The file in messages."""
    name: str
    graph: GraphProto
    """Without its big initialisers. Calls of local functions are inlined."""
    model: ModelProto
    weights: Mapping[str, Weight]
    """All initialisers of the main graph."""
    opsets: Mapping[str, int]
    """Version of the operators of each domain; the standard domain is ""."""
    written_opset: int
    """Version of the standard domain before conversion."""
    notes: tuple[str, ...]
    budget: UnpackBudget
    """Limit of all that is unpacked, folded and inlined."""


def open_onnx(source: Any, name: str | None = None) -> OnnxFile:
    """Parse and check a model. Raises `InvalidInput` for a file that is none."""
    if isinstance(source, onnx.ModelProto):
        label, folder, model = name or source.graph.name or "the ONNX model", None, source
    else:
        path = check_path("ONNX model", source)
        label, folder, model = str(source), path.parent, _parse_file(path)
        name = name or path.stem
    if not model.HasField("graph") or not model.ir_version:
        raise InvalidInput(f"{label}: no ONNX model; save one with onnx.save or torch.onnx.export")
    notes: list[str] = []
    budget = UnpackBudget()
    weights = _read_weights(label, model.graph, folder, notes, budget)
    light = _copy_without_weights(model)
    _check_opset(label, light)
    _check_model(label, light)
    light = _convert_opset(label, light, notes)
    light = _inline_functions(label, light, budget)
    # Conversion and inlining make initialisers of their own.
    new = [tensor for tensor in light.graph.initializer if tensor.name not in weights]
    weights |= {tensor.name: read_weight(label, tensor, folder) for tensor in new}
    opsets = {
        "" if entry.domain in STANDARD_DOMAINS else entry.domain: entry.version
        for entry in light.opset_import
    }
    return OnnxFile(
        label,
        name or light.graph.name or "model",
        light.graph,
        light,
        weights,
        opsets,
        _find_opset(model),
        tuple(notes),
        budget,
    )


def _parse_file(path: Path) -> ModelProto:
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise InvalidInput(f"{path}: {what}; give the path of an ONNX model")
    try:
        model: ModelProto = onnx.load(str(path), load_external_data=False)
    except OSError as problem:
        raise InvalidInput(f"{path}: cannot be read ({problem.strerror})") from problem
    except Exception as problem:
        text = " ".join(str(problem).split())
        raise InvalidInput(
            f"{path}: no ONNX model, or a part of one ({text}); save it with onnx.save or torch.onnx.export"
        ) from problem
    return model


def _read_weights(
    label: str, graph: GraphProto, folder: Path | None, notes: list[str], budget: UnpackBudget
) -> dict[str, Weight]:
    weights = {tensor.name: read_weight(label, tensor, folder) for tensor in graph.initializer}
    weights |= {one.values.name: read_sparse_weight(label, one, budget) for one in graph.sparse_initializer}
    missing = [name for name, weight in weights.items() if weight.data is None]
    if missing:
        notes.append(
            f"{len(missing)} initialisers have their data in a file that is missing, {missing[0]!r} for one:"
            " their shapes are read, not their elements"
        )
    return weights


def _copy_without_weights(model: ModelProto) -> ModelProto:
    """A copy in which big initialisers are inputs."""
    light: ModelProto = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy_field(light, field, value)
    for field, value in model.graph.ListFields():
        if field.name not in ("initializer", "sparse_initializer"):
            _copy_field(light.graph, field, value)
    inputs = {value.name for value in light.graph.input}
    tensors = [(tensor.name, tensor.data_type, tensor.dims, tensor) for tensor in model.graph.initializer] + [
        (sparse.values.name, sparse.values.data_type, sparse.dims, None)
        for sparse in model.graph.sparse_initializer
    ]
    for name, data_type, dims, tensor in tensors:
        is_small = prod(dims) <= KEPT_ELEMENTS
        if tensor is not None and is_small and tensor.data_location != onnx.TensorProto.EXTERNAL:
            light.graph.initializer.append(tensor)
        elif name not in inputs:
            light.graph.input.append(onnx.helper.make_tensor_value_info(name, data_type, list(dims)))
    for node in light.graph.node:
        if node.op_type == "SimplifiedLayerNormalization" and node.domain in STANDARD_DOMAINS:
            # ONNX Runtime writes its operator into the standard domain.
            node.domain = "com.microsoft"
            if all(entry.domain != "com.microsoft" for entry in light.opset_import):
                light.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return light


def _copy_field(message: Any, field: Any, value: Any) -> None:
    if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
        getattr(message, field.name).extend(value)
    elif field.message_type:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def _find_opset(model: ModelProto) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    return versions[0] if versions else 0


def _check_opset(label: str, model: ModelProto) -> None:
    opset, newest = _find_opset(model), onnx.defs.onnx_opset_version()
    if opset > newest:
        raise InvalidInput(
            f"{label}: opset {opset}, and onnx {onnx.__version__} knows {newest}; install a newer onnx, or"
            f" export with opset {newest}"
        )


def _check_model(label: str, model: ModelProto) -> None:
    try:
        onnx.checker.check_model(_fill_missing_types(model))
    except Exception as problem:
        text = " ".join(str(problem).split()).removesuffix(".")
        raise InvalidInput(f"{label}: onnx.checker refuses the model: {text}") from problem


def _fill_missing_types(model: ModelProto) -> ModelProto:
    """A copy for onnx.checker, which refuses inputs and outputs of unknown rank. The reader finds those of
    outputs, and asks for those of inputs."""
    copy: ModelProto = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            tensor = value.type.tensor_type
            tensor.elem_type = tensor.elem_type or 1
            tensor.shape.SetInParent()
    return copy


def _convert_opset(label: str, model: ModelProto, notes: list[str]) -> ModelProto:
    opset = _find_opset(model)
    if not opset or opset >= OLDEST_OPSET:
        return model
    try:
        converted: ModelProto = onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as problem:
        text = " ".join(str(problem).split()).removesuffix(".")
        raise InvalidInput(
            f"{label}: opset {opset}, at least {OLDEST_OPSET}; onnx.version_converter cannot convert it"
            f" ({text}); export it again with opset {OLDEST_OPSET} or newer"
        ) from problem
    notes.append(f"opset {opset} was converted to {OLDEST_OPSET} by onnx.version_converter")
    return converted


def _inline_functions(label: str, model: ModelProto, budget: UnpackBudget) -> ModelProto:
    if not model.functions:
        return model
    _take_calls(label, model, budget)
    try:
        inlined: ModelProto = onnx.inliner.inline_local_functions(model, True)
    except Exception as problem:
        text = " ".join(str(problem).split())
        raise InvalidInput(f"{label}: a function of the model cannot be inlined: {text}") from problem
    return inlined


def _take_calls(label: str, model: ModelProto, budget: UnpackBudget) -> None:
    """Refuse functions that call themselves, and those that are too many nodes when they are inlined."""
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_calls: dict[tuple[str, str], None] = {}

    def count(nodes: Any) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            total += count_function(key) if key in bodies else 1
            total += sum(count(attribute.g.node) for attribute in node.attribute if attribute.HasField("g"))
        return total

    def count_function(key: tuple[str, str]) -> int:
        if key in open_calls or len(open_calls) > DEEPEST_CALL:
            what = "calls itself" if key in open_calls else f"is called {DEEPEST_CALL} functions deep"
            raise InvalidInput(
                f"{label}: function {key[1]!r} {what}; ekc inlines functions: export without them"
            )
        if key not in sizes:
            open_calls[key] = None
            sizes[key] = count(bodies[key])
            del open_calls[key]
        return sizes[key]

    total = count(model.graph.node)
    if not budget.take(nodes=total):
        raise InvalidInput(
            f"{label}: its functions are {total} nodes when they are inlined; ekc reads at most"
            f" {UNPACKED_NODES}"
        )


PACKED_DTYPES = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})
"""Types of which a file holds several elements in a byte."""


@dataclass(frozen=True, eq=False)
class Weight:
    """An initialiser. `data` is None where the file that holds it is missing."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: np.ndarray[Any, Any] | None


def read_weight(file: str, tensor: TensorProto, folder: Path | None) -> Weight:
    """The elements of an initialiser; `folder` is that of the ONNX file, for external data."""
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise InvalidInput(f"{file}: initialiser {tensor.name!r} has the shape {shape}; sizes are 0 or more")
    if tensor.data_type not in onnx.TensorProto.DataType.values():
        text = f"no type of element has the number {tensor.data_type}"
        raise InvalidInput(f"{file}: initialiser {tensor.name!r} cannot be read: {text}")
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return Weight(shape, dtype, _map_external(file, tensor, shape, dtype, folder))
        return Weight(shape, dtype, onnx.numpy_helper.to_array(tensor))
    except InvalidInput:
        raise
    except Exception as problem:
        text = " ".join(str(problem).split())
        raise InvalidInput(f"{file}: initialiser {tensor.name!r} cannot be read: {text}") from problem


def _map_external(
    file: str, tensor: TensorProto, shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path | None
) -> np.ndarray[Any, Any] | None:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(fields.get("location", ""))
    if location.is_absolute() or ".." in location.parts or not location.parts:
        raise InvalidInput(
            f"{file}: initialiser {tensor.name!r} is in {str(location)!r}, which is not in the folder of the"
            " model; save the model again with its data beside it"
        )
    if folder is None or not (folder / location).is_file():
        return None
    path = (folder / location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InvalidInput(
            f"{file}: initialiser {tensor.name!r} is in {str(location)!r}, a link to a file out of the"
            " folder of the model; copy that file beside the model"
        )
    offset = int(fields.get("offset", 0))
    if dtype.name in PACKED_DTYPES:
        return onnx.numpy_helper.to_array(tensor, base_dir=str(folder))  # type: ignore[no-any-return]
    need = offset + prod(shape) * dtype.itemsize
    if path.stat().st_size < need:
        raise InvalidInput(
            f"{file}: initialiser {tensor.name!r} needs {need} bytes of {location}, which has"
            f" {path.stat().st_size}; copy the file again"
        )
    if prod(shape) == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)


def read_sparse_weight(file: str, tensor: SparseTensorProto, budget: UnpackBudget) -> Weight:
    """A sparse initialiser as a dense array."""
    what = f"{file}: sparse initialiser {tensor.values.name!r}"
    values = read_weight(file, tensor.values, None).data
    indices = read_weight(file, tensor.indices, None).data
    if values is None or indices is None:
        raise InvalidInput(f"{what} has its data in another file; save the model without external data")
    need = prod(tensor.dims) * values.dtype.itemsize
    if not budget.take(bytes=need):
        raise InvalidInput(
            f"{what} takes {format_bytes(need)} as a dense tensor; ekc unpacks at most"
            f" {format_bytes(UNPACKED_BYTES)} of a model"
        )
    try:
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except (ValueError, IndexError) as problem:
        raise InvalidInput(f"{what} cannot be read: {' '.join(str(problem).split())}") from problem
    return Weight(dense.shape, dense.dtype, dense)
