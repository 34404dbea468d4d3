"""Asynchronous copies from global to shared memory, as data: what each does, and how PTX writes it.

A thread issues copies, closes them into a group, and goes on; later it waits until all but the newest
groups have landed. What a thread waited for, the others see after a barrier. (PTX ISA, cp.async;
compute capability 8.0 and later.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import Extent

MAX_PIPELINE_STAGES = 6
"""Copies of a tile in shared memory; a deeper pipeline hides nothing more and costs residents."""
CP_ASYNC_COMMIT_PTX = "cp.async.commit_group;"
CP_ASYNC_WAIT_PTX = "cp.async.wait_group %0;"
"""%0: how many of the newest groups may still be on their way."""


@dataclass(frozen=True)
class AsyncCopy:
    """The instruction that moves so many bytes for each lane."""

    bytes: int
    ptx: str
    """Operands: %0 shared address, %1 global address, %2 bytes to read (all of them where left out)."""

    def emulate_copy(self, source: NDArray[np.uint8], byte_counts: NDArray[np.int64]) -> NDArray[np.uint8]:
        """[lane, bytes] in shared memory once it has landed: the first `read` bytes, then zeros."""
        return np.where(np.arange(self.bytes) < byte_counts[:, None], source, np.uint8(0))


ASYNC_COPIES_BY_BYTES = {
    4: AsyncCopy(4, "cp.async.ca.shared.global [%0], [%1], 4"),
    8: AsyncCopy(8, "cp.async.ca.shared.global [%0], [%1], 8"),
    16: AsyncCopy(16, "cp.async.cg.shared.global [%0], [%1], 16"),
}
"""By width. The widest goes past L1, which would keep what nobody reads again."""


def count_tiles_ahead(stages: Extent) -> Extent:
    """How many iterations before its use a tile's copies are issued: all copies of it but the one in use."""
    return stages - 1


def count_pending_groups(stages: Extent) -> Extent:
    """Groups that may be on their way when a tile is used: those of the tiles after it. Each iteration
    closes one group, the last ones empty, so that the count stays."""
    return stages - 2
