"""Expressions: `where` in reference, interpreter and kernel, and mistakes in the body of a compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.codegen.generate import compile_schedule
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.epilogue import parse_epilogue
from ekc.ir.hardware.target import Limits
from ekc.ir.interpreter.interpret import interpret_program
from ekc.ir.operator import Operator, operator_from_json
from ekc.runtime.execute import execute
from tests.ir.test_operators import Array

RNG = np.random.default_rng(5)


def check(schedule: ekc.Schedule, arrays: list[Array], right: Array) -> None:
    """Reference, interpreter and executed PTX give exactly `right`."""
    op = schedule.op
    found = execute(op, compile_schedule(schedule), arrays)[-1].output
    for output in (op.reference(*arrays), interpret_program(schedule.program, arrays).output, found):
        np.testing.assert_array_equal(output, right.astype(op.outputs[0].dtype.numpy_dtype))
    assert operator_from_json(op.to_json()) == op


def square(body: Callable[..., Any], dtype: str = "float32") -> Operator:
    return ekc.compute("square", axes={"i": 4, "j": 6}, inputs={"A": (4, 6)}, body=body, dtype=dtype)


def test_where_keeps_nan() -> None:
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    x[0, :3] = np.nan, 0, -np.inf
    op = square(lambda A, i, j: ekc.where(ekc.less(A[i, j], 0), A[i, j] * 0.5, A[i, j]))
    check(ekc.Schedule(op), [x], np.where(x < 0, x * 0.5, x))
    assert str(op.computes[0]) == "C[i, j] = where(A[i, j] < 0, A[i, j] * 0.5, A[i, j])"


def test_where_comparison_with_nan_never_holds() -> None:
    x = np.array([[np.nan, 1, 2, np.nan, 3, 4]] * 4, np.float32)
    never = square(lambda A, i, j: ekc.where(ekc.equal(A[i, j], A[i, j]), 1, 2))
    check(ekc.Schedule(never), [x], np.where(x == x, 1, 2))
    less = square(lambda A, i, j: ekc.where(ekc.less(2.5, A[i, j]), j, -1 - i))
    check(ekc.Schedule(less), [x], np.where(x > 2.5, np.arange(6), -1 - np.arange(4)[:, None]))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_where_compares_axes(dtype: str) -> None:
    x = RNG.integers(-9, 9, (4, 6)).astype(dtype)
    op = square(
        lambda A, i, j: ekc.where(
            ekc.equal(i, j), A[i, j], ekc.where(ekc.less(i * 2, j + 1), ekc.maximum(A[i, j], 3), 0)
        ),
        dtype,
    )
    i, j = np.indices((4, 6))
    check(ekc.Schedule(op), [x], np.where(i == j, x, np.where(i * 2 < j + 1, np.maximum(x, 3), 0)))


def counting(dtype: str, body: Callable[..., Any]) -> Operator:
    """How many elements of each row a comparison holds for, in int32."""
    return ekc.compute(
        "count",
        axes={"i": 5},
        reduce={"k": 40},
        inputs={"A": (5, 40), "t": (5,)},
        body=body,
        dtype=dtype,
        acc_dtype="int32",
        out_dtype="int32",
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "tf32", "int8", "int32"])
def test_where_in_int32_compares_floats(dtype: str) -> None:
    op = counting(dtype, lambda A, t, i, k: ekc.where(ekc.less(A[i, k], t[i]), 1, 0))
    kind = op.inputs[0].dtype.numpy_dtype
    a, t = ((8 * RNG.standard_normal(shape)).round(2).astype(kind) for shape in ((5, 40), (5,)))
    if dtype == "tf32":
        a, t = a.round(), t.round()
    right = np.sum(a.astype(float) < t.astype(float)[:, None], 1)
    check(ekc.Schedule(op), [a, t], right)
    staged = (
        ekc.Schedule(op)
        .split("i", (4,))
        .split("k", (8, 2))
        .reorder("i.0", "i.1", "k.1", "k.0", "k.2")
        .bind("i.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("k.1", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .cache_read("A.shared", "register", at="k.0")
        .cache_read("t", "register", at="k.0")
    )
    check(staged, [a, t], right)


def test_where_in_int32_calls_float_functions() -> None:
    """`maximum` of floats inside, `min` of integers outside."""
    op = counting(
        "float32",
        lambda A, t, i, k: ekc.minimum(ekc.where(ekc.less(ekc.maximum(A[i, k], t[i]), 0.5), k, 7), 9),
    )
    a, t = (RNG.standard_normal(shape).astype(np.float32) for shape in ((5, 40), (5,)))
    chosen = np.where(np.maximum(a, t[:, None]) < 0.5, np.arange(40), 7)
    check(ekc.Schedule(op), [a, t], np.sum(np.minimum(chosen, 9), 1))


def test_where_behind_a_sum_is_one_launch() -> None:
    """As text, and as integers of a float32 sum."""
    a, b = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in ((8, 12), (12, 8)))
    text = ekc.matmul(8, 8, 12).epilogue(parse_epilogue("where(less(c, 0), 0.5 * c, c)", {}))
    assert text == ekc.matmul(8, 8, 12).epilogue(lambda c: ekc.where(ekc.less(c, 0), 0.5 * c, c))
    check(
        ekc.Schedule(text).cache_write("C").compute_inline("C"), [a, b], np.where(a @ b < 0, a @ b / 2, a @ b)
    )
    sign = ekc.matmul(8, 8, 12).then(
        "S",
        axes={"p": 8, "q": 8},
        body=lambda C, p, q: ekc.where(ekc.less(C[p, q], 0), 0 - q, q),
        acc_dtype="int32",
        out_dtype="int32",
    )
    right = np.where(a @ b < 0, -np.arange(8), np.arange(8))
    check(ekc.Schedule(sign).cache_write("C").compute_inline("C"), [a, b], right)


def test_where_counts_as_one_operation() -> None:
    plain = square(lambda A, i, j: A[i, j] * 2 + 1)
    chosen = square(lambda A, i, j: ekc.where(ekc.less(A[i, j], 0), A[i, j] * 2 + 1, 0))
    assert chosen.flops - plain.flops == 4 * 6
    counts = [analyse_program(ekc.Schedule(op).program, Limits())["operations"] for op in (plain, chosen)]
    np.testing.assert_array_equal(counts[1], 2 * counts[0])


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "number": (
        lambda: square(lambda A, i, j: A[i, j] * ekc.less(i, j)),
        r"i < j is a condition and no number; use ekc.where\(i < j, 1, 0\)",
    ),
    "number first": (
        lambda: square(lambda A, i, j: ekc.equal(i, j) * 2),
        r"i == j is a condition and no number",
    ),
    "alone": (lambda: square(lambda A, i, j: ekc.equal(i, j)), r"i == j is a condition and no number"),
    "index": (lambda: square(lambda A, i, j: A[ekc.less(i, 2), j]), r"i < 2 is a condition and no number"),
    "if": (
        lambda: square(lambda A, i, j: A[i, j] if ekc.less(i, j) else 0),
        r"i < j is neither true nor false",
    ),
    "python": (
        lambda: square(lambda A, i, j: ekc.where(i == j, 1, 0)),
        r"where: False is no condition; write",
    ),
    "value": (lambda: square(lambda A, i, j: ekc.where(A[i, j], 1, 0)), r"where: A\[i, j\] is no condition"),
    "numpy": (lambda: square(lambda A, i, j: np.less(A[i, j], 0)), r"numpy.less .* use ekc.less"),
    "in an index": (
        lambda: square(lambda A, i, j: A[ekc.where(ekc.less(i, j), i, 0), j]),
        r"where\(i < j, i, 0\) is not a sum of integer multiples of axes",
    ),
    "mixed": (
        lambda: ekc.matmul(4, 6, 8, dtype="int8").then(
            "D",
            axes={"p": 4, "q": 6},
            inputs={"X": (4, 6)},
            dtype="float32",
            body=lambda C, X, p, q: ekc.where(ekc.less(C[p, q], X[p, q]), 1, 0),
            acc_dtype="int32",
            out_dtype="int32",
        ),
        r"where: C\[p, q\] < X\[p, q\] compares C, which is int32, with floats; .* acc_dtype='float32'",
    ),
    "inexact": (
        lambda: square(lambda A, i, j: ekc.where(ekc.less(ekc.exp(A[i, j]), 2), 1, 0), "int8"),
        r"'exp' in the body of C is not exact in int32",
    ),
    "summed float": (
        lambda: counting("float32", lambda A, t, i, k: ekc.where(ekc.less(A[i, k], t[i]), A[i, k], 0)),
        r"acc_dtype: A is float32, which int32 cannot sum; use 'float32'",
    ),
    "too large": (
        lambda: counting("float32", lambda A, t, i, k: ekc.where(ekc.less(A[i, k], t[i]), 2**30, 0)),
        r"C sums 40 terms of up to 1073741824, which can leave int32",
    ),
    "text": (
        lambda: ekc.matmul(4, 4, 4).epilogue(parse_epilogue("less(c, 0)", {})),
        r"is a condition and no number; use ekc.where",
    ),
    "text of two": (
        lambda: ekc.matmul(4, 4, 4).epilogue(parse_epilogue("where(less(c, 0), 1)", {})),
        r"epilogue: where takes 3 values, got 2",
    ),
    "text of a number": (
        lambda: ekc.matmul(4, 4, 4).epilogue(parse_epilogue("where(c, 1, 0)", {})),
        r"where: C\[i_out, j_out\] is no condition",
    ),
    "text alone": (
        lambda: parse_epilogue("where", {}),
        r"where is a function; write where\(less\(c, 0\), 0, c\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_where_mistake_is_one_line(name: str) -> None:
    make, words = BAD[name]
    with pytest.raises(InvalidInput, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_where_json_of_unknown_comparison_is_refused() -> None:
    data = square(lambda A, i, j: ekc.where(ekc.less(i, j), 1, 0)).to_json()
    body = data["computes"][0]["body"]
    assert body == ["where", "<", ["var", "i"], ["var", "j"], 1, 0]
    body[1] = "<>"
    with pytest.raises(InvalidInput, match="is not one that ekc writes"):
        operator_from_json(data)


def test_where_reads_and_axes_are_found() -> None:
    a, b = ex.Load("A", (ex.Var("i"),)), ex.Load("B", (ex.Var("j"),))
    chosen = ex.where(ex.less(a, b), a, ex.Var("k"))
    assert ex.find_loads(chosen) == (a, b)
    assert ex.find_variables(chosen) == {"i", "j", "k"}
    moved = ex.substitute(chosen, {"k": ex.Const(3)})
    assert str(ex.replace_loads(moved, lambda x: x if x == a else ex.Const(2))) == "where(A[i] < 2, A[i], 3)"


MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "equal": (
        lambda A, i, j: A[i, j] * (i == j),
        r"False is no number: .*ekc.where\(ekc.equal\(i, j\), 1, 0\)",
    ),
    "unequal": (lambda A, i, j: A[i, j] * (i != j), r"True is no number"),
    "equal to itself": (lambda A, i, j: A[i, j] + (i == i), r"True is no number"),
    "an index that is true": (lambda A, i, j: A[i, True], r"True is no number"),
    "true": (lambda A, i, j: True, r"True is no number"),
    "if": (lambda A, i, j: A[i, j] if i else 0, r"i is neither true nor false"),
    "and": (lambda A, i, j: A[i, j] and A[j, i], r"A\[i, j\] is neither true nor false"),
    "not": (lambda A, i, j: not A[i, j], r"is neither true nor false"),
    "less": (lambda A, i, j: A[i, j] * (i < j), r"i cannot be compared with j; use ekc.maximum"),
    "max": (lambda A, i, j: max(A[i, j], 0), r"A\[i, j\] cannot be compared with 0; use ekc.maximum"),
    "numpy": (lambda A, i, j: np.exp(A[i, j]), r"numpy.exp takes no expression; use ekc.exp"),
    "numpy abs": (lambda A, i, j: np.abs(A[i, j]), r"numpy.absolute takes no expression; use ekc.abs"),
    "numpy sin": (lambda A, i, j: np.sin(A[i, j]), r"use one of exp, sqrt, .* of ekc"),
    "math": (lambda A, i, j: math.exp(A[i, j]), r"A\[i, j\] has no value yet; use ekc.exp"),
    "index by index": (lambda A, i, j: A[i, j][0], r"A\[i, j\] is one value and has no \[0\]"),
    "sum of an element": (lambda A, i, j: sum(A[i, j]), r"is one value and has no \[0\]"),
    "half a power": (lambda A, i, j: A[i, j] ** 0.5, r"exponent: 0.5 is not a whole number"),
    "large power": (lambda A, i, j: A[i, j] ** 9, r"exponent: 9, at most 8; use 8 or fewer"),
    "power of two": (lambda A, i, j: 2 ** A[i, j], r"2 \*\* \(A\[i, j\]\) is no product; use ekc.exp"),
    "array": (lambda A, i, j: np.array([1, 2]) * A[i, j], r"array\(\[1, 2\]\) is neither a number nor"),
    "sum of a tensor": (lambda A, i, j: sum(A), r"A is a whole tensor; index it .*: A\[i\]"),
    "in a tensor": (lambda A, i, j: 1 in A, r"A is a whole tensor"),
    "tensor and number": (lambda A, i, j: A + 1, r"A is a whole tensor"),
    "tensor and element": (lambda A, i, j: A[i, j] * A, r"is neither a number nor an element"),
    "numpy of a tensor": (lambda A, i, j: np.exp(A), r"A is a whole tensor"),
}


def make_square(body: Callable[..., Any]) -> Operator:
    return o.compute("make_square", axes={"i": 4, "j": 4}, inputs={"A": (4, 4)}, body=body)


@pytest.mark.parametrize("name", MISTAKES)
def test_body_mistake_is_one_line(name: str) -> None:
    body, message = MISTAKES[name]
    with pytest.raises(InvalidInput, match=message) as found:
        make_square(body)
    assert "\n" not in str(found.value)


def test_mask_of_message_is_accepted() -> None:
    op = make_square(lambda A, i, j: A[i, j] * ekc.where(ekc.equal(i, j), 1, 0))
    assert np.array_equal(op.reference(np.ones((4, 4), np.float32)), np.eye(4))


@pytest.mark.parametrize(
    ("body", "right"),
    [
        (lambda A, i, j: A[i, j] ** 3, lambda a: a**3),
        (lambda A, i, j: abs(A[i, j]), np.abs),
        (lambda A, i, j: 7 // A[i, j] + 7 % A[i, j], lambda a: 7 // a + 7 % a),
        (lambda A, i, j: ekc.abs(A[i, j]), np.abs),
        (lambda A, i, j: np.float32(2) * A[i, j], lambda a: 2 * a),
        (lambda A, i, j: np.sqrt(2) / A[i, j] - np.int64(1), lambda a: math.sqrt(2) / a - 1),
        (lambda A, i, j: A[i + np.int64(0), np.int64(1) * j], lambda a: a),
    ],
)
def test_scalars_of_python_and_numpy_are_operands(
    body: Callable[..., Any], right: Callable[[Any], Any]
) -> None:
    a = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    assert np.allclose(make_square(body).reference(a), right(a.astype(np.float64)), rtol=1e-6)
