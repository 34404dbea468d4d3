"""Attention as products and a softmax: scores with their scale and mask, softmax, and the weighted sum.

Query heads that share a key-value head become rows of one product, as keys and values are expanded views.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekc.models.graph import Graph, Node
from ekc.models.graph_edit import GraphEdit


def lower_attention(graph: Graph) -> Graph:
    """The graph with every attention node as the nodes that compute it."""
    edit = GraphEdit(graph)
    for node in edit.read_nodes():
        if node.kind == "attention":
            _lower_node(edit, node)
        else:
            edit.nodes.append(node)
    return edit.finish()


def _lower_node(edit: GraphEdit, attention: Node) -> None:
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
