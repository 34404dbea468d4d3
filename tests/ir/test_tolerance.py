"""Reference values of chosen elements, and tolerances that cover rounding but no mistake."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekc
import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator, ReferenceValues, list_all_indices
from ekc.ir.operator import Operator
from ekc.ir.reference import read_padded
from ekc.ir.schedule.schedule import Schedule

TERMS = 2048


def product(dtype: str = "float32") -> Operator:
    return o.matmul(24, 24, TERMS, dtype=dtype, out_dtype="float32")


def evaluate_last(op: Operator) -> ReferenceValues:
    compute = op.computes[-1]
    unstored = {c.output.name for c in op.computes[:-1]}
    return ReferenceEvaluator(op, make_random_input_arrays(op)).evaluate_at(
        compute, list_all_indices(compute), unstored
    )


def summed_in_float32(op: Operator) -> np.ndarray:
    """Sums term by term, the order with the largest error."""
    a, b = (x.astype(np.float32) for x in make_random_input_arrays(op)[:2])
    total = np.zeros((24, 24), np.float32)
    for k in range(TERMS):
        total += a[:, k, None] * b[k]
    return total


SQUEEZED: dict[str, tuple[Callable[[ex.Expr], ex.Expr], Callable[[np.ndarray], np.ndarray]]] = {
    "as it is": (lambda c: c, lambda c: c),
    "sigmoid": (ekc.sigmoid, lambda c: 1 / (1 + np.exp(-c))),
    "flat": (lambda c: ekc.tanh(c * 0.01), lambda c: np.tanh(c * np.float32(0.01))),
    "steep": (lambda c: ekc.tanh(c * 50), lambda c: np.tanh(c * np.float32(50))),
    "stretched": (lambda c: ekc.exp(c * 0.2), lambda c: np.exp(c * np.float32(0.2))),
    "clipped": (
        lambda c: ekc.minimum(ekc.maximum(c, -1), 1) * 3,
        lambda c: np.clip(c, -1, 1) * np.float32(3),
    ),
}


@pytest.mark.parametrize("name", SQUEEZED)
def test_tolerance_covers_rounding_and_no_mistake(name: str) -> None:
    ours, in_float32 = SQUEEZED[name]
    op = product().epilogue(ours)
    found = evaluate_last(op)
    with np.errstate(over="ignore"):
        rounded = in_float32(summed_in_float32(op)).astype(np.float64)
        slipped = in_float32(summed_in_float32(op) * np.float32(1.01) + np.float32(0.3)).astype(np.float64)
    assert np.abs(rounded - found.values).max() <= found.tolerance
    assert np.abs(slipped - found.values).max() > found.tolerance


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_packed_factors_add_no_tolerance(dtype: str) -> None:
    op = o.conv2d(1, 16, 6, 6, out_channels=8, kernel=3, dtype=dtype)
    plain = ReferenceEvaluator(op, make_random_input_arrays(op))
    packed = plain.for_operator(Schedule(op).pack("X", (0, 2, 3, 1)).pack("W", (0, 2, 3, 1)).program.op)
    assert [packed.evaluate_tensor(c.output.name).tolerance for c in packed.op.computes] == [
        0,
        0,
        plain.evaluate_tensor("Y").tolerance,
    ]


def test_sum_stored_by_a_copy_is_rounded() -> None:
    op = o.matmul(8, 8, 64, dtype="float16").epilogue(lambda c: c)
    assert evaluate_last(op).tolerance > np.abs(evaluate_last(op).values).max() * 2.0**-11


def test_tensor_in_registers_is_not_rounded() -> None:
    op = o.matmul(8, 8, 64, dtype="float16").epilogue(lambda c: ekc.tanh(c))
    expected, compute = ReferenceEvaluator(op, make_random_input_arrays(op)), op.computes[-1]
    where = list_all_indices(compute)
    stored, unstored = (
        expected.evaluate_at(compute, where).tolerance,
        expected.evaluate_at(compute, where, {"C"}).tolerance,
    )
    assert unstored < 2e-3 < stored


def test_few_elements_of_a_large_operator_are_cheap() -> None:
    """A product of 2**40 multiply-adds, of which four elements are read."""
    op = o.matmul(2**19, 2**19, 4).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(2**19,))
    arrays = make_random_input_arrays(op)
    expected = ReferenceEvaluator(op, arrays)
    where = {"i_out": np.array([3, 2**18]), "j_out": np.array([0, 2**19 - 1])}
    found = expected.evaluate_at(op.computes[-1], where)
    a, b, bias = (x.astype(np.float64) for x in arrays)
    columns = where["j_out"]
    want = np.maximum(a[where["i_out"]] @ b[:, columns] + bias[columns], 0)
    np.testing.assert_allclose(found.values, want, rtol=1e-12)


def test_reader_has_the_tolerance_of_all_that_it_reads() -> None:
    first = product().epilogue(lambda c: ekc.silu(c))
    op = first.then(
        "E",
        axes={"a": 24, "b": 3},
        reduce={"s": 24},
        inputs={"W": (24, 3)},
        body=lambda C_out, W, a, b, s: C_out[a, s] * W[s, b],
    )
    found = evaluate_last(op)
    a, b, w = (x.astype(np.float64) for x in make_random_input_arrays(op))
    c = a @ b
    np.testing.assert_allclose(found.values, (c / (1 + np.exp(-c))) @ w, rtol=1e-9, atol=1e-9)
    first = ReferenceEvaluator(op, make_random_input_arrays(op)).evaluate_tensor("C_out").tolerance
    assert first < found.tolerance < 24 * 4 * first


@pytest.mark.parametrize(
    "at",
    [
        lambda i, j, k: (i, j),
        lambda i, j, k: (i, k),
        lambda i, j, k: (j, i),  # Turned.
        lambda i, j, k: (i, i),  # A diagonal.
        lambda i, j, k: (i + k, j),
        lambda i, j, k: (i, j + k),
        lambda i, j, k: (i - 2, 2 * j),  # Beyond both ends.
        lambda i, j, k: (3, j),
        lambda i, j, k: (i, 40),
        lambda i, j, k: (i // 2, j % 3),
    ],
)
@pytest.mark.parametrize("rows", [np.arange(9), np.array([5, 5, 0]), np.array([7])])
def test_padded_read_gives_elements_and_0_outside(at: Callable[..., tuple], rows: np.ndarray) -> None:
    array = np.random.default_rng(0).integers(1, 99, (12, 11)).astype(np.float32)
    axes = {"i": rows.reshape(-1, 1, 1), "j": np.arange(11).reshape(1, -1, 1), "k": np.arange(3)[None, None]}
    load = ex.Load("A", tuple(ex.as_expr(x) for x in at(*(ex.Var(name) for name in axes))))
    found = read_padded(array, load, axes)
    wanted = np.zeros((len(rows), 11, 3))
    for n, i in enumerate(rows.tolist()):
        for j in range(11):
            for k in range(3):
                row, column = at(i, j, k)
                if 0 <= row < 12 and 0 <= column < 11:
                    wanted[n, j, k] = array[row, column]
    np.testing.assert_array_equal(np.broadcast_to(found, wanted.shape), wanted)
