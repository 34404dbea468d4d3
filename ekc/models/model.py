"""A model as ekc tunes it: its layers, what they do not cover, how its graph calls them, and their words in
tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from ekc.display import format_line, shorten
from ekc.ir import expr as ex
from ekc.ir.operator import Operator
from ekc.models.functions import ACTIVATIONS, FUNCTIONS
from ekc.models.graph import INTERNAL_ERROR, VIEW_KINDS, Graph, Node, Value
from ekc.tables import count_nouns, format_table

_TABLE_WIDTH = 140
"""Characters of a line of the tables of a model."""


@dataclass(frozen=True)
class LayerUse:
    """One place where a layer occurs: `count` times in `model` under `name`."""

    name: str
    model: str
    count: int


@dataclass(frozen=True)
class ModelLayer:
    """An operator that is tuned once, and every place that uses it."""

    op: Operator
    uses: tuple[LayerUse, ...]

    @property
    def name(self) -> str:
        """The name of its first use."""
        return self.uses[0].name

    @property
    def count(self) -> int:
        """Calls of the layer in one pass of the model."""
        return sum(use.count for use in self.uses)


@dataclass(frozen=True)
class UncoveredNode:
    """A node of the fused graph that no layer computes."""

    name: str
    target: str
    """Operator of the framework, or kind of node."""
    reason: str
    flops: float
    """Arithmetic operations; 0 where they are not known."""
    bytes: int
    """Bytes that its inputs and output take once, in one pass of the model; of a gather the rows it reads."""
    count: int = 1
    """Number of nodes with this target and reason."""
    knows_flops: bool = True
    """Whether `flops` are known: not for an operator that ekc has no kind of node for."""

    @property
    def is_internal_error(self) -> bool:
        """Whether ekc failed at it. `reason` has the error."""
        return self.reason.startswith(INTERNAL_ERROR)


@dataclass(frozen=True)
class Coverage:
    """Shares of the model that layers compute, from 0 to 1."""

    flops: float
    """Share of the known operations: those of operators without a kind of node are not known."""
    bytes: float
    unknown_nodes: int = 0
    """Number of nodes whose operations are not known."""

    def __str__(self) -> str:
        """Unknown nodes come first: "3 nodes of unknown work; 98.0% of known flops and 61.0% of bytes"."""
        unknown = f"{count_nouns(self.unknown_nodes, 'node')} of unknown work; " if self.unknown_nodes else ""
        return (
            f"{unknown}{self.flops:.1%} of {'known ' if unknown else ''}flops and {self.bytes:.1%} of bytes"
        )


@dataclass(frozen=True, eq=False)
class LayerInput:
    """One input of a layer call: a value of the graph, and the views through which it is read."""

    value: str
    views: tuple[tuple[str, Any], ...] = ()
    """("reshape", shape), ("permute", order), ("expand", shape) and ("cast", name of a type), in order."""


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a layer in the graph: it computes all of `nodes`."""

    name: str
    op: Operator
    inputs: tuple[LayerInput, ...]
    """One for each of `op.inputs`."""
    output: str
    """Value of the graph that it computes; the operator's result is reshaped to the shape of that value."""
    nodes: tuple[Node, ...]
    flops: float
    bytes: int


@dataclass(frozen=True, eq=False)
class FusedGraph:
    """A graph whose nodes are calls of layers where they are covered."""

    graph: Graph
    """The graph, its constants folded: folded weights are values of their own."""
    steps: tuple[LayerCall | Node, ...]
    """Calls and remaining nodes, in an order in which every input comes before its use."""


@dataclass(frozen=True, repr=False)
class Model:
    """A model to tune. `layers` are distinct operators, `uncovered` what is left to the framework."""

    name: str
    layers: tuple[ModelLayer, ...]
    uncovered: tuple[UncoveredNode, ...] = ()
    coverage: Coverage = Coverage(1.0, 1.0)
    notes: tuple[str, ...] = ()
    """Changes that the reader made, a sentence each."""
    fused: FusedGraph | None = field(default=None, repr=False, compare=False)
    """None for a model from a layer file."""

    @property
    def internal_errors(self) -> tuple[UncoveredNode, ...]:
        """Nodes that are not covered because ekc failed at them."""
        return tuple(node for node in self.uncovered if node.is_internal_error)

    @property
    def call_count(self) -> int:
        """Calls of layers in one pass of the model."""
        return sum(layer.count for layer in self.layers)

    @property
    def flops(self) -> float:
        """Known arithmetic operations of one pass: of the layers as their operators are written, and of what
        they do not cover."""
        covered = sum(layer.op.flops * layer.count for layer in self.layers)
        return covered + sum(node.flops for node in self.uncovered)

    def __repr__(self) -> str:
        counts = f"{count_nouns(len(self.layers), 'layer')}, {count_nouns(self.call_count, 'call')}"
        text = f"{shorten(self.name)}: {counts}"
        return format_line(self, f"{text}, covered: {self.coverage}")

    def __str__(self) -> str:
        """The layers, what they do not cover, and notes."""
        parts = [self.name, "", _format_layers(self)]
        if self.uncovered:
            parts += ["", _format_uncovered(self)]
        errors = [f"ekc failed at {n.name} ({n.target}): {n.reason}" for n in self.internal_errors]
        parts += ["", *errors, f"Covered by layers: {self.coverage}."]
        return "\n".join([*parts, *(f"Note: {note}." for note in self.notes)])


