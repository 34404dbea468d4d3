"""Attention as matrix products and a softmax, and what exporters write out in the same form.

(q * c) @ (k * c)                     (q @ k) * c**2
scores + mask, a constant             scores, or those on and below a diagonal
where(isnan(y), 0, y), y a softmax    y, where no row is masked as a whole
"""

from __future__ import annotations

from dataclasses import replace
from math import copysign
from typing import Any

import ml_dtypes
import numpy as np

from ekc.models.elements import TRACED_KINDS, convert_number
from ekc.models.graph import Graph, GraphEdit, Node, rewrite_nodes
from ekc.models.patterns import match_template

_NOTE = "attention is computed as two products and a softmax, with its score matrix in memory"
_LOWEST = -1e4
"""Summands from here down count as a mask: the exponential of a score so low is 0. Float16 goes to -65504."""
_ROUNDING = 5e-7
"""Relative error of a product of numbers that were rounded to float32."""

_GUARDED = [
    ("where", ("not_equal", "y", "y"), "zero", "y"),
    ("where", ("logical_not", ("equal", "y", "y")), "zero", "y"),
]


def simplify_scores(graph: Graph) -> Graph:
    """The graph with scales behind products, masks by index and softmax without guards."""
    for change in (_move_scales, _replace_mask, _drop_guard):
        graph = rewrite_nodes(graph, change)
    graph = _drop_zeros(graph)
    softmaxes = [node for node in graph.nodes if node.kind == "softmax"]
    has_scores = any(user.kind == "matmul" for node in softmaxes for user in graph.users[node.output])
    return replace(graph, notes=(*graph.notes, _NOTE)) if has_scores else graph


def _move_scales(edit: GraphEdit, node: Node) -> bool:
    """Numbers that the operands of a product are multiplied by become one behind the product."""
    graph = edit.graph
    scales = [_find_scale(name, graph) for name in node.inputs] if node.kind == "matmul" else []
    if not any(scales):
        return False
    inputs, number = list(node.inputs), 1.0
    for place, chain in enumerate(scales):
        if chain is not None:
            inputs[place] = _copy_views(edit, chain[:-1], _find_factors(chain[-1], graph)[0])
            number *= _find_factors(chain[-1], graph)[1]
    output = edit.values[node.output]
    product = edit.add_step("matmul", node, inputs, output.shape, output.dtype)
    data = np.asarray(_restore_root(number, edit.values[inputs[0]].shape[-1], output.dtype))
    scale = edit.add_value(f"{node.output}.scale", (), data.dtype, is_constant=True, data=data)
    edit.add_node("elementwise", node.name, (product, scale), node.output, function="mul")
    return True


def _find_scale(name: str, graph: Graph) -> list[Node] | None:
    """The views of an operand, the last first, and the product with a number that they are views of."""
    chain: list[Node] = []
    while (node := graph.producers.get(name)) is not None and graph.find_only_user(name) is not None:
        chain.append(node)
        if node.kind not in TRACED_KINDS:
            break
        name = node.inputs[0]
    last = chain[-1] if chain else None
    is_scaled = last is not None and last.attributes.get("function") == "mul"
    return chain if last is not None and is_scaled and _find_factors(last, graph)[0] else None


def _find_factors(node: Node, graph: Graph) -> tuple[str, float]:
    """The tensor and the number that a node multiplies; "" where neither operand is a number."""
    for x, number in (node.inputs, node.inputs[::-1]):
        value = graph.values[number]
        is_number = value.data is not None and value.size == 1
        if is_number and graph.values[x].shape == graph.values[node.output].shape:
            return x, float(convert_number(value))
    return "", 1.0


def _copy_views(edit: GraphEdit, views: list[Node], name: str) -> str:
    """The same views of another value."""
    for node in reversed(views):
        shape, dtype = edit.values[node.output].shape, edit.values[name].dtype
        name = edit.add_step(node.kind, node, (name,), shape, dtype, **node.attributes)
    return name


def _restore_root(number: float, width: int, dtype: np.dtype[Any]) -> float:
    """The inverse root of a whole number that the product of two rounded fourth roots is: of the width of a
    head, where they were rounded to 16 bits."""
    if dtype.itemsize == 2:
        rounding = 2 * float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
        exact = width**-0.5
        return copysign(exact, number) if abs(exact - abs(number)) < rounding * exact else number
    whole = round(1 / number**2) if 1e-3 < abs(number) <= 1 else 0
    exact = whole**-0.5 if whole else 0.0
    return copysign(exact, number) if whole and abs(exact / abs(number) - 1) < _ROUNDING else number


