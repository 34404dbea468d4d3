"""Shuffles, votes, reductions and matrix products on the lanes of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.numbers import fragments, lanes
from ekc.errors import EkcError

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch

WARP = lanes.WARP


class Warps:
    """The lanes of a batch as (warps, 32), short warps padded."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.count = int(batch.warp[-1]) + 1
        self.lane = batch.geometry.thread_numbers() % WARP
        self.cell = batch.warp * WARP + self.lane
        self.origin = np.full(self.count * WARP, -1, np.int64)
        """The lane of the batch at each place, -1 where the block has none."""
        self.origin[self.cell] = batch.every

    def spread(self, row: Any) -> Any:
        """A row (or one value) as (warps, 32); zeros where there is no lane."""
        row = np.asarray(row)
        out = np.zeros(self.count * WARP, row.dtype)
        out[self.cell] = row
        return out.reshape(self.count, WARP)

    def active(self, mask: Any) -> Any:
        """The active lanes as (warps, 32)."""
        return self.spread(np.bool_(True) if mask is None else mask)

    def shuffle(
        self, number: int, mode: str, a: Any, b: Any, c: Any, member: Any, mask: Any
    ) -> tuple[Any, Any]:
        """`shfl.sync`."""
        source, valid = lanes.shfl_source(mode, self.lane, b, c)
        place = self.origin[self.batch.warp * WARP + source]
        missing = place < 0
        if mask is not None:
            missing |= ~mask[np.maximum(place, 0)]
        place = np.where(missing, self.batch.every, place)
        if self.batch.sanitize:
            self._missing(number, missing & valid & (np.True_ if mask is None else mask))
        return np.broadcast_to(a, place.shape)[place], np.broadcast_to(valid, place.shape)

    def _missing(self, number: int, bad: Any) -> None:
        """A shuffle from a lane that does not take part gives anything on hardware."""
        if not bad.any():
            return
        one = self.batch.decoded.shelf.sites[number].instruction
        lane = int(np.flatnonzero(bad)[0])
        message = "takes a value from a lane that does not take part: the result is undefined"
        hint = "All lanes named by the mask must reach the shuffle together."
        self.batch.plan.findings.add("warp", one, message, hint, (self.batch.geometry, lane))

    def vote(self, mode: str, predicate: Any, member: Any, mask: Any) -> Any:
        """`vote.sync`, for masks that may differ from lane to lane."""
        active = self.active(mask)
        member = np.broadcast_to(member, self.batch.every.shape) & lanes.ballot(active)[self.batch.warp]
        held = lanes.ballot(self.spread(predicate) & active)[self.batch.warp] & member
        if mode == "ballot":
            return held
        if mode == "any":
            return held != 0
        return held == member if mode == "all" else (held == 0) | (held == member)

    def redux(self, operation: str, value: Any, member: Any, mask: Any) -> Any:
        """`redux.sync`."""
        value = np.broadcast_to(value, self.batch.every.shape)
        member = np.broadcast_to(member, value.shape)
        active, held, out = lanes.ballot(self.active(mask)), self.spread(value), value.copy()
        for one in np.unique(member):
            result = lanes.redux(operation, held, active & one)
            chosen = member == one
            out[chosen] = result[self.batch.warp[chosen]]
        return out

    def match(self, mode: str, value: Any, member: Any, mask: Any) -> tuple[Any, Any]:
        """`match.sync`."""
        value = np.broadcast_to(value, self.batch.every.shape)
        member = np.broadcast_to(member, value.shape) & lanes.ballot(self.active(mask))[self.batch.warp]
        full = np.full(self.count, 0xFFFFFFFF, np.uint32)
        same = lanes.match_any(self.spread(value), full).reshape(-1)[self.cell] & member
        every = same == member
        return (same, every) if mode == "any" else (np.where(every, member, np.uint32(0)), every)

    def _whole(self, number: int, mask: Any) -> None:
        """A finding where only a part of a warp runs what is `.aligned`."""
        if mask is None or not self.batch.sanitize:
            return
        taking = self.active(mask)
        bad = mask & (taking.any(axis=1) & ~taking.all(axis=1))[self.batch.warp]
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            message = f"only {int(taking[self.batch.warp[lane]].sum())} lanes of a warp run it: undefined"
            hint = "All 32 lanes of a warp must run it together: move it out of the condition."
            one = self.batch.decoded.shelf.sites[number].instruction
            self.batch.plan.findings.add("warp", one, message, hint, (self.batch.geometry, lane))

    def tensor(
        self, number: int, shape: str, kinds: list[str], a: Any, b: Any, c: Any, mask: Any, sat: bool
    ) -> list[Any]:
        """`mma.sync`: one row of words for every register of d."""
        self._whole(number, mask)
        if self.cell.size != self.origin.size:
            raise EkcError("mma in a block whose threads are no multiple of 32")
        d, at, bt, ct = kinds
        left, right, addend = (self._registers(rows) for rows in (a, b, c))
        words = fragments.mma(left, right, addend, shape, (d, at, bt, ct), satfinite=sat)
        return [np.ascontiguousarray(words[:, :, i]).reshape(-1) for i in range(words.shape[2])]

    def _registers(self, rows: tuple[Any, ...]) -> Any:
        return np.stack([self.spread(row) for row in rows], axis=-1)

    def ldmatrix(
        self, number: int, probe: Any, offset: int, mask: Any, targets: tuple[Any, ...], trans: bool
    ) -> None:
        """`ldmatrix`: rows of 16 bytes are loaded by the lanes that point at them, then dealt out."""
        self._whole(number, mask)
        batch, count = self.batch, len(targets)
        rows = [np.zeros(batch.every.size, np.uint64) for _ in range(2)]
        keep = self.lane[probe.lanes(batch.every)] < 8 * count
        batch.access.load(number, probe.moved(0, keep), offset, None, tuple(rows))
        halves = (
            np.stack([self.spread(row) for row in rows], axis=-1).view(np.uint16).reshape(self.count, WARP, 8)
        )
        place = fragments.ldmatrix(count, trans)
        dealt = halves[:, place.lane, place.column]
        words = dealt[..., 0].astype(np.uint32) | (dealt[..., 1].astype(np.uint32) << np.uint32(16))
        for i, target in enumerate(targets):
            np.copyto(target, words[:, :, i].reshape(-1)[self.cell], where=True if mask is None else mask)
