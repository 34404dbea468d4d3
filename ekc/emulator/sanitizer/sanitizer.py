"""The sanitizer of a batch: all checks of memory accesses behind one interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.block_conflicts import BlockConflicts, GlobalAccess
from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import AddressProbe, AddressSpace, gather, scatter
from ekc.emulator.report import LaneFindings
from ekc.emulator.sanitizer.in_flight import PendingCopies
from ekc.emulator.sanitizer.racecheck import RaceDetector
from ekc.emulator.sanitizer.wgmma_check import WarpgroupCheck
from ekc.tables import count_nouns


class Sanitizer:
    """The checks of one batch, with their shadows and logs."""

    def __init__(
        self,
        batch: LaneState,
        pending_copies: PendingCopies,
        block_conflicts: BlockConflicts,
        has_wgmma: bool,
    ) -> None:
        geometry = batch.geometry
        self.batch, self.pending_copies, self.block_conflicts = batch, pending_copies, block_conflicts
        spaces = {name: batch.spaces[name] for name in ("shared", "local")}
        self.written_bytes = {n: WrittenBytes(space, batch.findings) for n, space in spaces.items()}
        self.races = RaceDetector(batch)
        self.block_numbers = (np.repeat(geometry.block_ids, geometry.threads_per_block) + 1).astype(np.int32)
        self.warpgroups: WarpgroupCheck | None = None
        if has_wgmma:
            shadow = self.written_bytes["shared"].shadow
            self.warpgroups = WarpgroupCheck(batch, self.races, shadow, pending_copies)

    def _make_global_access(self, site: Site, probe: AddressProbe, offset: int) -> GlobalAccess:
        """The access, for which the marks are extended to all global memory that is loaded."""
        self.block_conflicts.resize(probe.space.bytes.size)
        blocks = self.block_numbers[probe.lane_numbers(self.batch.all_lanes)]
        return GlobalAccess(site, probe, offset, blocks, self.batch.findings)

    def _check_global_change(self, site: Site, probe: AddressProbe, offset: int) -> GlobalAccess:
        """Global memory is about to change, by the access that is returned."""
        self._check_read_only(site, probe, offset)
        access = self._make_global_access(site, probe, offset)
        self.block_conflicts.check_change(access)
        return access

    def check_load(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """A load is about to happen."""
        kind = probe.space.kind
        if kind == "global":
            if not self._is_inside(site, probe, offset, writable=False):
                access = self._make_global_access(site, probe, offset)
                self.block_conflicts.check_cached_load(access)
                self.block_conflicts.check_load(access)
            return
        self.written_bytes[kind].check_load(site, probe, offset)
        if kind == "shared":
            self.pending_copies.check_access(site, probe, offset, "reads")
            self.races.log_access(site, probe, offset, "read")

    def check_store(self, site: Site, probe: AddressProbe, offset: int, values: tuple[Any, ...]) -> None:
        """A store is about to happen."""
        if probe.space.kind == "global":
            access = self._check_global_change(site, probe, offset)
            self.block_conflicts.check_store(access, values)
        if probe.space.kind == "shared":
            self.pending_copies.check_access(site, probe, offset, "writes over", values)
            self.check_shared_change(site, probe, offset, "overwrites")

    def record_store(self, site: Site, probe: AddressProbe, offset: int, values: tuple[Any, ...]) -> None:
        """A store has happened."""
        kind = probe.space.kind
        if kind == "global":
            access = self._make_global_access(site, probe, offset)
            self.block_conflicts.check_stored_values(access, values)
            return
        self.written_bytes[kind].mark_store(site, probe, offset)
        if kind == "shared":
            self.races.log_access(site, probe, offset, "write", values)
            self._record_shared_change(site, probe, offset)

    def check_atomic(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """An atomic is about to happen."""
        if probe.space.kind == "global":
            self.block_conflicts.check_atomic(self._check_global_change(site, probe, offset))
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

    def _is_inside(self, site: Site, probe: AddressProbe, offset: int, writable: bool) -> bool:
        """Whether one allocation, writable or not, contains the whole access."""
        place = probe.space.find_allocation(probe.low + offset, probe.high + offset + site.bytes_per_lane)
        return place is not None and place.writable == writable

    def _check_read_only(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """A finding where a lane changes memory that the launch may only read."""
        if self._is_inside(site, probe, offset, writable=True):
            return
        bad = ~probe.space.is_in_bounds(probe.address + offset, site.bytes_per_lane, needs_write=True)
        if not bad.any():
            return
        where = int(probe.address[bad][0]) + offset
        place = probe.space.find_allocation(where, where + site.bytes_per_lane)
        assert place is not None
        self.batch.findings.add_access(
            "read-only",
            site,
            probe,
            offset,
            bad,
            message=(
                f"{site.action} to {place.name}, which is read-only, by {count_nouns(int(bad.sum()), 'lane')}"
            ),
            hint="Write to an output; an input must stay as it was given.",
        )


def drop_bad_lanes(
    findings: LaneFindings | None, site: Site, probe: AddressProbe, offset: int, needed_bytes: Any = None
) -> AddressProbe:
    """The lanes whose access is inside an allocation and aligned, the offset added; `findings` get the
    others. `needed_bytes` must exist; None: all."""
    address = probe.address + offset
    needed = site.count_needed_bytes(probe.space.kind) if needed_bytes is None else needed_bytes
    inside = probe.space.is_in_bounds(address, needed)
    aligned = (address & (site.bytes_per_lane - 1)) == 0
    if findings is not None:
        _report_invalid(findings, site, probe, offset, ~inside, inside & ~aligned)
    return probe.select_lanes(offset, inside & aligned)


def _report_invalid(
    findings: LaneFindings, site: Site, probe: AddressProbe, offset: int, is_outside: Any, is_misaligned: Any
) -> None:
    access = f"{site.action} of {site.bytes_per_lane} bytes in {probe.space.kind} memory"
    if is_outside.any():
        nearest = probe.space.describe_nearest(int(probe.address[is_outside][0]) + offset)
        findings.add_access(
            "out-of-bounds",
            site,
            probe,
            offset,
            is_outside,
            message=f"{access} {nearest}, by {count_nouns(int(is_outside.sum()), 'lane')}",
            hint="Look at the guard of this access and at the index that leads to it.",
        )
    if is_misaligned.any():
        findings.add_access(
            "misaligned",
            site,
            probe,
            offset,
            is_misaligned,
            message=f"misaligned {access}",
            hint=f"The address must be a multiple of {site.bytes_per_lane}.",
        )


class WrittenBytes:
    """Marks of the bytes of an address space that were written: a shadow of one byte for each."""

    def __init__(self, space: AddressSpace, findings: LaneFindings) -> None:
        self.shadow = np.zeros(space.bytes.size, np.uint8)
        self.views = {code: self.shadow.view(code) for code in ("u1", "u2", "u4", "u8")}
        self.written_marks = {f"u{n}": np.dtype(f"u{n}").type(int("01" * n, 16)) for n in (1, 2, 4, 8)}
        self.findings = findings

    def mark_store(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Mark the bytes of a store as written."""
        code = "u" + site.dtype_code[1]
        marked = probe.pattern.marked_stores if probe.pattern else None
        key = (probe.shift + offset, site.bytes_per_lane)
        if marked is not None and key in marked:
            return
        for k in range(site.element_count):
            scatter(probe, code, offset + k * int(code[1]), self.written_marks[code], self.views)
        if marked is not None:
            marked.add(key)

    def check_load(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """A finding for a load of bytes that were not written.

        The compiler joins loads of shared halves and bytes into vectors of words. So a word of such a vector
        passes if any of its bytes was written."""
        joined = probe.space.kind == "shared" and site.element_count > 1
        checked = probe.pattern.checked_loads if probe.pattern else None
        key = (probe.shift + offset, site.bytes_per_lane, site.is_element_read)
        if checked is not None and key in checked:
            return
        code = "u" + site.dtype_code[1]
        for k in range(site.element_count):
            if site.is_element_read and not site.is_element_read[k]:
                continue
            marks = gather(probe, code, offset + k * int(code[1]), self.views)
            bad = marks == 0 if joined else marks != self.written_marks[code]
            if bad.any():
                memory = f"{probe.space.kind} memory that was never written"
                at = offset + k * int(code[1])
                self.findings.add_access(
                    "uninitialised",
                    site,
                    probe,
                    at,
                    bad,
                    message=f"{site.action} of {memory}, by {count_nouns(int(bad.sum()), 'lane')}",
                    hint="Look for the store that should come first, and for the range its threads cover.",
                )
                return
        if checked is not None:
            checked.add(key)