def _replace_mask(edit: GraphEdit, node: Node) -> bool:
    """A constant that is added before a softmax, or chosen by: nothing where it masks nothing, and by index
    where it masks what is above a diagonal."""
    user, shape = edit.graph.find_only_user(node.output), edit.values[node.output].shape
    found = _find_mask(node, edit.graph) if user is not None and user.kind == "softmax" else None
    if found is None or edit.values[found[0]].shape != shape:
        return False
    scores, kept = found
    offset = _measure_diagonal_offset(kept, shape[-2:])
    if kept.all():
        edit.aliases[node.output] = scores
    elif offset is not None:
        attributes = {"function": "causal_mask", "offset": offset}
        edit.nodes.append(replace(node, inputs=(scores,), attributes=attributes))
    return bool(kept.all()) or offset is not None


def _find_mask(node: Node, graph: Graph) -> tuple[str, np.ndarray] | None:
    """The scores that a node masks, and which of them it keeps; None for a node that does something else."""
    function = node.attributes.get("function")
    if function == "add":
        for scores, mask in (node.inputs, node.inputs[::-1]):
            data = graph.values[mask].data
            if data is None or graph.values[mask].size < 2:
                continue
            data = data.astype(np.float64)
            if np.all((data == 0) | (data <= _LOWEST)):
                return scores, data == 0
    if function == "where":
        chosen, kept, low = (graph.values[name] for name in node.inputs)
        if chosen.data is not None and low.data is not None and low.size == 1:
            is_low = float(low.data.astype(np.float64).reshape(())) <= _LOWEST
            return (kept.name, chosen.data.astype(bool)) if is_low else None
    return None


def _measure_diagonal_offset(kept: np.ndarray, shape: tuple[int, ...]) -> int | None:
    """The offset of the diagonal above which a mask keeps nothing; None for another mask."""
    if kept.ndim < 2 or kept.shape[-2:] != shape or kept.size != kept.shape[-2] * kept.shape[-1]:
        return None
    matrix = kept.reshape(shape)
    offset = int(matrix[0].sum()) - 1
    rows, columns = np.indices(shape, sparse=True)
    return offset if offset >= 0 and np.array_equal(matrix, columns <= rows + offset) else None


def _drop_guard(edit: GraphEdit, node: Node) -> bool:
    """where(isnan(y), 0, y) as y, y being a softmax of scores whose rows all keep some score."""
    y = _find_guarded(node, edit.graph)
    softmax = edit.graph.producers.get(y) if y is not None else None
    if y is None or softmax is None or not _keeps_some(softmax, edit.graph):
        return False
    edit.aliases[node.output] = y
    return True


