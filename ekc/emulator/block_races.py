"""Conflicts in global memory: blocks that access one cell without atomics, and the read-only cache.

Memory that is read by `ld.global.nc` must not change during the whole launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.memory import Access, Index
from ekc.emulator.paged_memory import grow_array
from ekc.emulator.report import LaneFindings

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


@dataclass(eq=False, slots=True)
class GlobalAccess(Access):
    """An access of the active lanes to global memory."""

    blocks: Any
    """The block of each lane, counted from 1."""
    findings: LaneFindings

    def list_cell_columns(self, cell_bytes: int) -> list[Index]:
        """The numbers of the cells that the access touches: the first cell of each lane, the second, ..."""
        first = self.probe.element_indices(cell_bytes) + self.offset // cell_bytes
        return [first + k for k in range(self.site.bytes_per_lane // cell_bytes)]

    def compare_with_memory(self, values: tuple[Any, ...]) -> list[Any]:
        """For each element of a store, whether memory has another value, lane by lane."""
        return [self.read(k) != v for k, v in enumerate(values)]

    def report_conflict(self, is_bad: Any, marks: Any, access: str, verb: str) -> None:
        """A finding of the first bad lane; `marks` has the other block of each lane."""
        other = int(marks[np.flatnonzero(is_bad)[0]])
        others = f"block {other - 1}" if other > 0 else "several blocks"
        self.findings.add_access(
            "block-conflict",
            self,
            is_bad,
            message=f"{access} {others} {verb}, without atomics: blocks run in any order",
            hint="Give every block its own part of the output, or use atomics.",
        )


_CACHE_MARKS = ("cached", "replaced")
"""Names of the marks that hold a yes or no, in a byte."""


class BlockRaces:
    """Marks for every cell of global memory, by name, each made when it is first needed.

    "wrote", "read" and "changed" (by an atomic) hold the block that did so. Blocks are numbered from 1; 0 is
    no block, -1 several. Atomics that are not in `_CHECKED_ATOMICS` also leave the mark "changed unchecked":
    no other block may read there.

    "cached" says whether `ld.global.nc` read the cell, "replaced" whether a store or an atomic changed it: a
    thread must not even read its own writes through the read-only cache."""

    def __init__(self, size: int, cell_bytes: int, has_fences: bool, has_cached_loads: bool) -> None:
        self.cell_bytes, self.cell_count = cell_bytes, size // cell_bytes + 1
        self.marks: dict[str, NDArray[Any]] = {}
        self.has_fences, self.has_cached_loads = has_fences, has_cached_loads
        """Whether the kernel has fences, which may order blocks; then reads are not judged. Whether it has
        loads through the read-only cache."""
        self.synchronized_blocks = np.zeros(0, np.int32)
        """Blocks that did an atomic in a kernel with fences. They may know that all others are done, as the
        last block to arrive does, which resets the counter."""

    def make_marks(self, name: str) -> NDArray[Any]:
        """The marks of this name; zeros at first."""
        if name not in self.marks:
            self.marks[name] = np.zeros(self.cell_count, np.bool_ if name in _CACHE_MARKS else np.int32)
        return self.marks[name]

    def resize(self, size: int) -> None:
        """Extend the marks to `size` bytes: memory grows with the pages that a launch touches."""
        count = size // self.cell_bytes + 1
        if count > self.cell_count:
            self.cell_count = count
            self.marks = {name: grow_array(marks, count) for name, marks in self.marks.items()}

    def _report_rival(
        self, access: GlobalAccess, cells: Index, names: Sequence[str], what: str, is_judged: Any = True
    ) -> bool:
        """A finding if another block is in some marks of these cells, where the access is judged; returns
        whether there is one."""
        for name in names:
            old = self.marks[name].take(cells) if name in self.marks else np.zeros(1, np.int32)
            if old.any():
                is_bad = (old != 0) & (old != access.blocks) & is_judged
                if is_bad.any():
                    access.report_conflict(is_bad, old, what, name.split()[0])
                    return True
        return False

    def check_load(self, access: GlobalAccess) -> None:
        """Record a load; a finding if another block wrote there."""
        if access.site.is_volatile or self.has_fences:
            return
        readers = self.make_marks("read")
        for cells in access.list_cell_columns(self.cell_bytes):
            if self._report_rival(access, cells, ("wrote", "changed unchecked"), "reads what"):
                return
            _mark_blocks(readers, cells, access.blocks)

    def check_atomic(self, access: GlobalAccess) -> None:
        """Record an atomic; a finding if another block wrote or read there without one."""
        checked = not _CHECKED_ATOMICS.isdisjoint(access.site.instruction.parts)
        rivals = ("wrote",) if checked or self.has_fences else ("wrote", "read")
        names = ("changed",) if checked else ("changed", "changed unchecked")
        if self.has_fences:
            self.synchronized_blocks = np.union1d(self.synchronized_blocks, access.blocks)
        for cells in access.list_cell_columns(self.cell_bytes):
            if self._report_rival(access, cells, rivals, "changes what"):
                return
            for name in names:
                _mark_blocks(self.make_marks(name), cells, access.blocks)

    def check_store(self, access: GlobalAccess, values: tuple[Any, ...]) -> None:
        """Before a store: a finding if it changes a value that another block wrote, read or changed."""
        if access.site.is_volatile:
            # It counts as an atomic: it may meet another one, but no plain access.
            if not self.has_fences:
                self.check_atomic(access)
            return
        changed, writers = access.compare_with_memory(values), self.make_marks("wrote")
        plain = ("wrote",) if self.has_fences else ("wrote", "read")
        is_judged_apart = self.has_fences and "changed" in self.marks
        is_apart = ~np.isin(access.blocks, self.synchronized_blocks) if is_judged_apart else True
        for k, cells in enumerate(access.list_cell_columns(self.cell_bytes)):
            differs = changed[k * self.cell_bytes // access.site.element_bytes]
            for names, is_judged in ((plain, differs), (("changed",), differs & is_apart)):
                if self._report_rival(access, cells, names, "writes what", is_judged):
                    return
            writers[cells] = access.blocks

    def check_stored_values(self, access: GlobalAccess, values: tuple[Any, ...]) -> None:
        """After a store: a finding if two threads wrote different values to one cell."""
        if access.site.is_volatile:
            return
        first = access.probe.element_indices(self.cell_bytes)
        for k, changed in enumerate(access.compare_with_memory(values)):
            if not changed.any():
                continue
            writer = self.marks["wrote"].take(
                first + (access.offset + k * access.site.element_bytes) // self.cell_bytes
            )
            bad = changed & (writer != access.blocks)
            if bad.any():
                access.report_conflict(bad, writer, "writes what", "wrote")
                return
            access.findings.add_access(
                "global-race",
                access,
                changed,
                message=(
                    "another thread of the block writes a different value to the same place of global memory"
                ),
                hint="Two threads share an index: only one of the values stays.",
            )

    def check_cached_load(self, access: GlobalAccess) -> None:
        """Record a load through the read-only cache; a finding if the launch changed the cell."""
        if "nc" in access.site.instruction.parts:
            self._mark_cached_cells(access, "cached", "replaced", "what the launch wrote")

    def check_change(self, access: GlobalAccess) -> None:
        """Record a store or an atomic; a finding if the cell was read through the read-only cache."""
        if self.has_cached_loads:
            self._mark_cached_cells(access, "replaced", "cached", "what the launch writes")

    def _mark_cached_cells(self, access: GlobalAccess, own: str, other: str, what: str) -> None:
        cells = access.list_cells(self.cell_bytes)
        self.make_marks(own)[cells] = True
        bad = self.make_marks(other).take(cells).any(axis=1)
        if bad.any():
            access.findings.add_access(
                "read-only-cache",
                access,
                bad,
                message=f"ld.global.nc reads {what}: it may give the old value or the new one",
                hint="Take __restrict__ or __ldg away from memory that the kernel writes.",
            )
