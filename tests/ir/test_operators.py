"""Operators, against other implementations in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.operator import Operator, operator_from_json
from tests.drawn.checks import make_inputs

Array = NDArray[Any]


def close(op: Operator, got: Array, expected: Array) -> None:
    spec = op.outputs[0]
    assert got.dtype == spec.dtype.numpy_dtype
    assert got.shape == spec.shape
    eps = float(np.finfo(got.dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul_matches_numpy(dtype: str, transpose_a: bool, transpose_b: bool) -> None:
    op = o.matmul(5, 7, 9, dtype=dtype, transpose_a=transpose_a, transpose_b=transpose_b)
    a, b = make_inputs(op)
    left, right = a.astype(np.float64), b.astype(np.float64)
    close(op, op.reference(a, b), (left.T if transpose_a else left) @ (right.T if transpose_b else right))


def test_matmul_of_float16_with_float32_output() -> None:
    op = o.matmul(4, 4, 4, dtype="float16", out_dtype="float32")
    assert [t.dtype.name for t in (*op.inputs, *op.outputs)] == ["float16", "float16", "float32"]
    assert op.computes[0].acc_dtype.name == "float32"
    assert op.reference(*make_inputs(op)).dtype == np.float32


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_batch_matmul_of_transposed_factors(transpose_a: bool, transpose_b: bool) -> None:
    op = o.batch_matmul(2, 5, 7, 9, dtype="float16", transpose_a=transpose_a, transpose_b=transpose_b)
    a, b = (x.astype(np.float64) for x in make_inputs(op))
    right = (a.swapaxes(1, 2) if transpose_a else a) @ (b.swapaxes(1, 2) if transpose_b else b)
    close(op, op.reference(*make_inputs(op)), right)


def test_matvec_and_batch_matmul_match_numpy() -> None:
    op = o.matvec(6, 11)
    a, x = make_inputs(op)
    close(op, op.reference(a, x), a.astype(np.float64) @ x)
    op = o.batch_matmul(3, 4, 5, 6)
    a, b = make_inputs(op)
    close(op, op.reference(a, b), np.matmul(a.astype(np.float64), b))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("mk,kn->mn", ((4, 6), (6, 5))),
        ("bij,bjk->kbi", ((2, 3, 4), (2, 4, 5))),
        ("a,b->ab", ((3,), (4,))),
        ("ij,ij->", ((3, 4), (3, 4))),
        ("iij,jk->ik", ((3, 3, 4), (4, 2))),
        ("abc,d->b", ((2, 3, 4), (5,))),
        ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))),
        ("ii,ij->ij", ((3, 3), (3, 4))),
        ("ij,jji->", ((3, 4), (4, 4, 3))),
        ("a,a->a", ((4,), (4,))),
        ("ij->ji", ((3, 4),)),
        ("ii->i", ((3, 3),)),
        ("ijk->j", ((2, 3, 4),)),
        ("ij->", ((2, 3),)),
        ("ij,jk", ((3, 4), (4, 5))),
        ("kj,ji", ((3, 4), (4, 5))),
        ("ba", ((3, 4),)),
        ("ii", ((3, 3),)),
        ("iZ,ja", ((3, 2), (4, 5))),
        ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))),
        ("...ij,...jk", ((3, 1, 3, 4), (2, 4, 5))),
        ("...ij,jk->k...i", ((2, 3, 4), (4, 5))),
        ("i...,i...->...", ((3, 2, 1), (3, 4))),
        ("...,...", ((2, 1, 3), (4, 1))),
        ("...ij,jk->ik", ((3, 4), (4, 5))),
        ("...i->...", ((2, 3, 4),)),
        ("ij,jk,kl->il", ((2, 30), (30, 3), (3, 40))),
        ("ij,jk,kl->il", ((40, 3), (3, 30), (30, 2))),
        ("bi,ij,bj->b", ((3, 4), (4, 5), (3, 5))),
        ("i,i,i->", ((6,), (6,), (6,))),
        ("i,i,j->j", ((6,), (6,), (3,))),
        ("...ij,jk,...kl->...il", ((2, 1, 3, 4), (4, 5), (3, 5, 2))),
        ("ab,bc,cd,de", ((2, 9), (9, 3), (3, 8), (8, 2))),
        ("a,ab,b,c->c", ((3,), (3, 4), (4,), (5,))),
        ("AB,BC->AC", ((3, 4), (4, 5))),
        ("CD,DE,EA->CA", ((3, 4), (4, 5), (5, 2))),
    ],
)
def test_einsum_matches_numpy(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    op = o.einsum(text, *shapes)
    arrays = [x.astype(np.float64) for x in make_inputs(op)]
    close(op, op.reference(*make_inputs(op)), np.einsum(text, *arrays).reshape(op.outputs[0].shape))


EXTENTS = dict(zip("abcde", (2, 3, 5, 7, 9), strict=True))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_drawn_einsums_of_three_match_numpy(data: st.DataObject) -> None:
    """As np.einsum has it, whatever the order of multiplication; never more operations than all at once."""
    letters = st.lists(st.sampled_from(tuple(EXTENTS)), min_size=1, max_size=3).map("".join)
    operands = [data.draw(letters) for _ in range(data.draw(st.integers(1, 4)))]
    letters = sorted(set("".join(operands)))
    text = ",".join(operands)
    if data.draw(st.booleans()):
        text += "->" + "".join(data.draw(st.permutations(letters))[: data.draw(st.integers(0, len(letters)))])
    op = o.einsum(text, *(tuple(EXTENTS[x] for x in letters) for letters in operands))
    arrays = make_inputs(op)
    right = np.asarray(np.einsum(text, *(x.astype(np.float64) for x in arrays)))
    np.testing.assert_allclose(
        op.reference(*arrays), right.reshape(op.outputs[0].shape), rtol=1e-5, atol=1e-5
    )
    at_once = len(operands) - 1 + (len(op.outputs[0].shape) < len(letters) or right.ndim == 0)
    assert op.flops <= at_once * np.prod([EXTENTS[x] for x in letters])
    assert operator_from_json(op.to_json()) == op


def test_einsum_takes_cheaper_order() -> None:
    left = o.einsum("ij,jk,kl->il", (2, 30), (30, 3), (3, 40))
    assert [c.output.name for c in left.computes] == ["AB", "C"]
    assert left.flops == 2 * (2 * 30 * 3 + 2 * 3 * 40)
    right = o.einsum("ij,jk,kl->il", (40, 3), (3, 30), (30, 2))
    assert [c.output.name for c in right.computes] == ["BD", "C"]
    assert [c.output.name for c in o.einsum("ij,i,j->ij", (4, 5), (4,), (5,)).computes] == ["C"]


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "between"),
    [
        ("float16", None, "float16"),
        ("float16", "float32", "float32"),
        ("bfloat16", None, "bfloat16"),
        ("tf32", None, "float32"),
        ("int8", None, "int32"),
        ("int8", "int8", "int32"),
    ],
)
def test_einsum_intermediate_types(dtype: str, out_dtype: str | None, between: str) -> None:
    op = o.einsum("ij,jk,kl->il", (2, 30), (30, 3), (3, 40), dtype=dtype, out_dtype=out_dtype)
    assert [c.output.dtype.name for c in op.computes] == [between, out_dtype or between]


def test_compute_of_a_band_matches_numpy() -> None:
    op = o.compute(
        "band",
        axes={"i": 9, "j": 6},
        reduce={"b": 5},
        inputs={"A": (9, 5), "B": (9, 6)},
        body=lambda A, B, i, j, b: A[i, b] * B[i + b - 2, j],
    )
    a, b = make_inputs(op)
    dense = np.zeros((9, 9))
    for i in range(9):
        for d in range(5):
            if 0 <= i + d - 2 < 9:
                dense[i, i + d - 2] = a[i, d]
    close(op, op.reference(a, b), dense @ b)


@pytest.mark.parametrize(("combine", "of"), [("sum", np.sum), ("max", np.max), ("min", np.min)])
def test_compute_reductions_match_numpy(combine: str, of: Callable[..., Any]) -> None:
    body = lambda x, i, k: ex.exp(x[i, k]) - i  # noqa: E731
    op = o.compute("r", axes={"i": 5}, reduce={"k": 7}, inputs={"x": (5, 7)}, body=body, combine=combine)
    (x,) = make_inputs(op)
    close(op, op.reference(x), of(np.exp(x.astype(np.float64)) - np.arange(5)[:, None], axis=1))


def test_compute_functions_and_quotients_match_numpy() -> None:
    body = lambda x, i: ex.tanh(x[i // 2]) / ex.sqrt(1 + x[i % 4] * x[i % 4]) + ex.minimum(i, 3)  # noqa: E731
    op = o.compute("f", axes={"i": 8}, inputs={"x": (4,)}, body=body)
    (x,) = (a.astype(np.float64) for a in make_inputs(op))
    i = np.arange(8)
    close(
        op, op.reference(*make_inputs(op)), np.tanh(x[i // 2]) / np.sqrt(1 + x[i % 4] ** 2) + np.minimum(i, 3)
    )


def test_chain_of_computes_matches_numpy() -> None:
    op = o.matmul(4, 5, 6)
    op = op.then(
        "D",
        axes={"p": 4, "q": 5},
        inputs={"bias": (5,)},
        body=lambda C, bias, p, q: ex.relu(C[p, q] + bias[q]),
    )
    op = op.then("m", axes={"row": 4}, reduce={"col": 5}, body=lambda D, row, col: D[row, col], combine="max")
    a, b, bias = make_inputs(op)
    expected = np.maximum(a.astype(np.float64) @ b + bias, 0).max(axis=1)
    close(op, op.reference(a, b, bias), expected)
    assert [c.output.name for c in op.computes[:-1]] == ["C", "D"]
    assert operator_from_json(op.to_json()) == op
    assert operator_from_json(op.to_json()).digest == op.digest
