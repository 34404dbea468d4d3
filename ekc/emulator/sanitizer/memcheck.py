"""Checks of single accesses: bounds, alignment, and memory that is read before it is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneFindings
from ekc.emulator.memory import AddressProbe, AddressSpace, gather, scatter
from ekc.tables import count_nouns


class BoundsCheck:
    """Reports accesses that are out of bounds or misaligned, and drops those lanes."""

    def __init__(self, findings: LaneFindings) -> None:
        self.findings = findings

    def drop_bad_lanes(
        self, site: Site, probe: AddressProbe, offset: int, reports: bool, needed_bytes: Any = None
    ) -> AddressProbe:
        """The lanes with a valid access, the offset added. `needed_bytes` must exist; None: all."""
        address = probe.address + offset
        needed = site.count_needed_bytes(probe.space.kind) if needed_bytes is None else needed_bytes
        inside = probe.space.is_in_bounds(address, needed)
        aligned = (address & (site.bytes_per_lane - 1)) == 0
        if reports:
            self._report_invalid(site, probe, offset, ~inside, inside & ~aligned)
        return probe.select_lanes(offset, inside & aligned)

    def _report_invalid(
        self, site: Site, probe: AddressProbe, offset: int, is_outside: Any, is_misaligned: Any
    ) -> None:
        access = f"{site.action} of {site.bytes_per_lane} bytes in {probe.space.kind} memory"
        if is_outside.any():
            nearest = probe.space.describe_nearest(int(probe.address[is_outside][0]) + offset)
            message = f"{access} {nearest}, by {count_nouns(int(is_outside.sum()), 'lane')}"
            hint = "Look at the guard of this access and at the index that leads to it."
            self.findings.add_access("out-of-bounds", site, probe, offset, is_outside, message, hint)
        if is_misaligned.any():
            hint = f"The address must be a multiple of {site.bytes_per_lane}."
            message = f"misaligned {access}"
            self.findings.add_access("misaligned", site, probe, offset, is_misaligned, message, hint)


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
                message = f"{site.action} of {memory}, by {count_nouns(int(bad.sum()), 'lane')}"
                hint = "Look for the store that should come first, and for the range its threads cover."
                at = offset + k * int(code[1])
                self.findings.add_access("uninitialised", site, probe, at, bad, message, hint)
                return
        if checked is not None:
            checked.add(key)
