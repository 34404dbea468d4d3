"""`cp.async`: copies that are issued now and land when their group is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.memory import AddressProbe, list_cell_contents, list_cells, scatter

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch


@dataclass(slots=True)
class InFlightCopy:
    """One issued copy: where it goes, what it carries, and the group of each lane (-1: not committed)."""

    site: Site
    probe: AddressProbe
    offset: int
    values: tuple[Any, ...]
    lane_groups: Any

    def select_lanes(self, keep: Any) -> InFlightCopy:
        """The copy for some of its lanes."""
        values = tuple(v[keep] for v in self.values)
        return InFlightCopy(
            self.site, self.probe.select_lanes(0, keep), self.offset, values, self.lane_groups[keep]
        )


class AsyncCopyUnit:
    """The copies in flight of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.in_flight: list[InFlightCopy] = []
        self.committed_groups = np.zeros(batch.all_lanes.size, np.int64)
        """Groups that each lane has committed."""

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
        """Read the source now; bytes beyond `filled` are zeros."""
        batch = self.batch
        site = batch.decoded.context.sites[store_site]
        rows = [np.zeros(batch.all_lanes.size, site.dtype_code) for _ in range(site.element_count)]
        if source_bytes is None:
            batch.memory_unit.load(load_site, source, source_offset, mask, tuple(rows))
        else:
            self._load_partial(
                load_site, source, source_offset, rows, np.broadcast_to(source_bytes, batch.all_lanes.shape)
            )
        probe, at = batch.memory_unit.check_bounds(site, target, target_offset)
        if not probe.address.size:
            return
        batch.memory_unit.count_requests(site, probe, at)
        lanes = probe.lane_numbers(batch.all_lanes)
        copy = InFlightCopy(site, probe, at, tuple(r[lanes] for r in rows), np.full(lanes.size, -1))
        if batch.is_sanitized:
            self.check_access(site, probe, at, "copies over", copy.values)
            batch.sanitizer.check_shared_change(site, probe, at, "copies over")
        self.in_flight.append(copy)
        if batch.is_sanitized:
            # It may land from now on.
            batch.sanitizer.races.log_access(site, probe, at, "write", copy.values)

    def _load_partial(
        self, site_number: int, source: AddressProbe, offset: int, rows: list[Any], source_bytes: Any
    ) -> None:
        """Only lanes whose source has any bytes read; those with fewer keep and need a part."""
        lanes, site = source.lane_numbers(self.batch.all_lanes), self.batch.decoded.context.sites[site_number]
        self._check_source_size(site, lanes, source_bytes)
        keep = source_bytes[lanes] > 0
        if keep.any():
            reading = source if keep.all() else source.select_lanes(0, keep)
            needed = np.minimum(source_bytes[lanes[keep]].astype(np.int64), site.bytes_per_lane)
            self.batch.memory_unit.load(site_number, reading, offset, None, tuple(rows), needed)
        size = int(self.batch.decoded.context.sites[site_number].dtype_code[1])
        for k, row in enumerate(rows):
            left = np.clip(source_bytes.astype(np.int64) - k * size, 0, size)
            whole = np.where(
                left >= size, ~row.dtype.type(0), (np.uint64(1) << (8 * left).astype("u8")) - np.uint64(1)
            )
            row &= whole.astype(row.dtype)

    def _check_source_size(self, site: Site, lanes: Any, source_bytes: Any) -> None:
        """A finding where the source is said to be larger than the copy, which is undefined."""
        bad = source_bytes[lanes] > site.bytes_per_lane
        if bad.any() and self.batch.is_sanitized:
            first = int(lanes[np.flatnonzero(bad)[0]])
            message = (
                f"src-size is {source_bytes[first]}: more than the {site.bytes_per_lane} bytes of the copy"
            )
            hint = "Pass the number of bytes to read, at most the size of the copy."
            place = (self.batch.geometry, first)
            self.batch.plan.findings.add("async-copy", site.instruction, message, hint, place)

    def commit(self, mask: Any) -> None:
        """What each lane has issued becomes its next group."""
        for copy in self.in_flight:
            lanes = copy.probe.lane_numbers(self.batch.all_lanes)
            open_ = copy.lane_groups == -1
            if mask is not None:
                open_ = open_ & mask[lanes]
            copy.lane_groups[open_] = self.committed_groups[lanes[open_]]
        self.committed_groups += 1 if mask is None else mask

    def wait(self, pending_groups: int, mask: Any, site_number: int, is_wait_all: bool) -> None:
        """All but the last `left` groups of the lanes that wait land now."""
        flying, self.in_flight = self.in_flight, []
        for copy in flying:
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
                self.in_flight.append(copy.select_lanes(~lands))
            else:
                self.in_flight.append(copy)

    def _complete_copy(self, copy: InFlightCopy) -> None:
        size = int(copy.site.dtype_code[1])
        for k, value in enumerate(copy.values):
            scatter(copy.probe, copy.site.dtype_code, copy.offset + k * size, value)
        if self.batch.is_sanitized:
            self.batch.sanitizer.record_store(copy.site, copy.probe, copy.offset, copy.values)

    def check_access(
        self, site: Site, probe: AddressProbe, offset: int, verb: str, values: tuple[Any, ...] | None = None
    ) -> None:
        """A finding if an access touches what is still in flight; a store of what lands there anyway may."""
        for copy in self.in_flight:
            if probe.low + offset >= copy.probe.high + copy.offset + copy.site.bytes_per_lane:
                continue
            if probe.high + offset + site.bytes_per_lane <= copy.probe.low + copy.offset:
                continue
            grain = min(int(site.dtype_code[1]), int(copy.site.dtype_code[1]))
            pending = list_cells(copy.site, copy.probe, copy.offset, grain).ravel()
            mine = list_cells(site, probe, offset, grain)
            # The table spans no more than the shared memory of a batch; to sort would cost more.
            bad = np.isin(mine, pending, kind="table")
            if bad.any() and values is not None:
                lands = list_cell_contents(copy.site, copy.probe, copy.values, grain).ravel()
                order = np.argsort(pending, kind="stable")
                at = order[np.searchsorted(pending[order], mine).clip(max=order.size - 1)]
                bad &= lands[at] != list_cell_contents(site, probe, values, grain)
            if bad.any():
                self._report_conflict(site, probe, offset, bad.any(axis=1), copy, verb)
                return

    def _report_conflict(
        self, site: Site, probe: AddressProbe, offset: int, bad: Any, copy: InFlightCopy, verb: str
    ) -> None:
        first = int(np.flatnonzero(bad)[0])
        self.batch.plan.findings.add(
            "async-copy",
            site.instruction,
            f"{verb} what a copy still in flight will write (PTX line {copy.site.instruction.line})",
            "Wait for the group with cp.async.wait_group, then cross a barrier, before touching it.",
            (self.batch.geometry, int(probe.lane_numbers(self.batch.all_lanes)[first])),
            int(probe.address[first]) + offset,
        )
