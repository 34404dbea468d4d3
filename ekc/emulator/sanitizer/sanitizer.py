"""The sanitizer of a batch: all checks of memory accesses behind one interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.block_races import BlockRaces, GlobalAccess
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import Access, AddressSpace, gather, scatter
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
        block_races: BlockRaces,
        has_wgmma: bool,
    ) -> None:
        geometry = batch.geometry
        self.batch, self.pending_copies, self.block_races = batch, pending_copies, block_races
        spaces = {name: batch.spaces[name] for name in ("shared", "local")}
        self.written_bytes = {n: WrittenBytes(space, batch.findings) for n, space in spaces.items()}
        self.races = RaceDetector(batch)
        self.block_numbers = (np.repeat(geometry.block_ids, geometry.threads_per_block) + 1).astype(np.int32)
        self.warpgroups: WarpgroupCheck | None = None
        if has_wgmma:
            shadow = self.written_bytes["shared"].shadow
            self.warpgroups = WarpgroupCheck(batch, self.races, shadow, pending_copies)

    def _make_global_access(self, access: Access) -> GlobalAccess:
        """The access, for which the marks are extended to all global memory that is loaded."""
        self.block_races.resize(access.probe.space.bytes.size)
        blocks = self.block_numbers[access.probe.lane_numbers(self.batch.all_lanes)]
        return GlobalAccess(access.site, access.probe, access.offset, blocks, self.batch.findings)

    def _check_global_change(self, access: Access) -> GlobalAccess:
        """Global memory is about to change, by the access that is returned."""
        self._check_read_only(access)
        change = self._make_global_access(access)
        self.block_races.check_change(change)
        return change

    def check_load(self, access: Access) -> None:
        """A load is about to happen."""
        kind = access.probe.space.kind
        if kind == "global":
            if not self._is_inside(access, writable=False):
                load = self._make_global_access(access)
                self.block_races.check_cached_load(load)
                self.block_races.check_load(load)
            return
        self.written_bytes[kind].check_load(access)
        if kind == "shared":
            self.pending_copies.check_access(access, "reads")
            self.races.log_access(access, "read")

    def check_store(self, access: Access, values: tuple[Any, ...]) -> None:
        """A store is about to happen."""
        if access.probe.space.kind == "global":
            self.block_races.check_store(self._check_global_change(access), values)
        if access.probe.space.kind == "shared":
            self.pending_copies.check_access(access, "writes over", values)
            self.check_shared_change(access, "overwrites")

    def record_store(self, access: Access, values: tuple[Any, ...]) -> None:
        """A store has happened."""
        kind = access.probe.space.kind
        if kind == "global":
            self.block_races.check_stored_values(self._make_global_access(access), values)
            return
        self.written_bytes[kind].mark_store(access)
        if kind == "shared":
            self.races.log_access(access, "write", values)
            self._record_shared_change(access)

    def check_atomic(self, access: Access) -> None:
        """An atomic is about to happen."""
        if access.probe.space.kind == "global":
            self.block_races.check_atomic(self._check_global_change(access))
        if access.probe.space.kind == "shared":
            if "exch" in access.site.instruction.parts:
                self.written_bytes["shared"].mark_store(access)
            else:
                self.written_bytes["shared"].check_load(access)
            self.pending_copies.check_access(access, "changes")
            self.races.log_access(access, "atomic")
            self.check_shared_change(access, "changes")
            self._record_shared_change(access)

    def check_shared_change(self, access: Access, verb: str) -> None:
        """Shared memory is about to change, or may from now on."""
        if self.warpgroups is not None:
            self.warpgroups.tracker.check_overwrite(access, verb)

    def _record_shared_change(self, access: Access) -> None:
        """Shared memory has changed."""
        if self.warpgroups is not None:
            self.warpgroups.async_proxy.record_write(access)

    def cross_barrier(self, lanes: Any = None) -> None:
        """Lanes (None: all) cross a barrier."""
        self.races.close_interval(lanes)
        if self.warpgroups is not None:
            self.warpgroups.async_proxy.record_barrier(lanes)

    def _is_inside(self, access: Access, writable: bool) -> bool:
        """Whether one allocation, writable or not, contains the whole access."""
        place = access.probe.space.find_allocation(access.low, access.high)
        return place is not None and place.writable == writable

    def _check_read_only(self, access: Access) -> None:
        """A finding where a lane changes memory that the launch may only read."""
        if self._is_inside(access, writable=True):
            return
        space, size, addresses = access.probe.space, access.site.bytes_per_lane, access.list_addresses()
        bad = ~space.is_in_bounds(addresses, size, needs_write=True)
        if not bad.any():
            return
        where = int(addresses[bad][0])
        place = space.find_allocation(where, where + size)
        assert place is not None
        self.batch.findings.add_access(
            "read-only",
            access,
            bad,
            message=(
                f"{access.site.action} to {place.name}, which is read-only, "
                f"by {count_nouns(int(bad.sum()), 'lane')}"
            ),
            hint="Write to an output; an input must stay as it was given.",
        )


def drop_bad_lanes(findings: LaneFindings | None, access: Access, needed_bytes: Any = None) -> Access:
    """The access of those lanes for which it is inside an allocation and aligned; `findings` get the others.
    `needed_bytes` must exist; None: all."""
    site, space, addresses = access.site, access.probe.space, access.list_addresses()
    inside = space.is_in_bounds(
        addresses, site.count_needed_bytes(space.kind) if needed_bytes is None else needed_bytes
    )
    aligned = (addresses & (site.bytes_per_lane - 1)) == 0
    if findings is not None:
        _report_invalid(findings, access, ~inside, inside & ~aligned)
    return Access(site, access.probe.select_lanes(access.offset, inside & aligned), 0)


def _report_invalid(findings: LaneFindings, access: Access, is_outside: Any, is_misaligned: Any) -> None:
    site, space = access.site, access.probe.space
    what = f"{site.action} of {site.bytes_per_lane} bytes in {space.kind} memory"
    if is_outside.any():
        nearest = space.describe_nearest(int(access.list_addresses()[is_outside][0]))
        findings.add_access(
            "out-of-bounds",
            access,
            is_outside,
            message=f"{what} {nearest}, by {count_nouns(int(is_outside.sum()), 'lane')}",
            hint="Look at the guard of this access and at the index that leads to it.",
        )
    if is_misaligned.any():
        findings.add_access(
            "misaligned",
            access,
            is_misaligned,
            message=f"misaligned {what}",
            hint=f"The address must be a multiple of {site.bytes_per_lane}.",
        )


class WrittenBytes:
    """Marks of the bytes of an address space that were written: a shadow of one byte for each."""

    def __init__(self, space: AddressSpace, findings: LaneFindings) -> None:
        self.shadow = np.zeros(space.bytes.size, np.uint8)
        self.views = {code: self.shadow.view(code) for code in ("u1", "u2", "u4", "u8")}
        self.written_marks = {f"u{n}": np.dtype(f"u{n}").type(int("01" * n, 16)) for n in (1, 2, 4, 8)}
        self.findings = findings

    def mark_store(self, access: Access) -> None:
        """Mark the bytes of a store as written."""
        site, probe, offset = access.site, access.probe, access.offset
        marked = probe.pattern.marked_stores if probe.pattern else None
        key = (probe.shift + offset, site.bytes_per_lane)
        if marked is not None and key in marked:
            return
        code = f"u{site.element_bytes}"
        for k in range(site.element_count):
            scatter(probe, code, offset + k * site.element_bytes, self.written_marks[code], self.views)
        if marked is not None:
            marked.add(key)

    def check_load(self, access: Access) -> None:
        """A finding for a load of bytes that were not written.

        The compiler joins loads of shared halves and bytes into vectors of words. So a word of such a vector
        passes if any of its bytes was written."""
        site, probe, offset = access.site, access.probe, access.offset
        joined = probe.space.kind == "shared" and site.element_count > 1
        checked = probe.pattern.checked_loads if probe.pattern else None
        key = (probe.shift + offset, site.bytes_per_lane, site.is_element_read)
        if checked is not None and key in checked:
            return
        code = f"u{site.element_bytes}"
        for k in range(site.element_count):
            if site.is_element_read and not site.is_element_read[k]:
                continue
            at = offset + k * site.element_bytes
            marks = gather(probe, code, at, self.views)
            bad = marks == 0 if joined else marks != self.written_marks[code]
            if bad.any():
                memory = f"{probe.space.kind} memory that was never written"
                self.findings.add_access(
                    "uninitialised",
                    Access(site, probe, at),
                    bad,
                    message=f"{site.action} of {memory}, by {count_nouns(int(bad.sum()), 'lane')}",
                    hint="Look for the store that should come first, and for the range its threads cover.",
                )
                return
        if checked is not None:
            checked.add(key)
