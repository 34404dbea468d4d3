"""Which of the accesses a schedule writes down the compiler really issues, and how wide.

Two habits of NVRTC's compiler, seen in its PTX: it keeps a value that nearby iterations share, and it
joins neighbouring reads into one vector access. Analysis and access sites count by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ekc.ir.access import Access
from ekc.ir.linear import Extent
from ekc.ir.program import Nest
from ekc.ir.tree import LoopNode, StageNode

_JOINED_BYTES = 4
"""Size of the elements whose neighbouring reads are joined."""


def issued(path: Sequence[LoopNode], access: Access, nest: Nest) -> Extent:
    """The share of iterations in which a read of the body is really issued.

    The compiler keeps a value over the innermost loops that do not move its address, past loops that are
    written out, but not past a loop that runs and moves it, nor past the one that refills its tile.
    `path` is the loops around the body, outermost first.
    """
    staging = nest.staging(access.buffer.name) if access.buffer is not None else None
    moves, kept = access.address.variables(), np.asarray(True)
    share: Extent = 1.0
    for node in reversed(path):
        if staging is not None and node.loop.name == staging.at:
            break
        extent = np.asarray(node.loop.extent, dtype=np.float64)
        if node.loop.name not in moves:
            share = np.where(kept, share / extent, share)
        elif not node.written_out:
            kept = kept & (node.loop.unroll >= extent)
    return share


def merged(access: Access, written_out: Mapping[str, Extent]) -> Extent:
    """How many neighbouring reads the compiler joins into one vector access.

    It joins float32 reads that written-out loops make side by side, 4 or 2 at a time, where every other
    step of the address keeps them aligned. (float16 passes through inline assembly, which it does not
    join.) `written_out` gives the extents of loops and segment coordinates that are unrolled whole.
    """
    width: Extent = np.asarray(1)
    if access.dtype.bytes != _JOINED_BYTES:
        return width
    free = np.asarray(True)
    for g in access.guards:
        free = free & ~(np.asarray(g.below) | np.asarray(g.above))
    for atom, own in access.address.terms:
        if not isinstance(atom, str) or atom not in written_out:
            continue
        others = [c for a, c in access.address.terms if a != atom] + [access.address.const]
        for wide in (2, 4):
            aligned = free & (np.asarray(own) == 1) & (np.asarray(written_out[atom]) % wide == 0)
            for step in others:
                aligned = aligned & (np.asarray(step) % wide == 0)
            width = np.where(aligned, np.maximum(width, wide), width)
    return width


def joined_copy(stage: StageNode) -> Extent:
    """Elements per access of a copy made by each thread for itself: its vector, or what is joined."""
    segments = {f"#{i}": s.extent for i, s in enumerate(stage.buffer.region.segments)}
    vector = stage.staging.vector
    return np.where(np.asarray(vector) == 1, merged(stage.source, segments), vector)


def written_out(path: Sequence[LoopNode]) -> dict[str, Extent]:
    """The extents of the loops that are unrolled whole; 1 for members of a population where one is not."""
    loops = [(n.loop, n.written_out) for n in path]
    return {x.name: x.extent if out else np.where(x.unroll >= x.extent, x.extent, 1) for x, out in loops}
