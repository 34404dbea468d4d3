"""Shuffles, votes, reductions and matrix products across the lanes of a batch's warps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ekc.emulator.access import MemoryUnit
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import AddressProbe
from ekc.emulator.numerics import warp
from ekc.errors import EkcError
from ekc.ptx.constants import WARP_SIZE


class WarpUnit:
    """The lanes of a batch as (warps, 32); warps with fewer lanes are padded."""

    def __init__(self, batch: LaneState, memory_unit: MemoryUnit) -> None:
        self.batch, self.memory_unit = batch, memory_unit
        self.warp_count = int(batch.lane_warps[-1]) + 1
        self.lane_in_warp = batch.geometry.thread_numbers() % WARP_SIZE
        self.padded_index = batch.lane_warps * WARP_SIZE + self.lane_in_warp
        self.lane_at_index = np.full(self.warp_count * WARP_SIZE, -1, np.int64)
        """The lane of the batch at each place of (warps * 32), -1 where the block has none."""
        self.lane_at_index[self.padded_index] = batch.all_lanes

    def pad_warps(self, row: Any) -> Any:
        """A row (or one value) as (warps, 32), with zeros where there is no lane."""
        row = np.asarray(row)
        out = np.zeros(self.warp_count * WARP_SIZE, row.dtype)
        out[self.padded_index] = row
        return out.reshape(self.warp_count, WARP_SIZE)

    def pad_mask(self, mask: Any) -> Any:
        """The active lanes as (warps, 32)."""
        return self.pad_warps(np.bool_(True) if mask is None else mask)

    def shuffle(self, site_number: int, mode: str, a: Any, b: Any, c: Any, mask: Any) -> tuple[Any, Any]:
        """`shfl.sync`."""
        source, valid = warp.compute_shuffle_source(mode, self.lane_in_warp, b, c)
        place = self.lane_at_index[self.batch.lane_warps * WARP_SIZE + source]
        missing = place < 0
        if mask is not None:
            missing |= ~mask[np.maximum(place, 0)]
        place = np.where(missing, self.batch.all_lanes, place)
        if self.batch.is_sanitized:
            bad = missing & valid & (np.True_ if mask is None else mask)
            self.batch.findings.add_first(
                "warp",
                self.batch.sites[site_number].instruction,
                bad,
                message="takes a value from a lane that does not take part: the result is undefined",
                hint="All lanes named by the mask must reach the shuffle together.",
            )
        return np.broadcast_to(a, place.shape)[place], np.broadcast_to(valid, place.shape)

    def vote(self, mode: str, predicate: Any, member_masks: Any, mask: Any) -> Any:
        """`vote.sync`, for masks that may differ from lane to lane."""
        active, lane_warps = self.pad_mask(mask), self.batch.lane_warps
        member_masks = np.broadcast_to(member_masks, lane_warps.shape) & warp.ballot(active)[lane_warps]
        votes = warp.ballot(self.pad_warps(predicate) & active)[lane_warps] & member_masks
        if mode == "ballot":
            return votes
        if mode == "any":
            return votes != 0
        return votes == member_masks if mode == "all" else (votes == 0) | (votes == member_masks)

    def redux(self, operation: str, value: Any, member_masks: Any, mask: Any) -> Any:
        """`redux.sync`."""
        value = np.broadcast_to(value, self.batch.all_lanes.shape)
        member_masks = np.broadcast_to(member_masks, value.shape)
        active, values, out = warp.ballot(self.pad_mask(mask)), self.pad_warps(value), value.copy()
        for one in np.unique(member_masks):
            result = warp.redux(operation, values, active & one)
            chosen = member_masks == one
            out[chosen] = result[self.batch.lane_warps[chosen]]
        return out

    def match(self, mode: str, value: Any, member_masks: Any, mask: Any) -> tuple[Any, Any]:
        """`match.sync`."""
        value = np.broadcast_to(value, self.batch.all_lanes.shape)
        running = warp.ballot(self.pad_mask(mask))[self.batch.lane_warps]
        member_masks = np.broadcast_to(member_masks, value.shape) & running
        full = np.full(self.warp_count, 0xFFFFFFFF, np.uint32)
        same = warp.match_any(self.pad_warps(value), full).reshape(-1)[self.padded_index] & member_masks
        every = same == member_masks
        return (same, every) if mode == "any" else (np.where(every, member_masks, np.uint32(0)), every)

    def _check_full_warp(self, site_number: int, mask: Any) -> None:
        """A finding where only some lanes of a warp run an `.aligned` instruction."""
        if mask is None or not self.batch.is_sanitized:
            return
        is_active = self.pad_mask(mask)
        bad = mask & (is_active.any(axis=1) & ~is_active.all(axis=1))[self.batch.lane_warps]
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            count = int(is_active[self.batch.lane_warps[lane]].sum())
            self.batch.findings.add(
                "warp",
                self.batch.sites[site_number].instruction,
                message=f"only {count} lanes of a warp run it: undefined",
                hint="All 32 lanes of a warp must run it together: move it out of the condition.",
                lane=lane,
            )

    def multiply_fragments(
        self,
        site_number: int,
        shape: str,
        element_types: list[str],
        a: Any,
        b: Any,
        c: Any,
        mask: Any,
        is_saturating: bool,
    ) -> list[Any]:
        """`mma.sync`: one row of words for every register of d."""
        self._check_full_warp(site_number, mask)
        if self.padded_index.size != self.lane_at_index.size:
            raise EkcError("mma in a block whose threads are no multiple of 32")
        d, at, bt, ct = element_types
        left, right, addend = (self._stack_registers(rows) for rows in (a, b, c))
        words = warp.multiply_fragments(left, right, addend, shape, (d, at, bt, ct), satfinite=is_saturating)
        return [np.ascontiguousarray(words[:, :, i]).reshape(-1) for i in range(words.shape[2])]

    def _stack_registers(self, rows: Sequence[Any]) -> Any:
        return np.stack([self.pad_warps(row) for row in rows], axis=-1)

    def load_matrices(
        self,
        site_number: int,
        probe: AddressProbe,
        offset: int,
        mask: Any,
        targets: tuple[Any, ...],
        is_transposed: bool,
    ) -> None:
        """`ldmatrix`: each lane loads the row of 16 bytes at its address; the rows are then distributed."""
        self._check_full_warp(site_number, mask)
        batch, count = self.batch, len(targets)
        rows = [np.zeros(batch.all_lanes.size, np.uint64) for _ in range(2)]
        keep = self.lane_in_warp[probe.lane_numbers(batch.all_lanes)] < 8 * count
        self.memory_unit.load(site_number, probe.select_lanes(0, keep), offset, tuple(rows))
        halves = self._stack_registers(rows).view(np.uint16).reshape(self.warp_count, WARP_SIZE, 8)
        place = warp.compute_ldmatrix_sources(count, is_transposed)
        distributed = halves[:, place.lane, place.column].astype(np.uint32)
        words = distributed[..., 0] | (distributed[..., 1] << np.uint32(16))
        active = True if mask is None else mask
        for i, target in enumerate(targets):
            np.copyto(target, words[:, :, i].reshape(-1)[self.padded_index], where=active)
