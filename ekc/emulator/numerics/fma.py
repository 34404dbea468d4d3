"""Float32 fused multiply-add with one rounding, in float64 and in blocks that stay in the cache.

The float64 product of two float32 numbers is exact and the float64 sum is rounded once; narrowing that
sum rounds a second time. The second rounding is wrong only where the sum is exactly half-way between two
float32 numbers, or where the result is subnormal. Those few lanes are found by their bits and computed
again from a sum rounded to odd.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.rounding import (
    BLOCK_ELEMENTS,
    Array,
    Double,
    canonicalize_nan,
    check_mode,
    flush,
    flush_operand,
    narrow,
    sum_to_odd,
)

Single = NDArray[np.float32]

_BELOW_FLOAT32 = np.uint64(0x1FFFFFFF)
"""The 29 bits of a float64 significand that a float32 does not have."""
_HALFWAY = np.uint64(0x10000000)
_BELOW_HALFWAY = np.uint64(0x0FFFFFFF)
_SMALLEST_NORMAL = 2.0**-126


class _Scratch:
    """Arrays for the passes over one block."""

    def __init__(self, size: int) -> None:
        self.total = np.empty(size, np.float64)
        self.addend = np.empty(size, np.float64)
        self.low = np.empty(size, np.uint64)
        self.is_inexact = np.empty(size, np.bool_)


def fma32(
    a: Array, b: Array, c: Array, *, mode: str = "rn", ftz: bool = False, out: Single | None = None
) -> Single:
    """`fma{.rn,.rz,.rm,.rp}{.ftz}.f32`: a * b + c with one rounding, subnormals kept unless `ftz`.

    A NaN result is 0x7fffffff. `ftz` flushes subnormal operands, and results once they are rounded.
    `out`, if given, is a float32 array of the result's shape (C-contiguous is fastest); it may be an operand.
    """
    a, b, c = (np.asarray(operand, np.float32) for operand in (a, b, c))
    with np.errstate(all="ignore"):
        return _fuse_blockwise(a, b, c, check_mode(mode), ftz, out)


def _fuse_blockwise(a: Single, b: Single, c: Single, mode: str, ftz: bool, out: Single | None) -> Single:
    """The whole array, block by block."""
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    result = out if out is not None and out.flags.c_contiguous else np.empty(shape, np.float32)
    flat = result.reshape(-1)
    flats = [np.broadcast_to(operand, shape).reshape(-1) for operand in (a, b, c)]
    scratch = _Scratch(min(BLOCK_ELEMENTS, flat.size))
    for start in range(0, flat.size, BLOCK_ELEMENTS):
        part = slice(start, start + BLOCK_ELEMENTS)
        block = [flush_operand(operand[part], ftz) for operand in flats]
        if mode == "rn":
            _fuse_block(block[0], block[1], block[2], flat[part], scratch)
        else:
            flat[part] = _fuse_directed(block[0], block[1], block[2], mode)
        if ftz:
            flush(flat[part], flat[part])
    if out is None or result is out:
        return result
    np.copyto(out, result)
    return out


def _fuse_block(a: Single, b: Single, c: Single, out: Single, scratch: _Scratch) -> None:
    """One block: the quick answer, if any lane may need care a closer look, then the lanes that do."""
    count = out.size
    total, addend, low = scratch.total[:count], scratch.addend[:count], scratch.low[:count]
    np.multiply(a, b, out=total, dtype=np.float64)
    np.copyto(addend, c)
    np.add(total, addend, out=total)
    # Halfway between float32 numbers, subnormal ones too, the last 28 bits are zero; so they are in NaN.
    np.bitwise_and(total.view(np.uint64), _BELOW_HALFWAY, out=low)
    careful = None if low.min() else _find_inexact_lanes(total, scratch)
    # An operand may be the output: every operand is read before the output is written.
    again = None if careful is None else _fuse_exactly(a[careful], b[careful], c[careful])
    np.copyto(out, total, casting="same_kind")
    if again is not None:
        out[careful] = again


def _find_inexact_lanes(total: Double, scratch: _Scratch) -> NDArray[np.intp] | None:
    """The lanes whose sum is half-way between normal float32 numbers, subnormal in float32, or NaN."""
    hit, low, size = (array[: total.size] for array in (scratch.is_inexact, scratch.low, scratch.addend))
    np.bitwise_and(total.view(np.uint64), _BELOW_FLOAT32, out=low)
    np.equal(low, _HALFWAY, out=hit)
    np.abs(total, out=size)
    if not size.min() > _SMALLEST_NORMAL:
        hit |= ~(size > _SMALLEST_NORMAL) & (size != 0)
    return np.flatnonzero(hit) if hit.any() else None


def _multiply_exactly(a: Array, b: Array, c: Array) -> tuple[Double, Double]:
    """The exact product and the addend in float64."""
    return np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)


def _fuse_exactly(a: Single, b: Single, c: Single) -> Array:
    """The careful answer to nearest even: the sum rounded to odd, then to float32."""
    return canonicalize_nan(sum_to_odd(*_multiply_exactly(a, b, c)).astype(np.float32))


def _fuse_directed(a: Single, b: Single, c: Single, mode: str) -> Array:
    """The other three modes; downwards, a sum that cancels to zero is -0."""
    product, addend = _multiply_exactly(a, b, c)
    total = sum_to_odd(product, addend)
    if mode == "rm":
        cancels = (total == 0) & (np.signbit(product) | np.signbit(addend))
        total = np.where(cancels, -0.0, total)
    return canonicalize_nan(narrow(total, np.float32, mode))
