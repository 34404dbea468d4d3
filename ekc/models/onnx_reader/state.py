"""All that is known about the values of an ONNX graph while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ekc.errors import InvalidInput
from ekc.file_limits import UnpackBudget
from ekc.models.graph import GraphBuilder, parse_value_dtype
from ekc.models.onnx_reader import import_onnx
from ekc.models.onnx_reader.file import Weight

if TYPE_CHECKING:
    from onnx import TypeProto

Array = np.ndarray[Any, Any]
FLOATS = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
"""Types that `dtype=` replaces."""


@dataclass
class ReaderState:
    """Values of the file by name: types, constants and what they are called in the graph."""

    file: str
    builder: GraphBuilder
    opsets: Mapping[str, int]
    written_opset: int
    """Version of the standard domain in the file, before conversion."""
    budget: UnpackBudget
    float_dtype: np.dtype[Any] | None = None
    """Type that all floating tensors get; None: that of the file."""
    types: dict[str, TypeProto] = field(default_factory=dict)
    hints: dict[str, TypeProto] = field(default_factory=dict)
    """Types that the file states or whole-model inference finds."""
    constants: dict[str, Array] = field(default_factory=dict)
    """Elements of constants, in the type of the file."""
    absent_weights: set[str] = field(default_factory=set)
    """Initialisers whose elements are in a missing file."""
    aliases: dict[str, str] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Sequence or optional -> the tensors that its operator reads."""
    made_names: set[str] = field(default_factory=set)
    """Values between the nodes that an operator becomes."""
    clipped_names: set[str] = field(default_factory=set)
    _count: int = 0

    def add_weight(self, name: str, weight: Weight) -> None:
        """Register an initialiser."""
        self.set_type(name, weight.shape, weight.dtype)
        if weight.data is None:
            self.absent_weights.add(name)
        else:
            self.constants[name] = weight.data

    def set_type(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Register the shape and type of a tensor."""
        onnx = import_onnx()
        elem_type = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        self.types[name] = onnx.helper.make_tensor_type_proto(elem_type, shape)

    def set_constant(self, name: str, data: Array) -> None:
        """Register a tensor whose elements are known."""
        self.set_type(name, data.shape, data.dtype)
        self.constants[name] = data

    def resolve(self, name: str) -> str:
        """The value that a name is another name of."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def has_type(self, name: str) -> bool:
        """Whether the type of a value is known."""
        return name in self.types or self.resolve(name) in self.types

    def find_type(self, name: str) -> TypeProto:
        """The type of a name in the file; the value that it is an alias of may differ in it by `dtype`."""
        found: TypeProto = self.types[name if name in self.types else self.resolve(name)]
        return found

    def find_constant(self, name: str) -> Array | None:
        """Elements of a constant in the type of the file; None for other values."""
        data = self.constants.get(self.resolve(name))
        if data is None or name not in self.types:
            return data
        return data.astype(self.find_file_dtype(name), copy=False)

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(dim.dim_value for dim in self.types[name].tensor_type.shape.dim)

    def find_file_dtype(self, name: str) -> np.dtype[Any]:
        """Type of a tensor's elements in the file."""
        elem_type = self.types[name].tensor_type.elem_type
        found: np.dtype[Any] = import_onnx().helper.tensor_dtype_to_np_dtype(elem_type)
        return found

    def map_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type that tensors of a type of the file get in the graph."""
        return self.float_dtype if self.float_dtype is not None and dtype in FLOATS else dtype

    def find_dtype(self, name: str) -> np.dtype[Any]:
        """Type of a tensor's elements in the graph."""
        return self.map_dtype(self.find_file_dtype(name))

    def is_constant(self, name: str) -> bool:
        """Whether a value's elements are known."""
        return name in self.constants

    def use(self, name: str) -> str:
        """Make sure that a value is in the graph; returns its name there."""
        name = self.resolve(name)
        if name not in self.builder.values:
            self._add_to_graph(name)
        return name

    def use_number(self, name: str) -> str:
        """A constant of one element in float64 without dimensions: so elementwise nodes have numbers."""
        raw = self.constants[self.resolve(name)].reshape(())
        number = np.asarray(shorten_decimal(self._convert(name, raw, self.find_dtype(name))[()]))
        if np.isfinite(number) and raw.dtype in (np.float32, np.float64) and name not in self.clipped_names:
            number = np.asarray(shorten_decimal(raw[()]))
        found = f"{number}:float64"
        while found in self.types:
            found += "'"  # A tensor of the file has this name.
        if found not in self.builder.values:
            self.builder.add_constant(found, number)
        return found

    def _add_to_graph(self, name: str) -> None:
        raw = self.find_file_dtype(name)
        parse_value_dtype(f"{self.file}: {name}", raw.name)
        mapped = self.map_dtype(raw)
        if name in self.constants:
            self.builder.add_constant(name, self._convert(name, self.constants[name], mapped))
        else:
            if name not in self.absent_weights:
                raise InvalidInput(f"{self.file}: no node before its first use makes {name!r}")
            self.builder.add_value(name, self.find_shape(name), mapped, is_constant=True)

    def _convert(self, name: str, data: Array, dtype: np.dtype[Any]) -> Array:
        """A constant in another type; finite numbers stay finite, as masks need."""
        if data.dtype == dtype:
            return data
        with np.errstate(over="ignore", invalid="ignore"):
            converted = data.astype(dtype)
        overflow = np.isinf(converted)
        if overflow.any() and (overflow := overflow & np.isfinite(data)).any():
            largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
            converted = np.where(overflow, (np.sign(data) * largest).astype(dtype), converted)
            self.clipped_names.add(name)
        return converted

    def add_activation(self, name: str) -> str:
        """Add a value that a node computes to the graph."""
        raw = self.find_file_dtype(name)
        parse_value_dtype(f"{self.file}: {name}", raw.name)
        return self.builder.add_value(name, self.find_shape(name), self.map_dtype(raw))

    def make_name(self, base: str) -> str:
        """A name for a value that the file does not have."""
        self._count += 1
        while (name := f"{base}/{self._count}") in self.builder.values or name in self.types:
            self._count += 1
        return name

    def list_notes(self) -> list[str]:
        """A sentence for each change of types."""
        notes = []
        if self.float_dtype is not None:
            notes.append(f"all floating tensors are read as {self.float_dtype.name}")
        if self.clipped_names:
            notes.append(
                f"{len(self.clipped_names)} constants have elements beyond the range of the new type, which"
                f" became its largest number, {min(self.clipped_names)!r} for one"
            )
        return notes


def shorten_decimal(number: Any) -> float:
    """A number of NumPy as the shortest decimal that rounds to it, where it is a float32: 1e-05, as it was
    written; else its exact value."""
    return float(str(number)) if isinstance(number, np.float32) else float(number)


def has_fixed_shape(found: TypeProto | None) -> bool:
    """Whether a type is a tensor with a size for each dimension."""
    if found is None or not found.HasField("tensor_type") or not found.tensor_type.HasField("shape"):
        return False
    return bool(found.tensor_type.elem_type) and all(
        dim.HasField("dim_value") and dim.dim_value >= 0 for dim in found.tensor_type.shape.dim
    )


def is_tensor(found: TypeProto | None) -> bool:
    """Whether a type is a tensor, its shape known or not."""
    return found is not None and found.HasField("tensor_type")


def refuse_type(file: str, node: str, found: TypeProto) -> None:
    """Raise `InvalidInput` for complex tensors."""
    onnx = import_onnx()
    elem_type = found.tensor_type.elem_type
    if elem_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        kind = onnx.TensorProto.DataType.Name(elem_type).lower()
        raise InvalidInput(f"{file}: {node}: tensors of type {kind} are not supported; cast to float32")
