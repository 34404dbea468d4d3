"""The graph of a model: values and nodes of a small set of kinds. The readers of PyTorch and ONNX make it.

A node has one output. What a framework splits into several outputs is several nodes. Shapes are fixed.

Kinds and attributes; `x`, `a`, `b` are inputs in order, [..] may be absent. Axes count from 0, never from the
end. Attributes per dimension are tuples of one entry for each spatial dimension.

| kind | inputs | attributes |
|---|---|---|
| conv | x [n, c, ...], weight [out, c / groups, ...], [bias] | stride, padding, dilation, groups |
| conv_transpose | x, weight [c, out / groups, ...], [bias] | as conv, and output_padding |
| matmul | a, b | none; batch dimensions broadcast as in `numpy.matmul`, both have 2 dimensions or more |
| attention | q [..., h, s, d], k, v [..., h_kv, t, d], [mask] | scale, is_causal |
| softmax | x | axis, [zeros_masked_rows]: a row of minus infinity alone gives 0, otherwise NaN |
| layer_norm | x, [weight], [bias] | dimensions: how many of the last; eps |
| rms_norm | x, [weight] | dimensions, eps |
| batch_norm | x [n, c, ...], weight, bias, mean, variance | eps |
| group_norm | x [n, c, ...], [weight], [bias] | groups, eps |
| reduce | x | combine: sum, mean, max, min or prod; axes; keepdims |
| max_pool, avg_pool | x [n, c, ...] | kernel, stride, padding, dilation; avg_pool: counts_padding |
| elementwise | one to three | function: a key of `functions.FUNCTIONS`; its parameters, as minimum of clamp |
| cast | x | none; the type is that of the output |
| reshape | x | none; the shape is that of the output |
| permute | x | order |
| expand | x | none; the shape is that of the output, broadcast as in NumPy |
| slice | x | axis, start, stop, step |
| concat | one or more | axis |
| gather | x, indices | axis |
| pad | x | padding: (before, after) of each dimension; value |
| resize | x | factors: a whole number for each dimension; nearest neighbour |
| copy | x | none: the same elements in the order of memory |
| opaque | any | target: name of the framework's operator; reason: why there is no kind; call, index |

`padding` of convolutions and pools is (before, after) of each spatial dimension. A mask of attention is added
to the scaled scores; one of type bool takes out what is False. A row that is masked as a whole gives 0, as
`scaled_dot_product_attention` of PyTorch and Attention of ONNX do. A floating constant without dimensions may
have another type than the elementwise node that reads it: numbers are float64, so that eps keeps its value.

`call` of an opaque node is (operator, arguments, named arguments) of PyTorch, with names of values
(`torch_reader.reading.ValueName`) in place of tensors; `index` is the place of its output among several
results, None for a single one. The nodes of one call have the same `call`. Opaque nodes of ONNX have neither.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput

READ_DTYPES = ("float16", "bfloat16", "float32")
"""Types that the floating tensors of a model can be read as."""
VIEW_KINDS = frozenset({"reshape", "permute", "expand", "slice"})
"""Kinds that name the same elements differently. They move no bytes."""
CONTRACTION_KINDS = frozenset({"conv", "conv_transpose", "matmul"})
KINDS = (
    VIEW_KINDS
    | CONTRACTION_KINDS
    | {"attention", "softmax", "layer_norm", "rms_norm", "batch_norm", "group_norm"}
    | {"reduce", "max_pool", "avg_pool", "elementwise", "cast", "concat", "gather", "pad", "resize", "copy"}
    | {"opaque"}
)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a graph."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Element type; types of `ml_dtypes` for bfloat16 and 8-bit floats."""
    is_constant: bool = False
    """A weight, or a number of the model."""
    data: np.ndarray[Any, Any] | None = None
    """Elements of a constant; None for an activation, and for a weight that the file does not hold."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Node:
    """One operation of a graph."""

    kind: str
    name: str
    """Path of the module, or name of the node in the file."""
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """Name of the operation in messages: the function, the framework's operator, or the kind."""
        named = self.attributes.get("function") or self.attributes.get("target")
        return str(named or self.kind)


