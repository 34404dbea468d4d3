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

from ekc.ir.lookup import Lookup

WARP = 32
SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
PLACES = 16
"""Where in a sector an element may start: every 2 bytes, the size of the smallest."""


def sectors(extents: Sequence[Any], steps: Sequence[Any], width: Any, lanes: Any, starts: Any) -> Any:
    """32-byte sectors of one warp request.

    `extents` and `steps` (bytes) are per loop, fastest first; `width` is bytes per lane, `lanes` how many
    lanes take part. `starts` says how often the first lane stands at each of the `PLACES` of a sector;
    the result is the mean. All may be vectors over a population.
    """
    return np.sum(_SECTORS(*_pattern(extents, steps, width, lanes)) * starts, axis=0)


def wavefronts(extents: Sequence[Any], steps: Sequence[Any], width: Any, lanes: Any) -> Any:
    """Wavefronts of one warp request to shared memory; arguments as those of `sectors`."""
    return _WAVEFRONTS(*_pattern(extents, steps, width, lanes))[0]


def places(first: Any, steps: Sequence[Any], counts: Sequence[Any]) -> Any:
    """How often an address falls on each of the `PLACES` of a sector (first axis).

    It is `first` (bytes) plus digits that take `counts` values each, `steps` bytes apart.
    """
    unit = SECTOR_BYTES // PLACES
    columns = [np.asanyarray(first) // unit % PLACES]
    for step, count in zip(steps, counts, strict=True):
        moves = np.asanyarray(step) // unit % PLACES
        # After so many values it is back at the first place.
        period = PLACES // np.gcd(moves, PLACES)
        columns += [moves, np.where(np.asanyarray(count) % period == 0, period, count)]
    return _PLACES(*columns)


def warp_requests(moves: Any, threads: Any) -> Any:
    """Warp instructions of `threads` threads making `moves` moves in rounds; idle warps issue none."""
    rounds = np.floor_divide(moves, threads)
    return rounds * np.ceil(threads / WARP) + np.ceil((moves - rounds * threads) / WARP)


def _fallen(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The places of each row: where it begins, then step and count of each digit."""
    number = np.arange(len(rows))
    found = np.zeros((len(rows), PLACES))
    found[number, rows[:, 0]] = 1
    for step, count in zip(rows[:, 1::2].T, rows[:, 2::2].T, strict=True):
        moved = np.zeros_like(found)
        for k in range(PLACES):
            # Every PLACES-th value falls where the first does.
            often = (count // PLACES + (k < count % PLACES)) / count
            source = (np.arange(PLACES) - (step * k)[:, None]) % PLACES
            moved += often[:, None] * found[number[:, None], source]
        found = moved
    return found


def _pattern(extents: Sequence[Any], steps: Sequence[Any], width: Any, lanes: Any) -> list[Any]:
    """Columns that name a pattern, those that cannot differ made equal: loops of one iteration, loops slower
    than a warp, and all of it where nobody takes part."""
    lanes = np.minimum(np.asanyarray(lanes), WARP)
    none = lanes == 0
    faster: Any = np.asanyarray(1)
    columns = []
    for extent, step in zip(extents, steps, strict=True):
        idle = (np.asanyarray(extent) == 1) | (faster >= WARP) | none
        columns += [np.where(idle, 1, np.minimum(extent, WARP)), np.where(idle, 0, step)]
        faster = np.minimum(faster * columns[-2], WARP)
    return [*columns, np.where(none, 1, width), np.where(none, 1, lanes)]


def _addresses(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The address of each lane, as rows; lanes that take no part stand where the first does."""
    number = np.broadcast_to(np.arange(WARP), (len(rows), WARP))
    address = np.zeros((len(rows), WARP), dtype=np.int64)
    for column in range(0, rows.shape[1] - 2, 2):
        extent = rows[:, column, None]
        address += number % extent * rows[:, column + 1, None]
        number = number // extent
    return np.where(np.arange(WARP) < rows[:, -1, None], address, address[:, :1])


def _count_sectors(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sectors of each pattern, by the place where it starts."""
    address, width = _addresses(rows), rows[:, -2]
    found = np.empty((len(rows), PLACES))
    for w in np.unique(width).tolist():
        chosen = width == w
        # An access stands at a multiple of its width, so other places need no count of their own.
        apart = max(1, min(w * PLACES // SECTOR_BYTES, PLACES))
        for place in range(0, PLACES, apart):
            moved = address[chosen] + place * SECTOR_BYTES // PLACES
            counts = _distinct_count(_spread(moved, w, SECTOR_BYTES))
            found[chosen, place : place + apart] = counts[:, None]
    return found


def _count_wavefronts(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Wavefronts of each pattern, as a column: where it starts makes no difference."""
    address, width = _addresses(rows), rows[:, -2]
    found = np.empty((len(rows), 1))
    for w in np.unique(width).tolist():
        chosen = width == w
        found[chosen, 0] = _passes(address[chosen], rows[chosen, -1], w)
    return found


def _passes(address: NDArray[np.int64], lanes: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    """Wavefronts of each row. One returns a register a lane at most, so 8 bytes a lane take the half-warps
    in turn and 16 the quarters; two parts go at once where neighbours (i and i^1, or i and i^2) read the
    same (NVIDIA on its developer forum, of compute capability 7)."""
    parts = max(1, width // BANK_BYTES)
    if parts == 1:
        return _most_per_bank(_spread(address, width, BANK_BYTES))
    active = np.arange(WARP) < lanes[:, None]
    paired = np.zeros(len(address), dtype=bool)
    for step in (1, 2):
        partner = np.arange(WARP) ^ step
        same = (address == address[:, partner]) | ~active | ~active[:, partner]
        paired |= same.all(axis=1)
    return np.where(
        paired, _in_turn(address, active, width, parts // 2), _in_turn(address, active, width, parts)
    )


def _in_turn(
    address: NDArray[np.int64], active: NDArray[np.bool_], width: int, parts: int
) -> NDArray[np.float64]:
    """Wavefronts of a warp whose parts go one after the other."""
    total = np.zeros(len(address))
    for first in range(0, WARP, WARP // parts):
        part = slice(first, first + WARP // parts)
        held = np.where(active[:, part], address[:, part], address[:, first, None])
        total += _most_per_bank(_spread(held, width, BANK_BYTES)) * active[:, first]
    return total


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


_SECTORS = Lookup(_count_sectors, PLACES)
_WAVEFRONTS = Lookup(_count_wavefronts, 1)
_PLACES = Lookup(_fallen, PLACES)
