"""`fullness`: whether the requests of a kernel take more passes or sectors than their bytes fill.

Passes through the banks of shared memory are 128 bytes, sectors of global memory 32. Bytes that several lanes
of a warp touch count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.emulator.batch import Batch
from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Shape
from ekc.emulator.memory import Probe
from ekc.emulator.survey import NotingAccess, Tour, reached, toured

PASS, SECTOR = 128, 32
"""Bytes of a pass through the banks, and of a sector."""
_WARP = 48
"""Bits: a word's number within what a warp's number stands above."""


@dataclass(frozen=True)
class Fullness:
    """The requests of one memory instruction; an asynchronous copy makes two kinds."""

    line: int
    """Of the PTX text."""
    space: str
    """"global" or "shared"."""
    writes: bool
    bytes_per_lane: int
    taken: float
    """Passes (shared) or sectors (global) per request, ..."""
    needed: float
    """... and as many as the distinct bytes fill: ceil(bytes / 128), or ceil(bytes / 32)."""
    conflicts: float
    """Of the passes, those that distinct words of one bank cost. What else is taken and not needed goes to
    lanes that read the same: a pass returns a register a lane, so 16 bytes a lane take 4 passes, or 2 where
    neighbours share (`counters.wavefronts`), however few bytes they are in all."""


def fullness(
    ptx: str,
    kernel_name: str,
    *,
    grid: Shape,
    block: Shape,
    sizes: Sequence[int],
    dynamic_shared: int = 0,
    blocks: Iterable[int] = (0,),
) -> tuple[Fullness, ...]:
    """Every memory instruction that some blocks reach. Arguments and errors are those of `survey`."""
    tour = toured(_FullTour, ptx, kernel_name, grid, block, sizes, dynamic_shared, blocks)
    found = [_of(tour, line, sites) for (line, _), sites in reached(tour).items()]
    tour.close()
    return tuple(one for one in found if one.space in ("global", "shared"))


class _FullAccess(NotingAccess):
    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.needed: Counter[int] = Counter()
        """By site."""

    def count(self, site: Site, probe: Probe, offset: int) -> None:
        """Count, and what the distinct bytes of every warp need."""
        super().count(site, probe, offset)
        word = min(site.size, 4)
        warps = self.warp[probe.lanes(self.batch.every)].astype(np.int64)
        first = (warps << _WARP) + (probe.address + offset) // word
        words = np.unique(first[:, None] + np.arange(site.size // word))
        _, count = np.unique(words >> _WARP, return_counts=True)
        unit = PASS if probe.space.kind == "shared" else SECTOR
        self.needed[site.number] += int((-(-count * word // unit)).sum())


class _FullTour(Tour):
    access_type = _FullAccess


def _of(tour: Tour, line: int, sites: list[Site]) -> Fullness:
    access, one = tour.access, sites[0]
    assert isinstance(access, _FullAccess)
    requests = sum(access.requests[site.number] for site in sites)
    space, _ = tour.notes.first[one.number]
    passes = access.wavefronts if space == "shared" else access.sectors
    return Fullness(
        line=line,
        space=space,
        writes=one.action != "load",
        bytes_per_lane=one.size,
        taken=sum(passes[site.number] for site in sites) / requests,
        needed=sum(access.needed[site.number] for site in sites) / requests,
        conflicts=sum(access.conflicts[site.number] for site in sites) / requests,
    )
