"""The prior of a real GPU whose data sheet is known: the model of the simulator on estimated events.

`events.py` counts the events of a launch from the compiled kernel. Here they come from the analysis of the
schedule, for a whole population at once, and nothing is compiled. Integer instructions, spills and the path
of a warp are known only after compilation. They are estimated, with constants that were fitted when the
latency model had no other path: CLBlast rows of three cards and recordings/h100, fitted halves. A schedule
with several launches counts as one launch with the work of all and the grid of the one with most arithmetic.

No simulated device may use this prior: it would know the law that it is asked to find.
`benchmarks/cost_model/analytic.py` compares it with recordings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Prior, Quantities
from ekc.devices.simulated import power
from ekc.devices.simulated.events import Events
from ekc.devices.simulated.latency import (
    PIPELINED_EXPOSURE,
    TENSOR_LATENCY_CYCLES,
    WARP_PATH_FACTOR,
    compute_launch_seconds,
    estimate_latency,
)
from ekc.devices.simulated.launch_counts import WARP_SIZE, Occupancy
from ekc.devices.simulated.memory_traffic import CYCLE_EXPONENT, LINE_BYTES, SimulatedTraffic
from ekc.devices.simulated.specs import WGMMA_SHARE, GpuSpec
from ekc.ir.hardware.memory import SECTOR_BYTES
from ekc.machine_code.warp_path import L1_CYCLES, LOAD_CYCLES

Number = Any
"""A number, or an array with one entry per schedule."""

UNROLLED_OPERATIONS, MAX_UNROLLED_TRIPS = 150.0, 16.0
"""Operations on floats in a loop body up to which ptxas unrolls a loop, by powers of two, and issues the
loads of these trips together; most trips of one body."""
DIRECT_WORDS_IN_FLIGHT, TILE_WORDS_IN_FLIGHT = 32.0, 16.0
"""Registers of one thread that wait for loads at the same time, of operands and of tiles; other loads of a
trip wait for these."""
ARITHMETIC_LATENCY_CYCLES, SHARED_LATENCY_CYCLES = 4.5, 29.0
CHAIN_CYCLES = 2.5
"""Cycles from one instruction that computes no float to the next of its warp: addresses and conditions wait
for each other, however many registers there are."""
Array = NDArray[np.float64]

INTEGER_PER_ACCESS, INTEGER_PER_STEP = 0.25, 1.0
"""Integer instructions for each memory access and for each trip of a loop (fit: CLBlast rows, as in
`benchmarks/common/estimated.py`)."""
PRODUCT_FLOPS = 4096.0
"""Operations of one `mma` in float16. An `mma` of another type takes about as long: narrower types are
deeper, wider types less deep (estimate)."""
SPILLED_BYTES = 6.8
"""Bytes that ptxas stores, and loads, for each register too many (fit: compiled CLBlast kernels, as in
`benchmarks/common/estimated.py`)."""
MAX_REGISTERS, REGISTER_BYTES = 255, 4
TEMPERATURE_C = 60.0
"""Temperature of the die at work, for leakage (estimate)."""


def predict_prior(spec: GpuSpec, quantities: Quantities, clock_mhz: float) -> Prior:
    """Latency and power by the model of the simulator, at an SM clock and without the power cap."""
    events, resident = estimate_events(spec, quantities)
    extra_launches_s = compute_launch_seconds(clock_mhz) * (quantities["launches"] - 1.0)
    latency_s = np.asarray(estimate_latency(spec, events, resident, clock_mhz).seconds + extra_launches_s)
    standby_w = power.compute_idle_power(spec, clock_mhz, TEMPERATURE_C)
    standby_w = standby_w + power.compute_active_clock_power(spec, clock_mhz, quantities["balance"])
    dynamic_j = power.compute_dynamic_energy(spec, events).at_voltage(spec.voltage.at_clock(clock_mhz))
    return Prior(latency_s, np.asarray(standby_w + dynamic_j / latency_s), np.asarray(standby_w))


def estimate_events(spec: GpuSpec, quantities: Quantities) -> tuple[Events, Occupancy]:
    """Events and occupancy of schedules; every figure is an array with one entry per schedule."""
    blocks, threads = quantities["blocks"], quantities["threads"]
    warps_per_block = np.ceil(threads / WARP_SIZE)
    figures: dict[str, Any] = {
        "blocks": blocks,
        "warps_per_block": warps_per_block,
        "active_lanes": threads / warps_per_block,
        "registers": quantities["registers"],
        **_estimate_memory(spec, quantities),
        "tile_waits": quantities["copy_waits"],
        "tiles_ahead": np.where(
            quantities["copy_waits"] > 0, np.maximum(quantities["pipeline"] - 1.0, 0.0), 0.0
        ),
        "group_waits": quantities["group_waits"],
        "barriers": quantities["total_barriers"] / blocks,
    }
    requests = figures["traffic"].requests + figures["shared_requests"]
    figures |= _estimate_instructions(spec, quantities, requests)
    figures |= _estimate_machine_code(quantities, figures)
    resident: dict[str, Any] = {"blocks": quantities["resident_blocks"], "warps_per_block": warps_per_block}
    return Events(**figures), Occupancy(**resident, limited_by="")


def _estimate_instructions(spec: GpuSpec, q: Quantities, requests: Array) -> dict[str, Any]:
    """Arithmetic and control of all warps; `requests` to memory need addresses."""
    products, group_products = q["total_tensor_products"], q["total_group_products"]
    group_share = spec.throughput.mma_share / WGMMA_SHARE
    none = np.zeros(len(requests))
    return {
        "fma32": q["total_operations"],
        **dict.fromkeys(("fp32", "fp16", "sfu", "pack", "other", "integer_products", "bank_conflicts"), none),
        "tensor": products + group_products,
        "tensor_fp16_equivalent_flops": PRODUCT_FLOPS * (products + group_share * group_products),
        "tensor_energy_equivalent_flops": PRODUCT_FLOPS * (products + group_products),
        "group_products": group_products,
        "int_ops": INTEGER_PER_ACCESS * requests + INTEGER_PER_STEP * q["total_loop_steps"],
        "convert": q["total_conversions"],
        "shuffle": q["total_shuffles"],
        "branch": q["total_loop_steps"],
    }


def _estimate_memory(spec: GpuSpec, q: Quantities) -> dict[str, Any]:
    """Accesses of all warps, and the traffic of the launch."""
    # An asynchronous copy is one instruction, which reads global memory and writes a tile.
    shared_stores = q["total_shared_store_requests"] - q["total_async_copies"]
    wavefronts = q["total_shared_load_wavefronts"] + q["total_shared_store_wavefronts"]
    moving, word_bytes = LINE_BYTES / spec.capability.l1_bytes_per_clock, REGISTER_BYTES * WARP_SIZE
    addressing = WARP_SIZE / spec.capability.load_store_units
    # Where making the addresses takes longer than one pass, only requests of one pass wait for it.
    addresses = max(0.0, addressing - moving) * q["total_one_pass_requests"]
    local = _estimate_spill_requests(spec, q)
    return {
        "shared_requests": q["total_shared_load_requests"] + shared_stores,
        "shared_wavefronts": wavefronts,
        "shared_bytes": q["total_shared_load_bytes"] + word_bytes * shared_stores,
        "global_lane_bytes": q["total_global_load_bytes"] + word_bytes * q["total_global_store_requests"],
        "local_requests": local,
        "lsu_cycles": moving * (q["total_global_passes"] + wavefronts)
        + addresses
        + max(moving, addressing) * local,
        "traffic": SimulatedTraffic(
            requests=_sum_up(q["total_global_load_requests"], q["total_global_store_requests"]),
            sectors=_sum_up(
                q["total_global_load_sectors"],
                q["total_global_store_sectors"],
                local * (LINE_BYTES / SECTOR_BYTES),
            ),
            l2_bytes=_sum_up(q["l2_bytes"]),
            dram_bytes=_estimate_missed_bytes(spec, q["dram_bytes"]),
            drifting_dram_bytes=_estimate_missed_bytes(spec, q["dram_bytes"]),
        ),
    }


def _estimate_missed_bytes(spec: GpuSpec, dram_bytes: Array) -> Any:
    """Bytes of a call that L2 does not hold from the call before: those that a cold call brings from DRAM,
    less the part that L2 keeps."""
    usable = spec.l2_usable_share * spec.l2_bytes
    return dram_bytes * (1.0 - np.minimum(1.0, usable / np.maximum(dram_bytes, 1.0)) ** CYCLE_EXPONENT)


def _estimate_spill_requests(spec: GpuSpec, q: Quantities) -> Array:
    """Accesses of all warps to registers that do not fit: ptxas stores and loads them in every trip."""
    most = np.minimum(MAX_REGISTERS, np.floor(spec.capability.registers_per_sm / q["threads"]))
    spilled_bytes = SPILLED_BYTES * np.maximum(0.0, q["needed_registers"] - most)
    warps = q["blocks"] * np.ceil(q["threads"] / WARP_SIZE)
    return np.asarray(2.0 * warps * spilled_bytes / REGISTER_BYTES * q["body_trips"])


def _sum_up(*arrays: Array) -> Any:
    """The sum of arrays, as a figure of events that has one entry per schedule."""
    return sum(arrays)


def _estimate_machine_code(q: Quantities, figures: dict[str, Any]) -> dict[str, Any]:
    """Events that a compiled kernel reads from its machine code; `figures`: the other ones."""
    warps = q["blocks"] * figures["warps_per_block"]
    products = figures["tensor"] - figures["group_products"]
    others = figures["int_ops"] + figures["convert"]
    memory = figures["shared_requests"] + figures["local_requests"] + figures["traffic"].requests
    control = figures["shuffle"] + figures["branch"] + figures["barriers"] * warps
    direct_trips = unroll_trips(np.maximum(q["direct_load_trips"], 1.0), q["total_operations"] / warps)
    direct = estimate_load_rounds(q["direct_load_words"], direct_trips, DIRECT_WORDS_IN_FLIGHT)
    tile_trips = np.maximum(q["tile_load_trips"], 1.0)
    tiles = estimate_load_rounds(q["tile_load_words"], tile_trips, TILE_WORDS_IN_FLIGHT)
    exposed = estimate_exposed_share(q["tile_load_trips"], figures["barriers"], figures["tile_waits"])
    return {
        "issued_instructions": q["total_operations"] + others + figures["tensor"] + memory + control,
        "path_cycles": estimate_path_cycles(
            registers=q["registers"],
            floats=q["total_operations"] / warps,
            others=(others + 0.5 * figures["branch"]) / warps,
            products=products / warps,
            shared_requests=figures["shared_requests"] / warps,
            local_requests=figures["local_requests"] / warps,
            load_rounds=direct + exposed * tiles,
        ),
    }


def estimate_path_cycles(
    *,
    registers: Number,
    floats: Number,
    others: Number,
    products: Number,
    shared_requests: Number,
    local_requests: Number,
    load_rounds: Number,
) -> Any:
    """Cycles of a warp that has an SM for itself, [..., 4], from what it executes: operations on floats,
    other instructions, products on tensor cores, requests, and the times that it waits for global loads."""
    parallel = _estimate_parallelism(registers)
    cycles = floats * np.maximum(1.0, ARITHMETIC_LATENCY_CYCLES / parallel)
    cycles = cycles + others * np.maximum(CHAIN_CYCLES, ARITHMETIC_LATENCY_CYCLES / parallel)
    cycles = cycles + products * TENSOR_LATENCY_CYCLES / parallel
    cycles = cycles + shared_requests * SHARED_LATENCY_CYCLES / parallel
    cycles = cycles + (local_requests / parallel + load_rounds) * L1_CYCLES
    beyond_l1 = np.array(LOAD_CYCLES) - L1_CYCLES
    path, rounds = np.broadcast_arrays(np.asarray(cycles, np.float64) / WARP_PATH_FACTOR, load_rounds)
    return path[..., np.newaxis] + rounds[..., np.newaxis] * beyond_l1


def estimate_load_rounds(words: Number, trips: Number, words_in_flight: float) -> Number:
    """Times that one warp waits for loads: once a trip, or more often where the loads of a trip have more
    words than are in flight at a time."""
    return np.where(words > 0, trips * np.ceil(words / trips / words_in_flight), 0.0)


def unroll_trips(trips: Number, operations: Number) -> Number:
    """Trips of a loop with so many operations on floats in all, as they are once ptxas has unrolled it."""
    together = np.minimum(UNROLLED_OPERATIONS / np.maximum(operations / trips, 1.0), MAX_UNROLLED_TRIPS)
    return trips / 2.0 ** np.floor(np.log2(np.clip(together, 1.0, trips)))


def estimate_exposed_share(tile_trips: Number, barriers: Number, tile_waits: Number) -> Number:
    """Share of the latency of loads that fill tiles which the warp waits for. One barrier per tile means two
    buffers: the next tile loads while this one computes. Where the warp waits for copies, barriers belong to
    the copies. The first tile has nothing to hide behind."""
    is_pipelined = (tile_waits == 0) & (barriers <= 1.3 * tile_trips + 1.0)
    first_share = 1.0 / np.maximum(tile_trips, 1.0)
    return np.where(is_pipelined, first_share + (1.0 - first_share) * PIPELINED_EXPOSURE, 1.0)


def _estimate_parallelism(registers: Number) -> Number:
    """Independent instructions in flight per warp: their results need registers (estimate)."""
    return np.clip((registers - 20) / 10.0, 1.0, 8.0)
