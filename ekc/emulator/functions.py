"""Functions and constants that decoded text refers to by name; the same for every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.emulator.memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_SIZE
from ekc.emulator.numerics import approx, half, integers
from ekc.emulator.numerics.convert import cvt
from ekc.emulator.numerics.fma import fma32
from ekc.emulator.numerics.half import bf16_to_f32, f32_to_bf16
from ekc.emulator.numerics.rounding import (
    Array,
    canonicalize_nan,
    flush,
    flush_operand,
    narrow_bf16,
    saturate,
    view_words,
)

_NUMPY_FUNCTIONS = (
    np.add, np.subtract, np.multiply, np.divide, np.negative, np.absolute, np.bitwise_and, np.bitwise_or,
    np.bitwise_xor, np.invert, np.left_shift, np.right_shift, np.logical_not, np.equal, np.not_equal, np.less,
    np.less_equal, np.greater, np.greater_equal, np.minimum, np.maximum, np.isnan,
)  # fmt: skip


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


def _fma64(a: Any, b: Any, c: Any) -> Any:
    """`fma.f64`, with the product split exactly; the last bit may be off where the sum ties."""
    split = 134217729.0
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    product = a * b
    ah = a * split - (a * split - a)
    bh = b * split - (b * split - b)
    low = ((ah * bh - product) + ah * (b - bh) + (a - ah) * bh) + (a - ah) * (b - bh)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    exact = total + (lost + low)
    return np.where(np.isfinite(exact), exact, total)


def _split_pairs(words: Any, half_dtype: Any) -> tuple[Any, Any]:
    """The lower and the upper 16 bits of each register."""
    words = np.asarray(words)
    low, high = (words & np.uint32(0xFFFF)).astype(np.uint16), (words >> np.uint32(16)).astype(np.uint16)
    return low.view(half_dtype), high.view(half_dtype)


def _select_extreme(root: str, a: Any, b: Any, nan: bool = False, ftz: bool = False) -> Any:
    choose = minimum if root == "min" else maximum
    return choose(np.asarray(a), np.asarray(b), nan=nan, ftz=ftz)


def _select_extreme_bf16(root: str, a: Any, b: Any, nan: bool, ftz: bool) -> Any:
    choose = minimum_bf16 if root == "min" else maximum_bf16
    return choose(np.asarray(a), np.asarray(b), nan=nan)


def _select_extreme_f16x2(root: str, a: Any, b: Any, nan: bool, ftz: bool) -> Any:
    pairs = zip(_split_pairs(a, np.float16), _split_pairs(b, np.float16), strict=True)
    return half.pack_halves(*(_select_extreme(root, x, y, nan, ftz) for x, y in pairs))


def _select_extreme_bf16x2(root: str, a: Any, b: Any, nan: bool, ftz: bool) -> Any:
    pairs = zip(_split_pairs(a, np.uint16), _split_pairs(b, np.uint16), strict=True)
    return half.pack_words(*(_select_extreme_bf16(root, x, y, nan, ftz) for x, y in pairs))


def _bf16_operation(root: str) -> Any:
    one, minus, zero = np.uint16(0x3F80), np.uint16(0xBF80), np.uint16(0x8000)

    def go(a: Any, b: Any) -> Any:
        triple = {"add": (a, one, b), "sub": (b, minus, a), "mul": (a, b, zero)}[root]
        return half.fma_bf16(*(np.asarray(x) for x in triple))

    return go


def _bf16x2_operation(root: str) -> Any:
    single = _bf16_operation(root)

    def go(a: Any, b: Any) -> Any:
        (al, ah), (bl, bh) = _split_pairs(a, np.uint16), _split_pairs(b, np.uint16)
        return half.pack_words(single(al, bl), single(ah, bh))

    return go


_UNARY: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt, "rcp": np.reciprocal, "rsqrt": lambda a: 1 / np.sqrt(a),
    "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip


def _apply_unary_f16(root: str, a: Any) -> Any:
    return _UNARY[root](np.asarray(a).astype(np.float64)).astype(np.float16)


def _apply_unary_f16x2(root: str, a: Any) -> Any:
    low, high = _split_pairs(a, np.float16)
    return half.pack_halves(_apply_unary_f16(root, low), _apply_unary_f16(root, high))


def _apply_unary_bf16(root: str, a: Any) -> Any:
    """A unary function of bf16; `ex2` always flushes subnormal results."""
    word = narrow_bf16(_UNARY[root](half.bf16_to_f32(a).astype(np.float64)))
    subnormal = (word & np.uint16(0x7F80)) == 0
    return np.where(subnormal, np.uint16(0), word) if root == "ex2" else word


def _apply_unary_bf16x2(root: str, a: Any) -> Any:
    low, high = _split_pairs(a, np.uint16)
    return half.pack_words(_apply_unary_bf16(root, low), _apply_unary_bf16(root, high))


def _saturate_f16x2(a: Any) -> Any:
    low, high = _split_pairs(a, np.float16)
    return half.pack_halves(saturate(low), saturate(high))


def list_arithmetic_functions() -> dict[str, Any]:
    """Functions and constants that are the same for every batch."""
    names: dict[str, Any] = {one.__name__: one for one in _NUMPY_FUNCTIONS}
    names |= {
        "copyto": np.copyto, "where": np.where, "clip": np.clip, "full": np.full, "copysign": np.copysign,
        "bits": integers, "halves": half, "approximations": approx, "cvt": cvt, "fma32": fma32,
        "flush": flush, "saturate": saturate, "ordered": _select_extreme, "fma64": _fma64,
        "extreme_f16": _select_extreme,
        "extreme_f32": _select_extreme, "extreme_f64": _select_extreme, "extreme_bf16": _select_extreme_bf16,
        "extreme_f16x2": _select_extreme_f16x2, "extreme_bf16x2": _select_extreme_bf16x2,
        "fma_f16": half.fma16, "fma_f16x2": half.fma16x2,
        "fma_bf16": half.fma_bf16, "fma_bf16x2": half.fma_bf16x2,
        "unary_f64": lambda root, a: _UNARY[root](a), "unary_f16": _apply_unary_f16,
        "unary_f16x2": _apply_unary_f16x2,
        "unary_bf16": _apply_unary_bf16, "unary_bf16x2": _apply_unary_bf16x2,
        "saturate_f16": saturate, "saturate_f16x2": _saturate_f16x2,
        "ONE": np.float32(1), "MINUS": np.float32(-1), "ZERO": np.float32(0), "NEGZERO": np.float32(-0.0),
        "TRUE": np.bool_(True),
        "ALL32": np.uint32(0xFFFFFFFF), "LOW": np.uint64(0x0FFFFFFF),
        "SHARED_WINDOW": np.uint64(SHARED_WINDOW), "LOCAL_WINDOW": np.uint64(LOCAL_WINDOW),
        "in_space": _is_in_space,
    }  # fmt: skip
    for root in ("add", "sub", "mul"):
        names[f"{root}_f16"] = getattr(half, f"{root}16")
        names[f"{root}_f16x2"] = getattr(half, f"{root}16x2")
        names[f"{root}_bf16"] = _bf16_operation(root)
        names[f"{root}_bf16x2"] = _bf16x2_operation(root)
    return names


def _is_in_space(space: str, address: Any) -> Any:
    shared = (address >= SHARED_WINDOW) & (address < SHARED_WINDOW + WINDOW_SIZE)
    local = (address >= LOCAL_WINDOW) & (address < LOCAL_WINDOW + WINDOW_SIZE)
    return {"shared": shared, "local": local}.get(space, ~(shared | local))
