"""Forms of operators, each held against NumPy: its reference, the evaluator, and a kernel that was tuned for
it and executed as PTX; JSON keeps it and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc.ir.interpreter.compare import make_random_input_arrays
from ekc.ir.interpreter.interpret import interpret_program
from ekc.ir.operator import Operator, operator_from_json
from ekc.search.sketches.naive import make_naive_schedule
from tests.ir.test_convolutions import convolved, scattered

Array = NDArray[Any]
Form = tuple[Operator, Callable[..., Array]]


def batch_matmul() -> Form:
    op = ekc.batch_matmul(3, 20, 18, 12, transpose_a=True, transpose_b=True)
    return op, lambda a, b: a.swapaxes(1, 2) @ b.swapaxes(1, 2)


def conv2d_same() -> Form:
    """Even filters, so that the odd row and column go behind."""
    op = ekc.conv2d(2, 3, 7, 6, out_channels=4, kernel=(2, 4), stride=(2, 1), padding="same")
    ends = ((0, 1), (1, 2))
    return op, lambda x, w: convolved(x, w, (2, 1), ends, (1, 1), 1)


def conv_transpose2d_asymmetric() -> Form:
    op = ekc.conv_transpose2d(1, 3, 4, 5, out_channels=2, stride=(2, 1), padding=((1, 0), (0, 2)))
    return op, lambda x, w: scattered(x, w, (2, 1), ((1, 0), (0, 2)), (1, 1), 1, (0, 0))


def layer_norm_axes() -> Form:
    """Over the channels and rows of (n, c, h, w), neither of which is last."""
    op = ekc.layer_norm((2, 6, 5, 9), axes=(1, 2))

    def right(x: Array, gamma: Array, beta: Array) -> Array:
        mean, spread = (of(x, (1, 2), keepdims=True) for of in (np.mean, np.var))
        return (x - mean) / np.sqrt(spread + 1e-5) * gamma[..., None] + beta[..., None]

    return op, right


def einsum_of_three() -> Form:
    """Implicit, its batches broadcast, the last two factors multiplied first."""
    text = "...ij,...jk,kl"
    op = ekc.einsum(text, (2, 1, 40, 5), (3, 5, 33), (33, 6))
    assert [c.output.name for c in op.computes] == ["BD", "C"]
    return op, lambda *factors: np.einsum(text, *factors)


def reduce_prod() -> Form:
    op = ekc.reduce((6, 5, 70), (0, 2), "prod", dtype="float16", out_dtype="float32")
    return op, lambda x: np.prod(x, (0, 2))


def argmax() -> Form:
    """Rows of int8 hold many equal elements, of which the first counts."""
    op = ekc.reduce((9, 300), 1, "argmax", dtype="int8")
    return op, lambda x: np.argmax(x, 1)


def argmin_of_all() -> Form:
    op = ekc.reduce((12, 50), None, "argmin", dtype="float16")
    return op, np.argmin


FORMS: tuple[Callable[[], Form], ...] = (
    batch_matmul,
    conv2d_same,
    conv_transpose2d_asymmetric,
    layer_norm_axes,
    einsum_of_three,
    reduce_prod,
    argmax,
    argmin_of_all,
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_operator_form_gives_same_results_everywhere(form: Callable[[], Form]) -> None:
    op, right = form()
    arrays = make_random_input_arrays(op)
    wanted = np.asarray(right(*(a.astype(np.float64) for a in arrays))).reshape(op.outputs[0].shape)
    result = ekc.tune(op, target="a100", trials=4, seed=0, progress=False)
    best = result.best.schedule
    for output in (
        op.reference(*arrays),
        interpret_program(make_naive_schedule(op).program, arrays).output,
        interpret_program(best.program, arrays).output,
        result.compile()(*arrays),
    ):
        assert output.dtype == op.outputs[0].dtype.numpy_dtype
        np.testing.assert_allclose(output.astype(np.float64), wanted, rtol=5e-6, atol=5e-6)
    assert operator_from_json(op.to_json()) == op
    assert ekc.Schedule.from_json(best.to_json()) == best
