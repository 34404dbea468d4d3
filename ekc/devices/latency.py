"""How long one launch takes: throughput of every pipe against the latency of one block.

A pipe's time is the work of all resident blocks over the pipe's rate; a block's own time is its dependent
path. The wave takes a smooth maximum of the pipes, so that a pipe that is nearly full costs a little too, and
at least the path. Rates per SM and clock are those of the CUDA C++ Programming Guide (throughput of native
arithmetic instructions) and of the whitepapers (load-store units, banks). `FITTED` comes from recordings
of GEMMs on three GPUs: docs/simulated-devices.md says how near the whole comes to them. Figures marked
estimate are ours, set so that known kernels (siboehm's SGEMM ladder, copies at 90 % of DRAM) land where they
do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from types import MappingProxyType

from ekc.devices.events import Events
from ekc.devices.occupancy import WARP, Occupancy
from ekc.devices.specs import Spec
from ekc.devices.traffic import SECTOR

PATH = "path"
SCHEDULERS = 4
LAUNCH_S = 2.5e-6
"""From one launch to the next, back to back."""
BLOCK_START_CYCLES = 300.0
SFU_LANES = 16
SHUFFLE_LANES = 32
DEPENDENT_CYCLES = 4.5
TENSOR_CYCLES = 33.0
"""From one matrix instruction to the next that adds to its sums (estimate after Sun et al., "Dissecting
Tensor Cores via Microbenchmarks", 2022, of A100)."""
SHARED_CYCLES = 29.0
L1_CYCLES = 33.0
L2_CYCLES = 220.0
DRAM_S = 280e-9
"""Beyond L2 (Jia et al. and later microbenchmarks: 400 to 600 cycles in all)."""
FILL_BYTES_PER_CLOCK = 64.0
"""L2 to one SM."""
FP32_SHARE = 0.95
"""Share of the published fp32 rate that the best kernels sustain: operand banks and fetches take the
rest (estimate; the SGEMM ladder's best rung and cuBLAS end a few percent below peak)."""
L2_SHARE = 0.70
DRAM_SHARE = 0.92
"""Shares of the published bandwidths that the best kernels reach."""
PIPELINED_EXPOSURE = 0.2
"""Share of a round's latency that stays visible when the next tile loads during this one (estimate)."""
BARRIER_CYCLES = 22.0
BARRIER_CYCLES_PER_WARP = 1.5


@dataclass(frozen=True)
class Rates:
    """What no data sheet says and recordings do."""

    norm: float
    """Exponent of the smooth maximum: how badly the pipes overlap."""
    global_cycles: float
    """LSU cycles that a request to global memory takes more than one to shared memory: tags."""


FITTED = Rates(norm=3.5, global_cycles=0.33)
"""Fitted by benchmarks/simulator_fidelity.py on half of the CLBlast rows that it samples (A100, RTX 3090,
RTX 2080 Ti; seed 0), rounded."""


@dataclass(frozen=True)
class Latency:
    """Time of one launch, and what it is made of."""

    seconds: float
    parts: Mapping[str, float]
    """Seconds each resource alone would take; "path" is the dependent path of the blocks."""

    @property
    def bound(self) -> str:
        """The resource that costs most."""
        return max(self.parts, key=lambda part: self.parts[part])

    def off_by(self, factor: float) -> float:
        """Seconds where the work takes `factor` times as long; to start it takes as long as ever."""
        return LAUNCH_S + factor * (self.seconds - LAUNCH_S)


@dataclass(frozen=True)
class _Block:
    """Cycles of one block, by resource of its SM, and along its own dependent path."""

    pipes: Mapping[str, float]
    path: float


def latency(
    spec: Spec, events: Events, occupancy: Occupancy, clock_mhz: float, rates: Rates = FITTED
) -> Latency:
    """Time of one launch at an SM clock, launch overhead included."""
    block = _block(spec, events, clock_mhz, rates)
    capacity = occupancy.blocks * spec.sms
    full_waves, left = divmod(events.blocks, capacity)
    parts: dict[str, float] = {}
    seconds = LAUNCH_S
    for times, on_device in ((full_waves, capacity), (1, left)):
        if times and on_device:
            wave = _wave(spec, events, block, ceil(on_device / spec.sms), on_device, clock_mhz)
            pipes = smooth_max((value for part, value in wave.items() if part != PATH), rates.norm)
            seconds += times * max(pipes, wave[PATH])
            for part, value in wave.items():
                parts[part] = parts.get(part, 0.0) + times * value
    return Latency(seconds, MappingProxyType(parts))


def least_seconds(spec: Spec, events: Events, clock_mhz: float) -> float:
    """What no kernel can beat: its arithmetic and its DRAM bytes at the best rates ever sustained."""
    lanes = FP32_SHARE * spec.sms * spec.fp32_lanes_per_sm * clock_mhz * 1e6
    arithmetic = (events.fma32 + events.fp32 + events.fp16) * WARP / lanes
    tensor_rate = spec.mma_share * spec.sms * spec.tensor_fp16_flops_per_sm_clock * clock_mhz * 1e6
    matrices = events.tensor_half_flops / tensor_rate
    return max(arithmetic, matrices, events.traffic.dram_bytes / (DRAM_SHARE * spec.memory_bytes_per_s))


def smooth_max(values: Iterable[float], norm: float) -> float:
    """p-norm: at least the largest, a little more when others are close to it."""
    listed = [value for value in values if value > 0]
    largest = max(listed, default=0.0)
    if largest == 0.0:
        return 0.0
    return float(largest * sum((value / largest) ** norm for value in listed) ** (1.0 / norm))


def _wave(
    spec: Spec, events: Events, block: _Block, blocks_on_sm: int, on_device: int, clock_mhz: float
) -> dict[str, float]:
    """Seconds per resource while `blocks_on_sm` blocks share the busiest SM, `on_device` the GPU."""
    hertz = clock_mhz * 1e6
    share = min(1.0, blocks_on_sm * events.warps_per_block / SCHEDULERS)
    wave = {name: blocks_on_sm * cycles / share / hertz for name, cycles in block.pipes.items()}
    wave[PATH] = block.path / hertz
    part = on_device / events.blocks
    wave["l2"] = part * events.traffic.l2_bytes / (L2_SHARE * spec.l2_bytes_per_clock * hertz)
    wave["dram"] = part * events.traffic.dram_bytes / (DRAM_SHARE * spec.memory_bytes_per_s)
    return wave


def _block(spec: Spec, events: Events, clock_mhz: float, rates: Rates) -> _Block:
    pipes = _pipes(spec, events, rates)
    warp_path, waits = _waits(events, clock_mhz)
    share = min(1.0, events.warps_per_block / SCHEDULERS)
    alone = [cycles / share for cycles in pipes.values()]
    return _Block(pipes, smooth_max([*alone, warp_path], rates.norm) + waits + BLOCK_START_CYCLES)


def _pipes(spec: Spec, events: Events, rates: Rates) -> dict[str, float]:
    """Cycles of one block on each pipe of an otherwise empty SM, all four quarters busy."""
    moved = events.traffic
    lsu = events.lsu_cycles + rates.global_cycles * moved.requests
    lsu += events.shuffle * WARP / SHUFFLE_LANES
    totals = {
        "fp32": (events.fma32 + events.fp32 + events.fp16) * WARP / (FP32_SHARE * spec.fp32_lanes_per_sm),
        "int": events.int_ops * WARP / spec.int_lanes_per_sm,
        "sfu": (events.sfu + events.convert) * WARP / SFU_LANES,
        "tensor": events.tensor_half_flops / (spec.mma_share * spec.tensor_fp16_flops_per_sm_clock),
        "lsu": lsu,
        "fill": moved.l2_bytes / FILL_BYTES_PER_CLOCK,
        "issue": events.issued / SCHEDULERS,
    }
    return {name: total / events.blocks for name, total in totals.items()}


def _waits(events: Events, clock_mhz: float) -> tuple[float, float]:
    """Cycles along one warp that other warps of the block can fill, and those that stop the block."""
    parallel = _parallelism(events.registers)
    path = events.arithmetic / events.warps * max(1.0, DEPENDENT_CYCLES / parallel)
    path += (events.tensor - events.group_products) / events.warps * TENSOR_CYCLES / parallel
    # Products of a warpgroup follow each other without waiting; the last of a group is waited for.
    path += events.group_waits * TENSOR_CYCLES
    path += events.shared_requests / events.warps * SHARED_CYCLES / parallel
    path += events.local_requests / events.warps * L1_CYCLES / parallel
    each = _load_cycles(events, clock_mhz)
    loads = events.rounds * each
    stalls = events.barriers * (BARRIER_CYCLES + BARRIER_CYCLES_PER_WARP * events.warps_per_block)
    stalls += events.tiles * each * _visible(events.tiles_ahead)
    if events.barriers < 0.5 * events.rounds:
        # Warps load at their own pace between the few barriers.
        return path + loads, stalls
    # One barrier per tile means two buffers: the next tile loads while this one computes. Where copies are
    # waited for, the barriers are theirs and say nothing of other loads.
    pipelined = events.tiles == 0 and events.barriers <= 1.3 * events.rounds + 1.0
    return path, stalls + loads * (PIPELINED_EXPOSURE if pipelined else 1.0)


def _visible(tiles_ahead: float) -> float:
    """Share of a tile's latency that its wait stands for. While some are on their way, each round trip serves
    as many tiles (Little's law: tiles in flight = latency x rate)."""
    return 1.0 if tiles_ahead < 1.0 else PIPELINED_EXPOSURE / tiles_ahead


def _parallelism(registers: int) -> float:
    """Independent instructions in flight per warp: results need registers to wait in (estimate)."""
    return min(8.0, max(1.0, (registers - 20) / 10.0))


def _load_cycles(events: Events, clock_mhz: float) -> float:
    """Latency of a round of loads: the slowest of several, hence the square roots of miss shares."""
    moved = events.traffic
    l1_miss = sqrt(min(1.0, moved.l2_bytes / max(moved.sectors * SECTOR, 1.0)))
    l2_miss = sqrt(min(1.0, moved.dram_bytes / max(moved.l2_bytes, 1.0)))
    return L1_CYCLES + l1_miss * (L2_CYCLES - L1_CYCLES + l2_miss * DRAM_S * clock_mhz * 1e6)
