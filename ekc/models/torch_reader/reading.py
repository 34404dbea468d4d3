"""A call of an operator of PyTorch: its arguments by name, and methods that add nodes to the graph.

Constants become NumPy arrays of the type that the graph has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from ekc.errors import InvalidInput
from ekc.models.graph import GraphBuilder, Node, ReadArguments, parse_value_dtype
from ekc.models.node_writer import NodeWriter, NotExpressible, Rows
from ekc.models.torch_reader import torch

Number: TypeAlias = bool | int | float


class ValueName(str):
    """Name of a value of the graph, where an argument of an operator is a tensor."""

    __slots__ = ()


Operand: TypeAlias = ValueName | Number
Outputs: TypeAlias = ValueName | tuple[ValueName | None, ...]


@dataclass
class Reading:
    """A program being read."""

    builder: GraphBuilder
    dtype: np.dtype[Any] | None
    """Type that every floating tensor is read as; None: as it is."""
    has_float64: bool = False
    """Whether an input or weight of the program is float64."""
    tensors: dict[str, Any] = field(default_factory=dict)
    """Constant -> its torch tensor; on the meta device where the program does not hold its elements."""
    producers: dict[str, Node] = field(default_factory=dict)
    """Value -> the node that computes it."""
    clamped: int = 0
    """Constants whose elements were limited to the range of `dtype`."""

    def find_dtype(self, name: str, tensor: Any) -> np.dtype[Any]:
        """Element type of a torch tensor in the graph. Raises `InvalidInput` for complex and sparse ones."""
        if str(tensor.layout) != "torch.strided":
            raise InvalidInput(
                f"{name}: tensors of {tensor.layout} are not supported; call .to_dense() first"
            )
        found = parse_value_dtype(name, str(tensor.dtype).removeprefix("torch."))
        return found if self.dtype is None or not is_floating(found) else self.dtype

    def add_number(self, number: Number, dtype: np.dtype[Any]) -> ValueName:
        """A constant without dimensions. Floating numbers are float64, whatever the type of the model: an eps
        of 1e-12 stays one in float16."""
        found = np.dtype(np.float64) if is_floating(dtype) else dtype
        name = ValueName(f"{number!r}:{found}")
        if name not in self.builder.values:
            with np.errstate(over="ignore"):
                data = np.asarray(self.limit(np.asarray(number)), found)
            self.builder.add_constant(name, data)
        return name

    def limit(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Finite elements beyond the range of `dtype` become its largest number: masks of -3.4e38 do."""
        if self.dtype is None or data.dtype.kind not in "fiV" or not data.size:
            return data
        largest = float(ml_dtypes.finfo(self.dtype).max)  # type: ignore[no-untyped-call]
        wide = data.astype(np.float64) if data.dtype.kind == "V" else data
        beyond = np.isfinite(wide) & (np.abs(wide) > largest)
        if data.dtype.kind == "i" or not beyond.any():
            return data
        self.clamped += 1
        return np.where(beyond, np.sign(wide) * largest, wide)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether elements are floating numbers, of `ml_dtypes` too."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


