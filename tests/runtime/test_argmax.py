"""Indices of extremes as compiled kernels: the first of equal elements, the first NaN, in parts and lanes."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.runtime.verify import verify
from tests.codegen.samples import argmax_over_lanes
from tests.drawn.checks import run_everywhere
from tests.ir.test_operators import Array


def rows(dtype: str) -> Array:
    """100 elements each: few values; one value; late extremes; NaN twice beside infinities; infinities."""
    x = np.random.default_rng(2).integers(-3, 4, (5, 100)).astype(np.float32)
    x[1] = 2
    x[2, -1], x[2, 50] = 9, -9
    if dtype[:3] != "int":
        x[3, [0, 99]], x[3, [47, 80]] = (np.inf, -np.inf), np.nan
        x[4] = -np.inf
    return x


@pytest.mark.parametrize("how", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16", "int8", "int32"])
def test_parts_and_lanes_find_the_first(dtype: str, how: str) -> None:
    schedule = argmax_over_lanes(dtype, how)
    x = rows(dtype).astype(schedule.op.inputs[0].dtype.numpy_dtype)
    right = getattr(np, how)(x.astype(np.float64), 1)
    kernel = compile_schedule(schedule)
    for found in run_everywhere(schedule, [x], kernel):
        np.testing.assert_array_equal(found, right)
    assert verify(schedule, kernel, ReferenceEvaluator(schedule.op, (x,))).ok


def test_index_that_is_not_the_first_is_found_wrong() -> None:
    """Indices are compared with the reference exactly, whatever the rounding of the extremes."""
    op = ekc.reduce((4, 3000), 1, "argmax")
    (x,) = (np.random.default_rng(3).standard_normal((4, 3000)).astype(np.float32),)
    right = ReferenceEvaluator(op, (x,)).evaluate_tensor("Y")
    assert right.tolerance == 0
    assert not right.wrapped
    np.testing.assert_array_equal(right.values, np.argmax(x, 1))
