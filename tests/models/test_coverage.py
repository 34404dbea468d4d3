"""Operations and bytes of nodes and layers, and the shares that layers cover."""

from __future__ import annotations

import pytest

from ekc.models.build import build_model
from ekc.models.model import (
    LayerCall,
    Model,
    UncoveredNode,
    count_node_bytes,
    count_node_flops,
    merge_uncovered,
)
from tests.models.blocks import attention_block
from tests.models.sketch import Sketch


def list_calls(model: Model) -> dict[str, LayerCall]:
    """Calls of layers by the name of the operator; one of each."""
    assert model.fused is not None
    return {s.op.name: s for s in model.fused.steps if isinstance(s, LayerCall)}


def test_work_of_nodes() -> None:
    s = Sketch(dtype="float16")
    x = s.input(2, 4, 8, 8)
    s.conv(x, 6, 3, padding=1, groups=2)
    s.apply("gelu", x)
    s.permute(x, 0, 2, 3, 1)
    s.linear(s.reshape(x, 2, 256), 10, False)
    nodes = {node.target: node for node in s.builder.nodes}
    values = s.builder.values
    flops = {target: count_node_flops(node, values) for target, node in nodes.items()}
    assert flops["conv"] == 2 * (2 * 6 * 8 * 8) * (2 * 9)
    assert flops["gelu"] == 2 * 4 * 8 * 8
    assert flops["permute"] == 0
    assert flops["matmul"] == 2 * 2 * 256 * 10
    size = {target: count_node_bytes(node, values) for target, node in nodes.items()}
    assert size["gelu"] == 2 * 2 * 512
    assert size["permute"] == size["reshape"] == 0
    assert size["matmul"] == 2 * (2 * 256 + 256 * 10 + 2 * 10)


def test_a_layer_counts_each_tensor_once_and_its_nodes() -> None:
    s = Sketch()
    x = s.input(4, 8)
    y = s.linear(x, 8)
    model = build_model(s.build(s.apply("add", y, x)))
    call = list_calls(model)["matmul_epilogue"]
    assert call.bytes == 4 * (4 * 8 + 8 * 8 + 8 + 4 * 8)
    assert call.flops == 2 * 4 * 8 * 8 + 4 * 8 + 4 * 8


def test_a_transposed_weight_and_a_reshape_cost_nothing() -> None:
    s = Sketch()
    model = build_model(s.build(s.reshape(s.linear(s.reshape(s.input(2, 2, 8), 4, 8), 6, False), 2, 12)))
    (call,) = list_calls(model).values()
    assert call.bytes == 4 * (4 * 8 + 8 * 6 + 4 * 6)
    assert model.coverage.bytes == 1


def test_a_move_counts_the_part_that_it_reads() -> None:
    s = Sketch()
    x = s.input(100, 8)
    model = build_model(s.build(s.matmul(s.slice(x, 0, 0, 4), s.input(8, 5)), x))
    assert list_calls(model)["slice"].bytes == 4 * (4 * 8 + 4 * 8)


def test_attention_counts_its_score_matrix() -> None:
    calls = list_calls(build_model(attention_block(2, 1)))
    assert calls["batch_matmul_epilogue"].bytes == 4 * 2 * (6 * 4 + 6 * 4 + 6 * 6)
    assert calls["softmax"].bytes == 4 * 2 * 2 * 6 * 6


def test_shares_of_what_is_not_covered() -> None:
    s = Sketch()
    y = s.linear(s.input(4, 8), 8, False)
    model = build_model(s.build(s.apply("cos", s.apply("sin", y))))
    covered, left = 2 * 4 * 8 * 8, 2 * 4 * 8
    assert model.coverage.flops == pytest.approx(covered / (covered + left))
    size, rest = 4 * (32 + 64 + 32), 2 * 4 * (32 + 32)
    assert model.coverage.bytes == pytest.approx(size / (size + rest))


def test_equal_reasons_are_merged() -> None:
    nodes = [UncoveredNode(name, "sin", "no sin", 4, 8) for name in "ab"]
    other = UncoveredNode("c", "cos", "no cos", 1, 2)
    merged = merge_uncovered([*nodes, other])
    assert merged == (UncoveredNode("a", "sin", "no sin", 8, 16, 2), other)
