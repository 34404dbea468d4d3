"""Latency of one launch: throughput of every pipe against the latency of one block.

The time of a pipe is the work of all resident blocks divided by the rate of the pipe. The time of a block is
the path of its warps, from the scheduling of the machine code (`ekc/machine_code/warp_path.py`), and its
barriers. A wave takes a smooth maximum of the pipes, so that a pipe that is nearly full costs a little too,
and of these and the path. Rates per SM and clock are those of the CUDA C++ Programming Guide (throughput of
native arithmetic instructions) and of the whitepapers (load-store units, banks).
docs/explanation/simulated-devices.md has the errors of the model. Figures marked "estimate" are our own, set
so that known kernels (siboehm's SGEMM ladder, copies at 90 % of DRAM) get their known times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ekc.devices.simulated.events import Events
from ekc.devices.simulated.launch_counts import WARP_SIZE, Occupancy
from ekc.devices.simulated.memory_traffic import LINE_BYTES
from ekc.devices.simulated.specs import GpuSpec
from ekc.ir.hardware.memory import SECTOR_BYTES
from ekc.machine_code.warp_path import L1_CYCLES, L2_CYCLES, LOAD_CYCLES

PATH = "path"
SCHEDULERS_PER_SM = 4
LAUNCH_CYCLES = 2000.0
"""SM cycles from the end of one launch to the start of the next, where launches are replayed from a graph. On
kernels of 1 to 10 us of three cards, measured so, seconds explain it worse than cycles (fit; 0.8 us on the
RTX 4090, 1.4 us on the A100)."""
BLOCK_START_CYCLES = 100.0
SFU_LANES_PER_SM = 16
SHUFFLE_LANES_PER_SM = 32
WARP_PATH_FACTOR = 1.22
"""Cycles of a warp alone over those that its control codes and the latencies of its loads ask for:
instruction fetches and queues of the pipes. The constants that say "fit" come from the fitted halves of the
CLBlast rows of three cards, of recordings/h100 and of benchmarks/simulator/foreign.py, all together,
rounded."""
PATH_NORM = 2.5
"""Exponent of the smooth maximum of the path of a warp and of the pipes: warps wait for each other (fit)."""
CONFLICT_CYCLES = 2.9
"""Issue slots that a conflict of register banks takes (fit)."""
TENSOR_LATENCY_CYCLES = 33.0
"""Cycles from one matrix instruction to the next that adds to the same sums (estimate after Sun et al.,
"Dissecting Tensor Cores via Microbenchmarks", 2022, of A100)."""
DRAM_LATENCY_S = 220e-9
"""Seconds of a DRAM access beyond L2's (fit; microbenchmarks since Jia et al.: 400 to 600 cycles in all)."""
L2_TO_SM_BYTES_PER_CLOCK = 64.0
FP32_SHARE = 0.95
"""Share of the published fp32 rate that the pipe reaches without conflicts of register banks (fit)."""
L2_SHARE = 0.70
DRAM_SHARE = 0.92
"""Shares of the published bandwidths that the best kernels reach."""
PIPELINED_EXPOSURE = 0.08
"""Share of the latency of a round that stays exposed when the next tile loads during this one (fit)."""
BARRIER_CYCLES = 25.0
"""Cycles of a barrier, the waits of its warps for the last one included (fit)."""
BARRIER_CYCLES_PER_WARP = 1.5


@dataclass(frozen=True)
class LatencyConstants:
    """Constants that no data sheet has, fitted to recordings."""

    norm: float
    """Exponent of the smooth maximum of the pipes: how badly they overlap."""
    global_cycles: float
    """Extra load-store cycles of a request to global memory, against one to shared memory: tags."""


FITTED_CONSTANTS = LatencyConstants(norm=5.7, global_cycles=0.26)
"""See `WARP_PATH_FACTOR`."""


Number = Any
"""A number, or an array with one entry for each of several launches or clocks."""


