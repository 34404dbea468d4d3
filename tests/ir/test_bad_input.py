"""Arguments that operators, bodies, epilogues and files refuse, each in one line of `bad_input.txt`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput, ScheduleError
from ekc.ir.epilogue import parse_epilogue
from ekc.ir.expr import Var, gelu
from ekc.ir.operator import operator_from_json
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import make_inputs
from tests.ir import starts
from tests.ir.starts import one
from tests.ir.test_operators import Array
from tests.ir.test_refusals import read_mistakes

NAMES = vars(starts) | {"ekc": ekc, "gelu": gelu, "math": math, "np": np, "parse_epilogue": parse_epilogue}
"""Names that the table may use."""
CASES = read_mistakes(Path(__file__).with_name("bad_input.txt"))
"""A message that ends in "..." goes on with words of Python."""


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_in_one_line(name: str) -> None:
    text, message = CASES[name]
    with pytest.raises(InvalidInput) as caught:
        eval(text, dict(NAMES))
    text = str(caught.value)
    assert text == message or (message.endswith("...") and text.startswith(message[:-3]))
    assert "\n" not in text


def test_deeply_nested_text_is_no_schedule() -> None:
    with pytest.raises(InvalidInput, match="schedule: not JSON") as caught:
        Schedule.from_json("[" * 100000 + "]" * 100000)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, b: (a,), r"takes 2 arrays \(A, B\), got 1"),
        (lambda a, b: (a, b, b), r"takes 2 arrays \(A, B\), got 3"),
        (lambda a, b: (a, b.T), r"B has shape \(4, 3\), needed \(3, 4\)"),
        (lambda a, b: (a.astype(np.float64), b), r"A is float64, needed float32; try A.astype\('float32'\)"),
        (lambda a, b: (a, b.astype(np.int32)), r"B is int32, needed float32; try B.astype\('float32'\)"),
        (lambda a, b: (np.ma.masked_less(a, 0), b), r"A is a masked array .* pass A.filled\(0\)"),
    ],
)
def test_wrong_arrays_are_named_in_message(
    change: Callable[[Array, Array], tuple[Array, ...]], words: str
) -> None:
    op = o.matmul(2, 4, 3)
    with pytest.raises(InvalidInput, match=words):
        op.reference(*change(*make_inputs(op)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d | {"name": "x; y"}, "operator: 'x; y' is not an identifier"),
        (
            lambda d: d | {"computes": [d["computes"][0] | {"output": ["C", [2, 5], "float32"]}]},
            "is not indexed by its spatial axes",
        ),
        (
            lambda d: d | {"computes": [d["computes"][0] | {"body": ["system", "rm"]}]},
            "is not one that ekc writes",
        ),
        (
            lambda d: d | {"computes": [d["computes"][0] | {"axes": [["i", 2, False]]}]},
            "'j' in the body|'k' in the body",
        ),
        (lambda d: d | {"inputs": [["A", [2, 3], "int7"]]}, "dtype: no 'int7'"),
        (lambda d: {k: v for k, v in d.items() if k != "inputs"}, "not the JSON of one"),
    ],
)
def test_json_of_no_operator_is_refused(
    change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        operator_from_json(change(o.matmul(2, 4, 3).to_json()))


def test_json_tensor_without_dimensions_is_refused() -> None:
    data = one().to_json()
    data["inputs"].append(["s", [], "float32"])
    with pytest.raises(InvalidInput, match=r"shape of s: \(\) has no dimensions"):
        operator_from_json(data)


def test_parameters_with_a_default_keep_it() -> None:
    x = np.ones(4, np.float32)
    assert one(body=lambda x, i, s=0.5: x[i] * s).reference(x)[0] == 0.5
    assert one().epilogue(lambda c, s=2.0: c * s).reference(x)[0] == 2
    assert one().epilogue(gelu).computes[-1].body == one().epilogue(lambda c: gelu(c)).computes[-1].body
    with_input = one().epilogue(lambda c, s=2.0: c * s, s=(4,))
    assert [t.name for t in with_input.inputs] == ["x", "s"]


def test_numpy_numbers_and_sequences_are_accepted() -> None:
    assert o.softmax((4, 8), np.int64(1)) == o.softmax((4, 8), 1)
    assert o.layer_norm((4, 8), np.float32(0.5)) == o.layer_norm((4, 8), 0.5)
    assert o.reduce((4, 8), range(2)) == o.reduce((4, 8), np.array([0, 1])) == o.reduce((4, 8), (0, 1))
    assert o.reduce(np.array([4, 8]), np.int64(-1)) == o.reduce((4, 8), -1)  # type: ignore[arg-type]
    image = o.conv2d(1, 4, 8, 8, out_channels=4, kernel=np.array([3, 1]))  # type: ignore[arg-type]
    assert image == o.conv2d(1, 4, 8, 8, out_channels=4, kernel=(3, 1))


def test_operator_without_inputs_has_then_and_reference() -> None:
    iota = o.compute("iota", axes={"i": 4}, inputs={}, body=lambda i: i * 2)
    op = iota.then("D", axes={"p": 4}, body=lambda C, p: C[p] + 1)
    assert op.reference().tolist() == [1, 3, 5, 7]
    with pytest.raises(ScheduleError, match="there are no tensors read; leave it out"):
        Schedule(iota).cache_read("A", "shared")
    with pytest.raises(ScheduleError, match="there are no inputs; leave it out"):
        Schedule(iota).pack("A", (1, 0))


def add_pairs(parts: list[Any]) -> Any:
    """The sum of parts, in as few levels as possible."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def double(value: Any, times: int) -> Any:
    for _ in range(times):
        value = value + value
    return value


