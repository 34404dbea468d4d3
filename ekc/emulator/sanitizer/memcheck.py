"""Checks of single accesses: bounds, alignment, and memory that is read before it is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import AddressProbe, AddressSpace, gather, scatter
from ekc.emulator.report import Findings


class BoundsCheck:
    """Reports accesses that are out of bounds or misaligned, and drops those lanes."""

    def __init__(self, findings: Findings, geometry: Geometry, all_lanes: Any) -> None:
        self.findings = findings
        self.geometry = geometry
        self.all_lanes = all_lanes

    def drop_bad_lanes(
        self, site: Site, probe: AddressProbe, offset: int, reports: bool, needed_bytes: Any = None
    ) -> AddressProbe:
        """The lanes with a valid access, the offset added. `needed_bytes`: bytes that must exist, if not
        all."""
        address = probe.address + offset
        inside = probe.space.is_in_bounds(
            address, site.count_needed_bytes(probe.space.kind) if needed_bytes is None else needed_bytes
        )
        aligned = (address & (site.bytes_per_lane - 1)) == 0
        if reports:
            self._report_finding(site, probe, address, ~inside, "out-of-bounds")
            self._report_finding(site, probe, address, inside & ~aligned, "misaligned")
        return probe.select_lanes(offset, inside & aligned)

    def _report_finding(self, site: Site, probe: AddressProbe, address: Any, is_bad: Any, kind: str) -> None:
        if not is_bad.any():
            return
        first = int(np.flatnonzero(is_bad)[0])
        where = int(address[first])
        access = f"{site.action} of {site.bytes_per_lane} bytes in {probe.space.kind} memory"
        if kind == "misaligned":
            message, hint = (
                f"misaligned {access}",
                f"The address must be a multiple of {site.bytes_per_lane}.",
            )
        else:
            message = f"{access} {probe.space.describe_nearest(where)}, by {int(is_bad.sum())} lanes"
            hint = "Look at the guard of this access and at the index that leads to it."
        lane = int(probe.lane_numbers(self.all_lanes)[first])
        self.findings.add(kind, site.instruction, message, hint, (self.geometry, lane), where)


class WrittenBytes:
    """Marks of the bytes of an address space that were written: a shadow of one byte for each."""

    def __init__(self, space: AddressSpace, findings: Findings, geometry: Geometry, all_lanes: Any) -> None:
        self.shadow = np.zeros(space.bytes.size, np.uint8)
        self.views = {code: self.shadow.view(code) for code in ("u1", "u2", "u4", "u8")}
        self.written_marks = {f"u{n}": np.dtype(f"u{n}").type(int("01" * n, 16)) for n in (1, 2, 4, 8)}
        self.findings = findings
        self.geometry = geometry
        self.all_lanes = all_lanes

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
                self._report_unwritten(site, probe, offset + k * int(code[1]), bad)
                return
        if checked is not None:
            checked.add(key)

    def _report_unwritten(self, site: Site, probe: AddressProbe, offset: int, is_bad: Any) -> None:
        first = int(np.flatnonzero(is_bad)[0])
        lane, count = int(probe.lane_numbers(self.all_lanes)[first]), int(is_bad.sum())
        self.findings.add(
            "uninitialised",
            site.instruction,
            f"{site.action} of {probe.space.kind} memory that was never written, by {count} lanes",
            "Look for the store that should come first, and for the range its threads cover.",
            (self.geometry, lane),
            int(probe.address[first]) + offset,
        )
