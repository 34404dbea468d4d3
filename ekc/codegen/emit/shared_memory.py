"""Where the shared tiles of a kernel lie: declared one by one, or cut from what its launch asks for."""

from __future__ import annotations

import math

from ekc.codegen.emit.names import CNames, is_row_major
from ekc.ir.hardware.limits import STATIC_SHARED_BYTES
from ekc.ir.lowering.buffers import Buffer
from ekc.ir.lowering.nodes import LaunchTree

POOL_NAME = "shared_memory"
"""The C name of the memory that a launch asks for; its alignment follows, as one name has one alignment."""


def count_dynamic_shared_bytes(kernel: LaunchTree) -> int:
    """Bytes that a launch of the kernel asks for: none where declaring its tiles is enough."""
    total = int(kernel.shared_bytes)
    return total if total > STATIC_SHARED_BYTES else 0


def format_shared_declarations(kernel: LaunchTree, names: CNames) -> list[str]:
    """`__shared__ __align__(16) float A_shared[2][8][132];`, or a reference into the pool."""
    tiles = [b for b in kernel.buffers if b.scope == "shared"]
    if not count_dynamic_shared_bytes(kernel):
        return [
            f"__shared__ __align__({b.alignment_bytes}) {b.dtype.cuda_name} {names[b.name]}{format_array_sizes(b)};"
            for b in tiles
        ]
    # The strictest first: every tile's room is a multiple of its alignment, so all begin where they may.
    tiles.sort(key=lambda b: -b.alignment_bytes)
    pool = f"{POOL_NAME}_{tiles[0].alignment_bytes}"
    lines, at = [f"extern __shared__ __align__({tiles[0].alignment_bytes}) unsigned char {pool}[];"], 0
    for b in tiles:
        kind, sizes = b.dtype.cuda_name, format_array_sizes(b)
        lines.append(
            f"{kind} (&{names[b.name]}){sizes} = *reinterpret_cast<{kind} (*){sizes}>({pool} + {at});"
        )
        at += int(b.aligned_bytes)
    return lines


def format_array_sizes(buffer: Buffer) -> str:
    """`[2][8][132]`: its copies and the extents as stored; one of panels, or swizzled, has one extent."""
    extents = _list_extents(buffer)
    if int(buffer.copy_count) > 1:
        extents.insert(0, int(buffer.copy_count))
    return "".join(f"[{s}]" for s in extents)


def count_copy_elements(buffer: Buffer) -> int:
    """Elements from one copy of a tile to the next."""
    return math.prod(_list_extents(buffer))


def _list_extents(buffer: Buffer) -> list[int]:
    """Of one copy."""
    extents = [int(s) for s in buffer.storage_extents] if is_row_major(buffer) else [int(buffer.elements)]
    if buffer.scope == "shared" and len(extents) == 1:
        # A row by itself: the next copy must start where a vector may, and of 12 bytes the compiler reads 16.
        extents[0] = int(buffer.bytes) // int(buffer.copy_count) // buffer.dtype.bytes
    return extents
