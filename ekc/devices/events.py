"""What one launch makes the hardware do, counted from the compiled kernel.

Arithmetic, barriers and a ceiling on shared requests come from the PTX, spills from ptxas, addresses
from the access sites (the index arithmetic of the emitted text, evaluated for sampled warps), reuse from
the footprints. How often an access is issued follows the habits of the compiler written down in
`ekc.ir.issue`, which the analysis uses too; a PTX machine will replace that.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.codegen.compiled import Launch, Resources
from ekc.devices.occupancy import WARP, Occupancy
from ekc.devices.ptx.counts import Counts
from ekc.devices.specs import Spec
from ekc.devices.traffic import LINE, SECTOR, Traffic, traffic

UNROLL = 4.0
"""Loop trips whose loads the compiler issues together (estimate)."""
LOCAL_MISS = 0.5
"""Share of local-memory bytes that reach L2 (estimate)."""


@dataclass(frozen=True)
class Events:
    """Totals over one launch; instructions are warp instructions."""

    blocks: int
    warps_per_block: int
    lanes: float
    """Active lanes of a warp, mean."""
    registers: int
    fma32: float
    fp32: float
    fp16: float
    tensor: float
    sfu: float
    int_ops: float
    convert: float
    shuffle: float
    branch: float
    other: float
    shared_requests: float
    shared_wavefronts: float
    shared_lane_bytes: float
    """Bytes delivered to or taken from registers."""
    local_requests: float
    traffic: Traffic
    rounds: float
    """Times that one warp waits for global loads it issued together."""
    barriers: float
    """Barriers that one thread passes."""

    @property
    def warps(self) -> float:
        """All warps of the launch."""
        return float(self.blocks * self.warps_per_block)

    @property
    def arithmetic(self) -> float:
        """Warp instructions that compute."""
        return self.fma32 + self.fp32 + self.fp16 + self.sfu + self.int_ops + self.convert

    @property
    def issued(self) -> float:
        """All warp instructions that take an issue slot."""
        memory = self.shared_requests + self.local_requests + self.traffic.requests
        control = self.shuffle + self.branch + self.other + self.barriers * self.warps
        return self.arithmetic + self.tensor + memory + control


def events(spec: Spec, launch: Launch, resources: Resources, counts: Counts, occupancy: Occupancy) -> Events:
    """Events of one launch that is resident as `occupancy` says."""
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    warps = float(blocks * occupancy.warps_per_block)
    moved = _global(spec, launch, resources, counts, blocks, occupancy)
    rounds = _rounds(launch, counts, occupancy.warps_per_block)
    shared = _shared(launch, counts, blocks, warps)
    local = warps * (counts.local_accesses + _spills(resources) * max(1.0, rounds))
    return Events(
        blocks=blocks,
        warps_per_block=occupancy.warps_per_block,
        lanes=threads / occupancy.warps_per_block,
        registers=resources.registers,
        fma32=warps * counts.fma32,
        fp32=warps * counts.fp32,
        fp16=warps * counts.fp16,
        tensor=warps * counts.tensor,
        sfu=warps * counts.sfu,
        int_ops=warps * counts.int_ops,
        convert=warps * counts.convert,
        shuffle=warps * counts.shuffle,
        branch=warps * counts.branch,
        other=warps * counts.other,
        shared_requests=shared[0],
        shared_wavefronts=shared[1],
        shared_lane_bytes=shared[2],
        local_requests=local,
        traffic=_with_local(moved, local),
        rounds=rounds,
        barriers=counts.barrier,
    )


def _global(
    spec: Spec, launch: Launch, resources: Resources, counts: Counts, blocks: int, occupancy: Occupancy
) -> Traffic:
    """From the sites; a kernel that comes without them is taken to access memory densely."""
    if launch.sites:
        shared = (launch.shared_bytes + resources.shared_bytes) * occupancy.blocks
        return traffic(spec, launch, blocks, occupancy.blocks, occupancy.warps, shared)
    warps = float(blocks * occupancy.warps_per_block)
    requests = warps * (counts.load_global + counts.store_global)
    size = warps * WARP * (counts.bytes_load_global + counts.bytes_store_global)
    return Traffic(requests, max(requests, size / LINE), size / SECTOR, size, size)


def _shared(launch: Launch, counts: Counts, blocks: int, warps: float) -> tuple[float, float, float]:
    """Requests, wavefronts and lane bytes."""
    sites = [site for site in launch.sites if site.space == "shared"]
    if not sites:
        requests = warps * (counts.load_shared + counts.store_shared)
        size = warps * WARP * (counts.bytes_load_shared + counts.bytes_store_shared)
        return requests, max(requests, size / LINE), size
    requests = blocks * sum(site.requests for site in sites)
    # The sites follow the text; where the PTX holds fewer instructions, the compiler joined more of them.
    # Joining saves instructions, not bytes, so the wavefronts stay.
    issued = warps * (counts.load_shared + counts.store_shared)
    return (
        min(requests, issued),
        blocks * sum(site.requests * site.wavefronts for site in sites),
        blocks * sum(site.requests * site.bytes_per_lane * WARP for site in sites),
    )


def _rounds(launch: Launch, counts: Counts, warps_per_block: int) -> float:
    """Loads between two barriers fly together, and so do those of a few loop trips."""
    trips = [
        site.requests / warps_per_block
        for site in launch.sites
        if site.space == "global" and site.kind == "load"
    ]
    most = max(trips, default=counts.load_global)
    return max(min(most, counts.barrier), most / UNROLL)


def _spills(resources: Resources) -> float:
    """Spill instructions per pass over the code; ptxas reports bytes, each instruction moves 4."""
    return (resources.spill_store_bytes + resources.spill_load_bytes) / 4.0


def _with_local(moved: Traffic, local: float) -> Traffic:
    return Traffic(
        moved.requests,
        moved.lines + local,
        moved.sectors + 4.0 * local,
        moved.l2_bytes + LOCAL_MISS * LINE * local,
        moved.dram_bytes,
    )