@dataclass(frozen=True)
class LaunchLatency:
    """Time of one launch, and its parts by resource; arrays for several launches or clocks."""

    seconds: Number
    seconds_by_resource: Mapping[str, Number]
    """Seconds that each resource alone would take; "path" is the dependent path of the blocks."""
    launch_s: Number
    """Part of `seconds` that starting the launch takes."""

    @property
    def bound(self) -> str:
        """Resource with the largest time, of one launch."""
        return max(self.seconds_by_resource, key=lambda part: float(self.seconds_by_resource[part]))

    def scale_work(self, factor: Number) -> Number:
        """Seconds of the launch if its work takes `factor` times as long; its overhead stays the same."""
        return self.launch_s + factor * (self.seconds - self.launch_s)


def estimate_latency(
    spec: GpuSpec,
    events: Events,
    occupancy: Occupancy,
    clock_mhz: Number,
    constants: LatencyConstants = FITTED_CONSTANTS,
) -> LaunchLatency:
    """Time of one launch at an SM clock, launch overhead included; of many where the figures are arrays."""
    cycles = _compute_pipe_cycles(spec, events, constants)
    cycles[PATH] = _compute_path_cycles(events, clock_mhz)
    capacity = occupancy.blocks * spec.sms
    full_waves, last_blocks = np.divmod(events.blocks, capacity)
    parts: dict[str, Number] = {}
    launch_s = seconds = compute_launch_seconds(clock_mhz)
    for times, on_device in (
        (full_waves, capacity),
        (np.minimum(last_blocks, 1), np.maximum(last_blocks, 1)),
    ):
        wave = _compute_wave_seconds(
            spec, events, cycles, np.ceil(on_device / spec.sms), on_device, clock_mhz
        )
        pipes = compute_smooth_max([t for part, t in wave.items() if part != PATH], constants.norm)
        seconds = seconds + times * compute_smooth_max([pipes, wave[PATH]], PATH_NORM)
        for part, value in wave.items():
            parts[part] = parts.get(part, 0.0) + times * value
    return LaunchLatency(seconds, MappingProxyType(parts), launch_s)


def compute_launch_seconds(clock_mhz: Number) -> Number:
    """Seconds that starting a launch takes at an SM clock."""
    return LAUNCH_CYCLES / (clock_mhz * 1e6)


def compute_min_latency_s(spec: GpuSpec, events: Events, clock_mhz: Number) -> Number:
    """Lower bound of the latency: arithmetic, issue and DRAM bytes at the best rates ever sustained."""
    lanes = FP32_SHARE * spec.sms * spec.throughput.fp32_lanes * clock_mhz * 1e6
    arithmetic = (events.fma32 + events.fp32) * WARP_SIZE / lanes
    tensor_rate = spec.throughput.mma_share * spec.sms * spec.throughput.tensor_fp16 * clock_mhz * 1e6
    matrices = events.tensor_fp16_equivalent_flops / tensor_rate
    issue = events.issued_instructions / (SCHEDULERS_PER_SM * spec.sms * clock_mhz * 1e6)
    memory = events.traffic.dram_bytes / (DRAM_SHARE * spec.memory_bytes_per_s)
    return np.maximum.reduce(np.broadcast_arrays(arithmetic, matrices, issue, memory))


def compute_smooth_max(values: Iterable[Number], norm: float) -> Number:
    """The p-norm of the values: at least the largest, a little more when others are close to it."""
    listed = np.broadcast_arrays(*values, 0.0)
    largest = np.maximum.reduce(listed)
    # The smallest float instead of 0 as divisor, for launches without any of this work.
    shares = sum((value / np.maximum(largest, np.finfo(float).tiny)) ** norm for value in listed)
    return largest * np.maximum(shares, 1.0) ** (1.0 / norm)


def _compute_wave_seconds(
    spec: GpuSpec,
    events: Events,
    block_cycles: Mapping[str, Number],
    blocks_on_sm: Number,
    blocks_on_device: Number,
    clock_mhz: Number,
) -> dict[str, Number]:
    """Seconds per resource while `blocks_on_sm` blocks share the busiest SM, `on_device` the GPU.
    `block_cycles`: cycles of one block, by pipe of its SM, and along its dependent path."""
    hertz = clock_mhz * 1e6
    share = np.minimum(1.0, blocks_on_sm * events.warps_per_block / SCHEDULERS_PER_SM)
    wave = {name: blocks_on_sm * cycles / share / hertz for name, cycles in block_cycles.items()}
    wave[PATH] = block_cycles[PATH] / hertz
    part = blocks_on_device / events.blocks
    wave["l2"] = part * events.traffic.l2_bytes / (L2_SHARE * spec.l2_bytes_per_clock * hertz)
    wave["dram"] = part * events.traffic.dram_bytes / (DRAM_SHARE * spec.memory_bytes_per_s)
    return wave