@dataclass(frozen=True, eq=False)
class Graph:
    """A model: values by name, nodes in an order in which every input comes before its use."""

    name: str
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Changes that the reader made, a sentence each: constants cast from float64, for example."""
    file_bytes: int = 0
    """Bytes of the constants that the model came with."""

    @property
    def internal_errors(self) -> tuple[Node, ...]:
        """Opaque nodes at which the reader failed."""
        return tuple(n for n in self.nodes if str(n.attributes.get("reason")).startswith(INTERNAL_ERROR))

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node of each value."""
        return {node.output: node for node in self.nodes}

    @cached_property
    def users(self) -> Mapping[str, list[Node]]:
        """The distinct nodes that read each value."""
        users: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                users[name].append(node)
        return users

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Output of a node -> its place among the nodes."""
        return {node.output: place for place, node in enumerate(self.nodes)}

    def find_only_user(self, name: str) -> Node | None:
        """The node that alone reads a value, which is no output of the graph; None where there are others."""
        users = self.users[name]
        return users[0] if len(users) == 1 and name not in self.outputs else None


def parse_value_dtype(name: str, dtype: str) -> np.dtype[Any]:
    """The element type of a value. Raises `InvalidInput` for text, complex and unknown types."""
    try:
        found = np.dtype(getattr(ml_dtypes, dtype, dtype))
    except TypeError:
        found = np.dtype(complex)
    if found.kind in "OSU":
        raise InvalidInput(f"{name}: tensors of text are not supported")
    if found.kind == "c":
        raise InvalidInput(f"{name}: tensors of type {dtype} are not supported; cast to float32")
    return found


@dataclass
class GraphBuilder:
    """Collects values and nodes while a reader walks its file."""

    name: str
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_value(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str | np.dtype[Any],
        *,
        is_constant: bool = False,
        data: np.ndarray[Any, Any] | None = None,
    ) -> str:
        """Add a tensor; returns its name."""
        if name in self.values:
            raise InvalidInput(f"{self.name}: two tensors are called {name!r}")
        found = parse_value_dtype(name, dtype) if isinstance(dtype, str) else dtype
        self.values[name] = Value(
            name, tuple(int(e) for e in shape), found, is_constant or data is not None, data
        )
        return name

    def add_constant(self, name: str, data: np.ndarray[Any, Any]) -> str:
        """Add a constant with its elements; returns its name."""
        return self.add_value(name, data.shape, data.dtype, data=data)

    def add_node(self, kind: str, name: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node whose inputs and output were added before; returns the output."""
        if kind not in KINDS:
            raise InvalidInput(f"{name}: no kind of node {kind!r}")
        for value in (*inputs, output):
            if value not in self.values:
                raise InvalidInput(f"{name}: no tensor {value!r}")
        self.nodes.append(Node(kind, name, tuple(inputs), output, attributes))
        return output

    def build(self, outputs: Sequence[str]) -> Graph:
        """The graph of all that was added."""
        return Graph(
            self.name,
            self.values,
            tuple(self.nodes),
            tuple(self.inputs),
            tuple(outputs),
            tuple(self.notes),
            sum(value.bytes for value in self.values.values() if value.data is not None),
        )


