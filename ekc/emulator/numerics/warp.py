"""Instructions across the lanes of a warp: shuffles, ballots, reductions, `mma.sync` and `ldmatrix`.

Shuffles, ballots and reductions take arrays (warps, 32), matrix instructions (warps, 32, registers). The
layouts of matrix fragments are those of the PTX ISA ("Matrix Fragments for mma.m16n8k..."): with group =
lane / 4 and place = lane % 4, every element of a lane's fragment, low to high, has a row and a column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.convert import cvt
from ekc.emulator.numerics.fma import bf16_to_f32
from ekc.emulator.numerics.rounding import Array, canonicalize_nan
from ekc.errors import InvalidInput
from ekc.ptx.constants import WARP_SIZE

Predicate = NDArray[np.bool_]

_REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[[np.dtype[Any]], int]]] = {
    "add": (np.add.reduce, lambda _: 0),
    "min": (np.minimum.reduce, lambda dtype: int(np.iinfo(dtype).max)),
    "max": (np.maximum.reduce, lambda dtype: int(np.iinfo(dtype).min)),
    "and": (np.bitwise_and.reduce, lambda dtype: -1 if dtype.kind == "i" else int(np.iinfo(dtype).max)),
    "or": (np.bitwise_or.reduce, lambda _: 0),
    "xor": (np.bitwise_xor.reduce, lambda _: 0),
}


def compute_shuffle_source(mode: str, lane: Array, b: Array, c: Array) -> tuple[NDArray[np.intp], Predicate]:
    """`shfl.sync.{up,down,bfly,idx}`: the lane to copy from, and whether it is in the segment.

    b is the lane or the distance; c holds the clamp in bits 4..0 and the segment mask in bits 12..8.
    Where that lane is outside of it, a thread copies its own value.
    """
    lane, b, c = (np.asarray(x).astype(np.int64) for x in (lane, b, c))
    distance, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    first = lane & segment
    last = first | (clamp & ~segment)
    if mode == "idx":
        source = first | (distance & ~segment)
    elif mode in ("up", "down", "bfly"):
        source = {"up": lane - distance, "down": lane + distance, "bfly": lane ^ distance}[mode]
    else:
        raise InvalidInput(f"shfl mode {mode!r}: one of up, down, bfly, idx")
    inside = source >= last if mode == "up" else source <= last
    return np.where(inside, source, lane).astype(np.intp), inside


def unpack_members(mask: Array) -> Predicate:
    """Member masks, one word per warp, as (warps, 32) lanes."""
    words = np.asarray(mask).astype(np.uint32).reshape(-1, 1)
    return (words >> np.arange(WARP_SIZE, dtype=np.uint32) & np.uint32(1)).astype(np.bool_)


def ballot(predicate: Predicate) -> NDArray[np.uint32]:
    """(warps, 32) predicates as one word per warp, lane 0 the lowest bit."""
    packed = np.packbits(np.ascontiguousarray(predicate), axis=-1, bitorder="little")
    return packed.view("<u4")[..., 0].astype(np.uint32)


def redux(operation: str, value: Array, mask: Array) -> Array:
    """`redux.sync.{add,min,max,and,or,xor}`: one integer per warp, of its dtype, from the mask's lanes."""
    if operation not in _REDUCTIONS:
        raise InvalidInput(f"redux operation {operation!r}: one of {', '.join(_REDUCTIONS)}")
    reduce, neutral = _REDUCTIONS[operation]
    values = np.where(unpack_members(mask), value, value.dtype.type(neutral(value.dtype)))
    return np.asarray(reduce(values, axis=-1, dtype=value.dtype))


def match_any(value: Array, mask: Array) -> NDArray[np.uint32]:
    """`match.any.sync`: for each lane (warps, 32) the members that hold the same value."""
    same = (value[:, :, None] == value[:, None, :]) & unpack_members(mask)[:, None, :]
    return ballot(same)


Word = NDArray[np.uint32]
Index = NDArray[np.intp]

ROWS, COLUMNS = 16, 8
_TYPE_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32, "s8": 8, "u8": 8}
_DEPTHS_BY_BITS = {16: (8, 16), 32: (4, 8), 8: (16, 32)}
"""The k that m16n8 comes in, by the bits of a multiplicand."""


class FragmentIndices(NamedTuple):
    """Row and column of every element of a fragment, each (32 lanes, elements)."""

    row: Index
    column: Index


