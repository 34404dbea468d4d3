"""A graph as calls of layers: anchors with their epilogues, what is left as elementwise operators, and nodes
that no layer computes, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ekc.errors import InvalidInput
from ekc.models.elements import FLOAT_NAMES, MOVE_KINDS, POINTWISE_KINDS, describe_type, find_reason_against
from ekc.models.epilogues import append_nodes
from ekc.models.graph import VIEW_KINDS, Graph, Node, Value, describe_internal_error
from ekc.models.grouping import Grouping, LayerGroup
from ekc.models.layer_plan import find_dense_source, make_input
from ekc.models.model import (
    FusedGraph,
    LayerCall,
    UncoveredNode,
    count_call_bytes,
    count_node_bytes,
    count_node_flops,
)
from ekc.models.regions import build_region

_MAX_READS, _MAX_SHARED_READS = 24, 4
"""Most reads of an expression, and of one that is written several times."""
_MAX_REPETITIONS = 4
"""Times that the element of an expression is computed at most, instead of once in an operator of its own."""
_DEPTH_OF_NODE, _MAX_DEPTH = 6, 90
"""Levels that a node adds to an expression at most, and the most that there may be."""


@dataclass
class _Plan:
    """Calls, and reasons of nodes without one, while a graph is cut into calls."""

    graph: Graph
    grouping: Grouping
    calls: dict[str, LayerCall] = field(default_factory=dict)
    """Calls by the value that they compute."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Output of a node that stays -> why."""
    stored: set[str] = field(default_factory=set)
    """Values that layers read in memory."""
    framework_reads: set[str] = field(default_factory=set)
    """Values that nodes which stay read, and the outputs; views are free for these."""
    kept_views: set[str] = field(default_factory=set)
    constants: dict[str, Value] = field(default_factory=dict)
    """Constants that layers need and the graph lacks."""


def fuse_graph(graph: Graph) -> tuple[FusedGraph, tuple[UncoveredNode, ...]]:
    """The calls of layers that compute a graph, and every node that none of them computes."""
    grouping = Grouping(graph)
    grouping.add_nodes()
    plan = _Plan(graph, grouping, reasons=grouping.reasons)
    plan.framework_reads.update(graph.outputs)
    for group in grouping.groups.values():
        _add_group(plan, group)
    _find_nodes_that_stay(plan)
    _add_regions(plan)
    values = {**graph.values, **plan.constants}
    steps = [
        plan.calls.get(node.output, node)
        for node in graph.nodes
        if node.output in plan.calls or node.output in plan.reasons or node.output in plan.kept_views
    ]
    uncovered = tuple(
        UncoveredNode(
            node.name, node.target, plan.reasons[node.output], count_node_flops(node, values),
            count_node_bytes(node, values), knows_flops=node.kind != "opaque",
        )
        for node in graph.nodes
        if node.output in plan.reasons and node.kind not in VIEW_KINDS
    )  # fmt: skip
    return FusedGraph(replace(graph, values=values), tuple(steps)), uncovered


def _add_group(plan: _Plan, group: LayerGroup) -> None:
    """The call of a layer with its epilogue."""
    values = plan.graph.values
    for name, data in group.plan.constants:
        plan.constants[name] = Value(name, data.shape, data.dtype, True, data)
    op, more = append_nodes(group.plan, group.nodes, plan.graph)
    inputs = (*group.plan.inputs, *more)
    nodes = tuple(group.nodes)
    plan.stored.update(i.value for i in inputs)
    plan.calls[group.output] = LayerCall(
        group.nodes[0].name,
        op,
        inputs,
        group.output,
        nodes,
        sum(count_node_flops(n, values) for n in nodes),
        count_call_bytes(op, inputs, {**values, **plan.constants}),
    )


def _find_nodes_that_stay(plan: _Plan) -> None:
    """Reasons of pointwise nodes that are no expressions, and of those that read stored truth values."""
    values, users = plan.graph.values, plan.graph.users
    for node in plan.graph.nodes:
        if node.kind in POINTWISE_KINDS and node.output not in plan.grouping.inside:
            reason = None if node.kind in VIEW_KINDS else find_reason_against(node, values)
            truths = [n for n in node.inputs if values[n].dtype.name == "bool" and not values[n].is_constant]
            for name in truths if reason is None else ():
                producer = plan.graph.producers.get(name)
                is_written = producer is not None and producer.output not in plan.reasons
                if not is_written or len(users[name]) != 1 or name in plan.graph.outputs:
                    reason = "ekc stores no truth values"
            if reason:
                plan.reasons[node.output] = reason
    for node in plan.graph.nodes:
        if node.output in plan.reasons:
            plan.framework_reads.update(node.inputs)


