"""Asynchronous copies (`cp.async`) that were issued and have not landed, and accesses that come too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneFindings
from ekc.emulator.memory import AddressProbe, list_cell_contents, list_cells

_HINT = "Wait for the group with cp.async.wait_group, then cross a barrier, before touching it."


@dataclass(slots=True)
class InFlightCopy:
    """One issued copy: its destination, its values, and the group of each lane (-1: not committed)."""

    site: Site
    probe: AddressProbe
    offset: int
    values: tuple[Any, ...]
    lane_groups: Any

    def select_lanes(self, keep: Any) -> InFlightCopy:
        """The copy for some of its lanes."""
        probe, values = self.probe.select_lanes(0, keep), tuple(v[keep] for v in self.values)
        return InFlightCopy(self.site, probe, self.offset, values, self.lane_groups[keep])


class PendingCopies:
    """The copies in flight of one batch."""

    def __init__(self, findings: LaneFindings) -> None:
        self.findings = findings
        self.copies: list[InFlightCopy] = []

    def check_access(
        self, site: Site, probe: AddressProbe, offset: int, verb: str, values: tuple[Any, ...] | None = None
    ) -> None:
        """A finding if an access overlaps with a copy in flight. A store of the same values is allowed."""
        for copy in self.copies:
            if probe.low + offset >= copy.probe.high + copy.offset + copy.site.bytes_per_lane:
                continue
            if probe.high + offset + site.bytes_per_lane <= copy.probe.low + copy.offset:
                continue
            grain = min(int(site.dtype_code[1]), int(copy.site.dtype_code[1]))
            pending = list_cells(copy.site, copy.probe, copy.offset, grain).ravel()
            mine = list_cells(site, probe, offset, grain)
            # The table covers at most the shared memory of a batch; sorting would take longer.
            bad = np.isin(mine, pending, kind="table")
            if bad.any() and values is not None:
                lands = list_cell_contents(copy.site, copy.probe, copy.values, grain).ravel()
                order = np.argsort(pending, kind="stable")
                at = order[np.searchsorted(pending[order], mine).clip(max=order.size - 1)]
                bad &= lands[at] != list_cell_contents(site, probe, values, grain)
            if bad.any():
                line = copy.site.instruction.line
                message = f"{verb} what a copy still in flight will write (PTX line {line})"
                self.findings.add_access("async-copy", site, probe, offset, bad.any(axis=1), message, _HINT)
                return
