"""What a kernel may use on a target: plain numbers, filled in by `ekc.devices`."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Hard limits of one GPU. Bytes are bytes, counts are counts; no unit is hidden."""

    threads_per_block: int = 1024
    threads_per_block_z: int = 64
    shared_bytes_per_block: int = 48 * 1024
    """Static shared memory only: 48 KiB on every architecture without opt-in."""
    registers_per_thread: int = 255
    registers_per_sm: int = 65536
    shared_bytes_per_sm: int = 164 * 1024
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    sms: int = 108
    async_copies: bool = True
    """Whether the target copies from global to shared memory by itself (compute capability 8.0 and later)."""
    tensor_cores: bool = True
    """Whether the target has the products of a warp that `ekc.ir.tensor_core` holds (8.0 and later)."""
    grid_x: int = 2**31 - 1
    grid_yz: int = 65535


def from_arch(arch: str, least: int) -> bool:
    """Whether a target ("sm_80") is of that compute capability (80) or a later one; NVRTC refuses what is no
    target at all."""
    number = re.search(r"\d+", arch)
    return number is None or int(number[0]) >= least
