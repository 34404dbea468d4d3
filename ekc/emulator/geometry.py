"""The geometry of a batch: blocks, warps and warpgroups of its lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ptx.cfg import WARPGROUP_SIZE
from ekc.ptx.constants import WARP_SIZE

Shape = tuple[int, int, int]
WAITING, DONE = np.int32(2**30), np.int32(2**30 + 1)
"""Program counters of a lane that waits at a barrier, and of a lane that has left the kernel."""


def unravel_index(index: int, shape: Shape) -> Shape:
    """(x, y, z) of a linear number, x fastest."""
    x, y, _ = shape
    return index % x, index // x % y, index // (x * y)


@dataclass(frozen=True)
class Geometry:
    """The lanes of some blocks, one block after another."""

    grid: Shape
    block: Shape
    block_ids: NDArray[np.int64]
    """Linear numbers of the blocks of this batch."""

    @property
    def threads_per_block(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def lane_count(self) -> int:
        """Lanes of the batch."""
        return self.threads_per_block * len(self.block_ids)

    @property
    def warps_per_block(self) -> int:
        """Warps of a block."""
        return -(-self.threads_per_block // WARP_SIZE)

    def thread_numbers(self) -> NDArray[np.int64]:
        """Linear thread number of every lane."""
        return np.tile(np.arange(self.threads_per_block), len(self.block_ids))

    def block_numbers(self) -> NDArray[np.int64]:
        """Index within the batch of every lane's block."""
        return np.repeat(np.arange(len(self.block_ids)), self.threads_per_block)

    def special_registers(self) -> dict[str, Any]:
        """Special registers, by the names that decoded text uses."""
        thread, block = self.thread_numbers(), np.repeat(self.block_ids, self.threads_per_block)
        (bx, by, bz), (gx, gy, gz) = self.block, self.grid
        lane = thread % WARP_SIZE
        one = np.uint32(1)
        others = ("nwarpid", "smid", "nsmid", "gridid", "clusterid_x", "cluster_ctarank")
        rows: dict[str, Any] = {
            "tid_x": thread % bx,
            "tid_y": thread // bx % by,
            "tid_z": thread // (bx * by),
            "ctaid_x": block % gx,
            "ctaid_y": block // gx % gy,
            "ctaid_z": block // (gx * gy),
            "ntid_x": bx,
            "ntid_y": by,
            "ntid_z": bz,
            "nctaid_x": gx,
            "nctaid_y": gy,
            "nctaid_z": gz,
            "laneid": lane,
            "warpid": thread // WARP_SIZE,
            "lanemask_eq": one << lane,
            "lanemask_lt": (one << lane) - 1,
            "lanemask_le": (np.int64(2) << lane) - 1,
            "lanemask_gt": 0xFFFFFFFF ^ ((np.int64(2) << lane) - 1),
            "lanemask_ge": 0xFFFFFFFF ^ ((one << lane) - 1),
            **dict.fromkeys(others, 0),
        }
        return {f"S_{name}": np.full(self.lane_count, row, np.uint32) for name, row in rows.items()}


class WarpgroupLayout:
    """Which lanes of a batch make up which warpgroup."""

    def __init__(self, geometry: Geometry) -> None:
        threads = geometry.thread_numbers()
        self.groups_per_block = -(-geometry.threads_per_block // WARPGROUP_SIZE)
        """Warpgroups of a block; the last may lack threads."""
        self.lane_groups = geometry.block_numbers() * self.groups_per_block + threads // WARPGROUP_SIZE
        """Number of the warpgroup of every lane."""
        self.group_starts = np.flatnonzero(np.r_[True, self.lane_groups[1:] != self.lane_groups[:-1]])
        """The first lane of every warpgroup."""
        count = self.groups_per_block * len(geometry.block_ids)
        self.group_lanes = np.full((count, WARPGROUP_SIZE), -1, np.int64)
        """The lane at each place of every warpgroup, -1 where the block has none."""
        self.group_lanes[self.lane_groups, threads % WARPGROUP_SIZE] = np.arange(geometry.lane_count)
        self.has_full_groups = geometry.threads_per_block % WARPGROUP_SIZE == 0


SPECIAL_REGISTERS = frozenset(Geometry((1, 1, 1), (1, 1, 1), np.zeros(1, np.int64)).special_registers())
"""Names of the special registers that are emulated."""
