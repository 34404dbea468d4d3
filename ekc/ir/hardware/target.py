"""Capabilities of compilation targets: one table from architecture to instructions and shared memory.

Hard limits of one GPU for one kernel: plain numbers, filled in by `ekc.devices`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory, in bytes, that a kernel may declare. A launch can ask for more where the target has it."""


@dataclass(frozen=True)
class LaunchLimits:
    """Hard limits of one GPU. Bytes are bytes, counts are counts."""

    threads_per_block: int = 1024
    threads_per_block_z: int = 64
    shared_bytes_per_block: int = STATIC_SHARED_BYTES
    """Shared memory of one block, in bytes: what every target has (`find_capabilities` has that of one)."""
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


@dataclass(frozen=True)
class ArchCapabilities:
    """Instructions and shared memory that code compiled for one architecture can use."""

    has_ampere: bool
    """Whether the architecture has what came with compute capability 8.0: asynchronous copies
    (`ekc.ir.hardware.cp_async`), every tensor-core product of `ekc.ir.hardware.mma`, and the float minimum
    and maximum that keep NaN."""
    has_wgmma: bool
    """Whether it has the warpgroup products of `ekc.ir.hardware.wgmma`."""
    shared_bytes: int
    """Most shared memory of one block, in bytes."""


def _make_row(kib: int, has_ampere: bool = True, has_wgmma: bool = False) -> ArchCapabilities:
    return ArchCapabilities(has_ampere, has_wgmma, kib * 1024)


ARCH_CAPABILITIES = {
    "70": _make_row(96, has_ampere=False),
    "72": _make_row(96, has_ampere=False),
    "75": _make_row(64, has_ampere=False),  # Its one float16 product is smaller than those of `mma`.
    "80": _make_row(163),
    "86": _make_row(99),
    "87": _make_row(163),
    "89": _make_row(99),
    "90": _make_row(227),
    "90a": _make_row(227, has_wgmma=True),  # No later architecture keeps wgmma.
    "100": _make_row(227),
    "103": _make_row(227),
    "110": _make_row(227),
    "120": _make_row(99),
    "121": _make_row(99),
}
"""Capabilities by the number of "sm_80" or "compute_80" (source: CUDA C++ Programming Guide, compute
capabilities; PTX ISA, target notes of cp.async, mma and wgmma)."""


def find_capabilities(arch: str) -> ArchCapabilities:
    """The row of a target ("sm_80"). A target outside the table has the instructions of the newest row that
    is not newer, and the shared memory that every target has; a name without a number counts as the
    newest."""
    found = re.search(r"(\d+)([a-z]?)", arch)
    number, suffix = found.groups() if found else ("999", "")
    exact = ARCH_CAPABILITIES.get(number + suffix) or ARCH_CAPABILITIES.get(number)
    if exact is not None:
        return exact
    older = [row for name, row in ARCH_CAPABILITIES.items() if name.isdigit() and int(name) <= int(number)]
    base = older[-1] if older else _make_row(0, has_ampere=False)
    return replace(base, shared_bytes=STATIC_SHARED_BYTES)


FIRST_AMPERE_ARCH = f"sm_{next(name for name, row in ARCH_CAPABILITIES.items() if row.has_ampere)}"
"""The first target with cp.async and mma, as messages name it."""


def restrict_to_arch(limits: LaunchLimits, arch: str) -> LaunchLimits:
    """The limits of a GPU, as code compiled for `arch` ("sm_80") may use it."""
    row = find_capabilities(arch)
    return replace(
        limits,
        async_copies=row.has_ampere,
        tensor_cores=row.has_ampere,
        group_products=row.has_wgmma,
        nan_extremes=row.has_ampere,
    )


def parse_arch_number(arch: str) -> int:
    """Number of an architecture: 80 of "sm_80", 90 of "sm_90a"."""
    return int("".join(character for character in arch if character.isdigit()))


def make_arch(capability: int) -> str:
    """The target of a compute capability: 80 -> "sm_80", 90 -> "sm_90a", so that wgmma can be used. Code for
    "sm_90a" runs on no other architecture."""
    return f"sm_{capability}{'a' if capability == 90 else ''}"
