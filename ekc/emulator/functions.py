"""Functions and constants that decoded text refers to by name; the same for every batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ekc.emulator.memory import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_SIZE
from ekc.emulator.numerics import approx, fma, integers
from ekc.emulator.numerics.convert import cvt
from ekc.emulator.numerics.fma import bf16_to_f32, f32_to_bf16
from ekc.emulator.numerics.rounding import (
    Array,
    canonicalize_nan,
    compute_sum_error,
    flush,
    flush_operand,
    narrow_bf16,
    saturate,
    view_words,
)

_NUMPY_FUNCTIONS = (
    np.add, np.subtract, np.multiply, np.negative, np.absolute, np.bitwise_and, np.bitwise_or, np.bitwise_xor,
    np.invert, np.left_shift, np.right_shift, np.equal, np.not_equal, np.less, np.less_equal, np.greater,
    np.greater_equal, np.minimum, np.maximum, np.isnan, np.copyto, np.where, np.clip, np.full, np.copysign,
)  # fmt: skip


def _select_extreme(is_least: bool, a: Array, b: Array, *, nan: bool = False, ftz: bool = False) -> Array:
    """`min` and `max{.ftz}{.NaN}`: -0 is less than +0; a NaN loses to a number, or with `.NaN` wins."""
    a, b = (flush_operand(np.asarray(operand), ftz) for operand in (a, b))
    if a.dtype.kind != "f":
        return np.asarray(np.minimum(a, b) if is_least else np.maximum(a, b))
    # Equal numbers differ at most in the sign of zero.
    words = view_words(a), view_words(b)
    equal = np.bitwise_or(*words) if is_least else np.bitwise_and(*words)
    better = np.where(a == b, equal.view(a.dtype), np.where(a < b if is_least else a > b, a, b))
    odd_a, odd_b = a != a, b != b
    if odd_a.any() or odd_b.any():
        better = np.where(odd_a, a if nan else b, np.where(odd_b, b if nan else a, better))
    return canonicalize_nan(better)


def _select_extreme_bf16(
    is_least: bool, a: Array, b: Array, *, nan: bool = False, ftz: bool = False
) -> Array:
    """`min` and `max{.NaN}` on bf16 words."""
    return f32_to_bf16(_select_extreme(is_least, bf16_to_f32(a), bf16_to_f32(b), nan=nan))


minimum, maximum = partial(_select_extreme, True), partial(_select_extreme, False)
minimum_bf16, maximum_bf16 = partial(_select_extreme_bf16, True), partial(_select_extreme_bf16, False)


def _fma64(a: Any, b: Any, c: Any) -> Any:
    """`fma.f64`, with the product split exactly; the last bit may be off where the sum ties."""
    split = 134217729.0
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    product = a * b
    ah = a * split - (a * split - a)
    bh = b * split - (b * split - b)
    low = ((ah * bh - product) + ah * (b - bh) + (a - ah) * bh) + (a - ah) * (b - bh)
    total = product + c
    exact = total + (compute_sum_error(total, product, c) + low)
    return np.where(np.isfinite(exact), exact, total)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt, "rcp": np.reciprocal, "rsqrt": lambda a: 1 / np.sqrt(a),
    "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip


def _apply_unary_f16(function: Callable[[Any], Any], a: Any) -> Any:
    return function(np.asarray(a).astype(np.float64)).astype(np.float16)


def _apply_unary_bf16(function: Callable[[Any], Any], a: Any) -> Any:
    """A unary function of bf16; `ex2` always flushes subnormal results."""
    word = narrow_bf16(function(bf16_to_f32(a).astype(np.float64)))
    subnormal = (word & np.uint16(0x7F80)) == 0
    return np.where(subnormal, np.uint16(0), word) if function is np.exp2 else word


_HALF_FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "f16": {
        "add": fma.add16, "sub": fma.sub16, "mul": fma.mul16, "fma": fma.fma16,
        "min": minimum, "max": maximum, "saturate": saturate,
        **{root: partial(_apply_unary_f16, one) for root, one in _UNARY.items()},
    },
    "bf16": {
        "fma": fma.fma_bf16, "min": minimum_bf16, "max": maximum_bf16,
        **{root: partial(_apply_unary_bf16, one) for root, one in _UNARY.items()},
    },
}  # fmt: skip
"""Functions of halves by their root; pairs of halves have the same."""


def list_arithmetic_functions() -> dict[str, Any]:
    """Functions and constants that are the same for every batch."""
    names: dict[str, Any] = {one.__name__: one for one in _NUMPY_FUNCTIONS}
    names |= {f"{root}_f64": one for root, one in _UNARY.items()}
    names |= {
        "bits": integers, "halves": fma, "approximations": approx, "cvt": cvt, "fma32": fma.fma32,
        "flush": flush, "saturate_f32": saturate, "fma_f64": _fma64, "div_f64": np.divide,
        "min_f32": minimum, "max_f32": maximum, "min_f64": minimum, "max_f64": maximum,
        "TRUE": np.bool_(True),
        "ALL32": np.uint32(0xFFFFFFFF), "LOW": np.uint64(0x0FFFFFFF),
        "SHARED_WINDOW": np.uint64(SHARED_WINDOW), "LOCAL_WINDOW": np.uint64(LOCAL_WINDOW),
        "in_space": _is_in_space,
    }  # fmt: skip
    for kind, dtype in (("f16", np.float16), ("bf16", np.uint16)):
        for root, function in _HALF_FUNCTIONS[kind].items():
            names[f"{root}_{kind}"] = function
            names[f"{root}_{kind}x2"] = partial(fma.apply_to_pairs, function, dtype)
    return names


def _is_in_space(space: str, address: Any) -> Any:
    shared = (address >= SHARED_WINDOW) & (address < SHARED_WINDOW + WINDOW_SIZE)
    local = (address >= LOCAL_WINDOW) & (address < LOCAL_WINDOW + WINDOW_SIZE)
    return {"shared": shared, "local": local}.get(space, ~(shared | local))
