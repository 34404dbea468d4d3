"""Integer arithmetic and bit handling; the NumPy dtype of the operands is the instruction's type.

uint32 is `.u32` and `.b32`, int32 for `.s32`, and so on for 16 and 64 bits. Results wrap around.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.rounding import Array, apply_blockwise
from ekc.errors import InvalidInput

Word = NDArray[np.uint32]

_WIDER_TYPES: dict[str, type[np.generic]] = {
    "i1": np.int16, "u1": np.uint16, "i2": np.int32, "u2": np.uint32, "i4": np.int64, "u4": np.uint64
}  # fmt: skip


def _bit_width(value: Array) -> int:
    """The width of an integer array in bits."""
    return value.dtype.itemsize * 8


def as_unsigned(value: Array) -> Array:
    """The same bits without a sign."""
    return value.view(f"u{value.dtype.itemsize}")


def mul_wide(a: Array, b: Array) -> Array:
    """`mul.wide`: the whole product, in twice the bits."""
    return np.multiply(a, b, dtype=_WIDER_TYPES[a.dtype.str[1:]])


def mul_hi(a: Array, b: Array) -> Array:
    """`mul.hi`: the upper half of the product."""
    if _bit_width(a) < 64:
        return np.asarray((mul_wide(a, b) >> _bit_width(a)).astype(a.dtype))
    high = _multiply_high_64(a.view(np.uint64), b.view(np.uint64))
    if a.dtype.kind == "i":
        high -= np.where(a < 0, b, 0).view(np.uint64) + np.where(b < 0, a, 0).view(np.uint64)
    return high.view(a.dtype)


def _multiply_high_64(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The upper 64 bits of the product, from four products of halves."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    return np.asarray(a1 * b1 + (middle >> half) + ((a0 * b1 + (middle & low)) >> half))


def mad(a: Array, b: Array, c: Array, part: str, *, sat: bool = False) -> Array:
    """`mad.hi`, `mad.wide`: part of the product plus c; `mad.hi.sat.s32` clamps the sum."""
    product = mul_wide(a, b) if part == "wide" else mul_hi(a, b)
    if not sat:
        return np.asarray(np.add(product, c))
    bounds = np.iinfo(np.int32)
    total = np.clip(np.add(product, c, dtype=np.int64), bounds.min, bounds.max)
    return np.asarray(total.astype(np.int32))


def mul24(a: Array, b: Array, part: str = "lo") -> Array:
    """`mul24`: the product of the low 24 bits (with their sign); bits 31..0 (`lo`) or 47..16 (`hi`)."""
    wide = _WIDER_TYPES[a.dtype.str[1:]]
    low = [((operand << 8) >> 8).astype(wide) for operand in (a, b)]
    product = low[0] * low[1]
    return (product >> (16 if part == "hi" else 0)).astype(a.dtype)


def mad24(a: Array, b: Array, c: Array, part: str = "lo") -> Array:
    """`mad24`: `mul24` plus c."""
    return np.add(mul24(a, b, part), c)


def sad(a: Array, b: Array, c: Array) -> Array:
    """`sad`: c + |a - b|, the difference taken without overflow."""
    return np.asarray(c + np.where(a < b, b - a, a - b))


def dp4a(a: Array, b: Array, c: Array) -> Array:
    """`dp4a`: c plus the four byte products; int32 operands hold signed bytes, uint32 unsigned ones."""
    total = np.array(c)
    for at in (0, 8, 16, 24):
        left, right = (_extract_field(word, at, 8).astype(total.dtype) for word in (a, b))
        total += left * right
    return total


def dp2a(a: Array, b: Array, c: Array, part: str = "lo") -> Array:
    """`dp2a`: c plus two products of a's 16-bit halves with the lower (`lo`) or upper bytes of b."""
    first, total = (16 if part == "hi" else 0), np.array(c)
    for index in (0, 1):
        half, byte = _extract_field(a, 16 * index, 16), _extract_field(b, first + 8 * index, 8)
        total += half.astype(total.dtype) * byte.astype(total.dtype)
    return total


