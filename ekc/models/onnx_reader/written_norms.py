"""Group norms that exporters write as an instance norm of groups, weight and bias behind it, as one node.

reshape(instance_norm(reshape(x, [n, groups, ...]), 1, 0), shape of x) * weight + bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.models.graph import Graph, Node
from ekc.models.graph_edit import GraphEdit
from ekc.models.layer_plan import GraphIndex


def join_group_norms(graph: Graph) -> Graph:
    """The graph with written-out group norms as single nodes."""
    index, edit = GraphIndex(graph), GraphEdit(graph)
    for node in edit.read_nodes():
        norm = _find_group_norm(node, index) if node.kind in ("reshape", "elementwise") else None
        if norm is not None:
            _write_group_norm(edit, node, norm)
        else:
            edit.nodes.append(node)
    return edit.finish()


@dataclass(frozen=True)
class _GroupNorm:
    """A group norm: its input, its weight and bias before they are vectors, and where it is written."""

    x: str
    weights: tuple[str, ...]
    attributes: Mapping[str, Any]


def _find_group_norm(node: Node, index: GraphIndex) -> _GroupNorm | None:
    """The group norm whose last node this is: the reshape, or the sum with a bias."""
    if node.kind == "reshape":
        user = index.find_only_user(node.output)
        if user is not None and user.attributes.get("function") == "mul":
            total = index.find_only_user(user.output)
            if total is not None and _find_group_norm(total, index) is not None:
                return None
        return _find_grouped(node, index)
    if node.attributes.get("function") != "add":
        return None
    for scaled, bias in (node.inputs, node.inputs[::-1]):
        product = _find_producer(scaled, "mul", index)
        if product is None or not _is_private(scaled, index):
            continue
        for normed, weight in (product.inputs, product.inputs[::-1]):
            reshape = _find_producer(normed, "reshape", index)
            found = _find_grouped(reshape, index) if reshape is not None else None
            if found is None or not _is_private(normed, index):
                continue
            if all(_is_per_channel(index, name, normed) for name in (weight, bias)):
                return replace(found, weights=(weight, bias))
    return None


def _find_grouped(node: Node, index: GraphIndex) -> _GroupNorm | None:
    """A group norm of [n, groups, ...] with weights of 1 and 0, between two reshapes."""
    norm = _find_producer(node.inputs[0], "group_norm", index)
    if norm is None or len(norm.inputs) != 3:
        return None
    before = _find_producer(norm.inputs[0], "reshape", index)
    if before is None or index.values[before.inputs[0]].shape != index.values[node.output].shape:
        return None
    one, zero = (index.values[name].data for name in norm.inputs[1:])
    if one is None or zero is None or np.any(one != 1) or np.any(zero != 0):
        return None
    shape, groups = index.values[node.output].shape, norm.attributes["groups"]
    is_split = len(shape) > 2 and index.values[before.output].shape[:2] == (shape[0], groups)
    return _GroupNorm(before.inputs[0], (), norm.attributes) if is_split and shape[1] % groups == 0 else None


def _is_per_channel(index: GraphIndex, name: str, x: str) -> bool:
    """Whether a value has one element for each channel, and ends with dimensions of 1."""
    shape, full = index.values[name].shape, index.values[x].shape
    wide = (1,) * (len(full) - len(shape)) + shape
    return wide == (1, full[1], *(1,) * (len(full) - 2))


def _write_group_norm(edit: GraphEdit, node: Node, found: _GroupNorm) -> None:
    x, channels = edit.find_replacement(found.x), edit.values[node.output].shape[1]
    weights = []
    for name in (edit.find_replacement(weight) for weight in found.weights):
        dtype = edit.values[name].dtype
        weights.append(edit.add_step("reshape", node, (name,), (channels,), dtype))
    edit.add_node("group_norm", node.name, (x, *weights), node.output, **found.attributes)


def _find_producer(name: str, what: str, index: GraphIndex) -> Node | None:
    """The node of a kind or function that computes a value."""
    node = index.producers.get(name)
    if node is None or what not in (node.kind, node.attributes.get("function")):
        return None
    return node


def _is_private(name: str, index: GraphIndex) -> bool:
    """Whether one node reads a value, which is no output of the graph."""
    return index.find_only_user(name) is not None
