"""How much of a launch is on the device at once, and how much of memory that saves its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from ekc.ir.analysis.figures import Array, f64, product
from ekc.ir.footprint import Forms, block_elements, global_reads, global_writes
from ekc.ir.limits import Limits
from ekc.ir.nodes import Kernel
from ekc.ir.patterns.warp import SECTOR_BYTES, WARP
from ekc.ir.rules.launch import RESERVED_REGISTERS, prefetched, registers_needed, statements


def parallelism(kernel: Kernel, limits: Limits, fma: Array) -> dict[str, Array]:
    """Threads, registers, residency, waves, tails. `fma`: multiply-adds of a block."""
    blocks, threads = f64(kernel.blocks), f64(kernel.threads)
    warps = np.ceil(threads / WARP)
    registers = np.minimum(f64(registers_needed(kernel)) + RESERVED_REGISTERS, limits.registers_per_thread)
    shared = f64(kernel.shared_bytes)
    warps_registers = np.ceil(registers / 8) * 8 * WARP * warps
    room = (
        np.floor(limits.registers_per_sm / warps_registers),
        np.floor(limits.shared_bytes_per_sm / np.maximum(shared + 1024, 1.0)),
        np.floor(limits.threads_per_sm / (warps * WARP)),
    )
    resident = np.maximum(reduce(np.minimum, room, float(limits.blocks_per_sm)), 1.0)
    slots = resident * limits.sms
    waves = np.ceil(blocks / slots)
    useful = kernel.nest.compute
    inside = [s.produced_by for s in kernel.nest.stagings if s.produced_by and s.produced_by.reduction]
    points = sum(float(np.prod([float(a.extent) for a in c.axes])) for c in (useful, *inside))
    return {
        "threads": threads,
        "warps": warps,
        "blocks": blocks,
        "shared_bytes": shared,
        "registers": registers,
        "prefetched": f64(prefetched(kernel)),
        "resident_blocks": resident,
        "occupancy": np.minimum(resident * warps * WARP / limits.threads_per_sm, 1.0),
        "waves": waves,
        "wave_use": blocks / (waves * slots),
        "balance": blocks / (limits.sms * np.ceil(blocks / limits.sms)),
        "active_warps": np.minimum(resident, np.ceil(blocks / limits.sms)) * warps,
        "lane_use": threads / (warps * WARP),
        "useful_share": points / (fma * blocks),
        "statements": f64(statements(kernel.body)),
        "accumulators": product(b.elements for b in kernel.buffers if b.name.endswith(".acc")),
        "pipeline": f64(reduce(np.maximum, [x.pipeline for x in kernel.nest.loops])),
    }


def reuse(kernel: Kernel, sums: Mapping[str, Array], resident: Array) -> dict[str, Array]:
    """Distinct bytes a block touches; bytes of L2 if a block finds all that it reads again in L1, through
    which what it writes passes; and bytes of DRAM if blocks of one wave, `resident`, share an L2."""
    nest, blocks = kernel.nest, f64(kernel.blocks)
    read, read_dram = _distinct(kernel, global_reads(nest), resident)
    output = {nest.output.name: global_writes(nest)}
    written, written_dram = _distinct(kernel, output, resident)
    # L2 reads what an atomic changes.
    passes = 2.0 if nest.atomic else 1.0
    loads, stores = (SECTOR_BYTES * sums[f"global_{way}_sectors"] for way in ("load", "store"))
    return {
        "block_bytes": read + passes * written,
        "l2_bytes": blocks * (np.minimum(read + (passes - 1.0) * stores, loads) + stores),
        "dram_bytes": read_dram + passes * written_dram,
    }


def _distinct(kernel: Kernel, touched: Mapping[str, Forms], resident: Array) -> tuple[Array, Array]:
    """(distinct bytes that a block touches, bytes of DRAM) of some global tensors."""
    own_bytes: Array = 0.0
    dram: Array = 0.0
    waves = np.ceil(f64(kernel.blocks) / resident)
    for tensor, forms in touched.items():
        spec = kernel.tensors[tensor]
        own = np.minimum(block_elements(forms, kernel.nest) * spec.dtype.bytes, float(spec.bytes))
        used = {name for form in forms for dim in form for name in dim.variables()}
        own_bytes = own_bytes + own
        wave = np.minimum(own * _panels(kernel, used, resident), float(spec.bytes))
        dram = dram + np.maximum(wave * waves, float(spec.bytes))
    return own_bytes, dram


def _panels(kernel: Kernel, used: set[str], resident: Array) -> Array:
    """How many different regions the blocks of one wave touch."""
    count: Array = 1.0
    faster: Array = 1.0
    for loop in kernel.block_loops:
        extent = f64(loop.extent)
        if loop.name in used:
            count = count * np.minimum(extent, np.maximum(np.ceil(resident / faster), 1.0))
        faster = faster * extent
    return count
