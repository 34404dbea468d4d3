"""Tolerances and naive kernels of the check program, without running it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ekc
from ekc.bundle import CollectedBundle
from ekc.codegen.library.naive_kernels import choose_naive_arch, compile_naive_kernels, estimate_tolerance
from ekc.ir.random_arrays import make_random_inputs
from ekc.ir.schedule.naive import make_naive_schedule


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_tolerance_is_that_of_the_check_of_ekc(dtype: str) -> None:
    """Right results of other arithmetic are within it; those of a product that lacks a term are not."""
    op = ekc.matmul(64, 64, 256, dtype=dtype)
    tolerance = estimate_tolerance(make_naive_schedule(op))
    a, b = (t.to_array() for t in make_random_inputs(op, 3))
    right = op.reference(a, b)
    other = (a.astype(np.float32) @ b.astype(np.float32)).astype(right.dtype)
    error = np.abs(other.astype(float) - right.astype(float)).max()
    assert error <= tolerance.difference * max(1, np.abs(right.astype(float)).max() / tolerance.scale)
    short = op.reference(np.concatenate([a[:, :-1], 0 * a[:, :1]], axis=1), b)
    assert np.abs(short.astype(float) - right.astype(float)).max() > 5 * tolerance.difference


@pytest.mark.parametrize(
    ("archs", "arch"),
    [(("sm_80", "sm_90a"), "sm_80"), (("sm_90a",), "sm_90"), (("sm_120", "sm_89"), "sm_89")],
)
def test_architecture_of_naive_kernels(archs: tuple[str, ...], arch: str) -> None:
    assert choose_naive_arch(archs) == arch


def test_equal_operators_share_a_naive_kernel(collected: CollectedBundle) -> None:
    function = collected.bundle.functions[0]
    functions = (*collected.bundle.functions, replace(function, name="again"))
    assert len(compile_naive_kernels(replace(collected.bundle, functions=functions))) == 3
    board = next(b for b in collected.bundle.boards if b.name == "h100")
    own = [replace(s, kernels=tuple(k for k in s.kernels if k.board == board)) for s in function.shapes]
    only = replace(collected.bundle, boards=(board,), functions=(replace(function, shapes=tuple(own)),))
    assert [n.compiled.arch for n in compile_naive_kernels(only)] == ["sm_90"]
