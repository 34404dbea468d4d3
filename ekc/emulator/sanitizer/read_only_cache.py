"""`ld.global.nc`: what goes through the read-only cache must stay as it was for the whole launch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import AddressProbe, Index
from ekc.emulator.paged import grow_array
from ekc.emulator.sanitizer.cells import list_cells
from ekc.emulator.sanitizer.sanitize import Findings

Marks = NDArray[np.bool_]


class ReadOnlyCache:
    """For every place of global memory: whether anybody changed it, and whether anybody read it by `.nc`. A
    thread may not even read so what it wrote itself."""

    def __init__(self, findings: Findings, size: int, cell_bytes: int) -> None:
        self.findings = findings
        self.cell_bytes = cell_bytes
        self.is_read = np.zeros(size // cell_bytes + 1, np.bool_)
        self.is_changed = np.zeros(size // cell_bytes + 1, np.bool_)

    def resize(self, size: int) -> None:
        """Room for so many bytes of memory, which grows with the pages that a launch touches."""
        count = size // self.cell_bytes + 1
        if count <= self.is_read.size:
            return
        self.is_read, self.is_changed = grow_array(self.is_read, count), grow_array(self.is_changed, count)

    def check_load(
        self, site: Site, probe: AddressProbe, offset: int, geometry: Geometry, all_lanes: Index
    ) -> None:
        """Note a load, if it goes through this cache."""
        if "nc" in site.instruction.parts:
            self._mark_cells(
                self.is_read,
                self.is_changed,
                "what the launch wrote",
                site,
                probe,
                offset,
                geometry,
                all_lanes,
            )

    def check_change(
        self, site: Site, probe: AddressProbe, offset: int, geometry: Geometry, all_lanes: Index
    ) -> None:
        """Note a store or an atomic."""
        self._mark_cells(
            self.is_changed, self.is_read, "what the launch writes", site, probe, offset, geometry, all_lanes
        )

    def _mark_cells(
        self,
        own_marks: Marks,
        other_marks: Marks,
        changed_by: str,
        site: Site,
        probe: AddressProbe,
        offset: int,
        geometry: Geometry,
        all_lanes: Index,
    ) -> None:
        mine = list_cells(site, probe, offset, self.cell_bytes)
        own_marks[mine] = True
        bad = other_marks.take(mine).any(axis=1)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        self.findings.add(
            "read-only-cache",
            site.instruction,
            f"ld.global.nc reads {changed_by}: it may give the old value or the new one",
            "Take __restrict__ or __ldg away from memory that the kernel writes.",
            (geometry, int(probe.lane_numbers(all_lanes)[first])),
            int(probe.address[first]) + offset,
        )
