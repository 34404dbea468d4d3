"""Constants are folded, and batch norms into weights; nodes that change nothing are left out."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.models.constants import fold_constants
from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from tests.models.sketch import Sketch, draw_inputs


def list_kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def check_same(graph: Graph, folded: Graph) -> None:
    inputs = draw_inputs(graph)
    for a, b in zip(evaluate(graph, inputs), evaluate(folded, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_is_folded_into_weight_and_bias(kind: str, bias: bool) -> None:
    s = Sketch()
    x = s.input(2, 3, 5, 5)
    y = s.conv(x, 4, bias=bias) if kind == "conv" else s.conv_transpose(x, 4, bias=bias)
    graph = s.build(s.batch_norm(y))
    folded = fold_constants(graph)
    assert list_kinds(folded) == [kind]
    check_same(graph, folded)


def test_batch_norm_of_a_value_with_other_uses_is_a_product_and_a_sum() -> None:
    s = Sketch()
    y = s.conv(s.input(1, 3, 5, 5), 4)
    graph = s.build(s.batch_norm(y), y)
    folded = fold_constants(graph)
    assert [node.target for node in folded.nodes] == ["conv", "mul", "add"]
    check_same(graph, folded)


def test_batch_norm_before_a_convolution_is_a_product_and_a_sum() -> None:
    s = Sketch()
    graph = s.build(s.conv(s.apply("relu", s.batch_norm(s.input(1, 3, 5, 5))), 4))
    folded = fold_constants(graph)
    assert [node.target for node in folded.nodes] == ["mul", "add", "relu", "conv"]
    check_same(graph, folded)


def test_a_grouped_transposed_convolution_keeps_its_batch_norm() -> None:
    s = Sketch()
    x = s.input(1, 4, 3, 3)
    y = s.node(
        "conv_transpose", [x, s.weight(4, 2, 2, 2)], (1, 4, 6, 6), stride=(2, 2), padding=((0, 0), (0, 0)),
        dilation=(1, 1), groups=2, output_padding=(0, 0),
    )  # fmt: skip
    graph = s.build(s.batch_norm(y))
    folded = fold_constants(graph)
    assert [node.target for node in folded.nodes] == ["conv_transpose", "mul", "add"]
    check_same(graph, folded)


def test_transposed_weights_are_constants_with_and_without_elements() -> None:
    for has_data in (True, False):
        s = Sketch(has_data=has_data)
        folded = fold_constants(s.build(s.linear(s.input(2, 3), 5, False)))
        assert list_kinds(folded) == ["matmul"]
        weight = folded.values[folded.nodes[0].inputs[1]]
        assert weight.shape == (3, 5)
        assert weight.is_constant
        assert (weight.data is not None) == has_data


def test_nodes_that_change_nothing_are_left_out() -> None:
    s = Sketch()
    x = s.input(2, 3, 1)
    y = s.permute(s.cast(s.reshape(x, 2, 3, 1), "float32"), 0, 1, 2)
    y = s.pad(s.resize(s.concat(0, s.slice(s.expand(y, 2, 3, 1), 1, 0, 3)), 1, 1, 1), (0, 0), (0, 0), (0, 0))
    y = s.node("copy", [y], (2, 3, 1))
    folded = fold_constants(s.build(s.apply("relu", y)))
    assert [node.inputs for node in folded.nodes] == [("x0",)]


def test_an_output_that_changes_nothing_is_the_input() -> None:
    s = Sketch()
    x = s.input(2, 3)
    folded = fold_constants(s.build(s.reshape(x, 2, 3), s.apply("relu", x)))
    assert folded.outputs[0] == "x0"
    check_same(folded, folded)


def test_unused_nodes_and_constants_are_left_out() -> None:
    s = Sketch()
    x = s.input(2, 3)
    s.linear(x, 100)
    folded = fold_constants(s.build(s.apply("relu", x)))
    assert list_kinds(folded) == ["elementwise"]
    assert not any(value.is_constant for value in folded.values.values())
