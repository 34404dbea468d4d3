"""Constants of any size: each compiles to its float32 value, or is refused in one line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np
import pytest

import ekc
from ekc.codegen.emit.types import Arithmetic
from ekc.codegen.generate import generate
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.dtypes import FLOAT32
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule

TINY = (1e-46, -1e-46, 7e-46, 5e-324, -1e-320)
"""float32 rounds them to 0."""
SMALL = (1e-45, 8e-46, -1e-40, 1.1754942e-38)
OTHERS = (0.1, -0.0, 16777217, 1 + 2.0**-24, 3.4028235e38, -3.4028235677e38, math.inf, -math.inf)
A = np.array([-3, -1.5, -0.0, 0, 1e-45, 2, 3e38, 7], np.float32)


def elementwise(body: Callable[..., ex.Operand], dtype: str = "float32") -> Operator:
    return ekc.compute("constants", axes={"i": 8}, inputs={"A": (8,)}, body=body, dtype=dtype)


@pytest.mark.parametrize("how", ["+", "*", "max"])
def test_constants_have_their_float32_value_in_kernels(how: str) -> None:
    constants = (*TINY, *SMALL, *OTHERS)
    ways = {"+": operator.add, "*": operator.mul, "max": ex.maximum}
    in_numpy = {"+": np.add, "*": np.multiply, "max": np.fmax}
    finite = A[A != 0] if how != "+" else A  # 0 * inf is NaN, and max(-0, 0) either.
    for constant in constants:
        op = ekc.compute(
            "one",
            axes={"i": len(finite)},
            inputs={"A": finite.shape},
            body=lambda A, i, constant=constant: ways[how](A[i], constant),
        )
        with np.errstate(all="ignore"):
            wanted = in_numpy[how](finite, np.float32(constant))
        np.testing.assert_array_equal(ekc.compile(Schedule(op))(finite), wanted, err_msg=repr(constant))


@pytest.mark.parametrize("constant", [*TINY, *SMALL, *OTHERS])
def test_literal_is_the_float32_value(constant: float) -> None:
    with np.errstate(all="ignore"):
        wanted = np.float32(constant)
    text = Arithmetic(FLOAT32).format_literal(constant)
    bits = int(wanted.view(np.uint32))
    if math.isinf(constant):
        assert text == f"__int_as_float({bits:#x})"
    else:
        assert text.endswith("f")
        assert int(np.float32(text[:-1]).view(np.uint32)) == bits


@pytest.mark.parametrize("constant", [1e-46, -5e-324])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_constant_that_rounds_to_zero_is_zero_everywhere(constant: float, dtype: str) -> None:
    """The reference works in float64, where 1e-46 * 1e30 would be another number."""
    op = elementwise(lambda A, i: A[i] * constant * 1e30 + ex.maximum(A[i], constant), dtype)
    a = np.array([-3, -1.5, -1, 0, 0.5, 2, 3, 7], op.inputs[0].dtype.numpy_dtype)
    got = ekc.compile(Schedule(op))(a)
    np.testing.assert_array_equal(got, np.maximum(a, 0))
    np.testing.assert_array_equal(op.reference(a), np.maximum(a, 0))


@pytest.mark.parametrize("make", [ekc.layer_norm, ekc.rms_norm])
def test_norm_with_eps_below_float32_matches_reference(make: Callable[..., Operator]) -> None:
    op = make((3, 8), eps=1e-50)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(t.shape).astype(np.float32) for t in op.inputs]
    np.testing.assert_allclose(ekc.compile(Schedule(op))(*arrays), op.reference(*arrays), rtol=1e-5)


@pytest.mark.parametrize("constant", [0.5, 2**31, -(2**31) - 1, 1e-46, -0.0, math.inf, 3e9])
def test_constant_outside_int32_is_refused(constant: float) -> None:
    with pytest.raises(InvalidInput, match=r"^acc_dtype: .* (not exact in|beyond) int32"):
        elementwise(lambda A, i: A[i] + constant, "int8")


def test_int32_limits_are_constants() -> None:
    def body(A: ex.Load, i: ex.Expr) -> ex.Operand:
        return ex.maximum(ex.minimum(A[i], 2**31 - 1), -(2**31))

    op = elementwise(body, "int8")
    a = np.arange(-4, 4, dtype=np.int8)
    assert "(-2147483647 - 1)" in generate(Schedule(op)).source
    np.testing.assert_array_equal(ekc.compile(Schedule(op))(a), a)
