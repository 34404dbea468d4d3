"""A model from a graph, and its graph executed layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ekc.errors import InvalidInput
from ekc.file_limits import UNPACKED_BYTES, UnpackBudget
from ekc.models.constants import fold_constants
from ekc.models.evaluate import evaluate_node, read_values, start_evaluation
from ekc.models.functions import Array
from ekc.models.fuse import fuse_graph
from ekc.models.graph import Graph
from ekc.models.model import (
    FusedGraph,
    LayerCall,
    LayerInput,
    LayerUse,
    Model,
    ModelLayer,
    UncoveredNode,
    compute_coverage,
    merge_uncovered,
)
from ekc.models.patterns import recognise_patterns
from ekc.models.score_patterns import lower_attention, simplify_scores, split_turned_operands

GROWTH = 16
"""Constants may be folded into this many times the bytes that the file of a model holds: int8 to float32 in a
few steps."""


def build_model(graph: Graph) -> Model:
    """The model to tune. Raises `InvalidInput` where no layer covers anything."""
    model, uncovered = find_layers(graph)
    if model.layers:
        return model
    if not uncovered:
        raise InvalidInput(
            f"{graph.name}: no arithmetic on its inputs: the outputs are constants, or moved elements"
        )
    first = max(uncovered, key=lambda node: (node.flops, node.bytes))
    raise InvalidInput(f"{graph.name}: no layer to tune; {first.target} ({first.name}): {first.reason}")


def find_layers(graph: Graph) -> tuple[Model, tuple[UncoveredNode, ...]]:
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
    result = LayerInput(call.output, call.output_views)
    with np.errstate(all="ignore"):
        array = apply_views(np.asarray(call.op.reference(*operands)), result)
    return array.reshape(graph.values[call.output].shape)


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
                array = array.astype(_find_numpy_type(what))
    return np.ascontiguousarray(array)


def _find_numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))
