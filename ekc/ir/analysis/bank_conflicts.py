"""Bank conflicts and coalescing: exact wavefronts and sectors of one request of a warp.

An access pattern is a mixed-radix number: the number of a lane gives digits over some loops, fastest first,
and each digit is multiplied by a step in bytes. Patterns repeat in a population, so each distinct one is
enumerated once and stored. Sectors, and wavefronts of a swizzled tile, depend on the address of the first
lane: the mean is taken over all addresses to which the loops around the request move it, modulo a sector or
swizzle period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import Extent, ceil_div, min_extent
from ekc.ir.analysis.population_math import Lookup
from ekc.ir.hardware.memory import (
    BANK_BYTES,
    BANKS,
    CACHE_LINE_BYTES,
    SECTOR_BYTES,
    SWIZZLE_PATTERN_BYTES,
    WARP,
    apply_swizzle,
)
from ekc.ir.trace.recorder import has_any


@dataclass(frozen=True, eq=False)
class WarpAccessPattern:
    """Addresses of the lanes of a warp in one request. All but `itemsize` may be vectors over a population;
    steps and starts are in elements of `itemsize` bytes."""

    itemsize: int
    vector: Any
    """Elements per lane."""
    extents: Sequence[Any]
    """Extents of the digits of a lane's number, fastest first."""
    steps: Sequence[Any]
    """Elements that a step of each digit moves the address."""
    first_element: Any = 0
    """Address of the first lane, when all loops around are at 0."""
    start_moves: Sequence[tuple[Any, Any, Any]] = ()
    """Loops that move the first lane: (step of an iteration, iterations in a warp, all iterations) each."""
    swizzle: Any = None
    """Chunks of the swizzle, None where the memory is never swizzled."""


def count_sectors_and_passes(pattern: WarpAccessPattern, lane_count: Any) -> tuple[Any, Any]:
    """(sectors of 32 bytes that `lane_count` lanes request, passes through L1), warp by warp. Sectors are the
    mean over the starts of the lanes; passes are those of lanes that start with a line of L1."""
    moves: list[Any] = []
    for move in pattern.start_moves:
        # A step of whole sectors does not change the address within a sector.
        is_partial = move[0] & SECTOR_BYTES // pattern.itemsize - 1 != 0
        if has_any(is_partial):
            moves += [value * is_partial for value in move]
    places = _BYTE_STARTS if pattern.itemsize == 1 else _HALFWORD_STARTS
    starts = places.start_lookup(pattern.itemsize, pattern.vector, pattern.first_element, *moves)[0]
    found = places.sector_lookup(starts, *list_pattern_columns(pattern, lane_count))
    return sum_over_warps(found[0], found[1], lane_count), sum_over_warps(found[2], found[3], lane_count)


def count_wavefronts(pattern: WarpAccessPattern, lane_count: Any) -> Any:
    """Wavefronts of a request to unswizzled shared memory, warp by warp; its start makes no difference."""
    full, part = _WAVEFRONT_LOOKUP(*list_pattern_columns(pattern, lane_count))
    return sum_over_warps(full, part, lane_count)


def list_pattern_columns(pattern: WarpAccessPattern, lane_count: Any) -> list[Any]:
    """Columns of a pattern: bytes of an element, vector, lanes of the last warp, extents, steps."""
    extents = split_lanes(pattern.extents)
    # Digits of one iteration move nothing.
    steps = [s * (e > 1) for s, e in zip(pattern.steps, extents, strict=True)]
    return [pattern.itemsize, pattern.vector, lane_count % WARP, *extents, *steps]


def sum_over_warps(full: Any, part: Any, lane_count: Any) -> Any:
    """The sum over full warps and one warp of the remaining lanes."""
    return lane_count // WARP * full + part


def split_lanes(extents: Iterable[Any]) -> list[Any]:
    """Steps of each digit, fastest first, that the lanes of one warp take."""
    faster: Extent = 1
    steps = []
    for extent in extents:
        steps.append(min_extent(extent, ceil_div(WARP, faster)))
        faster = min_extent(faster * extent, WARP)
    return steps


