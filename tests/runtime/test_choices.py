"""Kernels with comparisons: a wrong choice is found for any number of elements, and constants are those of
the kernel."""

from __future__ import annotations

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.ir.schedule.naive import make_naive_schedule
from tests.drawn.checks import judge


def choose(yes: float, no: float, size: int = 256) -> ekc.Operator:
    """A product whose elements become one number below 0.5 and another above."""
    product = ekc.matmul(size, size, 16, dtype="float16")
    return product.epilogue(lambda c: ekc.where(ekc.less(c, 0.5), yes, no))


@pytest.mark.parametrize(("yes", "no", "right"), [(0, 1, True), (1, 0, False), (0, 0, False), (1, 1, False)])
def test_element_near_the_threshold_excuses_no_other(yes: float, no: float, right: bool) -> None:
    kernel = compile_schedule(make_naive_schedule(choose(yes, no)), "sm_80")
    verdict = judge(make_naive_schedule(choose(0, 1)), kernel)
    assert verdict.ok is right, str(verdict)


@pytest.mark.parametrize(("yes", "right"), [(1, True), (0, False)])
def test_value_computed_from_a_choice_excuses_no_other_element(yes: float, right: bool) -> None:
    def scale(number: float) -> ekc.Operator:
        return choose(number, 2).epilogue(lambda d: d * 3 + 1)

    kernel = compile_schedule(make_naive_schedule(scale(yes)), "sm_80")
    assert judge(make_naive_schedule(scale(1)), kernel).ok is right


@pytest.mark.parametrize("number", [0.1, 0.3, 0.7, 1e-3, 1 / 3])
def test_constants_are_float32_in_kernel_and_reference(number: float) -> None:
    op = ekc.compute(
        "hits", axes={"i": 2}, inputs={"x": (2,)}, body=lambda x, i: ekc.where(ekc.equal(x[i], number), 1, 0)
    )
    x = np.array([number, number + 1], np.float32)
    assert op.reference(x).tolist() == ekc.compile(make_naive_schedule(op))(x).tolist() == [1, 0]


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_indices_are_usable_in_expressions(combine: str) -> None:
    op = ekc.reduce((6, 50), 1, combine).epilogue(lambda c: c * 2 + 1)
    x = np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32)
    right = getattr(np, combine)(x, axis=1) * 2 + 1
    assert op.reference(x).tolist() == ekc.compile(make_naive_schedule(op))(x).tolist() == right.tolist()
