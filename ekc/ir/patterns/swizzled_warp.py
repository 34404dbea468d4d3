"""Wavefronts of requests to a swizzled tile. There it matters where the first lane starts: the mean is taken
over all places that the loops around the request bring it to, in a period of the swizzle."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.linear import ceil_div
from ekc.ir.patterns.lookup import Lookup
from ekc.ir.patterns.warp import WARP, Pattern, addresses, columns, over_warps, passes
from ekc.ir.swizzle import CHUNKS, LINE_BYTES, swizzled

PERIOD_BYTES = LINE_BYTES * CHUNKS[-1]
"""A start so much further on gives the same wavefronts."""
_PATTERN = 3
"""Columns of a pattern before its digits: element, vector, lanes of the last warp."""


def wavefronts(pattern: Pattern, lanes: Any) -> Any:
    """Wavefronts of a request of `lanes` lanes, warp by warp."""
    moves = [value for move in pattern.moves for value in move]
    digits = len(pattern.extents)
    full, part = _COUNTED(pattern.swizzle, pattern.first, digits, *columns(pattern, lanes), *moves)
    return over_warps(full, part, lanes)


def _counts(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.array([_counted(*row.tolist()) for row in rows])


def _counted(chunks: int, first: int, digits: int, *rest: int) -> tuple[float, float]:
    """(wavefronts of a whole warp, of the lanes that are left) of one pattern."""
    pattern, moves = np.array([rest[: _PATTERN + 2 * digits]]), rest[_PATTERN + 2 * digits :]
    itemsize, vector, part = (int(v) for v in pattern[0, :_PATTERN])
    places, shares = np.zeros(1, np.int64), np.ones(1)
    if chunks > 1:
        places, shares = _starts(first, moves, PERIOD_BYTES // itemsize, vector)
    return (
        _mean(pattern, WARP, chunks, itemsize * vector, places, shares),
        _mean(pattern, part, chunks, itemsize * vector, places, shares) if part else 0.0,
    )


def _mean(
    pattern: NDArray[np.int64],
    lanes: int,
    chunks: int,
    width: int,
    places: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> float:
    pattern = pattern.copy()
    pattern[0, 2] = lanes
    itemsize = int(pattern[0, 0])
    element = addresses(pattern) // itemsize + places[:, None]
    each = np.full(len(places), lanes)
    found = passes(swizzled(element, chunks, itemsize) * itemsize, np.full(len(places), width), each)
    return float(found @ shares)


def _starts(
    first: int, moves: tuple[int, ...], period: int, vector: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The places in a period where the first lane stands, and how often it does."""
    often: NDArray[Any] = np.zeros(period)
    often[first % period] = 1.0
    for step, together, units in zip(moves[0::3], moves[1::3], moves[2::3], strict=True):
        move, count = step * together, ceil_div(units, max(together, 1))
        if 0 < abs(move) < vector:
            # What a vector holds is not another start.
            move, count = vector, max(count * abs(move) // vector, 1)
        cycle = period // gcd(move % period, period)
        turn = np.arange(min(count, cycle))
        weights = (count // cycle + (turn < count % cycle)) / count
        places = np.flatnonzero(often)
        reached = (places[:, None] + turn * move) % period
        often = np.bincount(reached.ravel(), (often[places, None] * weights).ravel(), minlength=period)
    places = np.flatnonzero(often)
    return places, often[places]


_COUNTED = Lookup(_counts, 2)
