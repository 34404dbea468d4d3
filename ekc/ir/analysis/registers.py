"""Estimate of the registers that a thread of a launch needs."""

from __future__ import annotations

from ekc.ir.affine import Extent, min_extent
from ekc.ir.hardware.memory import WARP
from ekc.ir.lowering.nodes import LaunchTree
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
    for b in kernel.buffers:
        staging = kernel.nest.find_staging(b.name)
        if b.scope == "shared" and staging is not None and _is_register_copy(kernel, staging):
            elements = min_extent(b.copy_count - 1, 1) * -(-b.region.size // kernel.thread_count)
            total = total + -(-elements * b.dtype.bytes // 4)
    return total


def count_copy_rounds(kernel: LaunchTree) -> Extent:
    """Rounds in which a thread copies its share of the pipelined tiles."""
    total: Extent = 0
    for b in kernel.buffers:
        staging = kernel.nest.find_staging(b.name)
        if b.scope == "shared" and staging is not None and staging.producer is None:
            rounds = -(-b.region.size // (staging.vector * kernel.thread_count))
            total = total + min_extent(b.copy_count - 1, 1) * rounds
    return total


def _is_register_copy(kernel: LaunchTree, staging: Staging) -> bool:
    return staging.producer is None and not kernel.nest.is_async(staging)
