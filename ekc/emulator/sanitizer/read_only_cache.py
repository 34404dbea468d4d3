"""`ld.global.nc`: what goes through the read-only cache must stay as it was for the whole launch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Index, Probe
from ekc.emulator.paged import enlarge
from ekc.emulator.sanitizer.cells import cells
from ekc.emulator.sanitizer.sanitize import Findings

Marks = NDArray[np.bool_]


class ReadOnlyCache:
    """For every place of global memory: whether anybody changed it, and whether anybody read it by `.nc`. A
    thread may not even read so what it wrote itself."""

    def __init__(self, findings: Findings, size: int, grain: int) -> None:
        self.findings = findings
        self.grain = grain
        self.read = np.zeros(size // grain + 1, np.bool_)
        self.changed = np.zeros(size // grain + 1, np.bool_)

    def fit(self, size: int) -> None:
        """Room for so many bytes of memory, which grows with the pages that a launch touches."""
        count = size // self.grain + 1
        if count <= self.read.size:
            return
        self.read, self.changed = enlarge(self.read, count), enlarge(self.changed, count)

    def loaded(self, site: Site, probe: Probe, offset: int, geometry: Geometry, every: Index) -> None:
        """Note a load, if it goes through this cache."""
        if "nc" in site.instruction.parts:
            self._note(self.read, self.changed, "what the launch wrote", site, probe, offset, geometry, every)

    def changing(self, site: Site, probe: Probe, offset: int, geometry: Geometry, every: Index) -> None:
        """Note a store or an atomic."""
        self._note(self.changed, self.read, "what the launch writes", site, probe, offset, geometry, every)

    def _note(
        self,
        own: Marks,
        rival: Marks,
        what: str,
        site: Site,
        probe: Probe,
        offset: int,
        geometry: Geometry,
        every: Index,
    ) -> None:
        mine = cells(site, probe, offset, self.grain)
        own[mine] = True
        bad = rival.take(mine).any(axis=1)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        self.findings.add(
            "read-only-cache",
            site.instruction,
            f"ld.global.nc reads {what}: it may give the old value or the new one",
            "Take __restrict__ or __ldg away from memory that the kernel writes.",
            (geometry, int(probe.lanes(every)[first])),
            int(probe.address[first]) + offset,
        )
