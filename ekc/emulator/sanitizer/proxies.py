"""The async proxy: what threads write to shared memory is there for products after `fence.proxy.async`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Index, Probe
from ekc.emulator.numbers.warpgroup import CHUNK
from ekc.emulator.sanitizer.cells import cells
from ekc.emulator.sanitizer.sanitize import Findings

_HINT = (
    "The writing thread runs fence.proxy.async when its data have landed (after cp.async.wait_group), before "
    "the barrier that the readers cross."
)


class Proxies:
    """For every place of shared memory who wrote it last and when, and for every lane when it fenced last and
    crossed a barrier. Time counts writes, fences and barriers."""

    def __init__(self, findings: Findings, geometry: Geometry, every: Index, size: int, grain: int) -> None:
        self.findings, self.geometry, self.every = findings, geometry, every
        self.grain = grain
        self.now = 1
        self.writer = np.full(size // grain, -1, np.int32)
        self.written = np.zeros(size // grain, np.int32)
        lanes = geometry.lanes
        self.fence, self.barrier = np.zeros(lanes, np.int32), np.zeros(lanes, np.int32)
        self.safe = np.zeros(lanes, np.int32)
        """The last fence of each lane that a barrier follows: what it wrote before is there for all."""

    def stored(self, site: Site, probe: Probe, offset: int) -> None:
        """A write has landed."""
        self.now += 1
        places = cells(site, probe, offset, self.grain)
        self.writer[places] = probe.lanes(self.every)[:, None]
        self.written[places] = self.now

    def fenced(self, mask: Any) -> None:
        """Lanes run the fence."""
        self.now += 1
        self.fence[slice(None) if mask is None else mask] = self.now

    def crossed(self, lanes: Any) -> None:
        """Lanes (None: all) cross a barrier."""
        self.now += 1
        lanes = slice(None) if lanes is None else lanes
        self.safe[lanes] = self.fence[lanes]
        self.barrier[lanes] = self.now

    def read(self, site: Site, chunks: Index, first: Index) -> None:
        """A product reads chunks of shared memory, a row for each group; `first` are the lanes told of."""
        each = CHUNK // self.grain
        writer = self.writer.reshape(-1, each).take(chunks, axis=0, mode="clip")
        written = self.written.reshape(-1, each).take(chunks, axis=0, mode="clip")
        bad = (writer >= 0) & (self.safe[writer] < written)
        if not bad.any():
            return
        unfenced = bad & (self.fence[writer] < written)
        # With no barrier at all since the write the two race, which is told elsewhere.
        late = bad & (self.barrier[writer] > written)
        for wrong, what in (
            (unfenced, "with no fence.proxy.async since"),
            (late, "whose fence came too late"),
        ):
            if wrong.any():
                group, chunk, k = (int(x[0]) for x in np.nonzero(wrong))
                thread = int(writer[group, chunk, k]) % self.geometry.threads
                message = f"reads shared memory that thread {thread} wrote, {what}"
                place = (self.geometry, int(first[group]))
                self.findings.add("proxy", site.instruction, message, _HINT, place)
                return
