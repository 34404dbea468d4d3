"""`bar.warp.sync`: what it orders within a warp, for the whole warp or for the lanes of a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.geometry import WARP
from ekc.emulator.numbers import lanes


@dataclass(frozen=True, slots=True)
class Moment:
    """How often each warp has met in whole, and what its lanes know of each other by meetings in part."""

    epoch: NDArray[np.int32]
    known: NDArray[np.int16] | None = None
    """(warps, 32, 32): the meetings of lane k that lane i knows of, a lane's own on the diagonal; made by the
    first meeting in part."""

    def before(self, later: Moment, warp: int, lane: int, other: int) -> bool:
        """Whether what a lane did at this moment comes before what another of its warp did at a later one."""
        if later.known is None:
            return False
        own = 0 if self.known is None else self.known[warp, lane, lane]
        return bool(later.known[warp, other, lane] > own)

    def ordered(self, other: Moment, warp: int, lane: int, second: int) -> bool:
        """Whether two lanes of a warp, each at its moment, act in an order that meetings make."""
        return bool(
            self.epoch[warp] != other.epoch[warp]
            or self.before(other, warp, lane, second)
            or other.before(self, warp, second, lane)
        )

    def met(self, warp: Any, members: Any, living: Any) -> Moment:
        """The moment after lanes of these warps met by these masks, of the `living` of each warp."""
        partly = (members & living[warp]) != living[warp]
        epoch, known = self.epoch, self.known
        if not partly.all():
            epoch = epoch.copy()
            epoch[np.unique(warp[~partly])] += 1
        if partly.any():
            known = np.zeros((epoch.size, WARP, WARP), np.int16) if known is None else known.copy()
            for word in np.unique(members[partly]):
                _meet(known, np.unique(warp[partly & (members == word)]), word)
        return Moment(epoch, known)


def _meet(known: Any, warps: Any, word: Any) -> None:
    """Lanes of a mask learn what any of them knows, and that they met."""
    who = np.flatnonzero(lanes.members(word)[0])
    joint = known[warps][:, who].max(axis=1)
    joint[:, who] += 1
    known[warps[:, None], who] = joint[:, None]