class _SectorStarts:
    """Sectors of requests by start address within a sector, in units of `unit_bytes`; results are stored."""

    def __init__(self, unit_bytes: int) -> None:
        self.unit_bytes, self.place_count = unit_bytes, SECTOR_BYTES // unit_bytes
        self.distribution_numbers: dict[bytes, int] = {}
        self.distributions = np.zeros((0, self.place_count))
        """Shares of the start addresses, one row for each distribution found so far."""
        self.start_lookup = Lookup(self._number_distributions, 1)
        self.sector_lookup = Lookup(self._count_sectors_and_passes, 4)
        self.place_lookup = Lookup(self._distribute_places, self.place_count)
        self.sectors_by_place_lookup = Lookup(self._count_sectors_by_place, self.place_count)

    def _number_distributions(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Number of the distribution of starts, for rows of element bytes, vector, first address, moves."""
        found = []
        for share in self.place_lookup(*self._list_place_columns(rows)).T:
            key = share.tobytes()
            if key not in self.distribution_numbers:
                self.distribution_numbers[key] = len(self.distribution_numbers)
                self.distributions = np.concatenate([self.distributions, share[None]])
            found.append(self.distribution_numbers[key])
        return np.array(found, dtype=np.float64)[:, None]

    def _list_place_columns(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Columns of the first lane's address, then step and count of each loop that moves it, in units."""
        itemsize, vector, first, *moves = rows.T
        width = itemsize * vector
        columns = [first * itemsize // self.unit_bytes % self.place_count]
        for step, together, units in zip(moves[0::3], moves[1::3], moves[2::3], strict=True):
            move, count = step * together * itemsize, ceil_div(units, np.maximum(together, 1))
            # A move within a vector gives no other start.
            joined = (np.abs(move) < width) & (move != 0)
            count = np.where(joined, np.maximum(count * np.abs(move) // width, 1), count)
            move = np.where(joined, width, move) // self.unit_bytes % self.place_count
            # After a period of steps the address in the sector repeats.
            period = self.place_count // np.gcd(move, self.place_count)
            columns += [move, np.where(count % period == 0, period, count)]
        return columns

    def _distribute_places(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shares of the start addresses, for rows of first address, then step and count of each loop."""
        number, k = np.arange(len(rows)), np.arange(self.place_count)
        found = np.zeros((len(rows), self.place_count))
        found[number, rows[:, 0]] = 1
        for step, count in zip(rows[:, 1::2].T, rows[:, 2::2].T, strict=True):
            # Steps whose numbers differ by `place_count` give the same address.
            shares = (count[:, None] // self.place_count + (k < count[:, None] % self.place_count)) / count[
                :, None
            ]
            source = (k - k[:, None] * step[:, None, None]) % self.place_count
            found = (shares[:, :, None] * found[number[:, None, None], source]).sum(axis=1)
        return found

    def _count_sectors_and_passes(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(sectors of a full warp, of the last warp, passes of either) of rows of distribution number and
        pattern columns."""
        shares = self.distributions[rows[:, 0]]

        def count_requests(patterns: NDArray[np.int64], numbers: NDArray[np.intp]) -> NDArray[np.float64]:
            return np.asarray((self.sectors_by_place_lookup(*patterns.T).T * shares[numbers]).sum(axis=1))

        sectors = _count_full_and_partial_warps(rows[:, 1:], count_requests)
        return np.concatenate([sectors, _count_full_and_partial_warps(rows[:, 1:], _count_l1_passes)], axis=1)

    def _count_sectors_by_place(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sectors of each pattern, by the place where it starts."""
        # An access is aligned to its width, so it falls in one sector; other start addresses do not occur.
        width = np.clip(rows[:, 0] * rows[:, 1] // self.unit_bytes, 1, self.place_count)[:, None]
        place = np.arange(self.place_count) // width * width * self.unit_bytes
        sectors = (compute_lane_addresses(rows)[:, None, :] + place[:, :, None]) // SECTOR_BYTES
        sectors.sort(axis=2)
        return np.asarray(1.0 + (np.diff(sectors, axis=2) != 0).sum(axis=2))


def _count_l1_passes(patterns: NDArray[np.int64], _: NDArray[np.intp]) -> NDArray[np.float64]:
    """Passes through L1 of each pattern: one for each line, for each word of a lane, and for each word that
    a bank has, whichever are most."""
    addresses, width = compute_lane_addresses(patterns), patterns[:, 0] * patterns[:, 1]
    lines = np.sort(addresses // CACHE_LINE_BYTES, axis=1)
    distinct = 1.0 + (np.diff(lines, axis=1) != 0).sum(axis=1)
    banks = count_address_wavefronts(addresses, width, patterns[:, 2])
    return np.asarray(np.maximum(np.maximum(distinct, banks), width // BANK_BYTES))


def _count_row_wavefronts(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(wavefronts of a full warp, of the last warp) of rows of pattern columns."""
    return _count_full_and_partial_warps(
        rows, lambda p, _: count_address_wavefronts(compute_lane_addresses(p), p[:, 0] * p[:, 1], p[:, 2])
    )


def _count_full_and_partial_warps(
    rows: NDArray[np.int64],
    count_requests: Callable[[NDArray[np.int64], NDArray[np.intp]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """(count of a full warp, of the last warp) of rows of pattern columns. Both are counted in one call: few
    patterns are new at a time, and most of the cost is that of the call."""
    found, every, left = np.zeros((len(rows), 2)), np.arange(len(rows)), np.flatnonzero(rows[:, 2])
    numbers = np.concatenate([every, left])
    patterns = rows[numbers]
    patterns[every, 2] = WARP
    counted = count_requests(patterns, numbers)
    found[:, 0], found[left, 1] = counted[: len(rows)], counted[len(rows) :]
    return found


def compute_lane_addresses(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Byte address of each lane, as rows; an inactive lane has the address of the first."""
    number = np.broadcast_to(np.arange(WARP), (len(rows), WARP))
    address = np.zeros((len(rows), WARP), dtype=np.int64)
    digits = (rows.shape[1] - 3) // 2
    for column in range(3, 3 + digits):
        extent = rows[:, column, None]
        address += number % extent * rows[:, column + digits, None]
        number = number // extent
    return np.where(np.arange(WARP) < rows[:, 2, None], address, address[:, :1]) * rows[:, :1]


def count_address_wavefronts(
    address: NDArray[np.int64], width_bytes: NDArray[np.int64], lane_counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Wavefronts of each row of addresses: the most distinct words in any one bank, for accesses of
    `width_bytes` by the first `lane_counts` lanes.

    A wavefront returns at most one register a lane. So half-warps take turns for 8 bytes a lane, and quarters
    for 16; two parts go together where neighbours (i and i^1, or i and i^2) read the same (NVIDIA on its
    developer forum, for compute capability 7).
    """
    lane = np.arange(WARP)
    active = lane < lane_counts[:, None]
    parts = np.maximum(width_bytes // BANK_BYTES, 1)
    parts = np.where((parts > 1) & detect_paired_rows(address, active), parts // 2, parts)[:, None]
    size = WARP // parts
    # Widths that no rule allows, such as 24 bytes, do not divide a warp; a trace is recorded with them too.
    part = np.minimum(lane // size, parts - 1)
    # An inactive lane has the address of the first of its part; a part without lanes takes no turn.
    address = np.where(active, address, np.take_along_axis(address, part * size, axis=1))
    most = _count_most_words_per_bank(_list_words(address, width_bytes), part, int(parts.max()))
    begins = np.arange(most.shape[1]) * size < lane_counts[:, None]
    return np.asarray((most * begins).sum(axis=1))


def detect_paired_rows(address: NDArray[np.int64], active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether all neighbours (i and i^1, or i and i^2) read the same address."""
    paired = np.zeros(len(address), dtype=bool)
    for step in (1, 2):
        partner = np.arange(WARP) ^ step
        same = (address == address[:, partner]) | ~active | ~active[:, partner]
        paired |= same.all(axis=1)
    return paired


def _list_words(address: NDArray[np.int64], width_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """[row, lane, word]: numbers of the 4-byte words that each lane accesses, the last one repeated."""
    offsets = np.arange(0, max(int(width_bytes.max()), 1), BANK_BYTES)
    return (address[:, :, None] + np.minimum(offsets, width_bytes[:, None, None] - 1)) // BANK_BYTES


def _count_most_words_per_bank(
    words: NDArray[np.int64], part: NDArray[np.int64], part_count: int
) -> NDArray[np.float64]:
    """[row, part]: the most distinct words in any one bank; `part` has the part of each row and lane."""
    # Sorted keys keep the words of a part together: the part is in the upper bits, the word in the lower.
    # Words count from a multiple of `BANKS`. Short keys sort faster.
    words = words - words.min() // BANKS * BANKS
    bits = max(int(words.max()), BANKS - 1).bit_length()
    is_short = bits + part_count.bit_length() < 31
    keys = ((part[:, :, None] << bits) + words).reshape(len(words), -1)
    tagged: NDArray[Any] = np.sort(keys.astype(np.int32) if is_short else keys, axis=1)
    fresh = np.ones(tagged.shape, bool)
    np.not_equal(tagged[:, 1:], tagged[:, :-1], out=fresh[:, 1:])
    row = np.arange(len(words))[:, None] * part_count + (tagged >> bits)
    per_bank = np.bincount((row * BANKS + tagged % BANKS)[fresh], minlength=len(words) * part_count * BANKS)
    return np.asarray(per_bank.reshape(len(words), part_count, BANKS).max(axis=2), dtype=np.float64)


_HALFWORD_STARTS, _BYTE_STARTS = _SectorStarts(2), _SectorStarts(1)
"""Start addresses for elements of two bytes or more, and of one byte (twice as many, and twice the time)."""
_WAVEFRONT_LOOKUP = Lookup(_count_row_wavefronts, 2)


_PATTERN_COLUMNS = 3
"""Columns of a pattern before its digits: bytes of an element, vector, lanes of the last warp."""
_ROWS_TOGETHER = 16
"""Patterns of swizzled tiles that are counted in one call; a pattern has up to 512 starts."""


def count_swizzled_wavefronts(pattern: WarpAccessPattern, lane_count: Any) -> Any:
    """Wavefronts of a request to a swizzled tile, warp by warp; the mean over the starts."""
    moves = [value for move in pattern.start_moves for value in move]
    digits = len(pattern.extents)
    columns = list_pattern_columns(pattern, lane_count)
    full, part = _SWIZZLED_LOOKUP(pattern.swizzle, pattern.first_element, digits, *columns, *moves)
    return sum_over_warps(full, part, lane_count)


def _count_rows(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(wavefronts of a full warp, of the last warp) of rows of: chunks, first address, number of digits,
    pattern columns, moves."""
    begins = range(0, len(rows), _ROWS_TOGETHER)
    return np.concatenate([_count_few_rows(rows[begin : begin + _ROWS_TOGETHER]) for begin in begins])


def _count_few_rows(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """`_count_rows`, for all starts of the first lane in all rows at once."""
    chunks, digits = rows[:, 0], int(rows[0, 2])
    patterns, moves = np.split(rows[:, 3:], [_PATTERN_COLUMNS + 2 * digits], axis=1)
    itemsize = int(patterns[0, 0])
    starts = [
        _distribute_starts(int(row[1]), move.tolist(), SWIZZLE_PATTERN_BYTES // itemsize, int(pattern[1]))
        if row[0] > 1
        else (np.zeros(1, np.int64), np.ones(1))
        for row, pattern, move in zip(rows, patterns, moves, strict=True)
    ]

    def count_requests(requests: NDArray[np.int64], numbers: NDArray[np.intp]) -> NDArray[np.float64]:
        places = np.concatenate([starts[number][0] for number in numbers])
        shares = np.concatenate([starts[number][1] for number in numbers])
        owner = np.repeat(np.arange(len(requests)), [len(starts[number][0]) for number in numbers])
        element = (compute_lane_addresses(requests) // itemsize)[owner] + places[:, None]
        address = apply_swizzle(element, chunks[numbers][owner, None], itemsize) * itemsize
        counts = count_address_wavefronts(address, itemsize * requests[owner, 1], requests[owner, 2])
        return np.asarray(np.bincount(owner, counts * shares), dtype=np.float64)

    return _count_full_and_partial_warps(patterns, count_requests)


def _distribute_starts(
    first_element: int, moves: Sequence[int], period_elements: int, vector: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Start addresses of the first lane modulo a period, after which wavefronts repeat; the share of each."""
    shares: NDArray[Any] = np.zeros(period_elements)
    shares[first_element % period_elements] = 1.0
    for step, together, units in zip(moves[0::3], moves[1::3], moves[2::3], strict=True):
        move, count = step * together, ceil_div(units, max(together, 1))
        if 0 < abs(move) < vector:
            # A move within a vector gives no other start.
            move, count = vector, max(count * abs(move) // vector, 1)
        if count == 1 or move % period_elements == 0:
            continue
        cycle = period_elements // gcd(move % period_elements, period_elements)
        turn = np.arange(min(count, cycle))
        weights = (count // cycle + (turn < count % cycle)) / count
        places = np.flatnonzero(shares)
        reached = (places[:, None] + turn * move) % period_elements
        weights = (shares[places, None] * weights).ravel()
        shares = np.bincount(reached.ravel(), weights, minlength=period_elements)
    places = np.flatnonzero(shares)
    return places, shares[places]


_SWIZZLED_LOOKUP = Lookup(_count_rows, 2)
