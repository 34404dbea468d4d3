"""Composite forms that exporters write out, as one node again: activations, norms and softmax.

An activation is recognised by its numbers: the elementwise nodes between two values are evaluated at some
points, and are replaced where they give what a known function gives. So it does not matter in which order a
framework multiplies, or by which identity it writes a sigmoid.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ekc.models.functions import ACTIVATIONS, FUNCTIONS, Array
from ekc.models.graph import Graph, GraphEdit, Node
from ekc.models.norm_patterns import NORM_KINDS, find_norm, find_softmax, read_before_casts

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
            operands = [arrays[n] if n in arrays else _read_number(n, graph) for n in node.inputs]
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


def _read_number(name: str, graph: Graph) -> Array:
    data = graph.values[name].data
    assert data is not None
    return data.astype(np.float64).reshape(())