def _extract_field(value: Array, start: int, length: int) -> Array:
    """A fixed field of 32-bit words, extended by its own sign where the words have one."""
    return (value << (32 - start - length)) >> (32 - length)


def shl(a: Array, b: Array) -> Array:
    """`shl`: left by b, an unsigned 32-bit number; amounts beyond the width give 0."""
    bits = _bit_width(a)
    amount = np.asarray(b).view(np.uint32)
    shifted = a << (amount & np.uint32(bits - 1)).astype(a.dtype)
    return np.asarray(np.where(amount < bits, shifted, a.dtype.type(0)))


def shr(a: Array, b: Array) -> Array:
    """`shr`: right by b; amounts beyond the width leave the sign (signed types) or 0."""
    last = np.uint32(_bit_width(a) - 1)
    amount = np.asarray(b).view(np.uint32)
    shifted = a >> np.minimum(amount, last).astype(a.dtype)
    return np.asarray(shifted if a.dtype.kind == "i" else np.where(amount <= last, shifted, a.dtype.type(0)))


def shf(a: Word, b: Word, c: Word, direction: str, mode: str = "wrap") -> Word:
    """`shf.{l,r}.{wrap,clamp}.b32`: {b, a} shifted by c mod 32, or by min(c, 32); to the left (`l`) the upper
    word of the result, to the right (`r`) the lower."""
    if mode not in ("wrap", "clamp"):
        raise InvalidInput(f"shf mode {mode!r}: one of wrap, clamp")
    joined = (b.astype(np.uint64) << np.uint64(32)) | a
    amount = (np.minimum(c, np.uint32(32)) if mode == "clamp" else c & np.uint32(31)).astype(np.uint64)
    shifted = (joined << amount) >> np.uint64(32) if direction == "l" else joined >> amount
    return shifted.astype(np.uint32)


def bfe(a: Array, b: Array, c: Array) -> Array:
    """`bfe`: the field of c bits from bit b, extended by its sign bit (signed types) or zeros.

    Position and length count modulo 256; the sign bit is bit min(position + length - 1, msb).
    """
    bits = _bit_width(a)
    position, length = (np.asarray(x).view(np.uint32) & np.uint32(0xFF) for x in (b, c))
    end = np.minimum(position + length, np.uint32(bits))
    left = np.uint32(bits) - end
    # The field's last bit goes to the top, and back down with copies of the sign behind it.
    field = shr(shl(a, left), left + np.minimum(position, end))
    return np.where(length == 0, a.dtype.type(0), field)


def bfi(a: Array, b: Array, c: Array, d: Array) -> Array:
    """`bfi`: b with its d bits from bit c on taken from the low bits of a; c and d modulo 256."""
    position, length = (np.asarray(x).view(np.uint32) & np.uint32(0xFF) for x in (c, d))
    ones = np.full(np.shape(a), -1 if a.dtype.kind == "i" else np.iinfo(a.dtype).max, a.dtype)
    mask = shl(~shl(ones, length), position)
    return np.asarray((b & ~mask) | (shl(a, position) & mask))


def popc(a: Array) -> Word:
    """`popc`: how many bits are set."""
    return np.bitwise_count(as_unsigned(a)).astype(np.uint32)


def clz(a: Array) -> Word:
    """`clz`: leading zeros; the width for 0."""
    return np.uint32(_bit_width(a)) - popc(_fill_below(as_unsigned(a)))


def _fill_below(value: Array) -> Array:
    """Every bit below the highest set one, set."""
    value, step = value.copy(), 1
    while step < _bit_width(value):
        value |= value >> value.dtype.type(step)
        step *= 2
    return value


def bfind(a: Array, *, shiftamt: bool = False) -> Word:
    """`bfind`: the position of the highest set bit (signed: the highest that is not the sign).

    None gives 0xffffffff. `.shiftamt` gives the left shift that brings the bit to the top.
    """
    magnitude = as_unsigned(np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a)
    position = popc(_fill_below(magnitude)) - np.uint32(1)
    if not shiftamt:
        return position
    return np.where(magnitude == 0, position, np.uint32(_bit_width(a) - 1) - position)


