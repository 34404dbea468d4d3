"""The sanitizer of a batch: all checks of memory accesses behind one interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import AddressProbe, Allocation
from ekc.emulator.sanitizer.block_conflicts import BlockConflicts, ReadOnlyCache
from ekc.emulator.sanitizer.copy_in_flight import PendingCopies
from ekc.emulator.sanitizer.memcheck import WrittenBytes
from ekc.emulator.sanitizer.racecheck import RaceDetector
from ekc.emulator.sanitizer.wgmma_check import WarpgroupCheck


class Sanitizer:
    """The checks of one batch, with their shadows and logs."""

    def __init__(
        self,
        batch: LaneState,
        pending_copies: PendingCopies,
        block_conflicts: BlockConflicts,
        read_only_cache: ReadOnlyCache | None,
        has_wgmma: bool,
    ) -> None:
        findings, geometry = batch.findings, batch.geometry
        self.batch, self.pending_copies = batch, pending_copies
        self.block_conflicts, self.read_only_cache = block_conflicts, read_only_cache
        spaces = {name: batch.spaces[name] for name in ("shared", "local")}
        self.written_bytes = {
            n: WrittenBytes(space, findings, geometry, batch.all_lanes) for n, space in spaces.items()
        }
        self.races = RaceDetector(
            findings, geometry, batch.all_lanes, batch.lane_warps, spaces["shared"].bytes.size
        )
        self.block_numbers = (np.repeat(geometry.block_ids, geometry.threads_per_block) + 1).astype(np.int32)
        self.warpgroups: WarpgroupCheck | None = None
        if has_wgmma:
            shadow = self.written_bytes["shared"].shadow
            self.warpgroups = WarpgroupCheck(batch, self.races, shadow, pending_copies)

    def _find_blocks(self, probe: AddressProbe) -> Any:
        """The block of each lane of a probe, counted from 1."""
        return self.block_numbers[probe.lane_numbers(self.batch.all_lanes)]

    def _resize_marks(self, probe: AddressProbe) -> None:
        """Extend the marks to all global memory that is loaded."""
        for marks in (self.block_conflicts, self.read_only_cache):
            if marks is not None:
                marks.resize(probe.space.bytes.size)

    def _check_global_change(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Global memory is about to change."""
        self._resize_marks(probe)
        self._check_read_only(site, probe, offset)
        if self.read_only_cache is not None:
            self.read_only_cache.check_change(site, probe, offset, self.batch.geometry, self.batch.all_lanes)

    def check_load(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """A load is about to happen."""
        kind = probe.space.kind
        if kind == "global":
            if self._find_allocation(site, probe, offset, False) is None:
                self._resize_marks(probe)
                place = self.batch.geometry, self.batch.all_lanes
                if self.read_only_cache is not None:
                    self.read_only_cache.check_load(site, probe, offset, *place)
                self.block_conflicts.check_load(site, probe, offset, self._find_blocks(probe), *place)
            return
        self.written_bytes[kind].check_load(site, probe, offset)
        if kind == "shared":
            self.pending_copies.check_access(site, probe, offset, "reads")
            self.races.log_access(site, probe, offset, "read")

    def check_store(self, site: Site, probe: AddressProbe, offset: int, values: tuple[Any, ...]) -> None:
        """A store is about to happen."""
        if probe.space.kind == "global":
            self._check_global_change(site, probe, offset)
            place = self.batch.geometry, self.batch.all_lanes
            self.block_conflicts.check_store(site, probe, offset, values, self._find_blocks(probe), *place)
        if probe.space.kind == "shared":
            self.pending_copies.check_access(site, probe, offset, "writes over", values)
            self.check_shared_change(site, probe, offset, "overwrites")

    def record_store(self, site: Site, probe: AddressProbe, offset: int, values: tuple[Any, ...]) -> None:
        """A store has happened."""
        kind = probe.space.kind
        if kind == "global":
            place = self.batch.geometry, self.batch.all_lanes
            self.block_conflicts.check_stored_values(
                site, probe, offset, values, self._find_blocks(probe), *place
            )
            return
        self.written_bytes[kind].mark_store(site, probe, offset)
        if kind == "shared":
            self.races.log_access(site, probe, offset, "write", values)
            self._record_shared_change(site, probe, offset)

    def check_atomic(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """An atomic is about to happen."""
        if probe.space.kind == "global":
            self._check_global_change(site, probe, offset)
            place = self.batch.geometry, self.batch.all_lanes
            self.block_conflicts.check_atomic(site, probe, offset, self._find_blocks(probe), *place)
        if probe.space.kind == "shared":
            if "exch" in site.instruction.parts:
                self.written_bytes["shared"].mark_store(site, probe, offset)
            else:
                self.written_bytes["shared"].check_load(site, probe, offset)
            self.pending_copies.check_access(site, probe, offset, "changes")
            self.races.log_access(site, probe, offset, "atomic")
            self.check_shared_change(site, probe, offset, "changes")
            self._record_shared_change(site, probe, offset)

    def check_shared_change(self, site: Site, probe: AddressProbe, offset: int, verb: str) -> None:
        """Shared memory is about to change, or may from now on."""
        if self.warpgroups is not None:
            self.warpgroups.tracker.check_overwrite(site, probe, offset, verb)

    def _record_shared_change(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Shared memory has changed."""
        if self.warpgroups is not None:
            self.warpgroups.async_proxy.record_write(site, probe, offset)

    def cross_barrier(self, lanes: Any = None) -> None:
        """Lanes (None: all) cross a barrier."""
        self.races.close_interval(lanes)
        if self.warpgroups is not None:
            self.warpgroups.async_proxy.record_barrier(lanes)

    def _find_allocation(
        self, site: Site, probe: AddressProbe, offset: int, writable: bool
    ) -> Allocation | None:
        """The allocation, writable or not, that contains the whole access; None without one."""
        place = probe.space.find_allocation(probe.low + offset, probe.high + offset + site.bytes_per_lane)
        return place if place is not None and place.writable == writable else None

    def _check_read_only(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """A finding where a lane changes memory that the launch may only read."""
        if self._find_allocation(site, probe, offset, True) is not None:
            return
        bad = ~probe.space.is_in_bounds(probe.address + offset, site.bytes_per_lane, needs_write=True)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        where = int(probe.address[first]) + offset
        place = probe.space.find_allocation(where, where + site.bytes_per_lane)
        assert place is not None
        self.batch.findings.add(
            "read-only",
            site.instruction,
            f"{site.action} to {place.name}, which is read-only, by {int(bad.sum())} lanes",
            "Write to an output; an input must stay as it was given.",
            (self.batch.geometry, int(probe.lane_numbers(self.batch.all_lanes)[first])),
            where,
        )
