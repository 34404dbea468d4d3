"""Constants folded, batch norms folded into the weights before them, nodes that change nothing left out.

A constant without elements stays one: folding then gives its shape alone, so that a model of shapes is
read as one with weights is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekc.file_limits import UnpackBudget
from ekc.models.evaluate import evaluate_node
from ekc.models.functions import Array
from ekc.models.graph import VIEW_KINDS, Graph, GraphEdit, Node, Value


def fold_constants(graph: Graph, budget: UnpackBudget | None = None) -> Graph:
    """The graph with what its constants decide computed, as far as `budget` allows; `UnpackBudget()` without
    one. A node whose result is too large stays."""
    edit, budget = GraphEdit(graph), budget or UnpackBudget()
    use_counts = {name: len(users) for name, users in graph.users.items()}
    for name in graph.outputs:
        use_counts[name] += 1
    places: dict[str, int] = {}
    for node in edit.read_nodes():
        if _can_fold(node, edit.values) and budget.take(bytes=_count_new_bytes(node, edit.values)):
            _fold_node(edit, node)
        elif _changes_nothing(node, edit.values):
            edit.aliases[node.output] = node.inputs[0]
            use_counts[node.inputs[0]] += use_counts[node.output] - 1
        elif node.kind == "batch_norm" and all(edit.values[name].is_constant for name in node.inputs[1:]):
            _fold_batch_norm(edit, node, places, use_counts)
        else:
            places[node.output] = len(edit.nodes)
            edit.nodes.append(node)
    return edit.finish()


def _can_fold(node: Node, values: dict[str, Value]) -> bool:
    return node.kind != "opaque" and all(values[name].is_constant for name in node.inputs)


def _count_new_bytes(node: Node, values: dict[str, Value]) -> int:
    """Bytes that the result of a node of constants takes; a view and a result without elements take none."""
    has_elements = all(values[name].data is not None for name in node.inputs)
    return values[node.output].bytes if has_elements and node.kind not in VIEW_KINDS else 0


def _fold_node(edit: GraphEdit, node: Node) -> None:
    """The output of a node becomes a constant."""
    output = edit.values[node.output]
    data = _read_data(edit, node.inputs)
    result = None if data is None else evaluate_node(node, data, edit.values)
    edit.values[node.output] = replace(output, is_constant=True, data=result)


def _read_data(edit: GraphEdit, names: tuple[str, ...]) -> list[Array] | None:
    """Elements of constants; None where some have none."""
    found = [edit.values[name].data for name in names]
    return [data for data in found if data is not None] if all(d is not None for d in found) else None


def _changes_nothing(node: Node, values: dict[str, Value]) -> bool:
    """Whether the output of a node is its first input."""
    options, output = node.attributes, values[node.output]
    source = values[node.inputs[0]] if node.inputs else output
    if source.shape != output.shape or source.dtype != output.dtype:
        return False
    match node.kind:
        case "cast" | "reshape" | "expand" | "slice" | "copy":
            return node.kind != "slice" or options["step"] > 0
        case "permute":
            moved = [d for d in options["order"] if source.shape[d] > 1]
            return moved == sorted(moved)
        case "concat":
            return len(node.inputs) == 1
        case "pad":
            return not any(map(any, options["padding"]))
        case "resize":
            return set(options["factors"]) == {1}
    return False


def _fold_batch_norm(edit: GraphEdit, node: Node, places: dict[str, int], use_counts: dict[str, int]) -> None:
    """Fold a batch norm into the weight and bias of the convolution before it; where there is none, it
    becomes a product and a sum."""
    x = edit.values[node.inputs[0]]
    place = places.get(x.name)
    scale, shift = _compute_scale_and_shift(edit, node)
    if place is not None and use_counts[x.name] == 1 and _can_scale_weight(edit, edit.nodes[place]):
        edit.nodes[place] = _scale_contraction(edit, edit.nodes[place], node, scale, shift)
        places[node.output] = place
        return
    shape = (x.shape[1], *(1,) * (len(x.shape) - 2))
    names = []
    for what, part in (("scale", scale), ("shift", shift)):
        data = None if part is None else part.reshape(shape).astype(x.dtype)
        names.append(edit.add_value(f"{node.output}.{what}", shape, x.dtype, is_constant=True, data=data))
    scaled = edit.add_step("elementwise", node, (x.name, names[0]), x.shape, x.dtype, function="mul")
    edit.add_node("elementwise", node.name, (scaled, names[1]), node.output, function="add")


def _compute_scale_and_shift(edit: GraphEdit, node: Node) -> tuple[Array, Array] | tuple[None, None]:
    """Factor and summand of each channel, in float64; None where the constants have no elements."""
    data = _read_data(edit, node.inputs[1:])
    if data is None:
        return None, None
    weight, bias, mean, variance = (a.astype(np.float64) for a in data)
    scale = weight / np.sqrt(variance + node.attributes["eps"])
    return scale, bias - mean * scale


def _can_scale_weight(edit: GraphEdit, before: Node) -> bool:
    """Whether the channels of a contraction's output can be scaled in its weight."""
    is_plain = before.kind == "conv_transpose" and before.attributes["groups"] == 1
    is_constant = all(edit.values[name].is_constant for name in before.inputs[1:])
    return is_constant and (is_plain or before.kind == "conv")


def _scale_contraction(
    edit: GraphEdit, before: Node, norm: Node, scale: Array | None, shift: Array | None
) -> Node:
    """A convolution that gives the output of the batch norm behind it."""
    old = edit.values[before.inputs[1]]
    channel = 1 if before.kind == "conv_transpose" else 0
    data = _read_data(edit, before.inputs[1:])
    weight = bias = None
    if data is not None and scale is not None and shift is not None:
        along = [-1 if d == channel else 1 for d in range(len(old.shape))]
        weight = (data[0].astype(np.float64) * scale.reshape(along)).astype(old.dtype)
        bias = (shift + scale * data[1] if len(data) > 1 else shift).astype(old.dtype)
    names = (
        edit.add_value(f"{old.name}.folded", old.shape, old.dtype, is_constant=True, data=weight),
        edit.add_value(f"{norm.output}.bias", (old.shape[channel],), old.dtype, is_constant=True, data=bias),
    )
    return replace(before, inputs=(before.inputs[0], *names), output=norm.output)
