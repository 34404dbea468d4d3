"""Expressions: `where` in reference, interpreter and kernel, and mistakes in the body of a compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.epilogue import parse_epilogue
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import operator_from_json
from tests.drawn.checks import run_everywhere
from tests.ir.starts import counting, square
from tests.ir.test_operators import Array
from tests.ir.tilings import reduce_over_lanes

RNG = np.random.default_rng(5)


def check(schedule: ekc.Schedule, arrays: list[Array], right: Array) -> None:
    """Reference, interpreter and executed PTX give exactly `right`."""
    op = schedule.op
    for output in run_everywhere(schedule, arrays):
        np.testing.assert_array_equal(output, right.astype(op.outputs[0].dtype.numpy_dtype))
    assert operator_from_json(op.to_json()) == op


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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "tf32", "int8", "int32"])
def test_where_in_int32_compares_floats(dtype: str) -> None:
    op = counting(dtype, lambda A, t, i, k: ekc.where(ekc.less(A[i, k], t[i]), 1, 0))
    kind = op.inputs[0].dtype.numpy_dtype
    a, t = ((8 * RNG.standard_normal(shape)).round(2).astype(kind) for shape in ((5, 40), (5,)))
    if dtype == "tf32":
        a, t = a.round(), t.round()
    right = np.sum(a.astype(float) < t.astype(float)[:, None], 1)
    check(ekc.Schedule(op), [a, t], right)
    staged = reduce_over_lanes(ekc.Schedule(op), "C", "i", "k", (8, 2)).cache_read("A", "shared", at="k.0")
    staged = staged.cache_read("A.shared", "register", at="k.0").cache_read("t", "register", at="k.0")
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
    counts = [
        analyse_program(ekc.Schedule(op).program, LaunchLimits())["operations"] for op in (plain, chosen)
    ]
    np.testing.assert_array_equal(counts[1], 2 * counts[0])


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


def test_mask_of_message_is_accepted() -> None:
    op = square(lambda A, i, j: A[i, j] * ekc.where(ekc.equal(i, j), 1, 0))
    assert np.array_equal(op.reference(np.ones((4, 6), np.float32)), np.eye(4, 6))


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
    a = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    assert np.allclose(square(body).reference(a), right(a.astype(np.float64)), rtol=1e-6)
