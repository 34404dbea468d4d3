"""Comparisons, minimum and maximum, and signs: of integers by their dtype, of floats with NaN rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.half import bf16_to_f32, f32_to_bf16
from ekc.emulator.numerics.integers import as_unsigned
from ekc.emulator.numerics.rounding import Array, canonicalize_nan, flush_operand, view_words
from ekc.errors import InvalidInput

Predicate = NDArray[np.bool_]

_ORDERED_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_COMPARISONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
COMPARISONS = (
    *_ORDERED_COMPARISONS,
    *_UNSIGNED_COMPARISONS,
    *(f"{name}u" for name in _ORDERED_COMPARISONS if name != "ne"),
    "neu",
    "num",
    "nan",
)
_COMBINATIONS: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def compare(operator: str, a: Array, b: Array, *, ftz: bool = False) -> Predicate:
    """The comparison of `set` and `setp`.

    Of floats, `eq ne lt le gt ge` are False where either is NaN, their kin ending in `u` True; `num`
    is True where neither is NaN, `nan` where one is. `lo ls hi hs` compare without signs.
    """
    if operator not in COMPARISONS:
        raise InvalidInput(f"comparison {operator!r}: one of {', '.join(COMPARISONS)}")
    if operator in _UNSIGNED_COMPARISONS:
        return np.asarray(
            _ORDERED_COMPARISONS[_UNSIGNED_COMPARISONS[operator]](as_unsigned(a), as_unsigned(b))
        )
    if a.dtype.kind != "f":
        return np.asarray(_ORDERED_COMPARISONS[operator](a, b))
    a, b = (flush_operand(operand, ftz) for operand in (a, b))
    if operator == "ne":
        return np.asarray((a < b) | (a > b))
    if operator in _ORDERED_COMPARISONS:
        return np.asarray(_ORDERED_COMPARISONS[operator](a, b))
    unordered = (a != a) | (b != b)
    if operator in ("num", "nan"):
        return np.asarray(unordered if operator == "nan" else ~unordered)
    return np.asarray(unordered | _ORDERED_COMPARISONS[operator.removesuffix("u")](a, b))


def setp(
    operator: str, a: Array, b: Array, c: Predicate | None = None, combine: str = "and", *, ftz: bool = False
) -> tuple[Predicate, Predicate]:
    """`setp`: the comparison and its opposite, each combined with the predicate c if there is one."""
    true = compare(operator, a, b, ftz=ftz)
    if c is None:
        return true, ~true
    return _COMBINATIONS[combine](true, c), _COMBINATIONS[combine](~true, c)


def set_(
    operator: str,
    a: Array,
    b: Array,
    target: str = "u32",
    c: Predicate | None = None,
    combine: str = "and",
    *,
    ftz: bool = False,
) -> Array:
    """`set`: 0xffffffff (`u32`, `s32`) or 1.0 (`f32`) where the comparison holds, else zero."""
    true = setp(operator, a, b, c, combine, ftz=ftz)[0]
    if target == "f32":
        return true.astype(np.float32)
    return (-true.astype(np.int32)).view({"u32": np.uint32, "s32": np.int32}[target])


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


def absolute(a: Array, *, ftz: bool = False) -> Array:
    """`abs`: a float without its sign; of an integer the smallest stays itself."""
    return np.asarray(np.abs(flush_operand(a, ftz)))


def negate(a: Array, *, ftz: bool = False) -> Array:
    """`neg`: a float with its sign turned, zero too; of an integer the smallest stays itself."""
    return np.asarray(np.negative(flush_operand(a, ftz)))


def copysign(a: Array, b: Array) -> Array:
    """`copysign`: the value of b with the sign of a, NaN too."""
    return np.asarray(np.copysign(b, a))