@dataclass
class OperatorCall(NodeWriter[ValueName]):
    """One call of an operator of PyTorch: arguments by the names of its schema, tensors as `ValueName`."""

    reading: Reading
    target: str
    """Name such as `aten.conv2d.default`."""
    operator: str
    """The same without library and overload: `conv2d`."""
    name: str
    """Name of the nodes that are made: the path of the module."""
    output: str
    """Name of the value; further ones have a number behind it."""
    arguments: ReadArguments
    """A handler that leaves one unread has not understood the call, which becomes opaque. Those that equal
    the schema's default count as read."""
    result: Any
    """Tensor without elements, or several, that the call gives: shapes and types."""
    torch_dtypes: Mapping[str, Any]
    """Type in PyTorch of each tensor among the arguments."""
    values_made: int = 0

    def __contains__(self, name: str) -> bool:
        return name in self.arguments

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or `default` where the operator has none of this name or it is None."""
        found = self.arguments.get(name)
        return default if found is None else found

    def skip(self, *names: str) -> None:
        """Count arguments as read which change no element beyond what the result's shape and type say."""
        self.arguments.drop(*names)

    @property
    def first_result(self) -> Any:
        """The only result, or the first of several."""
        return self.result[0] if isinstance(self.result, tuple | list) else self.result

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(int(e) for e in self.first_result.shape)

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """Element type of the first result, in the graph."""
        return self.reading.find_dtype(self.name, self.first_result)

    def get_shape(self, value: str) -> tuple[int, ...]:
        """Shape of a value."""
        return self.reading.builder.values[value].shape

    def get_dtype(self, value: str) -> np.dtype[Any]:
        """Element type of a value."""
        return self.reading.builder.values[value].dtype

    def axis(self, axis: int, value: str) -> int:
        """An axis counted from 0."""
        return int(axis) % max(1, len(self.get_shape(value)))

    def axes(self, axes: int | Sequence[int] | None, value: str) -> tuple[int, ...]:
        """Axes counted from 0, in order; all of them for None and for none."""
        rank = len(self.get_shape(value))
        if axes is None or (isinstance(axes, list | tuple) and not axes):
            return tuple(range(rank))
        listed = [axes] if isinstance(axes, int) else axes
        return tuple(sorted(self.axis(axis, value) for axis in listed)) if rank else ()

    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: np.dtype[Any] | None = None,
        **attributes: Any,
    ) -> ValueName:
        """Add a node and the value it computes, of the type of the result unless `dtype` says otherwise."""
        self.values_made += 1
        value = ValueName(self.output if self.values_made == 1 else f"{self.output}.{self.values_made}")
        self.reading.builder.add_value(value, shape, self.result_dtype if dtype is None else dtype)
        self.reading.builder.add_node(kind, self.name, inputs, value, **attributes)
        self.reading.producers[value] = self.reading.builder.nodes[-1]
        return value

    def take_rows(self, value: ValueName, axis: int, rows: Rows) -> ValueName:
        """Raises `NotExpressible`: only changes of size by the nearest neighbour ask for such rows."""
        shapes = f"from {self.get_shape(value)} to {self.result_shape}"
        raise NotExpressible(f"nearest neighbour {shapes}: a factor is no whole number")

    def constant(self, label: str, data: np.ndarray[Any, Any]) -> ValueName:
        """A constant that the operator implies, such as a mask."""
        return ValueName(self.reading.builder.add_constant(f"{self.output}.{label}", data))

    def apply(
        self, function: str, *operands: Operand, dtype: np.dtype[Any] | None = None, **attributes: Any
    ) -> ValueName:
        """Add an elementwise node. Operands are cast to the type of the result; comparisons and `where`
        prepare theirs before. Floating constants without dimensions keep their type."""
        found = self.result_dtype if dtype is None else dtype
        values = [self.convert(operand, found) for operand in operands]
        return self.connect(function, values, found, **attributes)

    def connect(
        self, function: str, values: Sequence[ValueName], dtype: np.dtype[Any], **attributes: Any
    ) -> ValueName:
        """Add an elementwise node to values as they are."""
        shape = np.broadcast_shapes(*(self.get_shape(v) for v in values))
        return self.emit("elementwise", values, shape, dtype, function=function, **attributes)

    def convert(self, operand: Operand, dtype: np.dtype[Any]) -> ValueName:
        """An operand as a value of a type."""
        if not isinstance(operand, ValueName):
            return self.reading.add_number(operand, dtype)
        value = self.reading.builder.values[operand]
        number = value.is_constant and not value.shape and is_floating(value.dtype)
        return operand if number and is_floating(dtype) else self.cast(operand, dtype)

    def concat(self, values: Sequence[ValueName], axis: int) -> ValueName:
        """Values after each other along an axis. Values without elements are left out."""
        parts = [v for v in values if self.reading.builder.values[v].size]
        if len(parts) <= 1:
            return parts[0] if parts else values[0]
        shape = list(self.get_shape(parts[0]))
        shape[axis] = sum(self.get_shape(v)[axis] for v in parts)
        return self.emit("concat", parts, shape, self.get_dtype(parts[0]), axis=axis)


def as_tensor(call: OperatorCall, value: ValueName) -> ValueName:
    """The value; one without dimensions gets one of extent 1."""
    return call.reshape(value, call.get_shape(value) or (1,))


Handler: TypeAlias = Callable[[OperatorCall], Outputs]


def store_dtype(reading: Reading, name: str, tensor: Any) -> np.dtype[Any]:
    """Element type of a constant: the type that is asked for; float32 for floating constants without
    dimensions then."""
    if tensor.dtype.is_floating_point and not tensor.shape and reading.dtype is not None:
        return np.dtype(np.float32)
    return reading.find_dtype(name, tensor)


def take_elements(reading: Reading, name: str) -> np.ndarray[Any, Any] | None:
    """Elements of a constant as NumPy array, without a copy where the type stays."""
    tensor = reading.tensors[name]
    if tensor.is_meta:
        return None
    data, wanted = make_array(tensor.cpu()), reading.builder.values[name].dtype
    return data if data.dtype == wanted else np.asarray(reading.limit(data)).astype(wanted)


def make_array(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor of the CPU as a NumPy array, of `ml_dtypes` too, in its own memory where it can be shared."""
    tensor = tensor.resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if not hasattr(ml_dtypes, name):
        return np.asarray(tensor.numpy())
    bits = torch.int16 if tensor.element_size() == 2 else torch.uint8
    return np.asarray(tensor.view(bits).numpy().view(getattr(ml_dtypes, name)))
