"""Conflicts in global memory: blocks that access one cell without atomics, and the read-only cache.

Memory that is read by `ld.global.nc` must not change during the whole launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decode.context import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import AddressProbe, Index, gather, list_cells
from ekc.emulator.paged_memory import grow_array
from ekc.emulator.report import Findings

_SEVERAL_BLOCKS = np.int32(-1)
_CHECKED_ATOMICS = frozenset(("cas", "min", "max", "and", "or"))
"""Atomics that a plain read may precede. Such a read may give an old value, which costs a retry but changes
no result: the loop around atomicCAS in NVIDIA's programming guide, and `if (v > *m) atomicMax(m, v)`."""


def _mark_blocks(marks: NDArray[np.int32], cells: Index, blocks: Any) -> None:
    """Mark cells as accessed by a block; by several, if another block did before."""
    before = marks.take(cells)
    marks[cells] = np.where((before == 0) | (before == blocks), blocks, _SEVERAL_BLOCKS)
    other = marks.take(cells) != blocks
    if other.any():
        marks[cells[other]] = _SEVERAL_BLOCKS


class BlockConflicts:
    """For every cell of global memory, the block that wrote it, read it, and changed it by an atomic.

    Blocks are numbered from 1; 0 is no block, -1 several."""

    def __init__(self, findings: Findings, size: int, cell_bytes: int, has_fences: bool) -> None:
        self.findings = findings
        self.cell_bytes = cell_bytes
        self.has_fences = has_fences
        """Whether the kernel has fences, which may order blocks; then reads are not judged."""
        self.last_writer = np.zeros(size // cell_bytes + 1, np.int32)
        self.last_reader = np.zeros(size // cell_bytes + 1, np.int32)
        self.last_atomic: NDArray[np.int32] | None = None
        """Blocks that changed each cell by an atomic; None before the first atomic."""
        self.last_unchecked_atomic: NDArray[np.int32] | None = None
        """The same for atomics without a check: those not in `_CHECKED_ATOMICS`. No other block may read
        there."""
        self.synchronized_blocks = np.zeros(0, np.int32)
        """Blocks that did an atomic in a kernel with fences. They may know that all others are done, as the
        last block to arrive does, which resets the counter."""

    def resize(self, size: int) -> None:
        """Extend the marks to `size` bytes: memory grows with the pages that a launch touches."""
        count = size // self.cell_bytes + 1
        if count <= self.last_writer.size:
            return
        self.last_writer, self.last_reader = (
            grow_array(self.last_writer, count),
            grow_array(self.last_reader, count),
        )
        self.last_atomic = None if self.last_atomic is None else grow_array(self.last_atomic, count)
        self.last_unchecked_atomic = (
            None if self.last_unchecked_atomic is None else grow_array(self.last_unchecked_atomic, count)
        )

    def _list_cell_columns(self, site: Site, probe: AddressProbe, offset: int) -> list[Index]:
        first = probe.element_indices(self.cell_bytes) + offset // self.cell_bytes
        return [first + k for k in range(site.bytes_per_lane // self.cell_bytes)]

    def check_load(
        self, site: Site, probe: AddressProbe, offset: int, blocks: Any, geometry: Geometry, all_lanes: Index
    ) -> None:
        """Record a load; a finding if another block wrote there."""
        if site.is_volatile or self.has_fences:
            return
        for cells in self._list_cell_columns(site, probe, offset):
            writer = self.last_writer.take(cells)
            if writer.any():
                bad = (writer != 0) & (writer != blocks)
                if bad.any():
                    self._report_conflict(site, probe, bad, writer, offset, geometry, all_lanes, "reads what")
                    break
            if self.last_unchecked_atomic is not None:
                adder = self.last_unchecked_atomic.take(cells)
                bad = (adder != 0) & (adder != blocks)
                if bad.any():
                    self._report_conflict(
                        site, probe, bad, adder, offset, geometry, all_lanes, "reads what", "changed"
                    )
                    break
            _mark_blocks(self.last_reader, cells, blocks)

    def check_atomic(
        self, site: Site, probe: AddressProbe, offset: int, blocks: Any, geometry: Geometry, all_lanes: Index
    ) -> None:
        """Record an atomic; a finding if another block wrote or read there without one."""
        checked = not _CHECKED_ATOMICS.isdisjoint(site.instruction.parts)
        rivals = [(self.last_writer, "wrote")] + (
            [] if checked or self.has_fences else [(self.last_reader, "read")]
        )
        marks = self._select_atomic_marks(checked)
        if self.has_fences:
            self.synchronized_blocks = np.union1d(self.synchronized_blocks, blocks)
        for cells in self._list_cell_columns(site, probe, offset):
            for cell_marks, verb in rivals:
                old = cell_marks.take(cells)
                bad = (old != 0) & (old != blocks)
                if bad.any():
                    self._report_conflict(
                        site, probe, bad, old, offset, geometry, all_lanes, "changes what", verb
                    )
                    return
            for cell_marks in marks:
                _mark_blocks(cell_marks, cells, blocks)

    def _select_atomic_marks(self, is_checked: bool) -> list[NDArray[np.int32]]:
        """The marks of an atomic, which are made when first needed."""
        if self.last_atomic is None:
            self.last_atomic = np.zeros_like(self.last_writer)
        if is_checked:
            return [self.last_atomic]
        if self.last_unchecked_atomic is None:
            self.last_unchecked_atomic = np.zeros_like(self.last_writer)
        return [self.last_atomic, self.last_unchecked_atomic]

    def check_store(
        self,
        site: Site,
        probe: AddressProbe,
        offset: int,
        values: tuple[Any, ...],
        blocks: Any,
        geometry: Geometry,
        all_lanes: Index,
    ) -> None:
        """Before a store: a finding if it changes a value that another block wrote, read or changed."""
        if site.is_volatile:
            # It counts as an atomic: it may meet another one, but no plain access.
            if not self.has_fences:
                self.check_atomic(site, probe, offset, blocks, geometry, all_lanes)
            return
        changed = self._find_changed(site, probe, offset, values)
        for k, cells in enumerate(self._list_cell_columns(site, probe, offset)):
            differs = changed[k * self.cell_bytes // int(site.dtype_code[1])]
            for cell_marks, verb in (
                (self.last_writer, "wrote"),
                (self.last_reader, "read"),
                (self.last_atomic, "changed"),
            ):
                if cell_marks is None or (self.has_fences and cell_marks is self.last_reader):
                    continue
                old = cell_marks.take(cells)
                if old.any():
                    bad = (old != 0) & (old != blocks) & differs
                    if self.has_fences and cell_marks is self.last_atomic:
                        bad &= ~np.isin(blocks, self.synchronized_blocks)
                    if bad.any():
                        self._report_conflict(
                            site, probe, bad, old, offset, geometry, all_lanes, "writes what", verb
                        )
                        return
            self.last_writer[cells] = blocks

    def _find_changed(
        self, site: Site, probe: AddressProbe, offset: int, values: tuple[Any, ...]
    ) -> list[Any]:
        size = int(site.dtype_code[1])
        return [gather(probe, site.dtype_code, offset + k * size) != v for k, v in enumerate(values)]

    def check_stored_values(
        self,
        site: Site,
        probe: AddressProbe,
        offset: int,
        values: tuple[Any, ...],
        blocks: Any,
        geometry: Geometry,
        all_lanes: Index,
    ) -> None:
        """After a store: a finding if two threads wrote different values to one cell."""
        if site.is_volatile:
            return
        size = int(site.dtype_code[1])
        for k, changed in enumerate(self._find_changed(site, probe, offset, values)):
            if not changed.any():
                continue
            cells = probe.element_indices(self.cell_bytes) + (offset + k * size) // self.cell_bytes
            writer = self.last_writer.take(cells)
            bad = changed & (writer != blocks)
            if bad.any():
                self._report_conflict(site, probe, bad, writer, offset, geometry, all_lanes, "writes what")
                return
            self._report_same_block(site, probe, offset, changed, geometry, all_lanes)

    def _report_same_block(
        self, site: Site, probe: AddressProbe, offset: int, bad: Any, geometry: Geometry, all_lanes: Index
    ) -> None:
        first = int(np.flatnonzero(bad)[0])
        self.findings.add(
            "global-race",
            site.instruction,
            "another thread of the block writes a different value to the same place of global memory",
            "Two threads share an index: only one of the values stays.",
            (geometry, int(probe.lane_numbers(all_lanes)[first])),
            int(probe.address[first]) + offset,
        )

    def _report_conflict(
        self,
        site: Site,
        probe: AddressProbe,
        bad: Any,
        marks: Any,
        offset: int,
        geometry: Geometry,
        all_lanes: Index,
        access: str,
        verb: str = "wrote",
    ) -> None:
        first = int(np.flatnonzero(bad)[0])
        lane = int(probe.lane_numbers(all_lanes)[first])
        other = int(marks[first])
        others = f"block {other - 1}" if other > 0 else "several blocks"
        self.findings.add(
            "block-conflict",
            site.instruction,
            f"{access} {others} {verb}, without atomics: blocks run in any order",
            "Give every block its own part of the output, or use atomics.",
            (geometry, lane),
            int(probe.address[first]) + offset,
        )


Marks = NDArray[np.bool_]


class ReadOnlyCache:
    """For every cell of global memory, whether it was changed, and whether it was read by `ld.global.nc`.

    A thread must not even read its own writes that way."""

    def __init__(self, findings: Findings, size: int, cell_bytes: int) -> None:
        self.findings = findings
        self.cell_bytes = cell_bytes
        self.is_read = np.zeros(size // cell_bytes + 1, np.bool_)
        self.is_changed = np.zeros(size // cell_bytes + 1, np.bool_)

    def resize(self, size: int) -> None:
        """Extend the marks to `size` bytes: memory grows with the pages that a launch touches."""
        count = size // self.cell_bytes + 1
        if count <= self.is_read.size:
            return
        self.is_read, self.is_changed = grow_array(self.is_read, count), grow_array(self.is_changed, count)

    def check_load(
        self, site: Site, probe: AddressProbe, offset: int, geometry: Geometry, all_lanes: Index
    ) -> None:
        """Record a load through this cache; a finding if the launch changed the cell."""
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
        """Record a store or an atomic; a finding if the cell was read through this cache."""
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
