"""Warp-wide instructions on arrays (warps, 32): shuffles, ballots and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics.rounding import Array
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


def find_shuffle_source(mode: str, lane: Array, b: Array, c: Array) -> tuple[NDArray[np.intp], Predicate]:
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
