"""Asynchronous copies from global to shared memory (cp.async): their widths, semantics and PTX.

A thread issues copies, commits them as a group, and continues. Later it waits until all but the newest groups
are complete. After a barrier, other threads see the data too. (PTX ISA, cp.async;
compute capability 8.0 and later.)
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.ir.affine import Extent

MAX_PIPELINE_STAGES = 6
"""Most copies of a tile in shared memory: more hide no more latency and cost resident blocks."""
CP_ASYNC_COMMIT_PTX = "cp.async.commit_group;"
CP_ASYNC_WAIT_PTX = "cp.async.wait_group %0;"
"""PTX of the wait; %0 is the number of newest groups that may still be in flight."""


@dataclass(frozen=True)
class AsyncCopy:
    """The instruction that moves `bytes` bytes for each lane."""

    bytes: int
    ptx: str
    """PTX text with operands: %0 shared address, %1 global address, %2 bytes to read (all where left out)."""


ASYNC_COPIES_BY_BYTES = {
    4: AsyncCopy(4, "cp.async.ca.shared.global [%0], [%1], 4"),
    8: AsyncCopy(8, "cp.async.ca.shared.global [%0], [%1], 8"),
    16: AsyncCopy(16, "cp.async.cg.shared.global [%0], [%1], 16"),
}
"""Instruction by width in bytes. The widest bypasses L1, as no other load reads the same bytes."""


def count_tiles_ahead(stages: Extent) -> Extent:
    """Number of iterations between the copy of a tile and its use: every stage but the one in use."""
    return stages - 1


def count_pending_groups(stages: Extent) -> Extent:
    """Number of groups in flight while a tile is used: those of the tiles after it. Each iteration commits
    one group, empty in the last iterations, so that the number is constant."""
    return stages - 2