def _format_layers(model: Model) -> str:
    total = model.flops or 1.0
    rows = [
        (
            layer.name,
            format_kind(layer.op),
            format_shapes(layer.op),
            format_dtype(layer.op),
            format_epilogue(layer.op),
            str(layer.count),
            f"{layer.op.flops * layer.count / total:.1%}",
        )
        for layer in model.layers
    ]
    headers = ("layer", "operator", "shapes", "type", "epilogue", "calls", "flops")
    return format_table(headers, rows, label_count=5, width=_TABLE_WIDTH)


def _format_uncovered(model: Model) -> str:
    """The nodes that no layer covers, with their shares of the model."""
    flops = sum(node.flops for node in model.uncovered)
    size = sum(node.bytes for node in model.uncovered)
    rows = [
        (
            node.target,
            node.reason,
            str(node.count),
            _format_share(node.flops, flops, 1 - model.coverage.flops) if node.knows_flops else "unknown",
            _format_share(node.bytes, size, 1 - model.coverage.bytes),
        )
        for node in model.uncovered
    ]
    headers = ("not covered", "reason", "nodes", "flops", "bytes")
    return format_table(headers, rows, label_count=2, width=_TABLE_WIDTH)


def _format_share(part: float, whole: float, share: float) -> str:
    """A part of what is not covered as a share of the model."""
    return f"{part / whole * share if whole else 0.0:.1%}"


_FLOPS_OF_ELEMENT = {
    "softmax": 5,
    "layer_norm": 8,
    "group_norm": 8,
    "rms_norm": 5,
    "batch_norm": 2,
    "elementwise": 1,
}
"""Operations for each element of the output."""


def count_node_flops(node: Node, values: Mapping[str, Value]) -> float:
    """Arithmetic operations of a node: two for each product that is summed, one for each function of an
    element, none for moves, casts and operators that are not known."""
    output = values[node.output]
    match node.kind:
        case "conv" | "conv_transpose":
            x, weight = (values[name] for name in node.inputs[:2])
            places = output if node.kind == "conv" else x
            flops = 2.0 * places.size * prod(weight.shape[1:])
            return flops + (output.size if len(node.inputs) > 2 else 0)
        case "matmul":
            return 2.0 * output.size * values[node.inputs[0]].shape[-1]
        case "attention":
            q, k, v = (values[name] for name in node.inputs[:3])
            scores = prod(q.shape[:-1]) * k.shape[-2]
            return scores * (2.0 * q.shape[-1] + 2 * v.shape[-1] + _FLOPS_OF_ELEMENT["softmax"] + 1)
        case "reduce":
            return float(values[node.inputs[0]].size)
        case "max_pool" | "avg_pool":
            return float(output.size * prod(node.attributes["kernel"]))
    return float(output.size * _FLOPS_OF_ELEMENT.get(node.kind, 0))


def count_node_bytes(node: Node, values: Mapping[str, Value]) -> int:
    """Bytes that the inputs and the output of a node take once; none for a view. Of the table of a gather the
    rows that are read."""
    if node.kind in VIEW_KINDS:
        return 0
    output = values[node.output]
    read = [values[name].bytes for name in dict.fromkeys(node.inputs)]
    if node.kind == "gather":
        read[0] = min(read[0], output.bytes)
    return sum(read) + output.bytes


def count_call_bytes(op: Operator, inputs: Sequence[LayerInput], values: Mapping[str, Value]) -> int:
    """Bytes that the inputs and the output of a layer take once. Of an input of which a move reads a part,
    that part."""
    read: dict[str, int] = {}
    for spec, given in zip(op.inputs, inputs, strict=True):
        count = min(values[given.value].size, _count_reads(op, spec.name))
        read[given.value] = max(read.get(given.value, 0), count * spec.dtype.bytes)
    return sum(read.values()) + op.outputs[0].bytes


