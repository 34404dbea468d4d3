"""Shared memory of a kernel: tiles declared one by one, or cut from one dynamic allocation."""

from __future__ import annotations

import math

from ekc.codegen.emit.names import CNames, is_row_major
from ekc.ir.hardware.limits import STATIC_SHARED_BYTES
from ekc.ir.lowering.buffers import Buffer
from ekc.ir.lowering.nodes import LaunchTree

POOL_NAME = "shared_memory"
"""C name of dynamic shared memory; its alignment is appended, as one extern name has one alignment."""


def count_dynamic_shared_bytes(kernel: LaunchTree) -> int:
    """Dynamic shared memory of a launch in bytes; 0 where the tiles can be declared."""
    total = int(kernel.shared_bytes)
    return total if total > STATIC_SHARED_BYTES else 0


def format_shared_declarations(kernel: LaunchTree, names: CNames) -> list[str]:
    """Declarations of tiles: `__shared__ __align__(16) float A_shared[2][8][132];`, or references into a
    pool."""
    tiles = [b for b in kernel.buffers if b.scope == "shared"]
    if not count_dynamic_shared_bytes(kernel):
        return [
            f"__shared__ __align__({b.alignment_bytes}) {b.dtype.cuda_name} "
            f"{names[b.name]}{format_array_sizes(b)};"
            for b in tiles
        ]
    # The strictest alignment first: tile sizes are multiples of their alignments, so all tiles are aligned.
    tiles.sort(key=lambda b: -b.alignment_bytes)
    pool = f"{POOL_NAME}_{tiles[0].alignment_bytes}"
    lines, offset = [f"extern __shared__ __align__({tiles[0].alignment_bytes}) unsigned char {pool}[];"], 0
    for b in tiles:
        kind, sizes = b.dtype.cuda_name, format_array_sizes(b)
        lines.append(
            f"{kind} (&{names[b.name]}){sizes} = *reinterpret_cast<{kind} (*){sizes}>({pool} + {offset});"
        )
        offset += int(b.aligned_bytes)
    return lines


def format_array_sizes(buffer: Buffer) -> str:
    """`[2][8][132]`: copies, then the extents as stored; a tile that is swizzled or in panels has one
    extent."""
    extents = _list_extents(buffer)
    if int(buffer.copy_count) > 1:
        extents.insert(0, int(buffer.copy_count))
    return "".join(f"[{s}]" for s in extents)


def count_copy_elements(buffer: Buffer) -> int:
    """Elements of one copy of a tile."""
    return math.prod(_list_extents(buffer))


def _list_extents(buffer: Buffer) -> list[int]:
    """Extents of one copy of a tile, as declared."""
    extents = [int(s) for s in buffer.storage_extents] if is_row_major(buffer) else [int(buffer.elements)]
    if buffer.scope == "shared" and len(extents) == 1:
        # A single row: the next copy must be aligned for vectors, and the compiler reads 16 bytes of 12.
        extents[0] = int(buffer.bytes) // int(buffer.copy_count) // buffer.dtype.bytes
    return extents