def _compute_pipe_cycles(spec: GpuSpec, events: Events, constants: LatencyConstants) -> dict[str, Number]:
    """Cycles of one block on each pipe of an otherwise empty SM, all four quarters busy."""
    moved = events.traffic
    lsu = events.lsu_cycles + constants.global_cycles * moved.requests
    lsu = lsu + events.shuffle * WARP_SIZE / SHUFFLE_LANES_PER_SM
    sm = spec.throughput
    special, packs = events.sfu + events.convert - events.pack, events.pack
    floats = events.fma32 + events.fp32 + events.integer_products
    conflicts = CONFLICT_CYCLES * events.bank_conflicts / SCHEDULERS_PER_SM
    totals = {
        "fp32": floats * WARP_SIZE / (FP32_SHARE * sm.fp32_lanes) + conflicts,
        "half": events.fp16 * WARP_SIZE / (FP32_SHARE * sm.half_lanes),
        "int": events.int_ops * WARP_SIZE / sm.int_lanes,
        "sfu": special * WARP_SIZE / SFU_LANES_PER_SM,
        "pack": packs * WARP_SIZE / sm.pack_lanes,
        "tensor": events.tensor_fp16_equivalent_flops / (sm.mma_share * sm.tensor_fp16),
        "lsu": lsu,
        "fill": moved.l2_bytes / L2_TO_SM_BYTES_PER_CLOCK,
        "issue": events.issued_instructions / SCHEDULERS_PER_SM + conflicts,
    }
    return {name: total / events.blocks for name, total in totals.items()}


def _compute_path_cycles(events: Events, clock_mhz: Number) -> Number:
    """Cycles of one block from its start to its last instruction, barriers and waits for copies included."""
    each = _estimate_load_cycles(events, clock_mhz)
    at_l1, *longer = np.moveaxis(np.asarray(events.path_cycles, np.float64), -1, 0)
    path = at_l1
    for before, after, low, high in zip([at_l1, *longer], longer, LOAD_CYCLES, LOAD_CYCLES[1:], strict=False):
        path = path + (after - before) * np.clip((each - low) / (high - low), 0.0, 1.0)
    path = WARP_PATH_FACTOR * path + CONFLICT_CYCLES * events.bank_conflicts / events.warps
    # Products of a warpgroup follow each other without a wait; the warp waits for the last of a group.
    path = path + events.group_waits * TENSOR_LATENCY_CYCLES
    path = path + events.barriers * (BARRIER_CYCLES + BARRIER_CYCLES_PER_WARP * events.warps_per_block)
    path = path + events.tile_waits * each * _compute_exposed_share(events.tiles_ahead)
    return path + BLOCK_START_CYCLES


def _compute_exposed_share(tiles_ahead: Number) -> Number:
    """Share of the latency of a tile that its wait exposes. With tiles in flight each round trip serves as
    many tiles (Little's law: tiles in flight = latency x rate)."""
    return np.where(tiles_ahead < 1.0, 1.0, PIPELINED_EXPOSURE / np.maximum(tiles_ahead, 1.0))


def _estimate_load_cycles(events: Events, clock_mhz: Number) -> Number:
    """Latency of a global load in cycles, by the sectors that L1 and L2 miss."""
    moved = events.traffic
    asked = SECTOR_BYTES * moved.sectors - LINE_BYTES * events.local_requests
    l1_miss = np.minimum(1.0, moved.l2_bytes / np.maximum(asked, 1.0))
    l2_miss = np.minimum(1.0, moved.dram_bytes / np.maximum(moved.l2_bytes, 1.0))
    beyond_l1 = L2_CYCLES - L1_CYCLES + l2_miss * DRAM_LATENCY_S * clock_mhz * 1e6
    return L1_CYCLES + l1_miss * beyond_l1
