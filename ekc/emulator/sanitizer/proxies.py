"""The async proxy: what threads write to shared memory is there for products after `fence.proxy.async`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import AddressProbe, Index
from ekc.emulator.numbers.warpgroup import CHUNK_BYTES
from ekc.emulator.sanitizer.cells import list_cells
from ekc.emulator.sanitizer.sanitize import Findings

_HINT = (
    "The writing thread runs fence.proxy.async when its data have landed (after cp.async.wait_group), before "
    "the barrier that the readers cross."
)


class AsyncProxyCheck:
    """For every place of shared memory who wrote it last and when, and for every lane when it fenced last and
    crossed a barrier. Time counts writes, fences and barriers."""

    def __init__(
        self, findings: Findings, geometry: Geometry, all_lanes: Index, shared_bytes: int, cell_bytes: int
    ) -> None:
        self.findings, self.geometry, self.all_lanes = findings, geometry, all_lanes
        self.cell_bytes = cell_bytes
        self.time = 1
        self.last_writer = np.full(shared_bytes // cell_bytes, -1, np.int32)
        self.write_time = np.zeros(shared_bytes // cell_bytes, np.int32)
        lanes = geometry.lane_count
        self.fence_time, self.barrier_time = np.zeros(lanes, np.int32), np.zeros(lanes, np.int32)
        self.safe_time = np.zeros(lanes, np.int32)
        """The last fence of each lane that a barrier follows: what it wrote before is there for all."""

    def record_write(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """A write has landed."""
        self.time += 1
        places = list_cells(site, probe, offset, self.cell_bytes)
        self.last_writer[places] = probe.lane_numbers(self.all_lanes)[:, None]
        self.write_time[places] = self.time

    def record_fence(self, mask: Any) -> None:
        """Lanes run the fence."""
        self.time += 1
        self.fence_time[slice(None) if mask is None else mask] = self.time

    def record_barrier(self, lanes: Any) -> None:
        """Lanes (None: all) cross a barrier."""
        self.time += 1
        lanes = slice(None) if lanes is None else lanes
        self.safe_time[lanes] = self.fence_time[lanes]
        self.barrier_time[lanes] = self.time

    def check_read(self, site: Site, chunks: Index, first_lanes: Index) -> None:
        """A product reads chunks of shared memory, a row for each group; `first` are the lanes told of."""
        each = CHUNK_BYTES // self.cell_bytes
        writer = self.last_writer.reshape(-1, each).take(chunks, axis=0, mode="clip")
        written = self.write_time.reshape(-1, each).take(chunks, axis=0, mode="clip")
        bad = (writer >= 0) & (self.safe_time[writer] < written)
        if not bad.any():
            return
        unfenced = bad & (self.fence_time[writer] < written)
        # With no barrier at all since the write the two race, which is told elsewhere.
        late = bad & (self.barrier_time[writer] > written)
        for wrong, what in (
            (unfenced, "with no fence.proxy.async since"),
            (late, "whose fence came too late"),
        ):
            if wrong.any():
                group, chunk, k = (int(x[0]) for x in np.nonzero(wrong))
                thread = int(writer[group, chunk, k]) % self.geometry.threads_per_block
                message = f"reads shared memory that thread {thread} wrote, {what}"
                place = (self.geometry, int(first_lanes[group]))
                self.findings.add("proxy", site.instruction, message, _HINT, place)
                return
