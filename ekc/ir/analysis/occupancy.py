"""Occupancy of a launch: registers, resident blocks, waves, and reuse of memory by the blocks of a wave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np

from ekc.ir.affine import Extent, min_extent
from ekc.ir.analysis.population_math import PopulationValue, multiply_extents, to_float64
from ekc.ir.hardware.memory import SECTOR_BYTES, WARP
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.buffers import Buffer
from ekc.ir.lowering.memory_access import (
    IndexForms,
    count_block_elements,
    find_global_reads,
    find_global_writes,
)
from ekc.ir.lowering.nodes import LaunchTree, count_statements
from ekc.ir.program import Staging

RESERVED_REGISTERS = 24
"""Registers of a thread that are reserved for addresses and loop counters."""
REGISTERS_PER_ROUND = 2
"""Registers for the two addresses of each unrolled round of a copy of a pipelined tile. The addresses do not
change with the loops inside, so compilers keep them in registers (`benchmarks/cost_model/registers.py`)."""


def estimate_registers(kernel: LaunchTree) -> Extent:
    """32-bit registers of one thread for its tiles, prefetched shared tiles included, and for the addresses
    of copies of pipelined tiles."""
    total = count_prefetch_registers(kernel) + REGISTERS_PER_ROUND * count_copy_rounds(kernel)
    for b in kernel.buffers:
        if b.scope != "shared":
            lanes = WARP if b.scope == "fragment" else 1
            total = total + -(-b.elements * b.dtype.bytes // (4 * lanes))
    return total


def count_prefetch_registers(kernel: LaunchTree) -> Extent:
    """32-bit registers in which a thread keeps the next shared tiles while it uses the current ones."""
    total: Extent = 0
    for b, staging in _iterate_copied_tiles(kernel):
        if not kernel.nest.is_async(staging):
            elements = min_extent(b.copy_count - 1, 1) * -(-b.region.size // kernel.thread_count)
            total = total + -(-elements * b.dtype.bytes // 4)
    return total


def count_copy_rounds(kernel: LaunchTree) -> Extent:
    """Rounds in which a thread copies its share of the pipelined tiles."""
    total: Extent = 0
    for b, staging in _iterate_copied_tiles(kernel):
        rounds = -(-b.region.size // (staging.vector * kernel.thread_count))
        total = total + min_extent(b.copy_count - 1, 1) * rounds
    return total


def _iterate_copied_tiles(kernel: LaunchTree) -> Iterator[tuple[Buffer, Staging]]:
    """The shared tiles that are copied and not computed on the spot."""
    for b in kernel.buffers:
        staging = kernel.nest.find_staging(b.name)
        if b.scope == "shared" and staging is not None and staging.producer is None:
            yield b, staging


def compute_parallelism(
    kernel: LaunchTree, limits: LaunchLimits, fma: PopulationValue
) -> dict[str, PopulationValue]:
    """Threads, registers, resident blocks, waves and tails of a launch; `fma` is multiply-adds of a block."""
    blocks, threads = to_float64(kernel.block_count), to_float64(kernel.thread_count)
    warps = np.ceil(threads / WARP)
    needed = to_float64(estimate_registers(kernel)) + RESERVED_REGISTERS
    registers = np.minimum(needed, limits.registers_per_thread)
    shared = to_float64(kernel.shared_bytes)
    warps_registers = np.ceil(registers / 8) * 8 * WARP * warps
    block_limits = (
        np.floor(limits.registers_per_sm / warps_registers),
        np.floor(limits.shared_bytes_per_sm / np.maximum(shared + 1024, 1.0)),
        np.floor(limits.threads_per_sm / (warps * WARP)),
    )
    resident = np.maximum(reduce(np.minimum, block_limits, float(limits.blocks_per_sm)), 1.0)
    slots = resident * limits.sms
    waves = np.ceil(blocks / slots)
    main, *fused = kernel.nest.computes
    summed = [main, *(c for c in fused if c.reduction_axes)]
    points = sum(float(np.prod([float(a.extent) for a in c.axes])) for c in summed)
    return {
        "threads": threads,
        "warps": warps,
        "blocks": blocks,
        "shared_bytes": shared,
        "registers": registers,
        "needed_registers": needed,
        "prefetched": to_float64(count_prefetch_registers(kernel)),
        "resident_blocks": resident,
        "occupancy": np.minimum(resident * warps * WARP / limits.threads_per_sm, 1.0),
        "waves": waves,
        "wave_use": blocks / (waves * slots),
        "balance": blocks / (limits.sms * np.ceil(blocks / limits.sms)),
        "active_warps": np.minimum(resident, np.ceil(blocks / limits.sms)) * warps,
        "lane_use": threads / (warps * WARP),
        "useful_share": points / (fma * blocks),
        "statements": to_float64(count_statements(kernel.body)),
        "accumulators": multiply_extents(b.elements for b in kernel.buffers if b.name.endswith(".acc")),
        "pipeline": to_float64(reduce(np.maximum, [x.stages for x in kernel.nest.loops])),
    }


def compute_reuse(
    kernel: LaunchTree, sums: Mapping[str, PopulationValue], resident_blocks: PopulationValue
) -> dict[str, PopulationValue]:
    """Bytes of memory traffic of a launch, at three levels.

    `block_bytes`: distinct bytes that a block accesses. `l2_bytes`: L2 traffic if everything that a block
    reads again is in L1; stores go through L1. `dram_bytes`: DRAM traffic if the blocks of one wave share an
    L2.
    """
    nest, blocks = kernel.nest, to_float64(kernel.block_count)
    read, read_dram = _count_distinct_bytes(kernel, find_global_reads(nest), resident_blocks)
    output = {nest.output.name: find_global_writes(nest)}
    written, written_dram = _count_distinct_bytes(kernel, output, resident_blocks)
    # L2 reads the bytes that an atomic addition changes.
    passes = 2.0 if nest.is_atomic else 1.0
    loads, stores = (SECTOR_BYTES * sums[f"global_{way}_sectors"] for way in ("load", "store"))
    return {
        "block_bytes": read + passes * written,
        "l2_bytes": blocks * (np.minimum(read + (passes - 1.0) * stores, loads) + stores),
        "dram_bytes": read_dram + passes * written_dram,
    }


def _count_distinct_bytes(
    kernel: LaunchTree, forms_by_tensor: Mapping[str, IndexForms], resident_blocks: PopulationValue
) -> tuple[PopulationValue, PopulationValue]:
    """(distinct bytes that a block accesses, DRAM traffic in bytes) of some global tensors."""
    own_bytes: PopulationValue = 0.0
    dram: PopulationValue = 0.0
    waves = np.ceil(to_float64(kernel.block_count) / resident_blocks)
    for tensor, forms in forms_by_tensor.items():
        spec = kernel.tensors[tensor]
        own = np.minimum(count_block_elements(forms, kernel.nest) * spec.dtype.bytes, float(spec.bytes))
        used = {name for form in forms for dim in form for name in dim.find_variables()}
        own_bytes = own_bytes + own
        wave = np.minimum(own * _count_wave_regions(kernel, used, resident_blocks), float(spec.bytes))
        dram = dram + np.maximum(wave * waves, float(spec.bytes))
    return own_bytes, dram


def _count_wave_regions(
    kernel: LaunchTree, used_loops: set[str], resident_blocks: PopulationValue
) -> PopulationValue:
    """Number of different regions that the blocks of one wave access."""
    count: PopulationValue = 1.0
    faster: PopulationValue = 1.0
    for loop in kernel.block_loops:
        extent = to_float64(loop.extent)
        if loop.name in used_loops:
            count = count * np.minimum(extent, np.maximum(np.ceil(resident_blocks / faster), 1.0))
        faster = faster * extent
    return count
