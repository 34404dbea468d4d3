"""Products as reductions: masked elements count as 1 in any schedule, and how products are verified."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.errors import ScheduleError
from ekc.ir.comparison.compare import describe_input_policy, make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from tests.codegen.samples import product_over_lanes
from tests.drawn.checks import judge, run_everywhere
from tests.ir.interpret import interpret_program


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_parts_lanes_and_tails_multiply_by_one(dtype: str) -> None:
    schedule = product_over_lanes(dtype)
    verdict = judge(schedule)
    assert verdict.ok, verdict
    arrays = make_random_input_arrays(schedule.op)
    found = interpret_program(schedule.program, arrays).output.astype(np.float64)
    np.testing.assert_allclose(found, schedule.op.reference(*arrays).astype(np.float64), rtol=0.01)


def test_fused_product_matches_the_reference() -> None:
    """Each row over the geometric mean of another, as one launch: the product is made by two warps."""
    op = ekc.compute(
        "shares",
        axes={"i": 3},
        reduce={"k": 70},
        inputs={"X": (3, 70)},
        body=lambda X, i, k: X[i, k],
        combine="prod",
        output="whole",
    ).then("Y", axes={"p": 3, "q": 70}, body=lambda X, whole, p, q: X[p, q] * whole[p])
    s = ekc.Schedule(op).split("q", (64,)).reorder("p", "q.1", "q.0")
    schedule = s.bind("p", "block.x").bind("q.1", "thread.x").compute_at("whole", None, warps=2)
    arrays = make_random_input_arrays(op)
    kernel = compile_schedule(schedule)
    assert len(kernel.launches) == 1
    assert judge(schedule, kernel).ok
    right = arrays[0] * np.prod(arrays[0].astype(np.float64), 1, keepdims=True)
    np.testing.assert_allclose(interpret_program(schedule.program, arrays).output, right, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "terms"), [("int32", 40), ("int8", 4)])
def test_integer_products_equal_numpy(dtype: str, terms: int) -> None:
    op = ekc.reduce((6, terms), 1, "prod", dtype=dtype)
    x = np.random.default_rng(1).integers(-99, 100, (6, terms)).astype(dtype) | np.ones((), dtype)
    right = np.prod(x, 1, dtype=np.int32)
    assert (np.abs(np.prod(x.astype(float), 1)) > 2.0**31).any() == (dtype == "int32")
    schedule = make_naive_schedule(op)
    for found in run_everywhere(schedule, [x]):
        np.testing.assert_array_equal(found, right)


def test_product_cannot_be_made_by_atomic_additions() -> None:
    with pytest.raises(
        ScheduleError, match=r"atomics add parts, and Y is a prod; use rfactor\(\"k1\", ...\)"
    ):
        ekc.Schedule(ekc.reduce((4, 64), 1, "prod")).atomic("Y")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_random_factors_leave_a_product_that_shows_each_of_them(dtype: str) -> None:
    """The product of 4096 standard normal numbers is 0 in float32, whichever factor is left out."""
    op = ekc.reduce((4, 4096), 1, "prod", dtype=dtype)
    (x,) = make_random_input_arrays(op)
    products = np.prod(x.astype(np.int32 if dtype == "int32" else np.float64), 1)
    assert (np.abs(products.astype(np.float64)) > 0.01).all()
    if dtype != "int32":
        assert (np.abs(products) < 100).all()
    assert describe_input_policy(op) == f"{dtype} odd" if dtype == "int32" else "+-exp(normal(0, 1/4096))"
    assert describe_input_policy(ekc.reduce((4, 4096), 1)) == "normal(0, 1)"


def test_kernel_that_leaves_factors_out_is_found_wrong() -> None:
    """A kernel of the first 4000 of 4096 factors, compared with all of them."""
    whole, less = (ekc.reduce((4, n), 1, "prod") for n in (4096, 4000))
    assert difference(whole, whole) < 1
    assert difference(whole, less) > 1


def difference(whole: Operator, part: Operator) -> float:
    """Between the product of a part of each row and that of all, in tolerances."""
    (x,) = make_random_input_arrays(whole)
    right = ReferenceEvaluator(whole, (x,)).evaluate_tensor("Y")
    found = np.prod(x[:, : part.inputs[0].shape[1]], 1)
    return float(np.max(np.abs(found - right.values))) / right.tolerance
