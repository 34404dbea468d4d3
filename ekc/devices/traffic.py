"""Global-memory traffic of one launch: requests, L1 lines, bytes out of L2, bytes out of DRAM."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.codegen.compiled import AccessSite, Launch
from ekc.devices import l2
from ekc.devices.specs import Spec

SECTOR = 32
LINE = 128
L1_DEPTH = 2.0
"""Requests per site and warp whose lines wait in L1 for their next use (estimate)."""


@dataclass(frozen=True)
class Traffic:
    """Totals over one launch."""

    requests: float
    """Warp-level loads and stores."""
    lines: float
    """128-byte lines those requests look up in L1."""
    sectors: float
    """32-byte sectors those requests ask for."""
    l2_bytes: float
    dram_bytes: float


def traffic(
    spec: Spec, launch: Launch, blocks: int, resident_blocks: int, resident_warps: int, resident_shared: int
) -> Traffic:
    """Traffic of the access sites of a launch; `resident_*` are per SM, shared memory in bytes."""
    sites = [site for site in launch.sites if site.space == "global"]
    miss = _l1_miss(spec, sites, resident_warps, resident_shared)
    between_l1_l2 = _l2_bytes(launch, sites, blocks, miss)
    return Traffic(
        requests=blocks * sum(site.requests for site in sites),
        lines=blocks * sum(site.requests * lines(site) for site in sites),
        sectors=blocks * sum(site.requests * site.sectors for site in sites),
        l2_bytes=sum(between_l1_l2.values()),
        dram_bytes=_dram_bytes(spec, launch, between_l1_l2, min(blocks, resident_blocks * spec.sms)),
    )


def lines(site: AccessSite) -> float:
    """L1 lines per request: a request that asks for no more sectors than its bytes need is dense,
    every sector beyond that lies in a line of its own."""
    dense = float(site.bytes_per_lane)
    return max(1.0, min(site.sectors, dense) * SECTOR / LINE + max(0.0, site.sectors - dense))


def _l2_bytes(
    launch: Launch, sites: list[AccessSite], blocks: int, miss: float
) -> dict[tuple[str, str], float]:
    """Bytes between L1 and L2 by (tensor, kind): stores write through, loads may hit L1."""
    distinct = {(f.tensor, f.kind): f.block_bytes for f in launch.footprints}
    asked: dict[tuple[str, str], float] = {}
    for site in sites:
        key = (site.tensor, site.kind)
        asked[key] = asked.get(key, 0.0) + site.requests * site.sectors * SECTOR
    result = {}
    for key, per_block in asked.items():
        floor = min(distinct.get(key, per_block), per_block) if key[1] == "load" else per_block
        result[key] = blocks * (floor + miss * (per_block - floor))
    return result


def _l1_miss(spec: Spec, sites: list[AccessSite], resident_warps: int, resident_shared: int) -> float:
    """Chance that a byte asked for again has left L1: the live lines of all warps against its room."""
    room = spec.capability.l1_bytes_per_sm - min(resident_shared, spec.capability.shared_bytes_per_sm)
    live = resident_warps * L1_DEPTH * LINE * sum(lines(site) for site in sites if site.kind == "load")
    return live**2 / (live**2 + float(room) ** 2)


def _dram_bytes(spec: Spec, launch: Launch, asked: dict[tuple[str, str], float], wave_blocks: float) -> float:
    """Never below what the launch must touch, never above what it asked of L2."""
    if not launch.footprints:
        return sum(asked.values())
    fetched = l2.dram_bytes(launch.footprints, wave_blocks, spec.l2_bytes)
    total = 0.0
    for footprint, crossed in zip(launch.footprints, fetched, strict=True):
        ceiling = asked.get((footprint.tensor, footprint.kind), crossed)
        total += min(max(crossed, l2.compulsory_bytes(footprint)), ceiling)
    return total
