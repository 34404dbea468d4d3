"""Values on which kernel and reference could differ: order of arithmetic, infinities, intermediate types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator, list_all_indices
from ekc.ir.expr import Expr, sqrt
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import judge
from tests.runtime import faults
from tests.runtime.faults import spoiled


@pytest.mark.parametrize(
    ("body", "values", "right"),
    [
        (lambda A, B, D, i: A[i] + (B[i] - D[i]), (1e-3, 1e5, 1e5), 1e-3),
        (lambda A, B, D, i: A[i] + (B[i] + D[i]), (1e-3, 1e5, -1e5), 1e-3),
        (lambda A, B, D, i: A[i] * (B[i] * D[i]), (1e30, 1e30, 1e-30), 1e30),
        (lambda A, B, D, i: A[i] - (B[i] - D[i]), (1e-3, 1e5, 1e5), 1e-3),
        (lambda A, B, D, i: (A[i] + B[i]) // D[i], (1.0, 2.0, 2.0), 1.0),
        (lambda A, B, D, i: (A[i] + B[i]) % D[i], (1.0, 2.0, 2.0), 1.0),
    ],
)
def test_cuda_text_keeps_the_order_of_the_expression(
    body: Callable[..., Expr], values: tuple[float, ...], right: float
) -> None:
    op = ekc.compute("order", axes={"i": 4}, inputs=dict.fromkeys("ABD", (4,)), body=body)
    arrays = [np.full(4, value, np.float32) for value in values]
    np.testing.assert_allclose(ekc.compile(Schedule(op))(*arrays), right, rtol=1e-6)


@pytest.mark.parametrize(
    "op",
    [
        ekc.matmul(16, 16, 64, dtype="int8", acc_dtype="float32", out_dtype="float16"),
        ekc.matmul(16, 16, 64, dtype="float16").epilogue(lambda c: c * c * c * c * c),
        ekc.matmul(16, 16, 16).epilogue(lambda c: sqrt(c)),
    ],
    ids=["int8 to float16", "fifth power", "roots of negatives"],
)
def test_infinities_and_nan_match_the_reference(op: Operator) -> None:
    assert not np.isfinite(op.reference(*make_random_input_arrays(op)).astype(np.float64)).all()
    assert str(judge(make_naive_schedule(op))).startswith("compiled PTX executed")


def test_infinity_explains_no_error_beside_it() -> None:
    op = ekc.matmul(16, 16, 64, dtype="float16").epilogue(lambda c: c * c * c * c * c)
    right = ReferenceEvaluator(op, make_random_input_arrays(op)).evaluate_at(
        op.computes[-1], list_all_indices(op.computes[-1])
    )
    assert np.isinf(right.values).any()
    assert right.tolerance < 0.1 * np.abs(right.values[np.isfinite(right.values)]).max()
    wrong = spoiled(compile_schedule(make_naive_schedule(op)), faults.squared)
    assert str(judge(make_naive_schedule(op), wrong)).startswith("wrong result")


def test_integer_sums_are_scaled_as_floats() -> None:
    op = ekc.matmul(16, 24, 32, dtype="int8").epilogue(
        lambda c, scale: c * scale * 0.5, scale=(24,), out_dtype="float32"
    )
    assert [t.dtype.name for t in op.inputs] == ["int8", "int8", "float32"]
    assert len(make_naive_schedule(op).program.nests) == 1
    assert str(judge(make_naive_schedule(op))).startswith("compiled PTX executed")


def test_integers_stay_integers_up_to_where_they_are_scaled() -> None:
    """float32 does not hold (c + b) - b where b is large, so the chain is cut before the float."""
    op = ekc.matmul(16, 24, 32, dtype="int8").epilogue(lambda c, b: (c + b) - b, b=(24,))
    op = op.epilogue(lambda c: c * 0.5, out_dtype="float32")
    assert len(make_naive_schedule(op).program.nests) == 2
    a, b = make_random_input_arrays(op)[:2]
    large = np.full(24, 2**29, np.int32)
    np.testing.assert_array_equal(
        ekc.compile(make_naive_schedule(op))(a, b, large), op.reference(a, b, large)
    )


def test_value_rounded_by_a_store_is_not_fused() -> None:
    op = ekc.reduce((8, 96), (1,), "sum", dtype="int8", out_dtype="int8")
    (held,) = (c.output.name for c in op.computes)
    follower = op.then("Z", axes={"p": 8, "q": 96}, body=lambda X, Y, p, q: X[p, q] + Y[p])
    assert held == "Y"
    with pytest.raises(ekc.ScheduleError, match=r"only storing Y clamps it to int8"):
        Schedule(follower).compute_at("Y", None)


@pytest.mark.parametrize("make", [ekc.layer_norm, ekc.rms_norm])
def test_norms_of_large_elements_are_right_up_to_the_range_of_their_docstring(make: Any) -> None:
    """Above 1.8e19 a square is infinite in float32; the row is then that of a zero, and never NaN."""
    assert "1.8e19" in make.__doc__
    row = np.array([1.0, -1.0, 0.5, -0.75], np.float32)
    x = np.stack([row * scale for scale in np.float32([1e-12, 1e10, 1.7e19, 3e19, 1e30, 3e38])])
    op = make(x.shape)
    weights = [np.float32([2, 3, 4, 5]), np.float32([1, 2, 3, 4])][: len(op.inputs) - 1]
    found = ekc.compile(make_naive_schedule(op), arch="sm_80")(x, *weights)
    np.testing.assert_allclose(found[:3], op.reference(x, *weights)[:3], rtol=1e-5)
    beyond = weights[1] if len(weights) == 2 else np.zeros(4)
    np.testing.assert_array_equal(found[3:], np.broadcast_to(beyond, (3, 4)))
