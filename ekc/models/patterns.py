"""Composite forms that exporters write out, as one node again: activations, norms and softmax.

An activation is recognised by its numbers: the elementwise nodes between two values are evaluated at some
points, and are replaced where they give what a known function gives. So it does not matter in which order a
framework multiplies, or by which identity it writes a sigmoid. Norms and softmax are means, roots and
quotients:

    d * rsqrt(mean(d * d) + eps) * weight                      rms_norm of d
    (x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * weight + bias        layer_norm of x
    exp(x - max(x)) / sum(exp(x - max(x)))                     softmax of x
    reshape(instance_norm(reshape(x, [n, groups, ...]), 1, 0)) * weight + bias     group_norm of x, in ONNX

Casts may stand anywhere in between: norms of 16-bit models are computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ekc.models.elements import FLOAT_NAMES, convert_number
from ekc.models.functions import ACTIVATIONS, FUNCTIONS, Array
from ekc.models.graph import Graph, GraphEdit, Node, rewrite_nodes

NORM_KINDS = frozenset({"layer_norm", "rms_norm", "group_norm", "softmax"})
Template: TypeAlias = "str | float | tuple[Any, ...] | list[Any]"
"""A form in which a value may be computed. A name is any value, the same one wherever the name occurs; "eps"
is any number. A number is that constant. A tuple is a function, or how a reduction combines, and its
operands; those of a commutative function may be in either order. A list is one of several forms."""
_VARIANCE = ("add", ("mean", [("square", "d"), ("mul", "d", "d"), ("power", "d", 2.0)]), "eps")
_ROOT = [("sqrt", _VARIANCE), ("power", _VARIANCE, 0.5)]
_INVERSE_ROOT = [("reciprocal", _ROOT), ("rsqrt", _VARIANCE), ("power", _VARIANCE, -0.5)]
_NORM = [("div", "d", _ROOT), ("mul", "d", _INVERSE_ROOT)]
_CENTRED = ("sub", "x", ("mean", "x"))
_SOFTMAX = [("div", "e", ("sum", "e")), ("mul", "e", ("reciprocal", ("sum", "e")))]
_EXPONENTIAL = ("exp", [("sub", "x", ("max", "x")), "x"])


def match_template(
    template: Template, name: str, graph: Graph, found: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The values of the names in a template, for each way in which it describes a value; [] where it does
    not. `found` has values that some names must have. Casts are left out. All reductions keep their
    dimensions, and have the same "axes"."""
    name = _skip_casts(name, graph)
    if isinstance(template, list):
        return [way for one in template for way in match_template(one, name, graph, found)]
    if isinstance(template, tuple):
        node = graph.producers.get(name)
        return [] if node is None else _match_node(template, node, graph, found)
    number = _read_number(name, graph)
    if isinstance(template, float):
        return [found] if number == template else []
    value = number if template == "eps" else name
    return [{**found, template: value}] if value is not None and found.get(template, value) == value else []


