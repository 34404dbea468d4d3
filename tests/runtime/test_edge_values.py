"""The block of edge values in the check of a kernel: huge, tiny, equal, NaN and infinite inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import compile_schedule
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.comparison.edge_values import EdgeReference, make_edge_inputs
from ekc.ir.comparison.tolerance import ReferenceEvaluator, list_all_indices
from ekc.ir.expr import Expr
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import WrittenOutput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.runtime.verify import Verdict, verify

Body = Callable[..., Expr]


def make_operator(body: Body) -> Operator:
    return ekc.compute("edges", axes={"i": 40, "j": 50}, inputs={"x": (40, 50)}, body=body)


def judge_kernel_of(right: Operator, made: Operator) -> Verdict:
    """The check of a kernel that was made for another operator."""
    expected = ReferenceEvaluator.from_seed(right, DATA_SEED)
    return verify(make_naive_schedule(right), compile_schedule(make_naive_schedule(made)), expected)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param(
            lambda x, i, j: ekc.where(
                ekc.less(1e15, ekc.abs(x[i, j])), ekc.abs(x[i, j]), ekc.sqrt(x[i, j] * x[i, j])
            ),
            lambda x, i, j: ekc.sqrt(x[i, j] * x[i, j]),
            id="a square overflows",
        ),
        pytest.param(
            lambda x, i, j: ekc.maximum(x[i, j], 0.0),
            lambda x, i, j: ekc.where(ekc.less(0.0, x[i, j]), x[i, j], 0.0),
            id="NaN is dropped",
        ),
        pytest.param(
            lambda x, i, j: ekc.where(ekc.less(x[i, j], 1e9), x[i, j], 7.0),
            lambda x, i, j: x[i, j],
            id="huge elements are not limited",
        ),
        pytest.param(
            lambda x, i, j: x[i, j],
            lambda x, i, j: ekc.minimum(x[i, j], 3e38),
            id="infinity becomes a number",
        ),
    ],
)
def test_kernel_that_is_wrong_for_edge_values_alone_is_found(right: Body, wrong: Body) -> None:
    found = judge_kernel_of(make_operator(right), make_operator(wrong))
    assert all(check.agreement.ok for check in found.launches)
    assert found.fault == "wrong result"
    assert "edge values: " in str(found)
    assert "right is" in str(found)
    assert judge_kernel_of(make_operator(right), make_operator(right)).ok


@pytest.mark.parametrize(
    "op",
    [
        ekc.matmul(33, 40, 70).epilogue(lambda c: ekc.relu(c)),
        ekc.matmul(33, 40, 70, dtype="tf32"),
        ekc.matmul(32, 32, 64, dtype="float16").epilogue(lambda c, b: ekc.gelu(c + b), b=(32,)),
        ekc.softmax((12, 70), axis=0),
        ekc.layer_norm((24, 120)),
        ekc.conv2d(1, 4, 9, 9, out_channels=8, kernel=3, padding=1, dtype="float16"),
        ekc.reduce((20, 30), (1,), "max"),
        ekc.reduce((20, 30), (1,), "prod"),
    ],
    ids=lambda op: op.name,
)
def test_most_elements_of_right_kernels_are_judged_and_right(op: Operator) -> None:
    found = judge_kernel_of(op, op)
    assert found.ok, str(found)
    assert found.edges[-1].judged > 0.6 * found.edges[-1].compared


def test_elements_beyond_the_range_of_float32_are_not_judged() -> None:
    """Squares of 1e30 overflow: layer_norm gives 0 there, and float64 something else."""
    found = judge_kernel_of(ekc.layer_norm((40, 64)), ekc.layer_norm((40, 64)))
    assert found.ok
    assert found.edges[-1].judged < found.edges[-1].compared


@pytest.mark.parametrize(
    "op", [ekc.matmul(8, 8, 16, dtype="int8"), ekc.matmul(8, 8, 16), ekc.reduce((8, 16), (1,), "sum")]
)
def test_kernels_of_integers_and_of_float32_products_do_not_run_again(op: Operator) -> None:
    found = judge_kernel_of(op, op)
    assert found.ok
    assert found.edges == ()


def test_inputs_hold_all_kinds_of_edge_values_whatever_part_is_made() -> None:
    (one,) = make_edge_inputs(ekc.softmax((200, 64)), 3)
    whole = one.to_array()
    finite = whole[np.isfinite(whole)]
    assert np.isnan(whole).any()
    assert {np.inf, -np.inf} <= set(whole[np.isinf(whole)])
    assert np.abs(finite).max() > 1e29
    assert np.abs(finite[finite != 0]).min() < 1e-29
    assert (whole == whole[:, :1]).mean(axis=1).max() > 0.9
    rows = np.arange(7, 12800, 97)
    np.testing.assert_array_equal(one.read_at(rows), whole.reshape(-1)[rows])


def test_result_that_does_not_depend_on_an_infinite_input_is_not_judged() -> None:
    op = make_operator(lambda x, i, j: x[i, j] * 0.0)
    reference = EdgeReference(op, 0)
    where = list_all_indices(op.computes[0])
    positions = np.arange(2000)
    zeros = WrittenOutput(op.outputs[0], positions, np.zeros(2000, np.float32))
    assert np.isnan(reference.exact.evaluate_at(op.computes[0], where).values).any()
    assert reference.compare(op.computes[0], where, zeros, positions, set()).ok
