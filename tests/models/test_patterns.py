"""Written-out forms become one node, in every way in which exporters write them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ekc.models.constants import fold_constants
from ekc.models.evaluate import evaluate
from ekc.models.graph import Graph
from ekc.models.patterns import recognise_patterns
from tests.models.sketch import Sketch, draw_inputs

Form = Callable[[Sketch, str], str]


def recognise(graph: Graph, tolerance: float = 1e-5) -> list[str]:
    """Targets of the nodes after recognition, which changes no number."""
    found = recognise_patterns(fold_constants(graph))
    inputs = draw_inputs(graph)
    for a, b in zip(evaluate(graph, inputs), evaluate(found, inputs), strict=True):
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=tolerance, atol=tolerance)
    return [node.target for node in found.nodes]


def _erf(s: Sketch, x: str) -> str:
    return s.apply("add", s.apply("erf", s.apply("div", x, math.sqrt(2))), 1.0)


def _tanh(s: Sketch, x: str) -> str:
    inner = s.apply("add", x, s.apply("mul", s.apply("power", x, 3.0), 0.044715))
    return s.apply("add", s.apply("tanh", s.apply("mul", inner, math.sqrt(2 / math.pi))), 1.0)


def _factored_tanh(s: Sketch, x: str) -> str:
    squared = s.apply("mul", s.apply("mul", x, x), 0.044715)
    inner = s.apply("mul", s.apply("mul", x, math.sqrt(2 / math.pi)), s.apply("add", squared, 1.0))
    return s.apply("add", s.apply("tanh", inner), 1.0)


def _relu6(s: Sketch, x: str) -> str:
    return s.apply("clamp", s.apply("add", x, 3.0), minimum=0.0, maximum=6.0)


FORMS: dict[str, tuple[str, Form]] = {
    "gelu of PyTorch": ("gelu", lambda s, x: s.apply("mul", s.apply("mul", x, _erf(s, x)), 0.5)),
    "gelu, half first": ("gelu", lambda s, x: s.apply("mul", s.apply("mul", x, 0.5), _erf(s, x))),
    "gelu, half the factor": ("gelu", lambda s, x: s.apply("mul", x, s.apply("mul", _erf(s, x), 0.5))),
    "gelu tanh": ("gelu_tanh", lambda s, x: s.apply("mul", s.apply("mul", x, 0.5), _tanh(s, x))),
    "gelu tanh, factored": (
        "gelu_tanh",
        lambda s, x: s.apply("mul", _factored_tanh(s, x), s.apply("mul", x, 0.5)),
    ),
    "silu": ("silu", lambda s, x: s.apply("mul", s.apply("sigmoid", x), x)),
    "silu by exp": (
        "silu",
        lambda s, x: s.apply("div", x, s.apply("add", s.apply("exp", s.apply("neg", x)), 1.0)),
    ),
    "sigmoid by exp": (
        "sigmoid",
        lambda s, x: s.apply("reciprocal", s.apply("add", s.apply("exp", s.apply("neg", x)), 1.0)),
    ),
    "sigmoid by tanh": (
        "sigmoid",
        lambda s, x: s.apply("add", s.apply("mul", s.apply("tanh", s.apply("mul", x, 0.5)), 0.5), 0.5),
    ),
    "hardswish": ("hardswish", lambda s, x: s.apply("div", s.apply("mul", x, _relu6(s, x)), 6.0)),
    "hardswish by hardsigmoid": ("hardswish", lambda s, x: s.apply("mul", x, s.apply("hardsigmoid", x))),
    "hardsigmoid": ("hardsigmoid", lambda s, x: s.apply("div", _relu6(s, x), 6.0)),
    "relu by maximum": ("relu", lambda s, x: s.apply("maximum", s.apply("mul", x, 1.0), 0.0)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_activations(form: str, dtype: str) -> None:
    target, write = FORMS[form]
    s = Sketch(dtype=dtype)
    graph = s.build(write(s, s.linear(s.input(4, 8), 8)))
    assert recognise(graph, 1e-5 if dtype == "float32" else 1e-2)[-2:] == ["add", target]


@pytest.mark.parametrize(
    "write",
    [
        lambda s, x: s.apply("mul", x, s.apply("sigmoid", s.apply("mul", x, 1.702))),
        lambda s, x: s.apply("mul", s.apply("mul", x, _erf(s, x)), 0.51),
        lambda s, x: s.apply("mul", x, s.apply("tanh", x)),
    ],
)
def test_other_functions_stay_as_they_are(write: Form) -> None:
    s = Sketch()
    graph = s.build(write(s, s.input(4, 8)))
    assert recognise(graph) == [node.target for node in graph.nodes]


def test_an_activation_whose_parts_are_read_elsewhere_stays() -> None:
    s = Sketch()
    x = s.input(4, 8)
    inner = s.apply("sigmoid", x)
    assert recognise(s.build(s.apply("mul", x, inner), inner)) == ["sigmoid", "mul"]


def write_layer_norm(s: Sketch, x: str, square: str, root: str) -> str:
    """(x - mean) / sqrt(variance + eps), in one of several ways."""
    off = s.apply("sub", x, s.reduce(x, "mean", 2))
    squares = {
        "square": lambda: s.apply("square", off),
        "mul": lambda: s.apply("mul", off, off),
        "power": lambda: s.apply("power", off, 2.0),
    }
    variance = s.apply("add", s.reduce(squares[square](), "mean", 2), 1e-5)
    if root == "rsqrt":
        return s.apply("mul", off, s.apply("rsqrt", variance))
    if root == "reciprocal":
        return s.apply("mul", s.apply("reciprocal", s.apply("sqrt", variance)), off)
    if root == "power":
        return s.apply("mul", off, s.apply("power", variance, -0.5))
    return s.apply("div", off, s.apply("sqrt", variance))


@pytest.mark.parametrize("square", ["square", "mul", "power"])
@pytest.mark.parametrize("root", ["rsqrt", "reciprocal", "power", "div"])
def test_layer_norm(square: str, root: str) -> None:
    s = Sketch()
    y = write_layer_norm(s, s.input(2, 4, 8), square, root)
    y = s.apply("add", s.apply("mul", s.weight(8), y), s.weight(8))
    assert recognise(s.build(y)) == ["layer_norm"]


def test_layer_norm_without_weights() -> None:
    s = Sketch()
    y = write_layer_norm(s, s.input(2, 4, 8), "mul", "rsqrt")
    assert recognise(s.build(s.apply("mul", y, s.input(2, 4, 8)))) == ["layer_norm", "mul"]


def test_rms_norm_of_a_16_bit_model_computed_in_float32() -> None:
    s = Sketch(dtype="float16")
    x = s.input(2, 4, 8)
    wide = s.cast(x, "float32")
    spread = s.apply("add", s.reduce(s.apply("power", wide, 2.0), "mean", 2), 1e-6)
    y = s.cast(s.apply("mul", wide, s.apply("rsqrt", spread)), "float16")
    graph = s.build(s.apply("mul", s.weight(8), y))
    assert recognise(graph, 1e-2) == ["rms_norm"]
    norm = recognise_patterns(fold_constants(graph)).nodes[0]
    assert norm.inputs[0] == "x0"
    assert norm.attributes == {"dimensions": 1, "eps": 1e-6}


def test_means_along_other_axes_are_no_norm() -> None:
    s = Sketch()
    x = s.input(2, 4, 8)
    spread = s.apply("add", s.reduce(s.apply("square", x), "mean", 1), 1e-6)
    found = recognise(s.build(s.apply("mul", x, s.apply("rsqrt", spread))))
    assert found == ["square", "reduce", "add", "rsqrt", "mul"]


@pytest.mark.parametrize("has_top", [True, False])
def test_softmax(has_top: bool) -> None:
    s = Sketch()
    x = s.input(2, 4, 8)
    e = s.apply("exp", s.apply("sub", x, s.reduce(x, "max", 1)) if has_top else x)
    assert recognise(s.build(s.apply("div", e, s.reduce(e, "sum", 1)))) == ["softmax"]


def test_softmax_in_float32_reads_16_bits() -> None:
    s = Sketch(dtype="float16")
    y = s.cast(s.softmax(s.cast(s.input(2, 4, 8), "float32")), "float16")
    assert recognise(s.build(y), 1e-2) == ["softmax", "cast"]
