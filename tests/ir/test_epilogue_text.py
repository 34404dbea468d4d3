"""Epilogues as text: the same operators as those written in Python, and one line for each mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir.epilogue import EPILOGUE_FUNCTIONS, parse_epilogue

OP = ekc.matmul(8, 4, 16)
SAME: list[tuple[str, Callable[..., object], dict[str, tuple[int, ...]]]] = [
    ("relu(c + bias)", lambda c, bias: ekc.relu(c + bias), {"bias": (4,)}),
    ("c * 0.125", lambda c: c * 0.125, {}),
    ("2 * c - 1", lambda c: 2 * c - 1, {}),
    ("silu(gate) * c", lambda c, gate: ekc.silu(gate) * c, {"gate": (8, 4)}),
    ("-c / (1 + exp(-c))", lambda c: -c / (1 + ekc.exp(-c)), {}),
    (" maximum(c, before) + bias ", lambda c, b, e: ekc.maximum(c, b) + e, {"before": (8, 4), "bias": (1,)}),
]


@pytest.mark.parametrize(("text", "body", "inputs"), SAME, ids=[text for text, _, _ in SAME])
def test_a_text_is_the_lambda_it_reads_like(
    text: str, body: Callable[..., object], inputs: dict[str, tuple[int, ...]]
) -> None:
    written = OP.epilogue(parse_epilogue(text, inputs), **inputs)
    elements = [ekc.ir.expr.Load(t, (ekc.ir.expr.Var("i_out"), ekc.ir.expr.Var("j_out"))) for t in "C"]
    loads = {x.tensor: x for x in ekc.ir.expr.find_loads(written.computes[-1].body)}
    assert written.computes[-1].body == body(elements[0], *(loads[name] for name in inputs))
    assert [t.name for t in written.inputs] == ["A", "B", *inputs]


TWO = ("equal", "less", "maximum", "minimum")
"""Functions of two values."""


@pytest.mark.parametrize("name", sorted(EPILOGUE_FUNCTIONS))
def test_every_function_can_be_called(name: str) -> None:
    arguments = {"where": "less(c, 0), 0, c"}.get(name, "c, 1" if name in TWO else "c")
    text = f"{name}({arguments})"
    text = f"where({text}, c, 2)" if name in ("equal", "less") else text
    assert len(OP.epilogue(parse_epilogue(text, {})).computes) == 2


MISTAKES = {
    "relu(c + bias": "epilogue: 'relu(c + bias' is no expression",
    "": "epilogue: '' is no expression",
    "c + d": "it names c and d; the inputs are bias",
    "bias + 1": "it names none; the inputs are bias",
    "rleu(c)": "there is no function 'rleu'; did you mean 'relu'?",
    "frobnicate(c)": "there is no function 'frobnicate'; there are abs, equal, erf, exp, gelu",
    "maximum(c)": "maximum takes 2 values, got 1",
    "relu(c, bias)": "relu takes 1 value, got 2",
    "relu": "relu is a function; write relu(c)",
    "bias + gelu": "gelu is a function; write gelu(c)",
    "c ** 2": "'c ** 2' cannot be used; write + - * /",
    "c if bias else c": "'c if bias else c' cannot be used",
    "c.real": "'c.real' cannot be used",
    "c + True": "'True' cannot be used",
    "__import__('os')": "it names none",
    "c + __import__('os')": "\"'os'\" cannot be used",
    "c + open(c)": "there is no function 'open'",
    "relu(x=c)": "'relu(x=c)' cannot be used",
    "c" + " + 1" * 2000: "a text that goes too far",
    "c + 1" + "0" * 400: "is no number of float32",
    "1/0 + c": "epilogue: '1/0' divides by 0; write another divisor",
    "c + bias / (2 - 2)": "'bias / (2 - 2)' divides by 0",
    "c / 1e-46": "'c / 1e-46' divides by 0",
    "maximum(0/0, c)": "'0/0' divides by 0",
    "c + 1e400": "'1e400' is no number of float32; the largest is 3.40282e+38",
    "c * (3e38 * 10)": "'3e38 * 10' is no number of float32",
    "c + 9999999999999999999999 * 99999999999999999": "is no number of float32",
    "c - exp(1000)": "'exp(1000)' is no number of float32",
    "c * sqrt(0 - 1)": "'sqrt(0 - 1)' is no number of float32",
    "0**-1 + c": "'0**-1' cannot be used; write + - * /",
    "2**99999 * c": "'2**99999' cannot be used; write + - * /",
    "c + " + "9" * 5000: "is no expression",
    "c + 'a'": "\"'a'\" cannot be used",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_clear_line(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        OP.epilogue(parse_epilogue(text, {"bias": (4,)}), bias=(4,))
    assert MISTAKES[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_message_shows_a_text_of_thousands_of_characters() -> None:
    for text in ("c + " + "9" * 5000, "c + " + "d.real" * 500, "c + " + "1" * 3000):
        with pytest.raises(InvalidInput) as caught:
            OP.epilogue(parse_epilogue(text, {}))
        assert len(str(caught.value)) < 400


def test_numbers_are_worked_out_as_python_does() -> None:
    """As in the body of a function, where Python does it before ekc sees an expression."""
    written = OP.epilogue(parse_epilogue("c * (1 / 3) + maximum(2, 3) * -2", {}))
    assert str(written.computes[-1].body) == f"C[i_out, j_out] * {1 / 3} + {-6}"


@pytest.mark.parametrize("name", ["self", "body"])
def test_an_input_may_have_the_name_of_a_parameter_of_python(name: str) -> None:
    written = OP.epilogue(parse_epilogue(f"c + {name}", {name: (4,)}), **{name: (4,)})
    assert [t.name for t in written.inputs] == ["A", "B", name]


@pytest.mark.parametrize("name", ["", "my-bias", "2d", "lambda"])
def test_an_input_that_no_text_could_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="an input cannot be called"):
        parse_epilogue("c * 2", {name: (4,)})
