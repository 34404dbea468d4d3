"""Initialisers of an ONNX file as arrays. External files are mapped, not read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.file_limits import UNPACKED_BYTES, UnpackBudget
from ekc.host_memory import format_bytes
from ekc.models.onnx_reader import import_onnx

if TYPE_CHECKING:
    from onnx import SparseTensorProto, TensorProto

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
    onnx = import_onnx()
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
        onnx = import_onnx()
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
