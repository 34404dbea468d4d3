"""An ONNX node as its reader sees it, all that is known about the values of its graph, and how nodes are
added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.file_limits import UnpackBudget
from ekc.host_memory import format_bytes
from ekc.models.graph import GraphBuilder, ReadArguments, parse_value_dtype
from ekc.models.node_writer import NodeWriter, NotExpressible, Rows
from ekc.models.onnx_reader import onnx
from ekc.models.onnx_reader.file import Weight

if TYPE_CHECKING:
    from onnx import NodeProto, TypeProto

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
        found: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(elem_type)
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
    elem_type = found.tensor_type.elem_type
    if elem_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        kind = onnx.TensorProto.DataType.Name(elem_type).lower()
        raise InvalidInput(f"{file}: {node}: tensors of type {kind} are not supported; cast to float32")


@dataclass
class Operation(NodeWriter[str]):
    """A node of the file. Inputs are counted from 0; one that is left out is absent."""

    state: ReaderState
    proto: NodeProto
    version: int
    """Opset of its domain."""
    read_inputs: set[int] = field(default_factory=set)
    """Numbers of the inputs that were read."""

    @cached_property
    def target(self) -> str:
        """Name of the operator, with its domain where it is not the standard one."""
        domain = self.proto.domain
        return self.proto.op_type if domain in ("", "ai.onnx") else f"{domain}::{self.proto.op_type}"

    @cached_property
    def name(self) -> str:
        """Name of the node, or of its first output."""
        return self.proto.name or next((o for o in self.proto.output if o), self.proto.op_type)

    @property
    def label(self) -> str:
        """The node in messages."""
        return f"node {format_value(self.name)} ({self.target})"

    @cached_property
    def inputs(self) -> tuple[str | None, ...]:
        """Values of the inputs, aliases resolved; None for an absent one."""
        return tuple(self.state.resolve(name) if name else None for name in self.proto.input)

    @cached_property
    def attributes(self) -> ReadArguments:
        """Attributes by name, with those that were read."""
        return ReadArguments({a.name: onnx.helper.get_attribute_value(a) for a in self.proto.attribute})

    @cached_property
    def schema(self) -> Any:
        """The definition of the operator in its version; None where onnx has none."""
        try:
            return onnx.defs.get_schema(self.proto.op_type, self.version, self.proto.domain)
        except onnx.defs.SchemaError:
            return None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute. Texts are decoded; a number of float32 is the shortest decimal that rounds to it."""
        value = self.attributes.get(name, default)
        if isinstance(value, float):
            return shorten_decimal(np.float32(value))
        return value.decode() if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> str:
        """Value of an input that is given."""
        self.read_inputs.add(index)
        name = self.inputs[index] if index < len(self.inputs) else None
        if name is None:
            raise NotExpressible(f"input {index} is missing")
        return name

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an input."""
        return self.state.find_shape(self.input(index))

    def rank(self, index: int = 0) -> int:
        """Number of dimensions of an input."""
        return len(self.shape(index))

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        """Type of an input in the graph."""
        return self.state.find_dtype(self.input(index))

    def is_float(self) -> bool:
        """Whether the first input has floating elements."""
        return self.dtype().kind not in "iub"

    def constant(self, index: int) -> Array | None:
        """Elements of an input that is a constant."""
        self.read_inputs.add(index)
        return self.state.constants.get(self.input(index)) if self.has(index) else None

    def require_constant(self, index: int, what: str) -> Array:
        """Elements of an input that must be a constant."""
        data = self.constant(index)
        if data is None:
            raise NotExpressible(f"{what} is not a constant")
        return data

    def axis(self, default: int, rank: int | None = None) -> int:
        """The attribute `axis`, counted from 0."""
        rank = self.rank() if rank is None else rank
        axis = int(self.get("axis", default))
        return axis + rank if axis < 0 else axis

    @property
    def output(self) -> str:
        """The first output."""
        return str(self.proto.output[0])

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an output."""
        return self.state.find_shape(self.proto.output[index])

    def is_used(self, index: int) -> bool:
        """Whether the node has an output of this number."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def reserve(self, count: int, itemsize: int = 8) -> None:
        """Take the bytes of an array that a handler makes from the budget of the model."""
        if not self.state.budget.take(bytes=count * itemsize):
            raise NotExpressible(f"a constant of {format_bytes(count * itemsize)}: too large to be computed")

    def get_shape(self, value: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self.state.find_shape(value)

    def get_dtype(self, value: str) -> np.dtype[Any]:
        """Element type of a value in the graph."""
        return self.state.find_dtype(value)

    def add_scalar(self, value: float, dtype: np.dtype[Any]) -> str:
        """A constant of one element, without dimensions."""
        return self.add_constant(np.asarray(value).astype(dtype))

    def add_constant(self, data: Array) -> str:
        """A constant that the file does not have."""
        name = self.state.make_name(self.output)
        self.state.set_constant(name, data)
        return name

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int] | None = None,
        dtype: np.dtype[Any] | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node with a value of its own. Without `shape` that of the inputs, broadcast; without `dtype`
        that of the first input."""
        if shape is None:
            shape = np.broadcast_shapes(*(self.state.find_shape(name) for name in inputs))
        name = self.state.make_name(self.output)
        self.state.set_type(name, tuple(shape), dtype or self.state.find_dtype(inputs[0]))
        self.state.made_names.add(name)
        return self._add_node(kind, inputs, name, attributes)

    def take_rows(self, value: str, axis: int, rows: Rows) -> str:
        """Rows of a dimension by constant numbers."""
        shape = list(self.get_shape(value))
        shape[axis : axis + 1] = rows.shape
        return self.emit("gather", [value, self.add_constant(rows.astype(np.int64))], shape, axis=axis)

    def finish(self, kind: str, inputs: Sequence[str], output: int = 0, **attributes: Any) -> None:
        """Add the node that computes an output."""
        self._add_node(kind, inputs, self.proto.output[output], attributes)

    def _add_node(self, kind: str, inputs: Sequence[str], output: str, attributes: dict[str, Any]) -> str:
        used = [
            self.state.use_number(name)
            if kind == "elementwise" and self._is_number(name, inputs)
            else self.state.use(name)
            for name in inputs
        ]
        self.state.add_activation(output)
        return self.state.builder.add_node(kind, self.name, used, output, **attributes)

    def _is_number(self, name: str, inputs: Sequence[str]) -> bool:
        """Whether an operand is a floating constant of one element, and another has as many dimensions."""
        data = self.state.constants.get(self.state.resolve(name))
        if data is None or data.size != 1 or self.state.find_dtype(name) not in FLOATS:
            return False
        return any(len(self.state.find_shape(other)) >= data.ndim for other in inputs if other != name)

    def alias(self, value: str, output: int = 0) -> None:
        """The output is another name of a value. A value that the last node made gets the name instead."""
        name, nodes = self.proto.output[output], self.state.builder.nodes
        if value in self.state.made_names and nodes[-1].output == value:
            del self.state.builder.values[value]
            nodes[-1] = replace(nodes[-1], output=self.state.add_activation(name))
            self.state.aliases[value] = name
        else:
            self.state.aliases[name] = value

    def call(self, function: str, *inputs: str, dtype: np.dtype[Any] | None = None, **parameters: Any) -> str:
        """Add an elementwise node with a value of its own."""
        return self.emit("elementwise", inputs, dtype=dtype, function=function, **parameters)

    def finish_as(self, value: str) -> None:
        """The first output is a value in another shape."""
        self.alias(self.reshape(value, self.output_shape()))
