"""Events of one launch on the hardware, counted from the compiled kernel.

All but the footprints is counted from the kernel alone (`launch_counts.py`). The footprints, the part of each
tensor that a block touches, come from the schedule where there is one; they give the reuse in L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

from ekc.codegen.compiled import Launch, Resources
from ekc.devices.simulated.launch_counts import WARP_SIZE, AccessGroup, LaunchProfile, Occupancy
from ekc.devices.simulated.memory_traffic import LINE_BYTES, SimulatedTraffic, SmResidency, compute_traffic
from ekc.devices.simulated.specs import HOPPER_RATES, WGMMA_SHARE, GpuSpec
from ekc.errors import DeviceError
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ptx.counting.counts import HALF_SUMS, InstructionCounts, WarpInstructions


@dataclass(frozen=True, kw_only=True)
class Events(WarpInstructions):
    """Totals over one launch."""

    blocks: int
    warps_per_block: int
    active_lanes: float
    """Mean number of active lanes of a warp."""
    registers: int
    tensor_fp16_equivalent_flops: float
    """Operations of matrix instructions, as the number of float16 operations of `mma.sync` that occupy the
    tensor cores for the same time."""
    tensor_energy_equivalent_flops: float
    """Operations of matrix instructions, as the number of float16 operations that take the same energy."""
    group_waits: float
    """Times that one warp waits for a group of `wgmma` products that it started together."""
    int_ops: float
    """Machine instructions of the integer pipe."""
    integer_products: float
    """Machine instructions that multiply and add integers, on the pipe of float32."""
    shared_requests: float
    shared_wavefronts: float
    shared_bytes: float
    """Bytes that move to and from shared memory: of lanes, asynchronous copies and tensor cores."""
    global_lane_bytes: float
    """Bytes that lanes move between registers and global or local memory, wherever they are found."""
    local_requests: float
    lsu_cycles: float
    """Cycles of a load-store unit for requests of all kinds, summed over SMs."""
    traffic: SimulatedTraffic
    issued_instructions: float
    """Machine instructions, each of which takes an issue slot."""
    bank_conflicts: float
    """Machine instructions that take an issue slot more, for operands out of one bank of registers."""
    path_cycles: Any
    """Cycles of a warp that has an SM for itself, for each latency of `LOAD_CYCLES`, [4]; [n, 4] of several
    launches."""
    tile_waits: float
    """Times that one warp waits for asynchronous copies of a tile."""
    tiles_ahead: float
    """Tiles in flight while one tile is used; 0 where a wait follows the copies of its own tile."""
    barriers: float
    """Barriers that one thread passes."""

    @property
    def warps(self) -> float:
        """Warps of the launch."""
        return self.blocks * self.warps_per_block


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
    together = min(occupancy.blocks, ceil(blocks / spec.sms))
    resident = SmResidency(
        blocks=together,
        shared_bytes=together * (launch.shared_bytes + resources.shared_bytes),
        local_bytes=together * threads * resources.stack_bytes,
    )
    on_chip = [one for one in profile.accesses if one.space == "shared"]
    # An asynchronous copy takes the issue slot of its load, and its data pass no register.
    by_hand = [one for one in on_chip if not one.is_async]
    in_registers = [one for one in profile.accesses if one.space == "global" and not one.is_async]
    operands = warps * counts.bytes_group / LINE_BYTES
    machine = profile.machine
    local = warps * machine.local_requests
    return Events(
        **{one.name: warps * getattr(counts, one.name) for one in fields(WarpInstructions)},
        blocks=blocks,
        warps_per_block=occupancy.warps_per_block,
        active_lanes=threads / occupancy.warps_per_block,
        registers=resources.registers,
        tensor_fp16_equivalent_flops=warps * _convert_to_fp16_flops(spec, counts),
        tensor_energy_equivalent_flops=warps * _convert_to_energy_flops(counts),
        group_waits=counts.group_waits,
        int_ops=warps * machine.integers,
        integer_products=warps * machine.integer_products,
        issued_instructions=warps * machine.instructions,
        bank_conflicts=warps * machine.bank_conflicts,
        path_cycles=machine.path_cycles,
        shared_requests=blocks * sum(one.requests for one in by_hand),
        shared_wavefronts=blocks * sum(one.requests * one.wavefronts for one in on_chip) + operands,
        shared_bytes=threads / occupancy.warps_per_block * blocks * _sum_bytes(on_chip)
        + LINE_BYTES * operands,
        global_lane_bytes=threads / occupancy.warps_per_block * blocks * _sum_bytes(in_registers)
        + LINE_BYTES * local,
        local_requests=local,
        lsu_cycles=blocks
        * sum(
            one.requests * _count_lsu_cycles(spec, _count_bank_passes(one), one.bytes_per_lane)
            for one in profile.accesses
        )
        + local * _count_lsu_cycles(spec, 1.0, 4)
        + operands * LINE_BYTES / spec.capability.l1_bytes_per_clock,
        traffic=compute_traffic(spec, launch, profile, local, resident, kept_share),
        tile_waits=counts.async_waits,
        tiles_ahead=_count_tiles_ahead(counts),
        barriers=counts.barrier,
    )


def _sum_bytes(accesses: list[AccessGroup]) -> float:
    """Bytes of one active lane of every warp of a block, repeated reads included."""
    return sum(one.requests * one.bytes_per_lane for one in accesses)


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


def _count_lsu_cycles(spec: GpuSpec, wavefronts: float, bytes_per_lane: int) -> float:
    """Cycles of the load-store unit for one request: making addresses, moving data, filling registers."""
    sm = spec.capability
    moving = wavefronts * LINE_BYTES / sm.l1_bytes_per_clock
    return max(WARP_SIZE / sm.load_store_units, moving, sm.clocks_per_word * bytes_per_lane / 4)


def _count_tiles_ahead(counts: InstructionCounts) -> float:
    """Tiles in flight beside the one in use, from the groups of copies: those that a wait leaves in flight,
    and the one that the next wait is for, if more groups are closed than waited for. Several groups between
    two waits are one tile."""
    if not counts.async_waits:
        return 0.0
    groups = counts.async_left / counts.async_waits + (counts.async_groups > counts.async_waits)
    return float(groups / max(1.0, counts.async_groups // counts.async_waits))
