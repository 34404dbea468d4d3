"""Products with a transposed weight, and a bias added, as the one function of PyTorch that they came from."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx


def restore_linear_calls(graph: fx.Graph, root: torch.nn.Module) -> None:
    """Replace `matmul(x, weight) + bias`, where the weight is a transposed view, by `linear(x, weight.T,
    bias)`, which PyTorch computes in one kernel. The reader of a module had taken it to pieces."""
    for node in list(graph.nodes):
        weight = _find_transposed_weight(node, root)
        if weight is None:
            continue
        last, bias = node, None
        if len(node.users) == 1:
            (user,) = node.users
            other = _find_addend(user, node)
            if other is not None and _find_shape(other, root) == (weight.shape[0],):
                last, bias = user, other
        attribute = f"{node.args[1].target}_transposed"
        root.register_buffer(attribute, weight)
        with graph.inserting_before(last):
            read = graph.get_attr(attribute)
            made = graph.create_node("call_function", F.linear, (node.args[0], read, bias), {}, node.name)
        last.replace_all_uses_with(made)
        for old in dict.fromkeys((last, node)):
            graph.erase_node(old)


def _find_transposed_weight(node: fx.Node, root: torch.nn.Module) -> torch.Tensor | None:
    """The weight of a product as `linear` takes it; None for any other node."""
    if node.op != "call_function" or node.target is not torch.matmul:
        return None
    source = node.args[1]
    if len(_find_shape(source, root) or ()) != 2:
        return None
    weight: torch.Tensor = getattr(root, str(source.target)).T
    return weight if weight.is_contiguous() else None


def _find_addend(node: fx.Node, product: fx.Node) -> fx.Node | None:
    """The value that is added to a product; None where the node is no sum of two values."""
    if node.op != "call_function" or node.target is not torch.add or node.args[0] is not product:
        return None
    return node.args[1] if isinstance(node.args[1], fx.Node) else None


def _find_shape(node: Any, root: torch.nn.Module) -> tuple[int, ...] | None:
    """The shape of a weight; None for other nodes."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    return tuple(getattr(root, str(node.target)).shape)
