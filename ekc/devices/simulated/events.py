"""Events of one launch on the hardware, counted from the compiled kernel.

Arithmetic, barriers and accesses come from the PTX and the PTX machine (`launch_counts.py`), spills from
ptxas. Only the footprints come from the schedule: the part of each tensor that a block touches, for the reuse
in L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ekc.codegen.compiled import Launch, Resources
from ekc.devices.simulated.launch_counts import WARP_SIZE, AccessGroup, LaunchProfile, Occupancy
from ekc.devices.simulated.memory_traffic import LINE_BYTES, SimulatedTraffic, SmResidency, compute_traffic
from ekc.devices.simulated.specs import GpuSpec
from ekc.devices.throughput import HOPPER_RATES, WGMMA_SHARE
from ekc.errors import DeviceError
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ptx.counting.counts import HALF_SUMS, InstructionCounts

UNROLLED_TRIPS = 4.0
"""Loop trips whose loads ptxas issues together (estimate)."""
RESERVED_REGISTERS = 20
"""Registers that are never the target of a load in flight (estimate)."""


@dataclass(frozen=True)
class Events:
    """Totals over one launch; instructions are warp instructions."""

    blocks: int
    warps_per_block: int
    active_lanes: float
    """Mean number of active lanes of a warp."""
    registers: int
    fma32: float
    fp32: float
    fp16: float
    tensor: float
    tensor_fp16_equivalent_flops: float
    """Operations of matrix instructions, as the number of float16 operations of `mma.sync` that occupy the
    tensor cores for the same time."""
    tensor_energy_equivalent_flops: float
    """Operations of matrix instructions, as the number of float16 operations that take the same energy."""
    group_waits: float
    """Times that one warp waits for a group of `wgmma` products that it started together."""
    group_products: float
    """Part of `tensor_fp16_equivalent_flops` in those groups."""
    sfu: float
    int_ops: float
    convert: float
    pack: float
    """Part of `convert` that packs results of 16 or 8 bits (F2FP.PACK)."""
    shuffle: float
    branch: float
    other: float
    shared_requests: float
    shared_wavefronts: float
    shared_lane_bytes: float
    """Bytes between shared memory and registers."""
    local_requests: float
    lsu_cycles: float
    """Cycles of a load-store unit for requests of all kinds, summed over SMs."""
    traffic: SimulatedTraffic
    load_rounds: float
    """Times that one warp waits for global loads that it issued together."""
    tile_waits: float
    """Times that one warp waits for asynchronous copies of a tile."""
    tiles_ahead: float
    """Tiles in flight while one tile is used; 0 where a wait follows the copies of its own tile."""
    barriers: float
    """Barriers that one thread passes."""

    @property
    def warps(self) -> float:
        """Warps of the launch."""
        return float(self.blocks * self.warps_per_block)

    @property
    def arithmetic_instructions(self) -> float:
        """Warp instructions that compute."""
        return self.fma32 + self.fp32 + self.fp16 + self.sfu + self.int_ops + self.convert

    @property
    def issued_instructions(self) -> float:
        """Warp instructions that take an issue slot."""
        memory = self.shared_requests + self.local_requests + self.traffic.requests
        control = self.shuffle + self.branch + self.other + self.barriers * self.warps
        return self.arithmetic_instructions + self.tensor + memory + control


def count_events(
    spec: GpuSpec,
    launch: Launch,
    resources: Resources,
    profile: LaunchProfile,
    occupancy: Occupancy,
    kept_share: float | None = None,
) -> Events:
    """Events of one launch with the given occupancy. `kept_share`: see `compute_traffic`."""
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    counts, warps = _widen_float8(spec, profile.counts), float(blocks * occupancy.warps_per_block)
    resident = SmResidency(
        blocks=occupancy.blocks,
        shared_bytes=occupancy.blocks * (launch.shared_bytes + resources.shared_bytes),
        local_bytes=occupancy.blocks * threads * resources.stack_bytes,
    )
    rounds = _count_load_rounds(profile, resources.registers)
    on_chip = [one for one in profile.accesses if one.space == "shared"]
    # An asynchronous copy takes the issue slot of its load, and its data pass no register.
    by_hand = [one for one in on_chip if not one.is_async]
    hottest = max((one.trip_count for one in profile.accesses), default=1.0)
    operands = warps * counts.bytes_group / LINE_BYTES
    local = warps * (counts.local_accesses + _count_spills(resources) * hottest)
    return Events(
        blocks=blocks,
        warps_per_block=occupancy.warps_per_block,
        active_lanes=threads / occupancy.warps_per_block,
        registers=resources.registers,
        fma32=warps * counts.fma32,
        fp32=warps * counts.fp32,
        fp16=warps * counts.fp16,
        tensor=warps * counts.tensor,
        tensor_fp16_equivalent_flops=warps * _convert_to_fp16_flops(spec, counts),
        tensor_energy_equivalent_flops=warps * _convert_to_energy_flops(counts),
        group_waits=counts.group_waits,
        group_products=warps * counts.group_products,
        sfu=warps * counts.sfu,
        int_ops=warps * counts.int_ops,
        convert=warps * counts.convert,
        pack=warps * counts.pack,
        shuffle=warps * counts.shuffle,
        branch=warps * counts.branch,
        other=warps * counts.other,
        shared_requests=blocks * sum(one.requests for one in by_hand),
        shared_wavefronts=blocks * sum(one.requests * one.wavefronts for one in on_chip) + operands,
        shared_lane_bytes=blocks * sum(one.requests * one.bytes_per_lane * WARP_SIZE for one in by_hand),
        local_requests=local,
        lsu_cycles=blocks
        * sum(one.requests * _count_lsu_cycles(spec, _count_bank_passes(one)) for one in profile.accesses)
        + local * _count_lsu_cycles(spec, 1.0)
        + operands * LINE_BYTES / spec.capability.l1_bytes_per_clock,
        traffic=compute_traffic(spec, launch, profile, local, resident, kept_share),
        load_rounds=rounds,
        tile_waits=counts.async_waits,
        tiles_ahead=_count_tiles_ahead(counts),
        barriers=counts.barrier,
    )


FLOAT8_PRODUCT_FLOPS = 2 * 16 * 8 * 32
"""Operations of a product of float8."""
UNPACKS_PER_REGISTER, ADDS_PER_PRODUCT = 2.0, 4.0
"""Where ptxas makes two products of float16 of one of float8: conversions for each register of four factors,
which the products that share it share, and additions of the sums (machine code of sm_90). These conversions
(F2FP.UNPACK) take as long as those of the special function unit (fit: four rows of
benchmarks/simulator/foreign.py)."""


def _convert_to_fp16_flops(spec: GpuSpec, counts: InstructionCounts) -> float:
    """Operations of matrix instructions divided by the rates of their types. Those of a warpgroup weigh less
    where `mma.sync` is slower."""
    sm = spec.throughput
    rates = {**sm.tensor_rates, "float8": 1.0} if sm.widened_float8 else sm.tensor_rates
    alone = (flops / _find_rate(spec, rates, kind) for kind, flops in counts.tensor_flops.items())
    grouped = (flops / _find_rate(spec, sm.tensor_rates, kind) for kind, flops in counts.group_flops.items())
    return sum(alone) + sm.mma_share / WGMMA_SHARE * sum(grouped)


def _find_rate(spec: GpuSpec, rates: Mapping[str, float], kind: str) -> float:
    """Rate of matrix instructions relative to float16. Raises `DeviceError` for a type without one."""
    factors = kind.removesuffix(HALF_SUMS)
    if factors not in rates:
        known = ", ".join(rates)
        raise DeviceError(f"products of {factors} have no rate on {spec.name}: its tensor cores have {known}")
    return rates[factors] * (spec.throughput.half_sum_rate if kind.endswith(HALF_SUMS) else 1.0)


def _convert_to_energy_flops(counts: InstructionCounts) -> float:
    """Operations of matrix instructions divided by the rates of data centers, whatever the device."""
    each = (*counts.tensor_flops.items(), *counts.group_flops.items())
    return sum(flops / HOPPER_RATES[kind.removesuffix(HALF_SUMS)] for kind, flops in each)


def _widen_float8(spec: GpuSpec, counts: InstructionCounts) -> InstructionCounts:
    """The counts with products of float8 that this device does not have: each becomes two of float16."""
    flops = sum(flops for kind, flops in counts.tensor_flops.items() if kind.startswith("float8"))
    if not (flops and spec.throughput.widened_float8):
        return counts
    products = flops / FLOAT8_PRODUCT_FLOPS
    return replace(
        counts,
        tensor=counts.tensor + products,
        fp32=counts.fp32 + ADDS_PER_PRODUCT * products,
        convert=counts.convert + UNPACKS_PER_REGISTER * counts.float8_registers,
    )


def _count_bank_passes(access: AccessGroup) -> float:
    """Passes of a request through the banks that shared memory and L1 share. Bytes that an asynchronous copy
    brings past L1 pass the banks once, into their tile (PTX ISA, `cp.async.cg`; NVIDIA A100 whitepaper,
    "Asynchronous Copy")."""
    is_past_l1 = access.is_async and access.bytes_per_lane == max(ASYNC_COPIES_BY_BYTES)
    return 0.0 if is_past_l1 and access.space == "global" else access.wavefronts


def _count_lsu_cycles(spec: GpuSpec, wavefronts: float) -> float:
    """Cycles of the load-store unit for one request: making addresses, and moving data."""
    moving = wavefronts * LINE_BYTES / spec.capability.l1_bytes_per_clock
    return max(WARP_SIZE / spec.capability.load_store_units, moving)


def _count_load_rounds(profile: LaunchProfile, registers: int) -> float:
    """Rounds of loads. Loads between two barriers are in flight together, and so are those of a few loop
    trips, as far as there are registers for their values."""
    by_hand = [one for one in profile.accesses if not one.is_async]
    loads = [one for one in by_hand if one.space == "global" and one.kind == "load"]
    most = max((one.trip_count for one in loads), default=0.0)
    together = max(min(most, profile.counts.barrier), most / UNROLLED_TRIPS)
    words = (profile.counts.bytes_load_global - profile.counts.bytes_async) / 4
    return max(together, words / max(registers - RESERVED_REGISTERS, 8))


def _count_tiles_ahead(counts: InstructionCounts) -> float:
    """Tiles in flight beside the one in use, from the groups of copies: those that a wait leaves in flight,
    and the one that the next wait is for, if more groups are closed than waited for. Several groups between
    two waits are one tile."""
    if not counts.async_waits:
        return 0.0
    groups = counts.async_left / counts.async_waits + (counts.async_groups > counts.async_waits)
    return float(groups / max(1.0, counts.async_groups // counts.async_waits))


def _count_spills(resources: Resources) -> float:
    """Spill instructions per pass over the code: ptxas reports bytes, each instruction moves 4."""
    return (resources.spill_store_bytes + resources.spill_load_bytes) / 4.0
