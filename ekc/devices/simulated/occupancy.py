"""Occupancy: blocks of a kernel that are resident on one SM, and the resource that limits them.

The rules are those of NVIDIA's occupancy calculator (cuda_occupancy.h).
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices.simulated.specs import Capability

WARP_SIZE = 32


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that are resident on one SM."""

    blocks: int
    warps_per_block: int
    limited_by: str
    """"registers", "shared memory", "warps" or "blocks"."""

    @property
    def warps(self) -> int:
        """Resident warps of one SM."""
        return self.blocks * self.warps_per_block


def compute_occupancy(capability: Capability, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Resident blocks for `threads` per block, `registers` per thread, `shared_bytes` per block.

    Zero blocks means that a single one does not fit.
    """
    warps = _ceil_div(threads, WARP_SIZE)
    bounds = {
        "registers": _limit_by_registers(capability, warps, registers),
        "shared memory": _limit_by_shared_memory(capability, shared_bytes),
        "warps": capability.warps_per_sm // warps,
        "blocks": capability.blocks_per_sm,
    }
    limiter = min(bounds, key=lambda name: bounds[name])
    return Occupancy(bounds[limiter], warps, limiter)


def _limit_by_registers(capability: Capability, warps: int, registers: int) -> int:
    per_warp = _round_up(max(registers, 1) * WARP_SIZE, capability.register_granularity)
    resident = capability.registers_per_sm // per_warp
    resident -= resident % capability.warp_granularity
    return resident // warps


def _limit_by_shared_memory(capability: Capability, shared_bytes: int) -> int:
    if shared_bytes > capability.shared_bytes_per_block:
        return 0
    block_bytes = _round_up(
        shared_bytes + capability.reserved_shared_bytes_per_block, capability.shared_granularity_bytes
    )
    return capability.shared_bytes_per_sm // block_bytes if block_bytes else capability.blocks_per_sm


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _round_up(a: int, b: int) -> int:
    return _ceil_div(a, b) * b
