"""Forms of operators, each held against NumPy: its reference, the evaluator, and a kernel that was tuned for
it and executed as PTX; JSON keeps it and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.naive import make_naive_schedule
from tests.ir.interpret import interpret_program
from tests.ir.test_convolutions import convolved, scattered
from tests.search.helpers import tune

Array = NDArray[Any]


def normalized(x: Array, gamma: Array, beta: Array) -> Array:
    mean, variance = (of(x, (1, 2), keepdims=True) for of in (np.mean, np.var))
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma[..., None] + beta[..., None]


EINSUM = "...ij,...jk,kl"
FORMS: dict[str, tuple[Operator, Callable[..., Any]]] = {
    "batch_matmul": (
        ekc.batch_matmul(3, 20, 18, 12, transpose_a=True, transpose_b=True),
        lambda a, b: a.swapaxes(1, 2) @ b.swapaxes(1, 2),
    ),
    # Even filters, so that the odd row and column go behind.
    "conv2d_same": (
        ekc.conv2d(2, 3, 7, 6, out_channels=4, kernel=(2, 4), stride=(2, 1), padding="same"),
        lambda x, w: convolved(x, w, (2, 1), ((0, 1), (1, 2)), (1, 1), 1),
    ),
    "conv_transpose2d_asymmetric": (
        ekc.conv_transpose2d(1, 3, 4, 5, out_channels=2, stride=(2, 1), padding=((1, 0), (0, 2))),
        lambda x, w: scattered(x, w, (2, 1), ((1, 0), (0, 2)), (1, 1), 1, (0, 0)),
    ),
    # Over the channels and rows of (n, c, h, w), neither of which is last.
    "layer_norm_axes": (ekc.layer_norm((2, 6, 5, 9), axes=(1, 2)), normalized),
    # Implicit, its batches broadcast, the last two factors multiplied first.
    "einsum_of_three": (
        ekc.einsum(EINSUM, (2, 1, 40, 5), (3, 5, 33), (33, 6)),
        lambda *factors: np.einsum(EINSUM, *factors),
    ),
    "reduce_prod": (
        ekc.reduce((6, 5, 70), (0, 2), "prod", dtype="float16", out_dtype="float32"),
        lambda x: np.prod(x, (0, 2)),
    ),
    # Rows of int8 hold many equal elements, of which the first counts.
    "argmax": (ekc.reduce((9, 300), 1, "argmax", dtype="int8"), lambda x: np.argmax(x, 1)),
    "argmin_of_all": (ekc.reduce((12, 50), None, "argmin", dtype="float16"), np.argmin),
}


SIMILAR = {"batch_matmul", "conv2d_same", "einsum_of_three", "argmin_of_all"}
"""Forms that are like others to the search, and long."""


@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in SIMILAR)) for name in FORMS]
)
def test_operator_form_gives_same_results_everywhere(form: str) -> None:
    op, right = FORMS[form]
    assert form != "einsum_of_three" or [c.output.name for c in op.computes] == ["BD", "C"]
    arrays = make_random_input_arrays(op)
    expected = np.asarray(right(*(a.astype(np.float64) for a in arrays))).reshape(op.outputs[0].shape)
    result = tune(op, trials=2)
    best = result.best.schedule
    for output in (
        op.reference(*arrays),
        interpret_program(make_naive_schedule(op).program, arrays).output,
        interpret_program(best.program, arrays).output,
        result.compile()(*arrays),
    ):
        assert output.dtype == op.outputs[0].dtype.numpy_dtype
        np.testing.assert_allclose(output.astype(np.float64), expected, rtol=5e-6, atol=5e-6)
    assert operator_from_json(op.to_json()) == op
    assert ekc.Schedule.from_json(best.to_json()) == best