@cache
def compute_fragment_indices(operand: str, depth: int, dtype: str) -> FragmentIndices:
    """The map of operand `a` (16 x depth), `b` (depth x 8) or `c`, also `d` (16 x 8) of mma.m16n8k<depth>."""
    lane = np.arange(WARP_SIZE)[:, None]
    group, place = lane // 4, lane % 4
    if operand in ("c", "d"):
        element = np.arange(4)
        return _freeze_indices(group + 8 * (element // 2), place * 2 + element % 2)
    # A register holds neighbours along k; the next register is 8 rows down (a only), then further along k.
    each = 32 // _check_multiplicand_bits(depth, dtype)
    half = depth // 2 if depth > 4 * each else depth
    blocks = depth // half
    if operand == "b":
        element = np.arange(each * blocks)
        return _freeze_indices(place * each + element % each + half * (element // each), group)
    element = np.arange(2 * each * blocks)
    row = group + 8 * (element // each % 2)
    return _freeze_indices(row, place * each + element % each + half * (element // (2 * each)))


def _check_multiplicand_bits(depth: int, dtype: str) -> int:
    """The bits of one element; refuses a depth that the type does not come in."""
    bits = _TYPE_BITS.get(dtype, 0)
    if depth not in _DEPTHS_BY_BITS.get(bits, ()) or dtype in ("f32", "s32"):
        raise InvalidInput(f"mma.m16n8k{depth} of {dtype}: f16, bf16 k8 k16; tf32 k4 k8; s8, u8 k16 k32")
    return bits


def _freeze_indices(row: NDArray[np.int_], column: NDArray[np.int_]) -> FragmentIndices:
    """Both index arrays at full shape, read-only: the map is shared."""
    arrays = [np.array(array, np.intp) for array in np.broadcast_arrays(row, column)]
    for array in arrays:
        array.flags.writeable = False
    return FragmentIndices(arrays[0], arrays[1])


def unpack_registers(registers: Word, dtype: str) -> Array:
    """(..., registers) words as (..., elements) numbers: float64, or int64 for the integer types."""
    words = np.ascontiguousarray(registers)
    if dtype == "f16":
        return words.view("<f2").astype(np.float64)
    if dtype == "bf16":
        return bf16_to_f32(words.view("<u2")).astype(np.float64)
    if dtype == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if dtype == "f32":
        return words.view(np.float32).astype(np.float64)
    return words.view({"s8": np.int8, "u8": np.uint8, "s32": np.int32}[dtype]).astype(np.int64)


def pack_registers(elements: Array, dtype: str, *, satfinite: bool = False) -> Word:
    """(..., elements) numbers as registers, rounded once to the type; integers wrap or, asked to, clamp."""
    if dtype in ("f16", "bf16"):
        narrow = cvt(np.asarray(elements, np.float64), "f64", dtype)
        return np.ascontiguousarray(narrow).view(np.uint32)
    if dtype in ("f32", "tf32"):
        with np.errstate(all="ignore"):
            return canonicalize_nan(np.ascontiguousarray(elements).astype(np.float32)).view(np.uint32)
    integers = np.ascontiguousarray(elements).astype(np.int64)
    name = "u8" if dtype == "u8" else "s8" if dtype == "s8" else "s32"
    return cvt(integers, "s64", name, sat=satfinite).view(np.uint32)


def gather_fragments(matrix: Array, operand: str, depth: int, dtype: str) -> Word:
    """(warps, rows, columns) matrices as the fragment registers of their warps."""
    place = compute_fragment_indices(operand, depth, dtype)
    return pack_registers(matrix[:, place.row, place.column], dtype)


def scatter_fragments(registers: Word, operand: str, depth: int, dtype: str) -> Array:
    """Fragment registers (warps, 32, registers) as the matrices they hold, in float64 or int64."""
    place = compute_fragment_indices(operand, depth, dtype)
    elements = unpack_registers(registers, dtype)
    shape = {"a": (ROWS, depth), "b": (depth, COLUMNS)}.get(operand, (ROWS, COLUMNS))
    matrix = np.empty((len(registers), *shape), elements.dtype)
    matrix[:, place.row, place.column] = elements
    return matrix


def multiply_fragments(
    a: Word, b: Word, c: Word, shape: str, types: tuple[str, str, str, str], *, satfinite: bool = False
) -> Word:
    """`mma.sync.aligned.<shape>.row.col.<types>` on (warps, 32, registers): the registers of d = a b + c.

    `types` as PTX orders them: d, a, b, c. Integers are exact and wrap, or clamp with `.satfinite`. Of
    floats the ISA fixes neither order nor rounding of the sums: here they are taken in float64 and
    rounded once, which is no less exact. tf32 reads the upper 19 bits of its registers.
    """
    depth = int(shape.removeprefix("m16n8k")) if shape.startswith("m16n8k") else 0
    d_type, a_type, b_type, c_type = types
    left = scatter_fragments(a, "a", depth, a_type).astype(np.float64)
    right = scatter_fragments(b, "b", depth, b_type).astype(np.float64)
    with np.errstate(all="ignore"):
        product = np.matmul(left, right)
        place = compute_fragment_indices("d", depth, d_type)
        sums, addend = product[:, place.row, place.column], unpack_registers(c, c_type)
        total = sums.astype(np.int64) + addend if d_type == "s32" else sums + addend
    return pack_registers(total, d_type, satfinite=satfinite)


class LdmatrixSources(NamedTuple):
    """Where `ldmatrix` finds each half of each register, all (32 lanes, registers, 2 halves)."""

    lane: Index
    """Which lane holds the address of the row."""
    column: Index
    """The element (of 16 bits) within that row of eight."""


@cache
def compute_ldmatrix_sources(matrix_count: int, is_transposed: bool = False) -> LdmatrixSources:
    """`ldmatrix.sync.aligned.m8n8.x{1,2,4}{.trans}.shared.b16`, and of `stmatrix` the same map.

    Lanes 8 i .. 8 i + 7 hold the row addresses of matrix i, which arrives in register i: lane l holds
    elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, or with `.trans` of column l / 4.
    """
    if matrix_count not in (1, 2, 4):
        raise InvalidInput(f"ldmatrix.x{matrix_count}: one of x1, x2, x4")
    lane, half = np.arange(WARP_SIZE)[:, None, None], np.arange(2)
    line, along = lane // 4, 2 * (lane % 4) + half
    row, column = (along, line) if is_transposed else (line, along)
    first_lane = 8 * np.arange(matrix_count)[:, None]
    place = _freeze_indices(row + first_lane, column + 0 * first_lane)
    return LdmatrixSources(place.row, place.column)