def _match_node(
    template: tuple[Any, ...], node: Node, graph: Graph, found: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    function, *operands = template
    options = node.attributes
    if function not in (options.get("function"), options.get("combine")):
        return []
    if node.kind == "reduce":
        axes = tuple(sorted(options["axes"]))
        if not options["keepdims"] or found.get("axes", axes) != axes:
            return []
        found = {**found, "axes": axes}
    is_commutative = node.kind == "elementwise" and FUNCTIONS[function].is_commutative
    ways = []
    for inputs in (node.inputs, node.inputs[::-1]) if is_commutative else (node.inputs,):
        partial = [found]
        for operand, name in zip(operands, inputs, strict=True):
            partial = [way for begun in partial for way in match_template(operand, name, graph, begun)]
        ways += partial
    return ways


def find_norm(node: Node, graph: Graph) -> Node | None:
    """The norm whose product or quotient by the spread is this node, with the weight and bias behind it."""
    for found in match_template(_NORM, node.output, graph, {}):
        rank, dimensions = len(graph.values[found["d"]].shape), len(found["axes"])
        if found["axes"] != tuple(range(rank - dimensions, rank)):
            continue
        centred = match_template(_CENTRED, found["d"], graph, {"axes": found["axes"]})
        kind, x = ("layer_norm", centred[0]["x"]) if centred else ("rms_norm", found["d"])
        weight, last = _find_affine(node, "mul", dimensions, graph)
        bias, end = None, last
        if kind == "layer_norm" and weight is not None:
            bias, end = _find_affine(last, "add", dimensions, graph)
        inputs = tuple(name for name in (x, weight, bias) if name is not None)
        return Node(kind, node.name, inputs, end.output, {"dimensions": dimensions, "eps": found["eps"]})
    return None


def read_before_casts(node: Node, graph: Graph) -> Node:
    """A softmax, norm or mean that reads the value before a cast to float32, since its operator computes in
    float32 anyway."""
    return replace(node, inputs=(_skip_casts(node.inputs[0], graph), *node.inputs[1:]))


def find_softmax(node: Node, graph: Graph) -> Node | None:
    """The softmax whose quotient is this node."""
    for found in match_template(_SOFTMAX, node.output, graph, {}):
        inner = match_template(_EXPONENTIAL, found["e"], graph, found)
        if inner and len(found["axes"]) == 1:
            return Node("softmax", node.name, (inner[0]["x"],), node.output, {"axis": found["axes"][0]})
    return None


def _find_affine(node: Node, function: str, dimensions: int, graph: Graph) -> tuple[str | None, Node]:
    """The constant of a row that the only user of a node multiplies by or adds, and that user."""
    row = graph.values[node.output].shape[-dimensions:]
    last = node
    while (user := graph.find_only_user(last.output)) is not None and user.kind == "cast":
        last = user
    if user is None or user.attributes.get("function") != function:
        return None, node
    others = [name for name in user.inputs if name != last.output]
    if len(others) != 1 or not graph.values[others[0]].is_constant:
        return None, node
    value = graph.values[others[0]]
    extra = len(value.shape) - dimensions
    if extra < 0 or value.shape[extra:] != row or any(e != 1 for e in value.shape[:extra]):
        return None, node
    return value.name, user


def _skip_casts(name: str, graph: Graph) -> str:
    """The value before casts between float32 and floats of 16 bits."""
    while (node := graph.producers.get(name)) is not None and node.kind == "cast":
        if not all(graph.values[x].dtype.name in FLOAT_NAMES for x in (node.inputs[0], name)):
            break
        name = node.inputs[0]
    return name


def _read_number(name: str, graph: Graph) -> float | None:
    """The number that a constant is; None for other values."""
    value = graph.values[name]
    return float(convert_number(value)) if value.data is not None and value.size == 1 else None


def join_group_norms(graph: Graph) -> Graph:
    """The graph with written-out group norms as single nodes."""
    return rewrite_nodes(graph, _join_group_norm)


@dataclass(frozen=True)
class _GroupNorm:
    """A group norm: its input, its weight and bias before they are vectors, and where it is written."""

    x: str
    weights: tuple[str, ...]
    attributes: Mapping[str, Any]


def _find_group_norm(node: Node, graph: Graph) -> _GroupNorm | None:
    """The group norm whose last node this is: the reshape, or the sum with a bias."""
    if node.kind == "reshape":
        user = graph.find_only_user(node.output)
        if user is not None and user.attributes.get("function") == "mul":
            total = graph.find_only_user(user.output)
            if total is not None and _find_group_norm(total, graph) is not None:
                return None
        return _find_grouped(node, graph)
    if node.attributes.get("function") != "add":
        return None
    for scaled, bias in (node.inputs, node.inputs[::-1]):
        product = _find_maker(scaled, "mul", graph)
        if product is None or graph.find_only_user(scaled) is None:
            continue
        for normed, weight in (product.inputs, product.inputs[::-1]):
            reshape = _find_maker(normed, "reshape", graph)
            found = _find_grouped(reshape, graph) if reshape is not None else None
            if found is None or graph.find_only_user(normed) is None:
                continue
            if all(_is_per_channel(graph, name, normed) for name in (weight, bias)):
                return replace(found, weights=(weight, bias))
    return None


def _find_grouped(node: Node, graph: Graph) -> _GroupNorm | None:
    """A group norm of [n, groups, ...] with weights of 1 and 0, between two reshapes."""
    norm = _find_maker(node.inputs[0], "group_norm", graph)
    if norm is None or len(norm.inputs) != 3:
        return None
    before = _find_maker(norm.inputs[0], "reshape", graph)
    if before is None or graph.values[before.inputs[0]].shape != graph.values[node.output].shape:
        return None
    one, zero = (graph.values[name].data for name in norm.inputs[1:])
    if one is None or zero is None or np.any(one != 1) or np.any(zero != 0):
        return None
    shape, groups = graph.values[node.output].shape, norm.attributes["groups"]
    is_split = len(shape) > 2 and graph.values[before.output].shape[:2] == (shape[0], groups)
    return _GroupNorm(before.inputs[0], (), norm.attributes) if is_split and shape[1] % groups == 0 else None


def _is_per_channel(graph: Graph, name: str, x: str) -> bool:
    """Whether a value has one element for each channel, and ends with dimensions of 1."""
    shape, full = graph.values[name].shape, graph.values[x].shape
    wide = (1,) * (len(full) - len(shape)) + shape
    return wide == (1, full[1], *(1,) * (len(full) - 2))


def _join_group_norm(edit: GraphEdit, node: Node) -> bool:
    found = _find_group_norm(node, edit.graph) if node.kind in ("reshape", "elementwise") else None
    if found is None:
        return False
    x, channels = edit.find_replacement(found.x), edit.values[node.output].shape[1]
    weights = []
    for name in (edit.find_replacement(weight) for weight in found.weights):
        dtype = edit.values[name].dtype
        weights.append(edit.add_step("reshape", node, (name,), (channels,), dtype))
    edit.add_node("group_norm", node.name, (x, *weights), node.output, **found.attributes)
    return True


def _find_maker(name: str, what: str, graph: Graph) -> Node | None:
    """The node of a kind or function that computes a value."""
    node = graph.producers.get(name)
    if node is None or what not in (node.kind, node.attributes.get("function")):
        return None
    return node


_POINTS = np.linspace(-7, 7, 113)
_LAST_FUNCTIONS = frozenset({"mul", "div", "clamp", "reciprocal", "minimum", "maximum", "add", "sub"})
"""Functions that a written-out activation may end with."""
_CURVED_FUNCTIONS = frozenset(
    {"erf", "tanh", "exp", "sigmoid", "clamp", "hardsigmoid", "relu", "minimum", "maximum"}
)
_MAX_NODES = 14
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-5, 2e-4
"""Largest difference, relative to 1 + |y|, from constants that were rounded to float32 or to 16 bits. The two
forms of gelu differ by more."""


def recognise_patterns(graph: Graph) -> Graph:
    """The graph with composite forms as single nodes."""
    for find in (_replace_activations, _replace_norms, _drop_casts_before_norms):
        graph = find(graph)
    return graph


def _rewrite(graph: Graph, replacements: Mapping[str, Node]) -> Graph:
    """The graph with other nodes for some outputs; nodes without a use are left out."""
    if not replacements:
        return graph
    edit = GraphEdit(graph)
    edit.nodes += [replacements.get(node.output, node) for node in edit.read_nodes()]
    return edit.finish()


def _replace_norms(graph: Graph) -> Graph:
    """Norms and softmax; each from its last node, so that weight and bias belong to it."""
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if node.kind == "elementwise" and node.attributes["function"] in ("mul", "div"):
            norm = find_norm(node, graph) or find_softmax(node, graph)
            if norm is not None:
                found[norm.output] = norm
    return _rewrite(graph, found)


def _drop_casts_before_norms(graph: Graph) -> Graph:
    """Norms and softmax that read 16-bit values themselves."""
    found = {node.output: read_before_casts(node, graph) for node in graph.nodes if node.kind in NORM_KINDS}
    return _rewrite(graph, found)


def _replace_activations(graph: Graph) -> Graph:
    found: dict[str, Node] = {}
    written: set[str] = set()
    for node in reversed(graph.nodes):
        if node.output in written or node.attributes.get("function") not in _LAST_FUNCTIONS:
            continue
        match = _find_activation(node, graph)
        if match is not None:
            source, function, nodes = match
            found[node.output] = Node(
                "elementwise", node.name, (source,), node.output, {"function": function}
            )
            written |= nodes
    return _rewrite(graph, found)


def _find_activation(node: Node, graph: Graph) -> tuple[str, str, set[str]] | None:
    """The value and the function of it that a node is the end of, and the outputs of the nodes between."""
    shape, inside = graph.values[node.output].shape, {node.output: node}
    waiting = _list_tensors(node, graph)
    while waiting and len(inside) < _MAX_NODES:
        if len(waiting) == 1 and len(inside) > 1:
            (source,) = waiting
            function = _recognise_function(source, node, inside, graph)
            if function is not None:
                return source, function, set(inside)
        name = max(waiting, key=lambda n: graph.order.get(n, -1))
        producer = graph.producers.get(name)
        is_pointwise = producer is not None and producer.kind in ("elementwise", "cast")
        if producer is None or not is_pointwise or graph.values[name].shape != shape:
            return None
        if name in graph.outputs or any(u.output not in inside for u in graph.users[name]):
            return None
        inside[name] = producer
        waiting = (waiting - {name}) | _list_tensors(producer, graph)
    return None


def _list_tensors(node: Node, graph: Graph) -> set[str]:
    """The inputs of a node that are no known numbers."""
    values = graph.values
    return {n for n in node.inputs if values[n].data is None or values[n].size > 1}


def _recognise_function(
    source: str,
    last: Node,
    inside: Mapping[str, Node],
    graph: Graph,
) -> str | None:
    """The activation that some nodes compute of one value."""
    functions = {node.attributes.get("function") for node in inside.values()}
    value, result = graph.values[source], graph.values[last.output]
    if not functions & _CURVED_FUNCTIONS or value.shape != result.shape or value.dtype.kind not in "fV":
        return None
    arrays: dict[str, Array] = {source: _POINTS}
    with np.errstate(all="ignore"):
        for output in sorted(inside, key=graph.order.__getitem__):
            node = inside[output]
            operands = [arrays[n] if n in arrays else np.asarray(_read_number(n, graph)) for n in node.inputs]
            if node.kind == "elementwise":
                operands[0] = FUNCTIONS[node.attributes["function"]].evaluate(operands, node.attributes)
            arrays[output] = operands[0]
        y = np.asarray(arrays[last.output], np.float64)
        if y.shape != _POINTS.shape:
            return None
        errors = {name: _measure_difference(name, y) for name in ACTIVATIONS}
    nearest = min(errors, key=errors.__getitem__)
    types = [graph.values[name].dtype for node in inside.values() for name in node.inputs]
    is_short = any(dtype.itemsize == 2 for dtype in types)
    return nearest if errors[nearest] <= (_TOLERANCE_OF_16_BITS if is_short else _TOLERANCE) else None


def _measure_difference(function: str, y: Array) -> float:
    known = FUNCTIONS[function].evaluate([_POINTS], {})
    error = np.max(np.abs(y - known) / (1 + np.abs(known)))
    return float(error) if np.isfinite(error) else np.inf
