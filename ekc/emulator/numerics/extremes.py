"""Minimum and maximum: of integers by their dtype, of floats with NaN rules."""

from __future__ import annotations

import numpy as np

from ekc.emulator.numerics.half import bf16_to_f32, f32_to_bf16
from ekc.emulator.numerics.rounding import Array, canonicalize_nan, flush_operand, view_words


def minimum(a: Array, b: Array, *, nan: bool = False, ftz: bool = False) -> Array:
    """`min{.ftz}{.NaN}`: -0 is less than +0; a NaN loses to a number, or with `.NaN` wins."""
    if a.dtype.kind != "f":
        return np.asarray(np.minimum(a, b))
    a, b = (flush_operand(operand, ftz) for operand in (a, b))
    return _select_better(a, b, np.where(a < b, a, b), view_words(a) | view_words(b), nan)


def maximum(a: Array, b: Array, *, nan: bool = False, ftz: bool = False) -> Array:
    """`max{.ftz}{.NaN}`: +0 is more than -0; a NaN loses to a number, or with `.NaN` wins."""
    if a.dtype.kind != "f":
        return np.asarray(np.maximum(a, b))
    a, b = (flush_operand(operand, ftz) for operand in (a, b))
    return _select_better(a, b, np.where(a > b, a, b), view_words(a) & view_words(b), nan)


def _select_better(a: Array, b: Array, better: Array, equal: Array, nan: bool) -> Array:
    """The better of two floats; among equals (which differ at most in the sign of zero) `equal`."""
    better = np.where(a == b, equal.view(a.dtype), better)
    odd_a, odd_b = a != a, b != b
    if odd_a.any() or odd_b.any():
        better = np.where(odd_a, a if nan else b, np.where(odd_b, b if nan else a, better))
    return canonicalize_nan(better)


def minimum_bf16(a: Array, b: Array, *, nan: bool = False) -> Array:
    """`min{.NaN}.bf16` on bf16 words."""
    return f32_to_bf16(minimum(bf16_to_f32(a), bf16_to_f32(b), nan=nan))


def maximum_bf16(a: Array, b: Array, *, nan: bool = False) -> Array:
    """`max{.NaN}.bf16` on bf16 words."""
    return f32_to_bf16(maximum(bf16_to_f32(a), bf16_to_f32(b), nan=nan))
