"""Global-memory traffic of one launch: requests, sectors, bytes out of L2, bytes between DRAM and L2.

Blocks run in waves: consecutive block numbers, as many as are resident at a time. Within a wave, blocks
proceed in step, so a panel that several of them need is fetched once. Between waves a panel survives if
everything touched before its next use fits L2. A call finds in L2 what the call before it left there
(`compute_kept_share`), where calls follow each other, as they do while a kernel is timed warm or metered.

Blocks that are resident together need not stay in step: one starts when another ends. Their bytes out of step
are counted too. The energy of recorded A100 kernels says that they drift; their times do not tell, and those
of the RTX 3090 fit blocks in step a little better, so latency takes the bytes of blocks in step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ekc.codegen.compiled import Footprint, Launch
from ekc.devices.simulated.launch_counts import AccessGroup, LaunchProfile
from ekc.devices.simulated.specs import GpuSpec
from ekc.ir.hardware.memory import PAIR_BYTES, SECTOR_BYTES

EVICTION_EXPONENT = 2.0
"""Exponent by which hits within a launch fall once the data outgrow L2; a strict LRU would drop to none
(estimate)."""
CYCLE_EXPONENT = 4.0
"""Exponent by which hits on data of the call before fall once a call outgrows L2 (fit: kernels of
benchmarks/simulator/foreign.py that stream 32 to 64 MiB on A100 and H100, fitted half)."""
_BISECTION_STEPS = 40


@dataclass(frozen=True)
class _TouchedBytes:
    wave_bytes: float
    """Distinct bytes that one wave touches."""
    launch_bytes: float
    """Distinct bytes that the whole launch touches."""

    @property
    def reuse_distance_waves(self) -> float:
        """Waves until the same bytes are used again."""
        return max(1.0, self.launch_bytes / self.wave_bytes) if self.wave_bytes > 0 else 1.0


def compute_dram_bytes(
    footprints: Sequence[Footprint], wave_blocks: float, usable_l2_bytes: float
) -> tuple[float, ...]:
    """DRAM bytes per footprint, in order, for waves of `wave_blocks` resident blocks, with a cold L2."""
    touched = [_count_touched_bytes(footprint, wave_blocks) for footprint in footprints]
    waves = [max(1.0, _count_blocks(footprint) / wave_blocks) for footprint in footprints]
    hits = [_estimate_hit_share(own, touched, usable_l2_bytes) for own in touched]
    return tuple(
        own.launch_bytes + (1.0 - hit_share) * max(0.0, count * own.wave_bytes - own.launch_bytes)
        for own, count, hit_share in zip(touched, waves, hits, strict=True)
    )


def compute_drifting_dram_bytes(
    footprints: Sequence[Footprint], wave_blocks: float, l2_bytes: float
) -> tuple[float, ...]:
    """DRAM bytes per footprint, in order, if each resident block is somewhere else in its panels, but for the
    first wave, which starts together; the same as of blocks in step where all panels of a wave fit L2."""
    in_step = compute_dram_bytes(footprints, wave_blocks, l2_bytes)
    touched = [_count_touched_bytes(footprint, wave_blocks).wave_bytes for footprint in footprints]
    uses = [_count_panel_uses(*row, wave_blocks) for row in zip(footprints, touched, strict=True)]
    hits = _estimate_drifting_hit_shares(touched, uses, l2_bytes)
    waves = [max(1.0, _count_blocks(footprint) / wave_blocks) for footprint in footprints]
    return tuple(
        once + (1.0 - hit) * (use - 1.0) * (wave - 1.0) * size
        for once, hit, use, wave, size in zip(in_step, hits, uses, waves, touched, strict=True)
    )


def _count_panel_uses(footprint: Footprint, wave_bytes: float, wave_blocks: float) -> float:
    """Resident blocks that read the same panel, at least 1."""
    blocks = min(wave_blocks, _count_blocks(footprint))
    asked = blocks * min(footprint.block_bytes, float(footprint.tensor_bytes))
    return max(1.0, asked / wave_bytes) if wave_bytes > 0 else 1.0


def _estimate_drifting_hit_shares(
    sizes: Sequence[float], uses: Sequence[float], room_bytes: float
) -> tuple[float, ...]:
    """Share of the uses of a panel that find it in a cache of least recent use, for each size in bytes and
    number of uses while a block runs. Uses come independently of each other; data leave the cache when they
    were not used for a time, the same for all, that leaves the cache full (Che et al., 2002)."""
    if sum(sizes) <= room_bytes:
        return (1.0,) * len(sizes)
    low, high = 0.0, 1.0
    for _ in range(_BISECTION_STEPS):
        middle = 0.5 * (low + high)
        held = sum(size * -math.expm1(-use * middle) for size, use in zip(sizes, uses, strict=True))
        low, high = (middle, high) if held <= room_bytes else (low, middle)
    return tuple(-math.expm1(-use * low) for use in uses)


def compute_kept_share(spec: GpuSpec, launches: Iterable[Launch]) -> float:
    """Share of what a call touches that L2 still holds when the next call begins."""
    sizes: dict[str, float] = {}
    for footprint in (one for launch in launches for one in launch.footprints):
        sizes[footprint.tensor] = max(sizes.get(footprint.tensor, 0.0), compute_compulsory_bytes(footprint))
    usable = spec.l2_usable_share * spec.l2_bytes
    return _estimate_survival(sum(sizes.values()), usable, CYCLE_EXPONENT)


def compute_compulsory_bytes(footprint: Footprint) -> float:
    """Distinct bytes of the tensor that the launch touches."""
    return _count_touched_bytes(footprint, _count_blocks(footprint)).launch_bytes


def _count_touched_bytes(footprint: Footprint, wave_blocks: float) -> _TouchedBytes:
    panels_wave = panels_launch = stride = 1.0
    for extent, depends in footprint.block_loops:
        if depends:
            panels_wave *= min(max(wave_blocks / stride, 1.0), float(extent))
            panels_launch *= extent
        stride *= extent
    size = float(footprint.tensor_bytes)
    return _TouchedBytes(
        min(panels_wave * footprint.block_bytes, size), min(panels_launch * footprint.block_bytes, size)
    )


def _count_blocks(footprint: Footprint) -> float:
    return float(math.prod(extent for extent, _ in footprint.block_loops))


def _estimate_hit_share(
    own: _TouchedBytes, touched: Sequence[_TouchedBytes], usable_l2_bytes: float
) -> float:
    """Share of the tensor that is still in L2 at its next use."""
    between = sum(min(other.launch_bytes, own.reuse_distance_waves * other.wave_bytes) for other in touched)
    return _estimate_survival(between, usable_l2_bytes, EVICTION_EXPONENT)


def _estimate_survival(bytes_between: float, usable_l2_bytes: float, exponent: float) -> float:
    """Share of data that are still in L2 after so many other bytes."""
    if bytes_between <= 0:
        return 1.0
    return float(min(1.0, (usable_l2_bytes / bytes_between) ** exponent))


def _count_bytes_fetched(footprint: Footprint) -> float:
    """Bytes that DRAM moves for each byte that L2 misses. It moves two sectors of 32 bytes at once (the
    default granularity of fetches, `cudaLimitMaxL2FetchGranularity`); where a block needs only one of them,
    its neighbours need the other at another time. Measured: 1.5 times (A100), 1.6 (H100), 3.3 (RTX 4090)."""
    if not footprint.block_sectors:
        return 1.0
    return PAIR_BYTES * footprint.block_pairs / (SECTOR_BYTES * footprint.block_sectors)


LINE_BYTES = 128
LIVE_LINE_SHARE = 0.25
"""Share of the lines that the survey saw read twice that must stay in L1 at a time: the survey ran two trips
of each of two loops (estimate; in the recorded GEMMs of the RTX 3090 none of these lines seems to be
lost)."""
ATOMIC_L2_PASSES = 2
"""Passes of an atomic through L2: one read, one write. "Many atomics can be performed [...] nearly as quickly
as memory loads" since Kepler (NVIDIA, Nsight 4.7 user guide, Memory Statistics - Atomics), so bytes are their
only cost here; waits of atomics on one address are left out (estimate)."""


@dataclass(frozen=True)
class SmResidency:
    """Blocks and local memory that share one SM."""

    blocks: int
    shared_bytes: int
    local_bytes: int


@dataclass(frozen=True)
class SimulatedTraffic:
    """Totals over one launch."""

    requests: float
    """Warp-level loads and stores."""
    sectors: float
    """32-byte sectors of those requests."""
    l2_bytes: float
    dram_bytes: float
    """Bytes between DRAM and L2 of blocks in step: they take time."""
    drifting_dram_bytes: float
    """Bytes between DRAM and L2 of blocks that drift out of step: they take energy."""


def compute_traffic(
    spec: GpuSpec,
    launch: Launch,
    profile: LaunchProfile,
    local_requests: float,
    residency: SmResidency,
    kept_share: float | None = None,
) -> SimulatedTraffic:
    """Traffic of the accesses of a launch; `local` are its warp-level requests to local memory. `kept_share`:
    share of what it touches that L2 holds from the call before, 0 where that is overwritten (cold); None for
    a launch that is called alone, over and over."""
    if kept_share is None:
        kept_share = compute_kept_share(spec, (launch,))
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    accesses = [one for one in profile.accesses if one.space == "global"]
    # Shared memory takes its part of L1.
    shared_bytes = min(residency.shared_bytes, spec.capability.shared_bytes_per_sm)
    room = float(spec.capability.l1_bytes_per_sm - shared_bytes)
    miss = _estimate_l1_miss_share(room, profile.live_lines, residency)
    repeated = 1.0 - min(blocks, spec.sms) / blocks
    between_l1_l2 = _compute_l2_bytes(launch, accesses, repeated, miss, room)
    wave, usable_bytes = min(blocks, residency.blocks * spec.sms), spec.l2_usable_share * spec.l2_bytes
    in_step, drifting = (
        _bound_dram_bytes(launch, between_l1_l2, count(launch.footprints, wave, usable_bytes), kept_share)
        for count in (compute_dram_bytes, compute_drifting_dram_bytes)
    )
    return SimulatedTraffic(
        requests=blocks * sum(one.requests for one in accesses),
        sectors=blocks * sum(one.requests * one.sectors for one in accesses)
        + local_requests * LINE_BYTES / SECTOR_BYTES,
        l2_bytes=sum(between_l1_l2.values()) + miss * LINE_BYTES * local_requests,
        dram_bytes=in_step,
        drifting_dram_bytes=drifting,
    )


def _compute_l2_bytes(
    launch: Launch,
    accesses: list[AccessGroup],
    repeated_share: float,
    l1_miss_share: float,
    room_bytes: float,
) -> dict[tuple[str, str], float]:
    """Bytes that L2 moves by (tensor, kind): stores write through, loads may hit L1. Data that all blocks
    read alike are loaded once for each SM if they fit its L1; its later blocks hit there (counted on an H100:
    a matrix-vector product whose blocks all read the vector). `repeated_share`: share of the blocks that are
    not the first of their SM."""
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    distinct = {
        (f.tensor, f.kind): max(f.block_bytes, SECTOR_BYTES * f.block_sectors) for f in launch.footprints
    }
    common = {(f.tensor, f.kind) for f in launch.footprints if not any(d for _, d in f.block_loops)}
    requested: dict[tuple[str, str], float] = {}
    for one in accesses:
        key = (one.tensor, one.kind)
        requested[key] = requested.get(key, 0.0) + one.requests * one.sectors * SECTOR_BYTES
    result = {}
    for key, per_block in requested.items():
        floor = min(distinct.get(key, per_block), per_block) if key[1] == "load" else per_block
        kept = 1.0 - _estimate_lost_share(floor, room_bytes) if key in common and key[1] == "load" else 0.0
        first = floor * (1.0 - repeated_share * kept)
        result[key] = blocks * (first + l1_miss_share * (per_block - floor)) * _count_l2_passes(key[1])
    return result


def _count_l2_passes(kind: str) -> int:
    return ATOMIC_L2_PASSES if kind == "atomic" else 1


def _estimate_l1_miss_share(room_bytes: float, live_lines: float, residency: SmResidency) -> float:
    """Probability that a byte has left L1 at its next use: live lines of all blocks of an SM, whose warps
    proceed in step, and their local memory, against the room in L1."""
    live = LIVE_LINE_SHARE * LINE_BYTES * live_lines * residency.blocks + residency.local_bytes
    return _estimate_lost_share(live, room_bytes)


def _estimate_lost_share(size_bytes: float, room_bytes: float) -> float:
    """Share of data in use that L1 has lost at its next use."""
    return size_bytes**2 / (size_bytes**2 + room_bytes**2)


def _bound_dram_bytes(
    launch: Launch,
    l2_bytes_by_access: dict[tuple[str, str], float],
    fetched: Sequence[float],
    kept_share: float,
) -> float:
    """DRAM bytes, never below those that the launch must touch and L2 does not keep, never above those that
    it requested of L2, but for sectors that come in pairs."""
    if not launch.footprints:
        return sum(l2_bytes_by_access.values())
    total = 0.0
    for footprint, crossed in zip(launch.footprints, fetched, strict=True):
        least = compute_compulsory_bytes(footprint)
        missed = max(crossed, least) - kept_share * least
        ceiling = l2_bytes_by_access.get((footprint.tensor, footprint.kind), crossed)
        total += min(_count_l2_passes(footprint.kind) * missed, ceiling) * _count_bytes_fetched(footprint)
    return total
