"""Global-memory traffic of one launch: requests, sectors, bytes out of L2, bytes out of DRAM."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.codegen.compiled import Launch
from ekc.devices import l2
from ekc.devices.accesses import Access, Executed
from ekc.devices.specs import Spec

SECTOR = 32
LINE = 128
LIVE_SHARE = 0.25
"""Of the lines that the survey saw read again, those that must stay at a time: it ran two trips of each of
two loops (estimate; in the recorded GEMMs of the RTX 3090 none of these lines seems to be lost)."""
ATOMIC_PASSES = 2
"""L2 reads what an atomic changes, and writes it back. "Many atomics can be performed [...] nearly as quickly
as memory loads" since Kepler (NVIDIA, Nsight 4.7 user guide, Memory Statistics - Atomics), so bytes are all
that they cost here; that those on one address wait for each other is left out (estimate)."""


@dataclass(frozen=True)
class Resident:
    """What shares one SM."""

    blocks: int
    shared_bytes: int
    local_bytes: int


@dataclass(frozen=True)
class Traffic:
    """Totals over one launch."""

    requests: float
    """Warp-level loads and stores."""
    sectors: float
    """32-byte sectors those requests ask for."""
    l2_bytes: float
    dram_bytes: float


def traffic(spec: Spec, launch: Launch, ran: Executed, local: float, resident: Resident) -> Traffic:
    """Traffic of the accesses of a launch; `local` are its warp-level requests to local memory."""
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    accesses = [one for one in ran.accesses if one.space == "global"]
    miss = _l1_miss(spec, ran.live_lines, resident)
    between_l1_l2 = _l2_bytes(launch, accesses, blocks, miss)
    return Traffic(
        requests=blocks * sum(one.requests for one in accesses),
        sectors=blocks * sum(one.requests * one.sectors for one in accesses) + local * LINE / SECTOR,
        l2_bytes=sum(between_l1_l2.values()) + miss * LINE * local,
        dram_bytes=_dram_bytes(spec, launch, between_l1_l2, min(blocks, resident.blocks * spec.sms)),
    )


def _l2_bytes(
    launch: Launch, accesses: list[Access], blocks: int, miss: float
) -> dict[tuple[str, str], float]:
    """Bytes that L2 moves by (tensor, kind): stores write through, loads may hit L1."""
    distinct = {(f.tensor, f.kind): f.block_bytes for f in launch.footprints}
    asked: dict[tuple[str, str], float] = {}
    for one in accesses:
        key = (one.tensor, one.kind)
        asked[key] = asked.get(key, 0.0) + one.requests * one.sectors * SECTOR
    result = {}
    for key, per_block in asked.items():
        floor = min(distinct.get(key, per_block), per_block) if key[1] == "load" else per_block
        result[key] = blocks * (floor + miss * (per_block - floor)) * _passes(key[1])
    return result


def _passes(kind: str) -> int:
    return ATOMIC_PASSES if kind == "atomic" else 1


def _l1_miss(spec: Spec, live_lines: float, resident: Resident) -> float:
    """Chance that a byte asked for again has left L1: the live lines of all blocks of an SM, whose warps walk
    in step, and their local memory, against its room."""
    room = spec.capability.l1_bytes_per_sm - min(resident.shared_bytes, spec.capability.shared_bytes_per_sm)
    live = LIVE_SHARE * LINE * live_lines * resident.blocks + resident.local_bytes
    return live**2 / (live**2 + float(room) ** 2)


def _dram_bytes(spec: Spec, launch: Launch, asked: dict[tuple[str, str], float], wave_blocks: float) -> float:
    """Never below what the launch must touch, never above what it asked of L2."""
    if not launch.footprints:
        return sum(asked.values())
    fetched = l2.dram_bytes(launch.footprints, wave_blocks, spec.l2_bytes)
    total = 0.0
    for footprint, crossed in zip(launch.footprints, fetched, strict=True):
        ceiling = asked.get((footprint.tensor, footprint.kind), crossed)
        passed = _passes(footprint.kind) * max(crossed, l2.compulsory_bytes(footprint))
        total += min(passed, ceiling)
    return total
