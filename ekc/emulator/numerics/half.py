"""float16, bf16 and tf32: one rounding each, alone or two in a 32-bit register."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.rounding import (
    Array,
    apply_blockwise,
    bf16_from_bits,
    canonicalize_nan,
    narrow_bf16,
    sum_to_odd,
)

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
