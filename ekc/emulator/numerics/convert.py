"""`cvt`: between f16, bf16 (as uint16 words), f32, f64 and the integers of 8 to 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.fma import bf16_to_f32, f32_to_bf16
from ekc.emulator.numerics.rounding import (
    ROUNDING_MODES,
    Array,
    Double,
    apply_blockwise,
    canonicalize_nan,
    compute_sum_error,
    flush,
    flush_operand,
    narrow,
    narrow_bf16,
    round_directed,
    round_to_odd,
    saturate,
)
from ekc.errors import InvalidInput

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{f"{s}{8 * n}": np.dtype(f"{kind}{n}") for s, kind in ("si", "uu") for n in (1, 2, 4, 8)},
}
"""NumPy type of an array of each PTX type."""

_FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
_INTEGER_ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def cvt(
    value: Array,
    source: str,
    target: str,
    rounding: str | None = None,
    *,
    sat: bool = False,
    ftz: bool = False,
) -> Array:
    """`cvt{.rounding}{.ftz}{.sat}.target.source`, on an array of `NUMPY_TYPES[source]`.

    Float to integer: NaN gives 0, or the highest bit alone if the source is f64 or the target has 64 bits,
    and what does not fit gives the nearest integer that does (the ISA clamps even without `.sat`);
    without a rounding, towards zero. Integer to integer: the low bits, or clamped with `.sat`. To a
    float: one rounding, to nearest even unless said; `.sat` clamps to [0.0, 1.0] and makes NaN +0.0;
    `.rni` and its kin round to whole numbers, for a float of the same width. `.ftz` flushes subnormal
    float32 on either side. NaN becomes the canonical NaN, except in float64, which keeps its payload.
    """
    _check_types(source, target, rounding)
    value = np.asarray(value, NUMPY_TYPES[source])
    if source not in _FLOAT_TYPES:
        return _from_integer(value, target, rounding, sat)
    with np.errstate(all="ignore"):
        value = flush_operand(value, ftz and source == "f32")
        if target not in _FLOAT_TYPES:
            integers = _INTEGER_ROUNDINGS[rounding or "rzi"](_widen_to_float64(value, source))
            return _to_integer(integers, NUMPY_TYPES[target], source == "f64")
        result = _convert_float(value, source, target, rounding, sat)
        return flush(result) if ftz and target == "f32" else result


def _check_types(source: str, target: str, rounding: str | None) -> None:
    """`InvalidInput` for types and a rounding that do not fit each other."""
    for name in (source, target):
        if name not in NUMPY_TYPES:
            raise InvalidInput(f"cvt type {name!r}: one of {', '.join(NUMPY_TYPES)}")
    allowed = ROUNDING_MODES if target in _FLOAT_TYPES else tuple(_INTEGER_ROUNDINGS)
    if source in _FLOAT_TYPES and target in _FLOAT_TYPES:
        allowed = (*ROUNDING_MODES, *_INTEGER_ROUNDINGS)
    if rounding is not None and rounding not in allowed:
        raise InvalidInput(f"cvt.{target}.{source} rounding {rounding!r}: one of {', '.join(allowed)}")


def _widen_to_float64(value: Array, source: str) -> Double:
    """Any float to float64, exactly."""
    return (bf16_to_f32(value) if source == "bf16" else value).astype(np.float64)


def _convert_float(value: Array, source: str, target: str, rounding: str | None, sat: bool) -> Array:
    """Round to whole numbers or to fewer bits, and clamp if asked."""
    is_integer = rounding in _INTEGER_ROUNDINGS
    if not is_integer and not sat and rounding in (None, "rn") and "bf16" not in (source, target):
        return canonicalize_nan(value.astype(NUMPY_TYPES[target]))
    if source == "f32" and target == "bf16" and not is_integer and not sat:
        return f32_to_bf16(value, rounding or "rn")

    def block(part: Array) -> Array:
        wide = _widen_to_float64(part, source)
        if rounding is not None and is_integer:
            wide = _INTEGER_ROUNDINGS[rounding](wide)
        # Clamping before or after the rounding is the same: both ends are numbers of every format.
        wide = saturate(wide) if sat else wide
        return _narrow_to_type(wide, target, "rn" if is_integer else rounding or "rn")

    return apply_blockwise(block, NUMPY_TYPES[target], value)


def _narrow_to_type(value: Double, target: str, mode: str) -> Array:
    """float64 to a target float, NaN canonical."""
    if target == "bf16":
        return narrow_bf16(value, mode)
    return canonicalize_nan(narrow(value, NUMPY_TYPES[target], mode))


def _to_integer(value: Double, dtype: np.dtype[Any], is_from_float64: bool) -> Array:
    """Whole float64 numbers to integers, clamped; `double` where the source is one."""
    bounds = np.iinfo(dtype)
    nothing = 2.0 ** (8 * dtype.itemsize - 1) if is_from_float64 or dtype.itemsize == 8 else 0.0
    value = np.where(value == value, value, -nothing if dtype.kind == "i" else nothing)
    if dtype.itemsize < 8:
        return np.asarray(np.clip(value, float(bounds.min), float(bounds.max)).astype(dtype))
    # The largest 64-bit integer is no float64: what reaches 2**63 or 2**64 is too much.
    above, below = value >= float(bounds.max), value <= float(bounds.min)
    inside = np.where(above | below, 0.0, value).astype(dtype)
    return np.where(above, dtype.type(bounds.max), np.where(below, dtype.type(bounds.min), inside))


def _from_integer(value: Array, target: str, rounding: str | None, sat: bool) -> Array:
    """An integer to a narrower or wider integer, or to a float with one rounding."""
    if target not in _FLOAT_TYPES:
        return _clamp_integer(value, NUMPY_TYPES[target]) if sat else value.astype(NUMPY_TYPES[target])
    mode = rounding or "rn"
    if mode == "rn" and target in ("f32", "f64") and not sat:
        return value.astype(NUMPY_TYPES[target])
    high, low = _split_exactly(value)
    total = np.asarray(high + low)
    lost = compute_sum_error(total, high, low)
    if target == "f64":
        result: Array = round_directed(total, lost < 0, lost > 0, mode) if mode != "rn" else total
        return saturate(result) if sat else result
    odd = round_to_odd(total, lost)
    return _narrow_to_type(saturate(odd) if sat else odd, target, mode)


def _split_exactly(value: Array) -> tuple[Double, Double]:
    """An integer as the sum of two exact float64 numbers."""
    if value.dtype.itemsize < 8:
        return value.astype(np.float64), np.zeros(value.shape)
    low = value & value.dtype.type(0xFFFFFFFF)
    return (value - low).astype(np.float64), low.astype(np.float64)


def _clamp_integer(value: Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An integer clamped to what another integer type holds."""
    own, other = np.iinfo(value.dtype), np.iinfo(dtype)
    low, high = max(own.min, other.min), min(own.max, other.max)
    return np.asarray(np.clip(value, value.dtype.type(low), value.dtype.type(high)).astype(dtype))
