"""A model from a graph: the graph cut into calls of layers, what is left as elementwise operators, and nodes
that no layer computes, each with its reason. The cut graph can be executed layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ekc.errors import InvalidInput
from ekc.file_limits import UNPACKED_BYTES, UnpackBudget
from ekc.models.constants import fold_constants
from ekc.models.elements import FLOAT_NAMES, MOVE_KINDS, POINTWISE_KINDS, describe_type, find_reason_against
from ekc.models.epilogues import append_nodes, build_region
from ekc.models.evaluate import evaluate_node, read_values, start_evaluation
from ekc.models.functions import Array
from ekc.models.graph import VIEW_KINDS, Graph, Node, Value, describe_internal_error, parse_value_dtype
from ekc.models.grouping import Grouping, LayerGroup
from ekc.models.layer_plan import find_dense_source, make_input
from ekc.models.model import (
    FusedGraph,
    LayerCall,
    LayerInput,
    LayerUse,
    Model,
    ModelLayer,
    UncoveredNode,
    compute_coverage,
    count_call_bytes,
    count_node_bytes,
    count_node_flops,
    merge_uncovered,
)
from ekc.models.patterns import recognise_patterns
from ekc.models.score_patterns import lower_attention, simplify_scores, split_turned_operands

GROWTH = 16
"""Constants may be folded into this many times the bytes that the file of a model holds: int8 to float32 in a
few steps."""


def build_model(graph: Graph) -> Model:
    """The model to tune. Raises `InvalidInput` where no layer covers anything."""
    model, uncovered = derive_layers(graph)
    if model.layers:
        return model
    if not uncovered:
        raise InvalidInput(
            f"{graph.name}: no arithmetic on its inputs: the outputs are constants, or moved elements"
        )
    first = max(uncovered, key=lambda node: (node.flops, node.bytes))
    raise InvalidInput(f"{graph.name}: no layer to tune; {first.target} ({first.name}): {first.reason}")


def derive_layers(graph: Graph) -> tuple[Model, tuple[UncoveredNode, ...]]:
    """The model of a graph, which may have no layer, and every node that none covers: constants folded,
    patterns recognised, elementwise nodes fused into layers, equal layers once."""
    budget = UnpackBudget(UNPACKED_BYTES + GROWTH * graph.file_bytes)
    graph = recognise_patterns(fold_constants(graph, budget))
    graph = simplify_scores(fold_constants(lower_attention(graph), budget))
    graph = fold_constants(split_turned_operands(graph), budget)
    fused, uncovered = fuse_graph(graph)
    calls = [step for step in fused.steps if isinstance(step, LayerCall)]
    model = Model(
        graph.name,
        _merge_calls(calls, graph.name),
        merge_uncovered(uncovered),
        compute_coverage(fused, uncovered),
        graph.notes,
        fused,
    )
    return model, uncovered


def _merge_calls(calls: Sequence[LayerCall], model: str) -> tuple[ModelLayer, ...]:
    """Each distinct operator with the names under which the model calls it."""
    operators = {call.op.digest: call.op for call in calls}
    counts: dict[str, dict[str, int]] = {digest: {} for digest in operators}
    for call in calls:
        own = counts[call.op.digest]
        own[call.name] = own.get(call.name, 0) + 1
    return tuple(
        ModelLayer(op, tuple(LayerUse(name, model, count) for name, count in counts[digest].items()))
        for digest, op in operators.items()
    )


def execute_fused(fused: FusedGraph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a fused graph, each call by the reference of its operator, other nodes in NumPy."""
    graph = fused.graph
    arrays = start_evaluation(graph, inputs)
    for step in fused.steps:
        if isinstance(step, LayerCall):
            arrays[step.output] = _execute_call(step, graph, arrays)
        else:
            found = read_values(graph, step.inputs, arrays)
            arrays[step.output] = evaluate_node(step, found, graph.values)
    return tuple(read_values(graph, graph.outputs, arrays))


def _execute_call(call: LayerCall, graph: Graph, arrays: Mapping[str, Array]) -> Array:
    found = read_values(graph, [i.value for i in call.inputs], arrays)
    operands = [apply_views(array, i) for array, i in zip(found, call.inputs, strict=True)]
    with np.errstate(all="ignore"):
        result = np.asarray(call.op.reference(*operands))
    return np.ascontiguousarray(result).reshape(graph.values[call.output].shape)


def apply_views(array: Array, given: LayerInput) -> Array:
    """An array seen through the views of an input, stored row by row."""
    for kind, what in given.views:
        match kind:
            case "reshape":
                array = array.reshape(what)
            case "permute":
                array = array.transpose(what)
            case "expand":
                array = np.broadcast_to(array, what)
            case "cast":
                array = array.astype(parse_value_dtype(given.value, what))
    return np.ascontiguousarray(array)


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
    _note_nodes_that_stay(plan)
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
    plan.constants.update(
        (name, Value(name, data.shape, data.dtype, True, data)) for name, data in group.plan.constants
    )
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


def _note_nodes_that_stay(plan: _Plan) -> None:
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
    values, must_store = plan.graph.values, _list_large_expressions(plan)
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


def _list_large_expressions(plan: _Plan) -> set[str]:
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
