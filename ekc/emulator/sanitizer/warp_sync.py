"""Logical clocks of warps: the order that `bar.warp.sync` gives to the accesses of its lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics import warp as lanes
from ekc.ptx.constants import WARP_SIZE


@dataclass(frozen=True, slots=True)
class WarpClock:
    """A moment in the life of all warps, by the synchronisations before it."""

    epoch: NDArray[np.int32]
    """Number of synchronisations of each whole warp."""
    lane_clocks: NDArray[np.int16] | None = None
    """Vector clocks (warps, 32, 32): [w, i, k] is the number of partial synchronisations of lane k that
    precede this moment of lane i. None before the first partial synchronisation."""

    def precedes(self, later: WarpClock, warp: int, lane: int, other_lane: int) -> bool:
        """Whether an action of `lane` at this moment precedes one of `other_lane` at the moment `later`."""
        if later.lane_clocks is None:
            return False
        own = 0 if self.lane_clocks is None else self.lane_clocks[warp, lane, lane]
        return bool(later.lane_clocks[warp, other_lane, lane] > own)

    def is_ordered(self, other: WarpClock, warp: int, lane: int, other_lane: int) -> bool:
        """Whether synchronisations order two actions of lanes of a warp, at this moment and at `other`."""
        return bool(
            self.epoch[warp] != other.epoch[warp]
            or self.precedes(other, warp, lane, other_lane)
            or other.precedes(self, warp, other_lane, lane)
        )

    def advance(self, lane_warps: Any, member_masks: Any, living_masks: Any) -> WarpClock:
        """The moment after a `bar.warp.sync` with these masks. `living_masks`: lanes of each warp that still
        run."""
        is_partial = (member_masks & living_masks[lane_warps]) != living_masks[lane_warps]
        epoch, clocks = self.epoch, self.lane_clocks
        if not is_partial.all():
            epoch = epoch.copy()
            epoch[np.unique(lane_warps[~is_partial])] += 1
        if is_partial.any():
            shape = (epoch.size, WARP_SIZE, WARP_SIZE)
            clocks = np.zeros(shape, np.int16) if clocks is None else clocks.copy()
            for word in np.unique(member_masks[is_partial]):
                _merge_lane_clocks(clocks, np.unique(lane_warps[is_partial & (member_masks == word)]), word)
        return WarpClock(epoch, clocks)


def _merge_lane_clocks(lane_clocks: Any, warps: Any, member_mask: Any) -> None:
    """Synchronise the lanes of a mask: each gets the latest clocks of all of them, and each ticks."""
    who = np.flatnonzero(lanes.unpack_members(member_mask)[0])
    joint = lane_clocks[warps][:, who].max(axis=1)
    joint[:, who] += 1
    lane_clocks[warps[:, None], who] = joint[:, None]
