"""Counts of executed instructions and memory requests, for a kernel and for each of its instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ekc.display import format_line

Index = NDArray[np.int64]

WORD_BYTES = 4
"""Bytes of a word of a shared-memory bank."""


_SUMMED = ("warps", "lanes", "requests", "landed", "sectors", "wavefronts", "conflicts", "bytes")


@dataclass
class SiteCount:
    """Counts of one instruction over a launch."""

    instruction: str
    """The instruction as text."""
    line: int
    """Line of the PTX text."""
    kind: str
    """Kind: "fma.f32", "load.global", "barrier", ..."""
    warps: int = 0
    """Warp instructions issued."""
    lanes: int = 0
    """Lane instructions: active lanes, summed over the warp instructions."""
    requests: int = 0
    """Memory requests of warps. For an asynchronous copy, those that read global memory."""
    landed: int = 0
    """Requests by which an asynchronous copy writes shared memory."""
    sectors: int = 0
    """Distinct 32-byte sectors over all requests (global)."""
    wavefronts: int = 0
    """Shared-memory passes over all requests."""
    conflicts: int = 0
    """Shared-memory passes beyond those that the width of the access needs."""
    bytes: int = 0
    """Bytes that the active lanes access."""


@dataclass
class Counters:
    """Sums over a kernel, and the counts of each instruction (by PTX line)."""

    warp_instructions: dict[str, int] = field(default_factory=dict)
    """Kind of instruction -> warp instructions."""
    lane_instructions: dict[str, int] = field(default_factory=dict)
    """Kind of instruction -> lane instructions."""
    global_requests: int = 0
    global_sectors: int = 0
    global_load_sectors: int = 0
    global_store_sectors: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    bank_conflicts: int = 0
    barriers: int = 0
    """Barriers passed, counted per block."""
    divergent_branches: int = 0
    """Branches that split a warp."""
    bytes_by_space: dict[str, int] = field(default_factory=dict)
    """Kind of instruction -> bytes, such as {"load.global": 4096}."""
    instructions: dict[int, SiteCount] = field(default_factory=dict)
    """Line of the PTX text -> counts of its instruction."""

    def __repr__(self) -> str:
        memory = f"{self.global_sectors:,} sectors, {self.shared_wavefronts:,} wavefronts"
        return format_line(self, f"{self.warps:,} warp instructions, {memory}, {self.barriers:,} barriers")

    @property
    def warps(self) -> int:
        """All warp instructions."""
        return sum(self.warp_instructions.values())

    @property
    def lanes(self) -> int:
        """All lane instructions."""
        return sum(self.lane_instructions.values())


class LaunchCounts:
    """Counts of a launch, to which its batches add: by block, by site, and of the whole."""

    def __init__(self, block_count: int) -> None:
        self.lane_runs, self.warp_runs = [0] * block_count, [0] * block_count
        self.requests, self.sectors = Counter[int](), Counter[int]()
        self.wavefronts, self.conflicts, self.bytes = Counter[int](), Counter[int](), Counter[int]()
        self.passed_barriers = self.divergent_branches = 0


def sum_site_counts(sites: list[SiteCount], barriers: int, divergent_branches: int) -> Counters:
    """Totals from the counts of every instruction."""
    total = Counters(barriers=barriers, divergent_branches=divergent_branches)
    for one in sites:
        _add_line(total.instructions, one)
        total.warp_instructions[one.kind] = total.warp_instructions.get(one.kind, 0) + one.warps
        total.lane_instructions[one.kind] = total.lane_instructions.get(one.kind, 0) + one.lanes
        if one.bytes:
            total.bytes_by_space[one.kind] = total.bytes_by_space.get(one.kind, 0) + one.bytes
        # Constants and parameters come through a cache of their own.
        if one.sectors and not one.kind.endswith((".const", ".param")):
            total.global_requests += one.requests
            total.global_sectors += one.sectors
            if one.kind.startswith(("load", "copy")):
                total.global_load_sectors += one.sectors
            else:
                total.global_store_sectors += one.sectors
        if one.wavefronts:
            total.shared_requests += one.landed or one.requests
            total.shared_wavefronts += one.wavefronts
            total.bank_conflicts += one.conflicts
    return total


def _add_line(lines: dict[int, SiteCount], one: SiteCount) -> None:
    """Add the counts of an instruction to its line, which the last of several names."""
    earlier = lines.get(one.line)
    sums = {name: getattr(one, name) + getattr(earlier, name) for name in _SUMMED} if earlier else {}
    lines[one.line] = replace(one, **sums)


def count_sectors(addresses: Index, warps: Index, bytes_per_lane: int) -> int:
    """Distinct 32-byte sectors that each warp touches, summed over the warps."""
    first = (warps << 44) + (addresses >> 5)
    spans = (
        first
        if bytes_per_lane <= 1
        else np.concatenate([first, (warps << 44) + ((addresses + (bytes_per_lane - 1)) >> 5)])
    )
    return len(sort_unique(spans))


def sort_unique(values: Index) -> Index:
    """The values in order, each once. (`np.unique` hashes, which takes longer on so few.)"""
    ordered = np.sort(values)
    return ordered[_mark_first(ordered)]


def _mark_first(values: Index) -> NDArray[np.bool_]:
    """Whether each value differs from the one before it; true for the first."""
    new = np.empty(values.shape, np.bool_)
    new[:1] = True
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


def count_wavefronts(addresses: Index, warps: Index, bytes_per_lane: int) -> tuple[int, int]:
    """Shared-memory passes of all warps, and those of them beyond need.

    A pass serves one word of each bank and returns one register to each lane. Accesses of 8 bytes take the
    two half-warps in turn, those of 16 bytes the four quarters. Two such parts share a pass where neighbours
    (lanes i and i^1, or i and i^2) access the same address (NVIDIA on its developer forum, for compute
    capability 7). Lanes are numbered among the active ones.
    """
    number = warps - warps[0]
    first = addresses // WORD_BYTES
    words = max(1, bytes_per_lane // WORD_BYTES)
    part = _group_lanes(addresses, number, words)
    word = (first[:, None] + np.arange(words)).ravel()
    key = sort_unique((np.repeat(part, words) << 40) + word)
    count = (int(number[-1]) + 1) * words
    banks = np.bincount((key >> 40) * 32 + (key & 31), minlength=count * 32).reshape(count, 32)
    passes = banks.max(axis=1)
    return int(passes.sum()), int((passes - -(-banks.sum(axis=1) // 32)).sum())


def _group_lanes(addresses: Index, number: Index, words: int) -> Index:
    """A number for each lane, the same for lanes of one warp that share a pass."""
    if words == 1:
        return number
    new = _mark_first(number)
    rank = np.arange(number.size) - np.flatnonzero(new)[np.cumsum(new) - 1]
    table = np.full((int(number[-1]) + 1, 32), -1, np.int64)
    table[number, rank] = addresses
    paired = np.zeros(len(table), np.bool_)
    for step in (1, 2):
        partner = table[:, np.arange(32) ^ step]
        paired |= ((table == partner) | (table < 0) | (partner < 0)).all(axis=1)
    part = rank // (32 // words)
    groups: Index = number * words + np.where(paired[number], part // 2, part)
    return groups