def brev(a: Array) -> Array:
    """`brev`: the bits in reverse order."""
    value = as_unsigned(a).byteswap()
    for shift, mask in ((4, 0x0F), (2, 0x33), (1, 0x55)):
        every = value.dtype.type(int.from_bytes(bytes([mask]) * value.dtype.itemsize, "big"))
        step = value.dtype.type(shift)
        value = ((value >> step) & every) | ((value & every) << step)
    return value.view(a.dtype)


def lop3(a: Array, b: Array, c: Array, immediate: int) -> Array:
    """`lop3`: any function of three bits; bit 4*a + 2*b + c of the immediate is its value."""
    terms = [
        (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
        for index in range(8)
        if immediate >> index & 1
    ]
    return np.bitwise_or.reduce(terms) if terms else np.zeros_like(a)


_PRMT_SELECTORS: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""Source bytes of each mode, lowest target byte first, by the two low bits of the control word."""


def prmt(a: Word, b: Word, c: Word, mode: str | None = None) -> Word:
    """`prmt.b32`: four bytes out of {b, a}, each by a 4-bit selector whose top bit copies the sign instead.

    With a mode the two low bits of c choose a row of fixed selectors.
    """
    same = c.reshape(-1)[:1]
    if (c == same).all():
        return apply_blockwise(partial(_permute_bytes, c=same, mode=mode), np.uint32, a, b)
    return apply_blockwise(partial(_permute_bytes, mode=mode), np.uint32, a, b, c)


def _permute_bytes(a: Word, b: Word, c: Word, mode: str | None) -> Word:
    """One block, target byte by target byte."""
    joined = (b.astype(np.uint64) << np.uint64(32)) | a
    result = np.zeros(np.shape(joined), np.uint32)
    for index in range(4):
        selector = _select_byte(c, index, mode)
        byte = (joined >> ((selector & 7) * 8).astype(np.uint64)).astype(np.uint32) & np.uint32(0xFF)
        sign = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result |= np.where(selector & 8, sign, byte) << np.uint32(8 * index)
    return result


def _select_byte(control: Word, index: int, mode: str | None) -> NDArray[Any]:
    """The 4-bit selector of one target byte."""
    if mode is None:
        return np.asarray((control >> np.uint32(4 * index)) & np.uint32(0xF))
    if mode not in _PRMT_SELECTORS:
        raise InvalidInput(f"prmt mode {mode!r}: one of {', '.join(_PRMT_SELECTORS)}, or none")
    table = np.array([row[index] for row in _PRMT_SELECTORS[mode]], np.uint32)
    return np.asarray(table[control & np.uint32(3)])


def div(a: Array, b: Array) -> Array:
    """`div`: truncated towards zero. By zero, which the ISA does not define: all ones."""
    nonzero = np.where(b == 0, b.dtype.type(1), b)
    return np.asarray(np.where(b == 0, ~np.zeros_like(a), _divide_truncated(a, nonzero)))


def rem(a: Array, b: Array) -> Array:
    """`rem`: a - b * (a / b), with the sign of a. By zero, which the ISA does not define: all ones."""
    nonzero = np.where(b == 0, b.dtype.type(1), b)
    with np.errstate(all="ignore"):
        return np.where(b == 0, ~np.zeros_like(a), a - nonzero * _divide_truncated(a, nonzero))


def _divide_truncated(a: Array, b: Array) -> Array:
    """a / b truncated; b is not zero, and the smallest integer over -1 wraps to itself."""
    if _bit_width(a) < 64:
        # 53 bits hold any quotient of 32-bit numbers closely enough to truncate it rightly.
        return np.trunc(a / b.astype(np.float64)).astype(np.int64).astype(a.dtype)
    if a.dtype.kind == "u":
        return np.floor_divide(a, b)
    sizes = [np.where(x < 0, -x, x).view(np.uint64) for x in (a, b)]
    size = np.floor_divide(sizes[0], sizes[1]).view(np.int64)
    return np.where((a < 0) == (b < 0), size, -size)
