"""How the 32 lanes of a warp fall on memory: sectors and wavefronts of one request, exactly.

An access pattern is a mixed-radix number: lane -> digits over some loops, fastest first, each digit
times a step in bytes. The patterns of a population repeat a few hundred times over, so each
distinct one is enumerated once and remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WARP = 32
SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
_REMEMBERED = 1 << 18
_known: dict[int, tuple[float, float]] = {}


def requests(
    extents: Sequence[Any], steps: Sequence[Any], width: Any, lanes: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sectors, wavefronts) of one warp request.

    `extents` and `steps` (bytes) are per loop, fastest first; `width` is bytes per lane, `lanes`
    how many lanes take part. All may be vectors over a population.
    """
    columns = [np.asarray(c, dtype=np.int64) for pair in zip(extents, steps, strict=True) for c in pair]
    columns += [np.asarray(width, dtype=np.int64), np.minimum(np.asarray(lanes, dtype=np.int64), WARP)]
    table = _canonical(np.stack(np.broadcast_arrays(*columns), axis=-1).reshape(-1, len(columns)))
    keys = _hash(table)
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    _learn(unique, table[first])
    found = np.array([_known[k] for k in unique.tolist()])[inverse]
    return found[:, 0], found[:, 1]


def warp_requests(moves: Any, threads: Any) -> Any:
    """Warp instructions of `threads` threads making `moves` moves in rounds; idle warps issue none."""
    rounds = np.floor_divide(moves, threads)
    return rounds * np.ceil(threads / WARP) + np.ceil((moves - rounds * threads) / WARP)


def _canonical(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Patterns that cannot differ made equal: loops of one iteration, and loops slower than a warp."""
    faster = np.ones(len(table), dtype=np.int64)
    for column in range(0, table.shape[1] - 2, 2):
        extent = table[:, column]
        idle = (extent == 1) | (faster >= WARP)
        table[:, column] = np.where(idle, 1, np.minimum(extent, WARP))
        table[:, column + 1] = np.where(idle, 0, table[:, column + 1])
        faster = np.minimum(faster * extent, WARP)
    return table


def _hash(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """A 64-bit key per row; wrapping multiplication by odd constants."""
    random = np.random.default_rng(20241118)
    key: NDArray[np.int64] = np.full(len(table), table.shape[1], dtype=np.int64)
    for column in range(table.shape[1]):
        key = (key ^ table[:, column]) * (random.integers(1, 2**62, dtype=np.int64) * 2 + 1)
        key ^= key >> 29
    return key


def _learn(keys: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    if len(_known) > _REMEMBERED:
        _known.clear()
    new = np.array([k not in _known for k in keys.tolist()], dtype=bool)
    if not new.any():
        return
    sectors, waves = _enumerate(rows[new])
    _known.update(zip(keys[new].tolist(), zip(sectors.tolist(), waves.tolist(), strict=True), strict=True))


def _enumerate(rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    width, lanes = rows[:, -2], rows[:, -1]
    number = np.broadcast_to(np.arange(WARP), (len(rows), WARP))
    address = np.zeros((len(rows), WARP), dtype=np.int64)
    for column in range(0, rows.shape[1] - 2, 2):
        extent = rows[:, column, None]
        address += number % extent * rows[:, column + 1, None]
        number = number // extent
    address = np.where(np.arange(WARP) < lanes[:, None], address, address[:, :1])
    sectors = np.empty(len(rows))
    waves = np.empty(len(rows))
    for w in np.unique(width).tolist():
        chosen = width == w
        sectors[chosen] = _distinct_count(_spread(address[chosen], w, SECTOR_BYTES))
        waves[chosen] = _most_per_bank(_spread(address[chosen], w, BANK_BYTES))
    return sectors, waves


def _spread(address: NDArray[np.int64], width: int, unit: int) -> NDArray[np.int64]:
    """The units of memory that each lane's `width` bytes fall on, sorted along the row."""
    offsets = np.arange(0, max(width, 1), min(unit, width))
    units = (address[:, :, None] + offsets) // unit
    return np.sort(units.reshape(len(address), -1), axis=1)


def _distinct_count(units: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(1 + (np.diff(units, axis=1) != 0).sum(axis=1), dtype=np.float64)


def _most_per_bank(words: NDArray[np.int64]) -> NDArray[np.float64]:
    """Wavefronts: the most distinct words in any one bank."""
    fresh = np.concatenate([np.ones((len(words), 1), bool), np.diff(words, axis=1) != 0], axis=1)
    row = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    slot = (row * BANKS + words % BANKS)[fresh]
    per_bank = np.bincount(slot, minlength=len(words) * BANKS).reshape(-1, BANKS)
    return np.asarray(per_bank.max(axis=1), dtype=np.float64)