def _drop_zeros(graph: Graph) -> Graph:
    """A softmax that gives 0 for masked rows as a plain one, where no row is masked as a whole."""
    nodes = (
        replace(node, attributes={"axis": node.attributes["axis"]})
        if node.attributes.get("zeros_masked_rows") and _keeps_some(node, graph)
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def _find_guarded(node: Node, graph: Graph) -> str | None:
    """y of where(y != y, 0, y). A y that is rounded before the choice stays: casts are part of the model."""
    if node.attributes.get("function") != "where":
        return None
    for found in match_template(_GUARDED, node.output, graph, {}):
        y, zero = graph.values[found["y"]], graph.values[found["zero"]].data
        if y.dtype == graph.values[node.output].dtype and zero is not None and not np.any(zero.astype(float)):
            return y.name if y.name in node.inputs else None
    return None


def _keeps_some(softmax: Node, graph: Graph) -> bool:
    """Whether no row of a softmax is masked as a whole, as far as a mask is a constant; other masks may."""
    node = graph.producers.get(softmax.inputs[0])
    while node is not None and (node.kind in ("cast", "reshape") or _is_scale(node, graph)):
        name = _find_factors(node, graph)[0] if _is_scale(node, graph) else node.inputs[0]
        node = graph.producers.get(name)
    if softmax.kind != "softmax" or node is None:
        return False
    if node.attributes.get("function") == "causal_mask":
        return bool(node.attributes["offset"] >= 0)
    mask = _find_mask(node, graph)
    return node.kind == "matmul" or (mask is not None and bool(mask[1].any(-1).all()))


def _is_scale(node: Node, graph: Graph) -> bool:
    return node.attributes.get("function") == "mul" and bool(_find_factors(node, graph)[0])


def lower_attention(graph: Graph) -> Graph:
    """The graph with every attention node as the nodes that compute it."""
    return rewrite_nodes(graph, _lower_node)


def _lower_node(edit: GraphEdit, attention: Node) -> bool:
    if attention.kind != "attention":
        return False
    node = replace(attention, name=f"{attention.name}.scores")
    q, k, v, *mask = node.inputs
    dtype, options = edit.values[q].dtype, node.attributes
    k, v = (_expand_heads(edit, node, q, x) for x in (k, v))
    order = tuple(range(len(edit.values[k].shape)))
    turned = (*order[:-2], order[-1], order[-2])
    keys = edit.values[k].shape
    kt = edit.add_step("permute", node, (k,), tuple(keys[d] for d in turned), dtype, order=turned)
    batch = np.broadcast_shapes(edit.values[q].shape[:-2], keys[:-2])
    shape = (*batch, edit.values[q].shape[-2], keys[-2])
    scores = edit.add_step("matmul", node, (q, kt), shape, dtype)
    if options["scale"] != 1:
        number = np.asarray(float(options["scale"]))
        scale = edit.add_value(f"{node.output}.scale", (), number.dtype, is_constant=True, data=number)
        scores = edit.add_step("elementwise", node, (scores, scale), shape, dtype, function="mul")
    if options.get("is_causal"):
        scores = edit.add_step("elementwise", node, (scores,), shape, dtype, function="causal_mask", offset=0)
    if mask:
        scores = _apply_mask(edit, node, scores, mask[0])
    node = replace(attention, name=f"{attention.name}.softmax")
    # Without a mask no row is empty: the diagonal that causal attention masks by begins at the first key.
    own = {"zeros_masked_rows": True} if mask else {}
    weights = edit.add_step("softmax", node, (scores,), shape, dtype, axis=len(shape) - 1, **own)
    edit.add_node("matmul", f"{attention.name}.context", (weights, v), attention.output)
    return True


def _expand_heads(edit: GraphEdit, node: Node, q: str, x: str) -> str:
    """Keys or values once for each query head, as views."""
    heads, value = edit.values[q].shape[-3:-2], edit.values[x]
    own = value.shape[-3:-2]
    if heads == own or not own or own[0] == 1:
        return x
    before, after = value.shape[:-2], value.shape[-2:]
    shared = heads[0] // own[0]
    x = edit.add_step("reshape", node, (x,), (*before, 1, *after), value.dtype)
    x = edit.add_step("expand", node, (x,), (*before, shared, *after), value.dtype)
    return edit.add_step("reshape", node, (x,), (*before[:-1], heads[0], *after), value.dtype)


def _apply_mask(edit: GraphEdit, node: Node, scores: str, mask: str) -> str:
    value, to_mask = edit.values[scores], edit.values[mask]
    if to_mask.dtype != np.dtype(bool):
        return edit.add_step("elementwise", node, (scores, mask), value.shape, value.dtype, function="add")
    lowest = np.asarray(-np.inf, np.float32)
    low = edit.add_value(f"{node.output}.lowest", (), lowest.dtype, is_constant=True, data=lowest)
    return edit.add_step("elementwise", node, (mask, scores, low), value.shape, value.dtype, function="where")


def split_turned_operands(graph: Graph) -> Graph:
    """Each permute that also turns the matrices of a product's operand as two: one that orders heads and
    positions, and the turn itself, which becomes a flag of the product.

    Exporters write keys as one permute from [n, t, h, d] to [n, h, d, t], or as two. Both give [h, t, d].
    """
    operands = {name for node in graph.nodes if node.kind == "matmul" for name in node.inputs}
    edit = GraphEdit(graph)
    for node in edit.read_nodes():
        order = tuple(node.attributes.get("order", ()))
        is_turned = len(order) > 2 and order[-2] > order[-1] and order[:-2] != tuple(range(len(order) - 2))
        if node.kind != "permute" or node.output not in operands or not is_turned:
            edit.nodes.append(node)
            continue
        shape = edit.values[node.inputs[0]].shape
        first = (*order[:-2], order[-1], order[-2])
        dtype = edit.values[node.output].dtype
        straight = edit.add_step("permute", node, node.inputs, [shape[d] for d in first], dtype, order=first)
        last = len(order) - 1
        edit.add_node(
            "permute", node.name, (straight,), node.output, order=(*range(last - 1), last, last - 1)
        )
    return edit.finish()
