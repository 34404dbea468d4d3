"""`bar.warp.sync`: what it orders within a warp, for the whole warp or for the lanes of a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics import warp as lanes
from ekc.ptx.constants import WARP_SIZE


@dataclass(frozen=True, slots=True)
class WarpClock:
    """How often each warp has met in whole, and what its lanes know of each other by meetings in part."""

    epoch: NDArray[np.int32]
    lane_clocks: NDArray[np.int16] | None = None
    """(warps, 32, 32): the meetings of lane k that lane i knows of, a lane's own on the diagonal; made by the
    first meeting in part."""

    def precedes(self, later: WarpClock, warp: int, lane: int, other_lane: int) -> bool:
        """Whether what a lane did at this moment comes before what another of its warp did at a later one."""
        if later.lane_clocks is None:
            return False
        own = 0 if self.lane_clocks is None else self.lane_clocks[warp, lane, lane]
        return bool(later.lane_clocks[warp, other_lane, lane] > own)

    def is_ordered(self, other: WarpClock, warp: int, lane: int, other_lane: int) -> bool:
        """Whether two lanes of a warp, each at its moment, act in an order that meetings make."""
        return bool(
            self.epoch[warp] != other.epoch[warp]
            or self.precedes(other, warp, lane, other_lane)
            or other.precedes(self, warp, other_lane, lane)
        )

    def advance(self, lane_warps: Any, member_masks: Any, living_masks: Any) -> WarpClock:
        """The moment after lanes of these warps met by these masks, of the `living` of each warp."""
        partly = (member_masks & living_masks[lane_warps]) != living_masks[lane_warps]
        epoch, known = self.epoch, self.lane_clocks
        if not partly.all():
            epoch = epoch.copy()
            epoch[np.unique(lane_warps[~partly])] += 1
        if partly.any():
            known = np.zeros((epoch.size, WARP_SIZE, WARP_SIZE), np.int16) if known is None else known.copy()
            for word in np.unique(member_masks[partly]):
                _merge_lane_clocks(known, np.unique(lane_warps[partly & (member_masks == word)]), word)
        return WarpClock(epoch, known)


def _merge_lane_clocks(lane_clocks: Any, warps: Any, member_mask: Any) -> None:
    """Lanes of a mask learn what any of them knows, and that they met."""
    who = np.flatnonzero(lanes.unpack_members(member_mask)[0])
    joint = lane_clocks[warps][:, who].max(axis=1)
    joint[:, who] += 1
    lane_clocks[warps[:, None], who] = joint[:, None]
