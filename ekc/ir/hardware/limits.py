"""What a kernel may use on a target: plain numbers, filled in by `ekc.devices`."""

from __future__ import annotations

import re
from dataclasses import dataclass

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a kernel may declare; more is asked for at its launch, where the target has it."""
_MAX_SHARED_KIB = {70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99}
_MAX_SHARED_KIB |= {90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""By compute capability (source: CUDA C++ Programming Guide, compute capabilities)."""


@dataclass(frozen=True)
class Limits:
    """Hard limits of one GPU. Bytes are bytes, counts are counts; no unit is hidden."""

    threads_per_block: int = 1024
    threads_per_block_z: int = 64
    shared_bytes_per_block: int = STATIC_SHARED_BYTES
    """By default what every target has; `shared_bytes` tells what one target has."""
    registers_per_thread: int = 255
    registers_per_sm: int = 65536
    shared_bytes_per_sm: int = 164 * 1024
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    sms: int = 108
    async_copies: bool = True
    """Whether the target copies from global to shared memory by itself (compute capability 8.0 and later)."""
    tensor_cores: bool = True
    """Whether the target has the products of a warp that `ekc.ir.hardware.mma` holds (8.0 and later)."""
    group_products: bool = False
    """Whether it has those of a warpgroup that `ekc.ir.hardware.wgmma` holds (9.0 alone)."""
    nan_extremes: bool = True
    """Whether it has the maximum and the minimum of two floats that keep NaN (8.0 and later)."""
    grid_x: int = 2**31 - 1
    grid_yz: int = 65535


def is_arch_at_least(arch: str, min_capability: int) -> bool:
    """Whether a target ("sm_80") is of that compute capability (80) or a later one; NVRTC refuses what is no
    target at all."""
    number = _parse_capability(arch)
    return number is None or number >= min_capability


def make_arch(capability: int) -> str:
    """The target of a compute capability: "sm_80" of 80. "sm_90a" of 90, whose products of a warpgroup no
    later target keeps, so that code for them runs nowhere else."""
    return f"sm_{capability}{'a' if capability == 90 else ''}"


def find_max_shared_bytes(arch: str) -> int:
    """Most shared memory of one block on a target ("sm_80"); of one that is not known, what all have."""
    return _MAX_SHARED_KIB.get(_parse_capability(arch) or 0, STATIC_SHARED_BYTES // 1024) * 1024


def _parse_capability(arch: str) -> int | None:
    number = re.search(r"\d+", arch)
    return int(number[0]) if number else None
