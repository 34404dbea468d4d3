"""Fusion changes no number: drawn graphs, executed layer by layer, give what the graph gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from ekc.errors import InvalidInput
from ekc.models.build import build_model, execute_fused
from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from ekc.models.model import LayerCall
from tests.models.drawn_graphs import draw_graph
from tests.models.sketch import draw_inputs


def computes_layers(graph: Graph) -> bool:
    """Whether a graph has layers; a drawn one may consist of views, or of a function that ekc lacks."""
    try:
        build_model(graph)
    except InvalidInput as problem:
        if "no layer to tune" in str(problem) or "no arithmetic" in str(problem):
            return False
        raise
    return True


def compare(graph: Graph, tolerance: float) -> None:
    """The outputs of a graph and of its fused form, relative to the largest element."""
    inputs = draw_inputs(graph)
    if not computes_layers(graph):
        return
    model = build_model(graph)
    assert model.fused is not None
    for whole, fused in zip(evaluate(graph, inputs), execute_fused(model.fused, inputs), strict=True):
        assert (whole.shape, whole.dtype) == (fused.shape, fused.dtype)
        a, b = whole.astype(np.float64), fused.astype(np.float64)
        assert np.max(np.abs(a - b), initial=0) <= tolerance * max(1, np.max(np.abs(a), initial=0))
    # Every node is computed by some call, stays, or is a view; and every step has its inputs before it.
    known = {*graph.inputs, *(n for n, v in model.fused.graph.values.items() if v.is_constant)}
    for step in model.fused.steps:
        names = [i.value for i in step.inputs] if isinstance(step, LayerCall) else step.inputs
        assert known.issuperset(names)
        known.add(step.output)
    assert 0 <= model.coverage.flops <= 1
    assert 0 <= model.coverage.bytes <= 1


@settings(max_examples=40)
@given(draw_graph())
def test_fused_graph_gives_the_same_float32(graph: Graph) -> None:
    compare(graph, 1e-4)


@settings(max_examples=15)
@given(draw_graph("float16"))
def test_fused_graph_gives_the_same_float16(graph: Graph) -> None:
    compare(graph, 0.05)


@pytest.mark.exhaustive
@settings(max_examples=3000)
@given(draw_graph())
def test_many_fused_graphs_give_the_same(graph: Graph) -> None:
    compare(graph, 1e-4)
