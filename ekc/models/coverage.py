"""How much work a node is, and the shares of a model that layers cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ekc.ir.operator import Operator
from ekc.models.graph import VIEW_KINDS, Node, Value
from ekc.models.model import Coverage, FusedGraph, LayerCall, LayerInput, UncoveredNode

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
        case "conv":
            weight = values[node.inputs[1]]
            flops = 2.0 * output.size * prod(weight.shape[1:])
            return flops + (output.size if len(node.inputs) > 2 else 0)
        case "conv_transpose":
            x, weight = (values[name] for name in node.inputs[:2])
            flops = 2.0 * x.size * prod(weight.shape[1:])
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
