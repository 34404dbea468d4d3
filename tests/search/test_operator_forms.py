"""Forms of operators, each held against NumPy: its reference, the evaluator, and a kernel that was tuned for
it and executed as PTX; JSON keeps it and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ekc
from ekc.ir.evaluation.evaluate import evaluate
from ekc.ir.operator import Operator
from ekc.ir.serialize import operator_from_json
from ekc.search.space.naive import naive
from tests.ir.test_operators import arrays_for

Array = NDArray[Any]
Form = tuple[Operator, Callable[..., Array]]


def batch_matmul() -> Form:
    op = ekc.batch_matmul(3, 20, 18, 12, transpose_a=True, transpose_b=True)
    return op, lambda a, b: a.swapaxes(1, 2) @ b.swapaxes(1, 2)


FORMS: tuple[Callable[[], Form], ...] = (batch_matmul,)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_form_means_the_same_everywhere(form: Callable[[], Form]) -> None:
    op, right = form()
    arrays = arrays_for(op)
    wanted = np.asarray(right(*(a.astype(np.float64) for a in arrays))).reshape(op.outputs[0].shape)
    result = ekc.tune(op, target="a100", trials=6, seed=0, progress=False)
    best = result.best.schedule
    for output in (
        op.reference(*arrays),
        evaluate(naive(op).program, arrays).output,
        evaluate(best.program, arrays).output,
        result.compile()(*arrays),
    ):
        assert output.dtype == op.outputs[0].dtype.numpy
        np.testing.assert_allclose(output.astype(np.float64), wanted, rtol=2e-6, atol=2e-6)
    assert operator_from_json(op.to_json()) == op
    assert ekc.Schedule.from_json(best.to_json()) == best