def from_json_of_terms(count: int) -> Schedule:
    """A schedule file whose body is a sum inside a sum, `count` deep."""
    text = Schedule(o.matmul(8, 8, 8)).to_json()
    body = json.dumps(json.loads(text)["operator"]["computes"][0]["body"])
    plain = json.dumps(json.loads(text))
    assert body in plain
    return Schedule.from_json(plain.replace(body, '["+", ' * count + body + f", {body}]" * count))


TERMS: dict[str, Callable[[int], object]] = {
    "text": lambda n: parse_epilogue("+".join(["c"] * n), {})(Var("c")),
    "signs": lambda n: parse_epilogue("-" * n + "c", {})(Var("c")),
    "epilogue": lambda n: o.matmul(8, 8, 8).epilogue(lambda c: sum([c] * n)),
    "epilogue in pairs": lambda n: o.matmul(8, 8, 8).epilogue(lambda c: add_pairs([c] * n)),
    "epilogue that doubles": lambda n: o.matmul(8, 8, 8).epilogue(lambda c: double(c, n // 100)),
    "compute": lambda n: one(body=lambda x, i: add_pairs([x[i]] * n)),
    "index": lambda n: one(body=lambda x, i: x[double(i, n // 100)]),
    "schedule": from_json_of_terms,
    "einsum": lambda n: o.einsum("i" * n + "->i", (1,) * n),
    "einsum of dots": lambda n: o.einsum("...->...", (1,) * n),
    "shape": lambda n: o.softmax((1,) * n),
}
"""Ways to give an expression, subscripts or a shape to an operator, as functions of the number of terms."""


@pytest.mark.parametrize("way", TERMS)
def test_expressions_of_20000_terms_are_refused_at_once(way: str) -> None:
    start = time.process_time()
    with pytest.raises(InvalidInput) as caught:
        TERMS[way](20_000)
    assert time.process_time() - start < 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("way", [w for w in TERMS if w not in ("einsum", "einsum of dots", "shape")])
def test_expressions_of_100_terms_are_read(way: str) -> None:
    assert TERMS[way](100) is not None
