"""Where the shared tiles of a kernel lie: declared one by one, or cut from what its launch asks for."""

from __future__ import annotations

import math

from ekc.codegen.names import Names, laid_out_plainly
from ekc.ir.access import Buffer
from ekc.ir.limits import STATIC_SHARED
from ekc.ir.nodes import Kernel

POOL = "shared_memory"
"""The C name of the memory that a launch asks for; its alignment follows, as one name has one alignment."""


def asked_for(kernel: Kernel) -> int:
    """Bytes that a launch of the kernel asks for: none where declaring its tiles is enough."""
    total = int(kernel.shared_bytes)
    return total if total > STATIC_SHARED else 0


def shared_declarations(kernel: Kernel, names: Names) -> list[str]:
    """`__shared__ __align__(16) float A_shared[2][8][132];`, or a reference into the pool."""
    tiles = [b for b in kernel.buffers if b.scope == "shared"]
    if not asked_for(kernel):
        return [
            f"__shared__ __align__({b.alignment}) {b.dtype.cuda} {names[b.name]}{array_sizes(b)};"
            for b in tiles
        ]
    # The strictest first: every tile's room is a multiple of its alignment, so all begin where they may.
    tiles.sort(key=lambda b: -b.alignment)
    pool = f"{POOL}_{tiles[0].alignment}"
    lines, at = [f"extern __shared__ __align__({tiles[0].alignment}) unsigned char {pool}[];"], 0
    for b in tiles:
        kind, sizes = b.dtype.cuda, array_sizes(b)
        lines.append(
            f"{kind} (&{names[b.name]}){sizes} = *reinterpret_cast<{kind} (*){sizes}>({pool} + {at});"
        )
        at += int(b.room)
    return lines


def array_sizes(buffer: Buffer) -> str:
    """`[2][8][132]`: its copies and the extents as stored; one of panels, or swizzled, has one extent."""
    extents = _extents(buffer)
    if int(buffer.copies) > 1:
        extents.insert(0, int(buffer.copies))
    return "".join(f"[{s}]" for s in extents)


def copy_elements(buffer: Buffer) -> int:
    """Elements from one copy of a tile to the next."""
    return math.prod(_extents(buffer))


def _extents(buffer: Buffer) -> list[int]:
    """Of one copy."""
    extents = [int(s) for s in buffer.sizes] if laid_out_plainly(buffer) else [int(buffer.elements)]
    if buffer.scope == "shared" and len(extents) == 1:
        # A row by itself: the next copy must start where a vector may, and of 12 bytes the compiler reads 16.
        extents[0] = int(buffer.bytes) // int(buffer.copies) // buffer.dtype.bytes
    return extents
