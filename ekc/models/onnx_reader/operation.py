"""An ONNX node as its reader sees it, and how the reader adds nodes to the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.argument_checks import format_value
from ekc.host_memory import format_bytes
from ekc.models.graph import ReadArguments
from ekc.models.onnx_reader import import_onnx
from ekc.models.onnx_reader.state import FLOATS, Array, ReaderState, shorten_decimal

if TYPE_CHECKING:
    from onnx import NodeProto


class NotExpressible(Exception):
    """The kinds of a `Graph` cannot say what a node computes; the text is the reason."""


@dataclass
class Operation:
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
        onnx = import_onnx()
        return ReadArguments({a.name: onnx.helper.get_attribute_value(a) for a in self.proto.attribute})

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

    def add_scalar(self, value: float, dtype: np.dtype[Any]) -> str:
        """A constant of one element, without dimensions."""
        return self.add_constant(np.asarray(value).astype(dtype))

    def add_constant(self, data: Array) -> str:
        """A constant that the file does not have."""
        name = self.state.make_name(self.output)
        self.state.set_constant(name, data)
        return name

    def add(
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
        return self.add("elementwise", inputs, dtype=dtype, function=function, **parameters)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """A value in another shape; the value itself where the shape is the same."""
        if self.state.find_shape(value) == tuple(shape):
            return value
        return self.add("reshape", [value], shape)

    def permute(self, value: str, order: Sequence[int]) -> str:
        """A value with its dimensions in another order."""
        if list(order) == list(range(len(order))):
            return value
        old = self.state.find_shape(value)
        return self.add("permute", [value], [old[axis] for axis in order], order=tuple(order))

    def cast(self, value: str, dtype: np.dtype[Any]) -> str:
        """A value in another type."""
        if self.state.find_dtype(value) == dtype:
            return value
        return self.add("cast", [value], dtype=dtype)

    def finish_as(self, value: str) -> None:
        """The first output is a value in another shape."""
        self.alias(self.reshape(value, self.output_shape()))