def list_needed(nodes: Sequence[Node], outputs: Sequence[str]) -> tuple[tuple[Node, ...], set[str]]:
    """The nodes that compute the outputs, in order, and the names of the values that they read or make."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if node.output in needed:
            needed.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept)), needed


@dataclass
class GraphEdit:
    """A graph while it is rewritten: the nodes written so far, and the values that stand for others."""

    graph: Graph
    values: dict[str, Value] = field(init=False)
    nodes: list[Node] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """Value -> the value that replaces it."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)

    def read_nodes(self) -> Iterator[Node]:
        """The nodes of the old graph, with the replaced inputs."""
        for node in self.graph.nodes:
            yield replace(node, inputs=tuple(self.find_replacement(name) for name in node.inputs))

    def find_replacement(self, name: str) -> str:
        """The value that replaces a value, itself where none does."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def add_value(
        self,
        stem: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        *,
        is_constant: bool = False,
        data: np.ndarray[Any, Any] | None = None,
    ) -> str:
        """A value under a name that is free and begins with `stem`; returns the name."""
        name, number = stem, 2
        while name in self.values:
            name, number = f"{stem}_{number}", number + 1
        self.values[name] = Value(name, tuple(shape), dtype, is_constant, data)
        return name

    def add_node(self, kind: str, name: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Write a node; returns its output."""
        self.nodes.append(Node(kind, name, tuple(inputs), output, attributes))
        return output

    def add_step(
        self,
        kind: str,
        node: Node,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: np.dtype[Any],
        **attributes: Any,
    ) -> str:
        """Write a node under the name of another one, with a new output; returns the output."""
        output = self.add_value(f"{node.output}.{kind}", shape, dtype)
        return self.add_node(kind, node.name, inputs, output, **attributes)

    def finish(self) -> Graph:
        """The graph of the nodes that were written, those without a use left out."""
        outputs = tuple(self.find_replacement(name) for name in self.graph.outputs)
        renamed = [replace(n, inputs=tuple(map(self.find_replacement, n.inputs))) for n in self.nodes]
        nodes, needed = list_needed(renamed, outputs)
        needed.update(self.graph.inputs)
        return replace(
            self.graph,
            values={name: value for name, value in self.values.items() if name in needed},
            nodes=nodes,
            outputs=outputs,
            notes=(*self.graph.notes, *self.notes),
        )


def rewrite_nodes(graph: Graph, change: Callable[[GraphEdit, Node], bool]) -> Graph:
    """The graph with what `change` writes in place of nodes. It returns whether it wrote anything; a node for
    which it did not stays."""
    edit = GraphEdit(graph)
    for node in edit.read_nodes():
        if not change(edit, node):
            edit.nodes.append(node)
    return edit.finish()


INTERNAL_ERROR = "internal error: "
"""How the reason of a node begins at which ekc failed. `Graph.internal_errors` and `Model.internal_errors`
list these nodes."""
_PACKAGE_FOLDER = Path(__file__).parents[1]


class ReadArguments(Mapping[str, Any]):
    """Arguments of one node by name. It records which were read, so that a reader can refuse a node of which
    it did not read all.

    >>> arguments = ReadArguments({"blocksize": 2, "mode": "CRD"})
    >>> arguments["blocksize"]
    2
    >>> arguments.describe_unread("attribute")
    "attribute mode='CRD' is not supported"
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._arguments[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arguments

    def __iter__(self) -> Iterator[str]:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)

    def drop(self, *names: str) -> None:
        """Count arguments as read that change nothing."""
        self._read.update(names)

    def describe_unread(self, noun: str) -> str | None:
        """Why a node with arguments that were not read is opaque; None where all were read. `noun` is what
        the format calls them: "attribute", "argument"."""
        left = {name: value for name, value in self._arguments.items() if name not in self._read}
        unread = [f"{name}={format_value(value)}" for name, value in left.items()]
        if len(unread) < 2:
            return f"{noun} {unread[0]} is not supported" if unread else None
        return f"{noun}s {', '.join(unread)} are not supported"


def describe_internal_error(problem: Exception) -> str:
    """An unexpected error as the reason of a node: "internal error: KeyError: 3 (views.py, line 9)"."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE_FOLDER)] or frames
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = " ".join(str(problem).split())[:200]
    return f"{INTERNAL_ERROR}{type(problem).__name__}{': ' if text else ''}{text}{place}"