def _count_reads(op: Operator, tensor: str) -> int:
    """Elements of an input that are read at most: those of its axes, for each place where it is read."""
    return sum(prod(axis.extent for axis in axes) for axes in op.list_read_axes(tensor))


def compute_coverage(fused: FusedGraph, uncovered: Sequence[UncoveredNode]) -> Coverage:
    """The shares of operations and of bytes that calls of layers have."""
    calls = [step for step in fused.steps if isinstance(step, LayerCall)]
    flops, size = sum(c.flops for c in calls), sum(c.bytes for c in calls)
    all_flops = flops + sum(node.flops for node in uncovered)
    all_bytes = size + sum(node.bytes for node in uncovered)
    unknown = sum(node.count for node in uncovered if not node.knows_flops)
    return Coverage(flops / all_flops if all_flops else 1.0, size / all_bytes if all_bytes else 1.0, unknown)


def merge_uncovered(nodes: Sequence[UncoveredNode]) -> tuple[UncoveredNode, ...]:
    """Nodes of one target and reason as one, with their number and their sums."""
    merged: dict[tuple[str, str], UncoveredNode] = {}
    for node in nodes:
        known = merged.get((node.target, node.reason))
        merged[node.target, node.reason] = (
            node
            if known is None
            else replace(
                known,
                flops=known.flops + node.flops,
                bytes=known.bytes + node.bytes,
                count=known.count + node.count,
            )
        )
    return tuple(merged.values())


_SUFFIX = "_epilogue"
_ARGUMENT = ex.Var("x")
_ACTIVATION_FORMS = {name: ex.as_expr(FUNCTIONS[name].write([_ARGUMENT], {})) for name in ACTIVATIONS}


def format_kind(op: Operator) -> str:
    """The operator without its epilogue: "conv2d"."""
    return op.name.removesuffix(_SUFFIX)


def format_shapes(op: Operator) -> str:
    """The shapes of the tensors without those of the epilogue: "128x768 768x3072 -> 128x3072"."""
    last = op.computes[-1]
    inputs = op.inputs
    if op.name.endswith(_SUFFIX):
        before = {load.tensor for c in op.computes[:-1] for load in ex.find_loads(c.body)}
        inputs = tuple(t for t in op.inputs if t.name in before)
    shapes = [format_shape(t.shape) for t in inputs if t.name not in ("gamma", "beta")]
    return f"{' '.join(shapes)} -> {format_shape(last.output.shape)}"


def format_shape(shape: tuple[int, ...]) -> str:
    """A shape as 128x768."""
    return "x".join(map(str, shape)) or "1"


def format_dtype(op: Operator) -> str:
    """The element types of the first input and of the result, one where they are equal."""
    first, last = (op.inputs or op.outputs)[0].dtype.name, op.outputs[0].dtype.name
    return first if first == last else f"{first} -> {last}"


def format_epilogue(op: Operator) -> str:
    """The epilogue as layer files write it: "relu(c + bias)"; "" where there is none."""
    if not op.name.endswith(_SUFFIX):
        return ""
    result = op.computes[-2].output.name
    names = {t.name: t.name for t in op.inputs} | {result: result.lower()}
    last = op.computes[-1]
    body = ex.replace_loads(last.body, lambda load: ex.Var(names.get(load.tensor, load.tensor)))
    axes = {a.name: ex.Var(a.name.removesuffix("_out")) for a in last.axes}
    return str(_shorten(ex.substitute(body, axes)))


def _shorten(e: ex.Expr) -> ex.Expr:
    """The expression with calls for activations, which expressions have no nodes for."""
    for name, form in _ACTIVATION_FORMS.items():
        found: list[ex.Expr] = []
        if _has_form(form, e, found):
            return ex.Call(name, _shorten(found[0]))
    if isinstance(e, ex.Binary):
        return ex.Binary(e.op, _shorten(e.a), _shorten(e.b))
    if isinstance(e, ex.Call):
        return ex.Call(e.function, _shorten(e.argument))
    if isinstance(e, ex.Where):
        return ex.Where(e.op, *map(_shorten, ex.children(e)))
    return e


def _has_form(form: ex.Expr, e: ex.Expr, found: list[ex.Expr]) -> bool:
    """Whether an expression has a form; `found` gets what is in place of its variable."""
    if form == _ARGUMENT:
        found.append(e)
        return e == found[0]
    if not isinstance(form, ex.Binary | ex.Call | ex.Where):
        return form == e
    return (
        isinstance(e, type(form))
        and ex.name_operation(form) == ex.name_operation(e)
        and all(_has_form(a, b, found) for a, b in zip(ex.children(form), ex.children(e), strict=True))
    )
