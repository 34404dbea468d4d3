"""Floats that are rounded once: fused multiply-add of float32; float16, bf16 and tf32 and their pairs.

Float32 is computed in float64 and in blocks that stay in the cache. The float64 product of two float32
numbers is exact and the float64 sum is rounded once; narrowing that sum rounds a second time. The second
rounding is wrong only where the sum is exactly half-way between two float32 numbers, or where the result is
subnormal. Those few lanes are found by their bits and computed again from a sum rounded to odd.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.rounding import (
    BLOCK_ELEMENTS,
    Array,
    Double,
    apply_blockwise,
    bf16_from_bits,
    canonicalize_nan,
    check_mode,
    flush,
    flush_operand,
    narrow,
    narrow_bf16,
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


Half = NDArray[np.float16]
Bf16 = NDArray[np.uint16]
Word = NDArray[np.uint32]


def _round_once(function: Callable[..., Array], a: Array, b: Array) -> Half:
    """A float32 function of two halves. 24 bits are more than twice 11 and two, so rounding twice is rounding
    once; the product of two halves is exact."""
    with np.errstate(all="ignore"):
        return canonicalize_nan(function(a, b, dtype=np.float32).astype(np.float16))


add16, sub16, mul16 = (partial(_round_once, function) for function in (np.add, np.subtract, np.multiply))
"""`add.rn.f16`, `sub.rn.f16` and `mul.rn.f16`."""


def fma16(a: Array, b: Array, c: Array) -> Half:
    """`fma.rn.f16`: a * b + c with one rounding."""
    with np.errstate(all="ignore"):
        return apply_blockwise(_fuse_f16, np.float16, a, b, c)


def _fuse_f16(a: Half, b: Half, c: Half) -> Array:
    """One block: an exact float32 product, and a sum rounded to odd in 24 bits before it goes to 11."""
    total = sum_to_odd(np.multiply(a, b, dtype=np.float32), c.astype(np.float32))
    return canonicalize_nan(total.astype(np.float16))


def relu(value: Array) -> Array:
    """`.relu` of 16-bit floats, one or two a register: what has a sign, as no NaN here does, becomes +0."""
    bits = value.view(np.uint16)
    return np.where(bits >> np.uint16(15), np.uint16(0), bits).view(value.dtype)


def pack_halves(low: Half, high: Half) -> Word:
    """Two halves into `.f16x2` registers."""
    return pack_words(low.view(np.uint16), high.view(np.uint16))


def pack_words(low: Bf16, high: Bf16) -> Word:
    """Two 16-bit words into registers."""
    return np.asarray(low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16)))


def apply_to_pairs(
    operation: Callable[..., Array], dtype: type[np.generic], *operands: Word, **options: Any
) -> Word:
    """One operation on both 16-bit halves of its registers, seen as an array twice as long."""
    wide = np.broadcast_arrays(*operands)
    pairs = [np.ascontiguousarray(operand, np.uint32).view(dtype) for operand in wide]
    return operation(*pairs, **options).view(np.uint32)


add16x2, sub16x2, mul16x2, fma16x2 = (
    partial(apply_to_pairs, operation, np.float16) for operation in (add16, sub16, mul16, fma16)
)
"""`add.rn.f16x2`, `sub.rn.f16x2`, `mul.rn.f16x2` and `fma.rn.f16x2`."""


def f32_to_bf16(value: Array, mode: str = "rn") -> Bf16:
    """`cvt.{rn,rz}.bf16.f32`: the upper half of the float32 word, rounded; NaN becomes 0x7fff."""
    return bf16_from_bits(np.ascontiguousarray(value, np.float32).view(np.uint32), mode)


def bf16_to_f32(value: Bf16) -> NDArray[np.float32]:
    """A bf16 word is the upper half of its float32 word."""
    return (np.asarray(value).astype(np.uint32, order="C") << np.uint32(16)).view(np.float32)


def fma_bf16(a: Bf16, b: Bf16, c: Bf16) -> Bf16:
    """`fma.rn.bf16`: a * b + c with one rounding; add is a * 1 + c, mul is a * b + -0."""
    with np.errstate(all="ignore"):
        return apply_blockwise(_fuse_bf16, np.uint16, a, b, c)


def _fuse_bf16(a: Bf16, b: Bf16, c: Bf16) -> Array:
    """One block: an exact float64 product, and a sum rounded to odd."""
    wide = [bf16_to_f32(operand).astype(np.float64) for operand in (a, b, c)]
    return narrow_bf16(sum_to_odd(wide[0] * wide[1], wide[2]))


fma_bf16x2 = partial(apply_to_pairs, fma_bf16, np.uint16)
"""`fma.rn.bf16x2`."""


def tf32_round(value: Array, mode: str = "rna") -> NDArray[np.float32]:
    """`cvt{.rna,.rn,.rz}.tf32.f32`: 10 bits of significand, ties away from zero (rna) or to even (rn), or
    towards zero; the 13 low bits zero.

    NaN becomes 0x7fffffff, the canonical NaN of a 32-bit register.
    """
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    finite = (bits & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    even = np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    bump = even if mode == "rn" else np.uint32(0x1000 if mode == "rna" else 0)
    rounded = np.where(finite, (bits + bump) & np.uint32(0xFFFFE000), bits)
    return canonicalize_nan(rounded.view(np.float32))
