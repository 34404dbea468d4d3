"""Products summed over axes: matmul, batch_matmul and matvec."""

from __future__ import annotations

from ekc.argument_checks import check_flag
from ekc.ir.compute import MAX_ELEMENTS
from ekc.ir.operator import Operator, compute
from ekc.ir.validate import check_int


def _check_extents(**extents: int) -> None:
    """Raise `InvalidInput` for an extent that is not from 1 to 2**40, by the name of the argument."""
    for name, extent in extents.items():
        check_int(name, extent, MAX_ELEMENTS)


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
    _check_extents(m=m, n=n, k=k)
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
    _check_extents(b=b, m=m, n=n, k=k)
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
    _check_extents(m=m, k=k)
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
