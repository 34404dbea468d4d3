"""Wavefronts of requests to a swizzled tile. There it matters where the first lane starts: the mean is taken
over all places that the loops around the request bring it to, in a period of the swizzle."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.linear import ceil_div
from ekc.ir.patterns.lookup import Lookup
from ekc.ir.patterns.warp import (
    WARP,
    WarpAccessPattern,
    compute_lane_addresses,
    count_address_wavefronts,
    list_pattern_columns,
    sum_over_warps,
)
from ekc.ir.swizzle import SHARED_LINE_BYTES, SWIZZLE_CHUNKS, apply_swizzle

SWIZZLE_PERIOD_BYTES = SHARED_LINE_BYTES * SWIZZLE_CHUNKS[-1]
"""A start so much further on gives the same wavefronts."""
_PATTERN_COLUMNS = 3
"""Columns of a pattern before its digits: element, vector, lanes of the last warp."""


def swizzled_wavefronts(pattern: WarpAccessPattern, lanes: Any) -> Any:
    """Wavefronts of a request of `lanes` lanes, warp by warp."""
    moves = [value for move in pattern.start_moves for value in move]
    digits = len(pattern.extents)
    full, part = _SWIZZLED_LOOKUP(
        pattern.swizzle, pattern.first_element, digits, *list_pattern_columns(pattern, lanes), *moves
    )
    return sum_over_warps(full, part, lanes)


def _count_rows(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.array([_count_pattern(*row.tolist()) for row in rows])


def _count_pattern(chunks: int, first_element: int, digit_count: int, *rest: int) -> tuple[float, float]:
    """(wavefronts of a whole warp, of the lanes that are left) of one pattern."""
    pattern, moves = (
        np.array([rest[: _PATTERN_COLUMNS + 2 * digit_count]]),
        rest[_PATTERN_COLUMNS + 2 * digit_count :],
    )
    itemsize, vector, part = (int(v) for v in pattern[0, :_PATTERN_COLUMNS])
    places, shares = np.zeros(1, np.int64), np.ones(1)
    if chunks > 1:
        places, shares = _distribute_starts(first_element, moves, SWIZZLE_PERIOD_BYTES // itemsize, vector)
    return (
        _average_wavefronts(pattern, WARP, chunks, itemsize * vector, places, shares),
        _average_wavefronts(pattern, part, chunks, itemsize * vector, places, shares) if part else 0.0,
    )


def _average_wavefronts(
    pattern: NDArray[np.int64],
    lanes: int,
    chunks: int,
    width_bytes: int,
    start_elements: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> float:
    pattern = pattern.copy()
    pattern[0, 2] = lanes
    itemsize = int(pattern[0, 0])
    element = compute_lane_addresses(pattern) // itemsize + start_elements[:, None]
    each = np.full(len(start_elements), lanes)
    found = count_address_wavefronts(
        apply_swizzle(element, chunks, itemsize) * itemsize, np.full(len(start_elements), width_bytes), each
    )
    return float(found @ shares)


def _distribute_starts(
    first_element: int, moves: tuple[int, ...], period_elements: int, vector: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The places in a period where the first lane stands, and how often it does."""
    often: NDArray[Any] = np.zeros(period_elements)
    often[first_element % period_elements] = 1.0
    for step, together, units in zip(moves[0::3], moves[1::3], moves[2::3], strict=True):
        move, count = step * together, ceil_div(units, max(together, 1))
        if 0 < abs(move) < vector:
            # What a vector holds is not another start.
            move, count = vector, max(count * abs(move) // vector, 1)
        cycle = period_elements // gcd(move % period_elements, period_elements)
        turn = np.arange(min(count, cycle))
        weights = (count // cycle + (turn < count % cycle)) / count
        places = np.flatnonzero(often)
        reached = (places[:, None] + turn * move) % period_elements
        often = np.bincount(
            reached.ravel(), (often[places, None] * weights).ravel(), minlength=period_elements
        )
    places = np.flatnonzero(often)
    return places, often[places]


_SWIZZLED_LOOKUP = Lookup(_count_rows, 2)
