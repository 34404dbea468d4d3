"""Products summed over axes: matmul, batch_matmul, matvec."""

from __future__ import annotations

from ekc.ir.arguments import check_flag
from ekc.ir.operator import Operator
from ekc.ir.operators.building import compute


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """C[m, n] = A[m, k] @ B[k, n]; A is stored [k, m] with `transpose_a`, B [n, k] with `transpose_b`.

    `InvalidInput` where the extents would let a sum of int8 leave int32. Sums of int32 wrap modulo 2**32, as
    in CUDA and NumPy.
    """
    check_flag("transpose_a", transpose_a)
    check_flag("transpose_b", transpose_b)
    return compute(
        "matmul",
        axes={"i": m, "j": n},
        reduce={"k": k},
        inputs={"A": (k, m) if transpose_a else (m, k), "B": (n, k) if transpose_b else (k, n)},
        body=lambda A, B, i, j, k: (
            (A[k, i] if transpose_a else A[i, k]) * (B[j, k] if transpose_b else B[k, j])
        ),
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def batch_matmul(
    b: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """C[b, m, n] = A[b, m, k] @ B[b, k, n] for each b; A is stored [b, k, m] with `transpose_a`, B [b, n, k]
    with `transpose_b`, as the keys of an attention layer are."""
    check_flag("transpose_a", transpose_a)
    check_flag("transpose_b", transpose_b)
    return compute(
        "batch_matmul",
        axes={"b": b, "i": m, "j": n},
        reduce={"k": k},
        inputs={"A": (b, k, m) if transpose_a else (b, m, k), "B": (b, n, k) if transpose_b else (b, k, n)},
        body=lambda A, B, b, i, j, k: (
            (A[b, k, i] if transpose_a else A[b, i, k]) * (B[b, j, k] if transpose_b else B[b, k, j])
        ),
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def matvec(
    m: int,
    k: int,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """y[m] = A[m, k] @ x[k]."""
    return compute(
        "matvec",
        axes={"i": m},
        reduce={"k": k},
        inputs={"A": (m, k), "x": (k,)},
        body=lambda A, x, i, k: A[i, k] * x[k],
        output="y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )
