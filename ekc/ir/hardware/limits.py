"""Hard limits of one GPU for one kernel: plain numbers, filled in by `ekc.devices`."""

from __future__ import annotations

from dataclasses import dataclass

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory, in bytes, that a kernel may declare. A launch can ask for more where the target has it."""


@dataclass(frozen=True)
class Limits:
    """Hard limits of one GPU. Bytes are bytes, counts are counts."""

    threads_per_block: int = 1024
    threads_per_block_z: int = 64
    shared_bytes_per_block: int = STATIC_SHARED_BYTES
    """Shared memory of one block, in bytes. The default is what every target has;
    `ekc.ir.hardware.target.find_capabilities` has the figure of one target."""
    registers_per_thread: int = 255
    registers_per_sm: int = 65536
    shared_bytes_per_sm: int = 164 * 1024
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    sms: int = 108
    async_copies: bool = True
    """Whether the target has cp.async (compute capability 8.0 and later)."""
    tensor_cores: bool = True
    """Whether the target has the mma instructions of `ekc.ir.hardware.mma` (8.0 and later)."""
    group_products: bool = False
    """Whether the target has the wgmma instructions of `ekc.ir.hardware.wgmma` (9.0 alone)."""
    nan_extremes: bool = True
    """Whether the target has a float maximum and minimum that keep NaN (8.0 and later)."""
    grid_x: int = 2**31 - 1
    grid_yz: int = 65535
