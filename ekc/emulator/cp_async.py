"""`cp.async`: copies that read at their issue and write shared memory when their group is waited for."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.access import MemoryUnit
from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import Access, AddressProbe
from ekc.emulator.sanitizer.in_flight import InFlightCopy, PendingCopies
from ekc.emulator.sanitizer.sanitizer import Sanitizer


class AsyncCopyUnit:
    """Issues the copies of one batch, and lets them land."""

    def __init__(
        self, batch: LaneState, memory_unit: MemoryUnit, pending: PendingCopies, sanitizer: Sanitizer | None
    ) -> None:
        self.batch, self.memory_unit, self.sanitizer = batch, memory_unit, sanitizer
        self.in_flight = pending
        self.committed_groups = np.zeros(batch.all_lanes.size, np.int64)
        """Number of groups that each lane has committed."""

    def issue(
        self,
        store_site: int,
        load_site: int,
        target: AddressProbe,
        target_offset: int,
        source: AddressProbe,
        source_offset: int,
        mask: Any,
        source_bytes: Any,
    ) -> None:
        """Issue a copy. It reads its source now; bytes beyond `source_bytes` are zeros."""
        batch = self.batch
        site = batch.sites[store_site]
        rows = [np.zeros(batch.all_lanes.size, site.dtype_code) for _ in range(site.element_count)]
        if source_bytes is None:
            self.memory_unit.load(load_site, source, source_offset, tuple(rows))
        else:
            counts = np.broadcast_to(source_bytes, batch.all_lanes.shape)
            self._load_partial(load_site, source, source_offset, rows, counts)
        access = self.memory_unit.check_bounds(Access(site, target, target_offset))
        if not access.probe.address.size:
            return
        self.memory_unit.count_requests(site, access.probe, access.offset)
        lanes = access.probe.lane_numbers(batch.all_lanes)
        values, groups = tuple(r[lanes] for r in rows), np.full(lanes.size, -1)
        copy = InFlightCopy(site, access.probe, access.offset, values, groups)
        if self.sanitizer is not None:
            self.in_flight.check_access(copy, "copies over", copy.values)
            self.sanitizer.check_shared_change(copy, "copies over")
        self.in_flight.copies.append(copy)
        if self.sanitizer is not None:
            # The copy may write from now on.
            self.sanitizer.races.log_access(copy, "write", copy.values)

    def _load_partial(
        self, site_number: int, source: AddressProbe, offset: int, rows: list[Any], source_bytes: Any
    ) -> None:
        """Load the source of lanes with more than 0 source bytes, and zero the bytes beyond them."""
        lanes, site = source.lane_numbers(self.batch.all_lanes), self.batch.sites[site_number]
        self._check_source_size(site, lanes, source_bytes)
        keep = source_bytes[lanes] > 0
        if keep.any():
            reading = source if keep.all() else source.select_lanes(0, keep)
            needed = np.minimum(source_bytes[lanes[keep]].astype(np.int64), site.bytes_per_lane)
            self.memory_unit.load(site_number, reading, offset, tuple(rows), needed)
        size = site.element_bytes
        for k, row in enumerate(rows):
            left = np.clip(source_bytes.astype(np.int64) - k * size, 0, size)
            ones = (np.uint64(1) << (8 * left).astype("u8")) - np.uint64(1)
            row &= np.where(left >= size, ~row.dtype.type(0), ones).astype(row.dtype)

    def _check_source_size(self, site: Site, lanes: Any, source_bytes: Any) -> None:
        """A finding where `source_bytes` exceeds the size of the copy, which is undefined."""
        bad = source_bytes[lanes] > site.bytes_per_lane
        if bad.any() and self.batch.is_sanitized:
            first = int(lanes[np.flatnonzero(bad)[0]])
            size = site.bytes_per_lane
            self.batch.findings.add(
                "async-copy",
                site.instruction,
                message=f"src-size is {source_bytes[first]}: more than the {size} bytes of the copy",
                hint="Pass the number of bytes to read, at most the size of the copy.",
                lane=first,
            )

    def commit(self, mask: Any) -> None:
        """`cp.async.commit_group`: the copies that each lane issued since the last commit become a group."""
        for copy in self.in_flight.copies:
            lanes = copy.probe.lane_numbers(self.batch.all_lanes)
            uncommitted = copy.lane_groups == -1
            if mask is not None:
                uncommitted = uncommitted & mask[lanes]
            copy.lane_groups[uncommitted] = self.committed_groups[lanes[uncommitted]]
        self.committed_groups += 1 if mask is None else mask

    def wait(self, pending_groups: int, mask: Any, is_wait_all: bool) -> None:
        """`cp.async.wait_group`: all but the newest `pending_groups` groups of the waiting lanes land."""
        pending, self.in_flight.copies = self.in_flight.copies, []
        for copy in pending:
            lanes = copy.probe.lane_numbers(self.batch.all_lanes)
            lands = copy.lane_groups < self.committed_groups[lanes] - pending_groups
            if not is_wait_all:
                lands &= copy.lane_groups >= 0
            if mask is not None:
                lands &= mask[lanes]
            if lands.all():
                self._complete_copy(copy)
            elif lands.any():
                self._complete_copy(copy.select_lanes(lands))
                self.in_flight.copies.append(copy.select_lanes(~lands))
            else:
                self.in_flight.copies.append(copy)

    def _complete_copy(self, copy: InFlightCopy) -> None:
        copy.write(copy.values)
        if self.sanitizer is not None:
            self.sanitizer.record_store(copy, copy.values)
