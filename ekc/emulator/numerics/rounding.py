"""One rounding where float64 would give two: odd sums, directed narrowing, canonical NaN, flushing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput

Array = NDArray[Any]
Double = NDArray[np.float64]

ROUNDING_MODES = ("rn", "rz", "rm", "rp")
"""To nearest even, towards zero, down (minus infinity), up (plus infinity)."""

BLOCK_ELEMENTS = 8192
"""Elements that a pass takes at once where many passes follow each other."""
_SMALLEST_NORMAL = np.float32(2.0**-126)
_WORD_TYPES: dict[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (2, 4, 8)}


def check_mode(mode: str) -> str:
    """The rounding mode; `EkcError` for an unknown one."""
    if mode not in ROUNDING_MODES:
        raise InvalidInput(f"rounding mode {mode!r}: one of {', '.join(ROUNDING_MODES)}")
    return mode


def view_words(value: Array) -> Array:
    """The same bits as unsigned integers of the same width (a view of a contiguous array)."""
    return value.view(_WORD_TYPES[value.dtype.itemsize])


def canonicalize_nan(value: Array) -> Array:
    """Every NaN of float16 or float32 becomes the machine's one NaN, 0x7fff or 0x7fffffff, in place."""
    if value.dtype == np.float16:
        # NumPy compares halves one by one; their words compare at full speed.
        bits = view_words(value)
        bits[(bits & np.uint16(0x7FFF)) > np.uint16(0x7C00)] = 0x7FFF
    elif value.dtype == np.float32:
        unordered = value != value
        if unordered.any():
            view_words(value)[unordered] = 0x7FFFFFFF
    return value


def flush(value: Array, out: Array | None = None) -> Array:
    """`.ftz`: subnormal float32 numbers become zeros of their sign; in a new array, or in `out`."""
    return np.asarray(np.multiply(value, np.abs(value) >= _SMALLEST_NORMAL, out=out))


def flush_operand(value: Array, ftz: bool) -> Array:
    """An operand as an instruction reads it: as it is, or with its subnormal numbers flushed."""
    if not ftz:
        return value
    value = np.asarray(value, np.float32)
    normal = np.abs(value) >= _SMALLEST_NORMAL
    return value if normal.all() else np.multiply(value, normal)


def saturate(value: Array) -> Array:
    """`.sat` of a float: clamped to [0.0, 1.0], and NaN becomes +0.0."""
    kept = np.where(value > 0, value, np.zeros((), value.dtype))
    return np.asarray(np.minimum(kept, np.ones((), value.dtype)))


def compute_sum_error(total: Array, a: Array, b: Array) -> Array:
    """The rounding error of `total = a + b`, exactly (Knuth's two-sum; NaN where a part is infinite)."""
    part = total - a
    return np.asarray((a - (total - part)) + (b - part))


def round_to_odd(total: Array, lost: Array) -> Array:
    """`total + lost` rounded to odd: an inexact sum gets a last bit of one, so a later rounding is right."""
    signed = np.dtype(f"i{total.dtype.itemsize}")
    bits, rest = total.view(signed), lost.view(signed)
    # One step outwards (1) or inwards (-1), kept where the last bit is zero and something was lost.
    step = ((bits ^ rest) >> signed.type(8 * signed.itemsize - 1)) | signed.type(1)
    step &= (bits & signed.type(1)) - signed.type(1)
    step &= -(np.abs(lost) > 0).astype(signed)
    step += bits
    return np.asarray(step.view(total.dtype))


def sum_to_odd(a: Array, b: Array) -> Array:
    """The sum of two float arrays, rounded to odd."""
    total = np.asarray(a + b)
    return round_to_odd(total, compute_sum_error(total, a, b))


def apply_blockwise(function: Callable[..., Array], dtype: Any, *operands: Array) -> Array:
    """A function of arrays, elementwise, run over pieces small enough to stay in the cache."""
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in operands))
    flats = [np.broadcast_to(operand, shape).reshape(-1) for operand in operands]
    result = np.empty(flats[0].size, dtype)
    for start in range(0, result.size, BLOCK_ELEMENTS):
        part = slice(start, start + BLOCK_ELEMENTS)
        result[part] = function(*(flat[part] for flat in flats))
    return result.reshape(shape)


def round_directed(nearest: Array, over: Array, under: Array, mode: str) -> Array:
    """The nearest value, moved by one step where the rounding mode asks for the other neighbour."""
    down, up = nearest.dtype.type(-np.inf), nearest.dtype.type(np.inf)
    lower, upper = over, under
    if mode == "rz":
        lower, upper = over & (nearest > 0), under & (nearest < 0)
    moved = nearest
    if mode in ("rz", "rm"):
        moved = np.where(lower, np.nextafter(moved, down), moved)
    if mode in ("rz", "rp"):
        moved = np.where(upper, np.nextafter(moved, up), moved)
    return np.copysign(moved, nearest)


def narrow(value: Double, dtype: Any, mode: str = "rn") -> Array:
    """float64 to float16 or float32 with one rounding; feed it exact or odd-rounded values."""
    with np.errstate(all="ignore"):
        nearest = value.astype(dtype)
        if check_mode(mode) == "rn" or nearest.dtype == np.float64:
            return nearest
        back = nearest.astype(np.float64)
        return round_directed(nearest, back > value, back < value, mode)


def narrow_bf16(value: Double, mode: str = "rn") -> NDArray[np.uint16]:
    """float64 to bf16 words with one rounding: an odd-rounded float32 between, then the low half dropped."""
    with np.errstate(all="ignore"):
        middle = narrow(value, np.float32, "rz")
        bits = np.array(middle, order="C", ndmin=1).view(np.uint32)
        bits |= (bits.view(np.float32).astype(np.float64) != np.atleast_1d(value)).astype(np.uint32)
        return bf16_from_bits(bits, mode).reshape(np.shape(value))


def bf16_from_bits(bits: NDArray[np.uint32], mode: str = "rn") -> NDArray[np.uint16]:
    """float32 words to bf16 words; every NaN becomes 0x7fff."""
    negative = bits >> np.uint32(31)
    if check_mode(mode) == "rn":
        bump = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    elif mode == "rz":
        bump = np.zeros_like(bits)
    else:
        bump = np.uint32(0xFFFF) * (negative if mode == "rm" else negative ^ np.uint32(1))
    finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    top = (np.where(finite, bits + bump, bits) >> np.uint32(16)).astype(np.uint16)
    unordered = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(unordered, np.uint16(0x7FFF), top)
