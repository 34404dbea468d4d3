"""A graph in NumPy, held against ekc's own operators and against elements worked out one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.models.evaluate import evaluate
from ekc.models.functions import FUNCTIONS
from ekc.models.graph import KINDS, Graph
from tests.models.sketch import Sketch, draw_inputs


def run(graph: Graph, *arrays: np.ndarray) -> np.ndarray:
    (result,) = evaluate(graph, arrays or draw_inputs(graph))
    return result


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (2, 2, 1), (4, 1, 2)])
def test_convolution_is_that_of_ekc(rank: int, groups: int, stride: int, dilation: int) -> None:
    s = Sketch()
    x = s.input(2, 4, *(7, 8, 6)[:rank])
    graph = s.build(s.conv(x, 8, 3, stride, 1, groups, dilation, bias=True))
    array = draw_inputs(graph)[0]
    weight, bias = (graph.values[n].data for n in graph.nodes[0].inputs[1:])
    make = getattr(ekc, f"conv{rank}d")
    extents = dict(zip("dhw"[3 - rank :], array.shape[2:], strict=True))
    op = make(
        2, 4, **extents, out_channels=8, kernel=3, stride=stride, padding=1, groups=groups, dilation=dilation
    )
    expected = op.reference(array, weight) + bias.reshape(-1, *(1,) * rank)
    np.testing.assert_allclose(run(graph, array), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (4, 1)])
def test_transposed_convolution_is_that_of_ekc(kernel: int, stride: int) -> None:
    s = Sketch()
    graph = s.build(s.conv_transpose(s.input(2, 4, 5, 6), 3, kernel, stride, bias=False))
    array = draw_inputs(graph)[0]
    op = ekc.conv_transpose2d(2, 4, 5, 6, out_channels=3, kernel=kernel, stride=stride)
    expected = op.reference(array, graph.values[graph.nodes[0].inputs[1]].data)
    np.testing.assert_allclose(run(graph, array), expected, rtol=1e-4, atol=1e-5)


def test_norms_and_softmax_are_those_of_ekc() -> None:
    s = Sketch()
    x = s.input(4, 6)
    graph = s.build(s.layer_norm(x, affine=False), s.rms_norm(x), s.softmax(x, 0))
    array = draw_inputs(graph)[0]
    norm, rms, soft = evaluate(graph, [array])
    weight = graph.values[graph.nodes[1].inputs[1]].data
    ones, zeros = np.ones(6, np.float32), np.zeros(6, np.float32)
    np.testing.assert_allclose(norm, ekc.layer_norm((4, 6)).reference(array, ones, zeros), atol=1e-5)
    np.testing.assert_allclose(rms, ekc.rms_norm((4, 6)).reference(array, weight), atol=1e-5)
    np.testing.assert_allclose(soft, ekc.softmax((4, 6), 0).reference(array), atol=1e-6)


def test_average_pool_counts_padding_or_not() -> None:
    s = Sketch()
    x = s.input(1, 1, 3, 3)
    counted = s.pool("avg_pool", x, 3, 2, 1, counts_padding=True)
    graph = s.build(
        counted, s.pool("avg_pool", x, 3, 2, 1, counts_padding=False), s.pool("max_pool", x, 2, 1)
    )
    array = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    with_padding, without, largest = evaluate(graph, [array])
    corner = 1 + 2 + 4 + 5
    assert with_padding[0, 0, 0, 0] == pytest.approx(corner / 9)
    assert without[0, 0, 0, 0] == corner / 4
    assert largest[0, 0].tolist() == [[5, 6], [8, 9]]


def test_attention_of_shared_heads_with_a_causal_mask() -> None:
    s = Sketch()
    q, k = s.input(1, 2, 3, 4), s.input(1, 1, 3, 4)
    graph = s.build(s.attention(q, k, k, is_causal=True))
    queries, keys = draw_inputs(graph)
    result = run(graph, queries, keys)
    for head in range(2):
        for row in range(3):
            scores = keys[0, 0, : row + 1] @ queries[0, head, row] / 2
            weights = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(result[0, head, row], weights @ keys[0, 0, : row + 1], rtol=1e-5)


def test_short_floats_are_computed_in_float32_and_rounded_once() -> None:
    s = Sketch(dtype="bfloat16")
    x = s.input(3)
    graph = s.build(s.apply("gelu", x))
    (array,) = draw_inputs(graph)
    wide = array.astype(np.float64)
    expected = 0.5 * wide * (1 + np.array([math.erf(v / math.sqrt(2)) for v in wide]))
    assert run(graph, array).tolist() == expected.astype(np.float32).astype(array.dtype).tolist()


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_every_function_of_the_table_can_be_evaluated(function: str) -> None:
    s = Sketch()
    options = {"minimum": -0.5, "maximum": 0.5, "slope": 0.1, "alpha": 1.0, "offset": 0}
    inputs = [s.input(3, 3) for _ in range(FUNCTIONS[function].inputs)]
    graph = s.build(s.apply(function, *inputs, **options))
    arrays = [np.abs(a) + 0.1 for a in draw_inputs(graph)]
    result = run(graph, *arrays)
    assert result.shape == (3, 3)
    assert np.isfinite(result).sum() >= 6


def test_every_kind_but_opaque_can_be_evaluated() -> None:
    from ekc.models.evaluate import _EVALUATORS

    assert set(_EVALUATORS) == KINDS - {"opaque"}


def test_moves() -> None:
    s = Sketch()
    x = s.input(2, 3)
    outputs = [s.pad(x, (1, 0), (0, 2), value=7.0), s.resize(x, 1, 2), s.slice(x, 1, 0, 3, 2)]
    index = s.constant([[1, 0]], "int64")
    outputs.append(s.node("gather", [x, index], (1, 2, 3), axis=0))
    graph = s.build(*outputs)
    pad, wide, cut, rows = evaluate(graph, [np.arange(6, dtype=np.float32).reshape(2, 3)])
    assert pad.tolist() == [[7] * 5, [0, 1, 2, 7, 7], [3, 4, 5, 7, 7]]
    assert wide.tolist() == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]
    assert cut.tolist() == [[0, 2], [3, 5]]
    assert rows.tolist() == [[[3, 4, 5], [0, 1, 2]]]


def test_refusals() -> None:
    s = Sketch()
    x = s.input(2)
    opaque = s.node("opaque", [x], (2,), target="fft", reason="none")
    graph = s.build(opaque)
    with pytest.raises(InvalidInput, match="fft cannot be evaluated"):
        evaluate(graph, [np.zeros(2, np.float32)])
    with pytest.raises(InvalidInput, match="takes 1 arrays, got 0"):
        evaluate(graph, [])
    with pytest.raises(InvalidInput, match=r"x0 has shape \(3,\), needed \(2,\)"):
        evaluate(graph, [np.zeros(3, np.float32)])
    s = Sketch(has_data=False)
    graph = s.build(s.linear(s.input(2, 2), 2))
    with pytest.raises(InvalidInput, match="the elements of w1 are not in the model"):
        evaluate(graph, draw_inputs(graph))


@pytest.mark.parametrize(
    ("dtype", "largest", "smallest"),
    [("float32", -np.inf, np.inf), ("int32", -(2**31), 2**31 - 1), ("bool", False, True)],
)
def test_the_largest_and_smallest_of_no_elements(dtype: str, largest: object, smallest: object) -> None:
    s = Sketch()
    x = s.input(3, 0, dtype=dtype)
    graph = s.build(s.reduce(x, "max", 1), s.reduce(x, "min", 1))
    for result, expected in zip(evaluate(graph, draw_inputs(graph)), (largest, smallest), strict=True):
        assert result.dtype == dtype
        assert (result == expected).all()


def test_quotients_of_large_integers_are_exact() -> None:
    s = Sketch()
    a, b = s.input(4, dtype="int64"), s.input(4, dtype="int64")
    graph = s.build(s.apply("div", a, b, dtype="int64"))
    dividends = np.array([2**60 + 1, -7, 7, -(2**60) - 1])
    assert run(graph, dividends, np.array([1, 2, -2, 1])).tolist() == [2**60 + 1, -3, -3, -(2**60) - 1]
