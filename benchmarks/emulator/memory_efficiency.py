"""Memory efficiency of a kernel: passes and sectors that its requests take and that their bytes fill.

A pass through the banks of shared memory moves 128 bytes, a sector of global memory has 32. Bytes that
several lanes of a warp touch count once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.emulator.access_survey import (
    AddressTrace,
    TracingMemoryUnit,
    decode_address_slice,
    group_reached_sites,
    run_trace,
)
from ekc.emulator.decode.context import Site
from ekc.emulator.geometry import Shape
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import AddressProbe
from ekc.emulator.paged_memory import BlankArray
from ekc.emulator.sanitizer.sanitizer import Sanitizer

PASS_BYTES, SECTOR_BYTES = 128, 32
"""Bytes of a pass through the banks, and of a sector."""
_WARP_SHIFT = 48
"""Bits below the warp's number: those of a word's address."""


@dataclass(frozen=True)
class MemoryEfficiency:
    """The requests of one memory instruction; an asynchronous copy makes two kinds."""

    line: int
    """Line of the PTX text."""
    space: str
    """"global" or "shared"."""
    is_write: bool
    bytes_per_lane: int
    units_taken: float
    """Passes (shared) or sectors (global) per request."""
    units_needed: float
    """Passes or sectors per request that the distinct bytes fill: ceil(bytes / 128), or ceil(bytes / 32)."""
    conflicts: float
    """Passes per request that distinct words of one bank cost.

    The other passes beyond need go to lanes that read the same bytes: a pass returns one register to each
    lane, so 16 bytes a lane take 4 passes, or 2 where neighbours share (`counters.count_wavefronts`)."""


def measure_memory_efficiency(
    ptx: str,
    kernel_name: str,
    *,
    grid: Shape,
    block: Shape,
    sizes: Sequence[int],
    dynamic_shared: int = 0,
    blocks: Iterable[int] = (0,),
) -> tuple[MemoryEfficiency, ...]:
    """Every memory instruction that the given blocks reach. `sizes`: bytes of each array
    argument. For the other parameters and errors see `survey_accesses`."""
    decoded, arrays = decode_address_slice(ptx, kernel_name), [BlankArray(size) for size in sizes]
    trace = run_trace(_EfficiencyTrace, decoded, grid, block, arrays, dynamic_shared, blocks)
    found = [_summarize_sites(trace, line, sites) for (line, _), sites in group_reached_sites(trace).items()]
    trace.close()
    return tuple(one for one in found if one.space in ("global", "shared"))


class _EfficiencyMemoryUnit(TracingMemoryUnit):
    def __init__(self, batch: LaneState, sanitizer: Sanitizer | None) -> None:
        super().__init__(batch, sanitizer)
        self.units_needed: Counter[int] = Counter()
        """Passes or sectors by number of the site, summed over requests."""

    def count_requests(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Count a request, and the units that the distinct bytes of every warp fill."""
        super().count_requests(site, probe, offset)
        word = min(site.bytes_per_lane, 4)
        warps = self.lane_warps[probe.lane_numbers(self.batch.all_lanes)].astype(np.int64)
        first = (warps << _WARP_SHIFT) + (probe.address + offset) // word
        words = np.unique(first[:, None] + np.arange(site.bytes_per_lane // word))
        _, count = np.unique(words >> _WARP_SHIFT, return_counts=True)
        unit = PASS_BYTES if probe.space.kind == "shared" else SECTOR_BYTES
        self.units_needed[site.number] += int((-(-count * word // unit)).sum())


class _EfficiencyTrace(AddressTrace):
    memory_unit_type = _EfficiencyMemoryUnit


def _summarize_sites(trace: AddressTrace, line: int, sites: list[Site]) -> MemoryEfficiency:
    access, counts, one = trace.memory_unit, trace.plan.counts, sites[0]
    assert isinstance(access, _EfficiencyMemoryUnit)
    requests = sum(counts.requests[site.number] for site in sites)
    space, _ = access.first_access[one.number]
    passes = counts.wavefronts if space == "shared" else counts.sectors
    return MemoryEfficiency(
        line=line,
        space=space,
        is_write=one.action != "load",
        bytes_per_lane=one.bytes_per_lane,
        units_taken=sum(passes[site.number] for site in sites) / requests,
        units_needed=sum(access.units_needed[site.number] for site in sites) / requests,
        conflicts=sum(counts.conflicts[site.number] for site in sites) / requests,
    )