def _add_regions(plan: _Plan) -> None:
    """Calls of operators for the pointwise nodes in no layer."""
    members = _assign_regions(plan)
    for root, found in members.items():
        nodes = sorted(found, key=lambda node: plan.graph.order[node.output])
        try:
            plan.calls[root] = _make_region_call(plan, nodes)
        except Exception as problem:
            reason = str(problem) if isinstance(problem, InvalidInput) else describe_internal_error(problem)
            for node in nodes:
                if node.kind in VIEW_KINDS:
                    plan.kept_views.add(node.output)
                else:
                    plan.reasons[node.output] = reason


def _assign_regions(plan: _Plan) -> dict[str, list[Node]]:
    """The pointwise nodes of each operator by its output, from the last node of the graph to the first.

    A node with one reader joins the operator of that reader. A move joins the operator of every reader. A
    value that is read from memory gets an operator of its own.
    """
    values, must_store = plan.graph.values, _find_large_expressions(plan)
    members: dict[str, list[Node]] = {}
    wanting: dict[str, set[str]] = {}
    for node in reversed(plan.graph.nodes):
        name, readers = node.output, wanting.get(node.output, set())
        if node.kind not in POINTWISE_KINDS or name in plan.grouping.inside or name in plan.reasons:
            continue
        is_view = node.kind in VIEW_KINDS
        if is_view and _keep_view(plan, node) and not readers:
            continue
        is_read = name in plan.stored or (name in plan.framework_reads and not is_view)
        if not is_read and not readers:
            continue
        is_wide = any(_MAX_REPETITIONS * values[name].size < values[root].size for root in readers)
        is_inlined = node.kind in MOVE_KINDS or (len(readers) == 1 and not is_wide)
        owners = readers
        if is_read or not is_inlined or name in must_store:
            owners = {name}
            if values[name].dtype.name not in FLOAT_NAMES:
                plan.reasons[name] = (
                    "ekc stores no truth values"
                    if values[name].dtype.name == "bool"
                    else describe_type(values[name].dtype.name)
                )
                plan.framework_reads.update(node.inputs)
                continue
        for root in owners:
            members.setdefault(root, []).append(node)
        for source in node.inputs:
            wanting.setdefault(source, set()).update(owners)
    return members


def _keep_view(plan: _Plan, node: Node) -> bool:
    """Whether a view moves nothing: where the framework reads it, and where a layer reads the elements in the
    order in which they are stored already."""
    source = find_dense_source(plan.graph, node.output)
    if node.output in plan.framework_reads:
        plan.kept_views.add(node.output)
        plan.framework_reads.add(node.inputs[0])
    if source != node.output and node.output in plan.stored:
        plan.stored.discard(node.output)
        plan.stored.add(source)
    return node.output not in plan.stored


def _find_large_expressions(plan: _Plan) -> set[str]:
    """Values whose expressions would be too long to be written where they are read."""
    reads: dict[str, int] = {}
    depths: dict[str, int] = {}
    large: set[str] = set()
    for node in plan.graph.nodes:
        if node.kind not in POINTWISE_KINDS or node.output in plan.grouping.inside:
            continue
        count = sum(reads.get(name, 1) for name in node.inputs)
        depth = max(depths.get(name, 0) for name in node.inputs) + _DEPTH_OF_NODE
        uses = len(plan.graph.users[node.output])
        if count > _MAX_READS or depth > _MAX_DEPTH or (uses > 1 and count > _MAX_SHARED_READS):
            large.add(node.output)
            count, depth = 1, 0
        reads[node.output], depths[node.output] = count, depth
    return large


def _make_region_call(plan: _Plan, nodes: list[Node]) -> LayerCall:
    root, index = nodes[-1], plan.graph
    region = build_region(root, nodes, index.values, index.producers)
    inputs = []
    for name, spec in zip(region.reads, region.op.inputs, strict=True):
        source = find_dense_source(index, name)
        known = source if source in plan.calls or source not in index.producers else name
        inputs.append(make_input(index.values[known], spec.shape, spec.dtype.name))
    flops = sum(count_node_flops(n, index.values) for n in nodes)
    size = count_call_bytes(region.op, inputs, index.values)
    return LayerCall(root.name, region.op, tuple(inputs), root.output, tuple(nodes), flops, size)
