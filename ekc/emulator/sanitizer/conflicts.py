"""Global memory that several blocks touch without atomics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Index, Probe, gather
from ekc.emulator.paged import enlarge
from ekc.emulator.sanitizer.sanitize import Findings

_MANY = np.int32(-1)
_CHECKED = frozenset(("cas", "min", "max", "and", "or"))
"""Atomics that a plain read may go before: what it tells may be old, and that costs a turn, no result. The
loop round atomicCAS in NVIDIA's programming guide begins so, and `if (v > *m) atomicMax(m, v)`."""


def _note(seen: NDArray[np.int32], cells: Index, blocks: Any) -> None:
    """Who was there: a block, or several."""
    before = seen.take(cells)
    seen[cells] = np.where((before == 0) | (before == blocks), blocks, _MANY)
    other = seen.take(cells) != blocks
    if other.any():
        seen[cells[other]] = _MANY


class BlockConflicts:
    """For every place of global memory: which block wrote it last, which one read it, and which one changed
    it by an atomic."""

    def __init__(self, findings: Findings, size: int, grain: int, fenced: bool) -> None:
        self.findings = findings
        self.grain = grain
        self.fenced = fenced
        """The kernel orders blocks by fences: reads of what others wrote may be right."""
        self.writer = np.zeros(size // grain + 1, np.int32)
        self.reader = np.zeros(size // grain + 1, np.int32)
        self.changer: NDArray[np.int32] | None = None
        """Made by the first atomic: most kernels have none."""
        self.adder: NDArray[np.int32] | None = None
        """The same of atomics that nobody may read beside: all but the `_CHECKED`."""
        self.asked = np.zeros(0, np.int32)
        """Blocks that did an atomic in a kernel with fences: it may have told them that their turn has come,
        as the last block to arrive sets the counter back."""

    def fit(self, size: int) -> None:
        """Room for so many bytes of memory, which grows with the pages that a launch touches."""
        count = size // self.grain + 1
        if count <= self.writer.size:
            return
        self.writer, self.reader = enlarge(self.writer, count), enlarge(self.reader, count)
        self.changer = None if self.changer is None else enlarge(self.changer, count)
        self.adder = None if self.adder is None else enlarge(self.adder, count)

    def _cells(self, site: Site, probe: Probe, offset: int) -> list[Index]:
        first = probe.index(self.grain) + offset // self.grain
        return [first + k for k in range(site.size // self.grain)]

    def loaded(
        self, site: Site, probe: Probe, offset: int, blocks: Any, geometry: Geometry, every: Index
    ) -> None:
        """Note a load; a finding if another block wrote there."""
        if site.volatile or self.fenced:
            return
        for cells in self._cells(site, probe, offset):
            writer = self.writer.take(cells)
            if writer.any():
                bad = (writer != 0) & (writer != blocks)
                if bad.any():
                    self._tell(site, probe, bad, writer, offset, geometry, every, "reads what")
                    break
            if self.adder is not None:
                adder = self.adder.take(cells)
                bad = (adder != 0) & (adder != blocks)
                if bad.any():
                    self._tell(site, probe, bad, adder, offset, geometry, every, "reads what", "changed")
                    break
            _note(self.reader, cells, blocks)

    def atomic(
        self, site: Site, probe: Probe, offset: int, blocks: Any, geometry: Geometry, every: Index
    ) -> None:
        """Note an atomic; a finding if another block wrote or read there without."""
        checked = not _CHECKED.isdisjoint(site.instruction.parts)
        rivals = [(self.writer, "wrote")] + ([] if checked or self.fenced else [(self.reader, "read")])
        marks = self._marks(checked)
        if self.fenced:
            self.asked = np.union1d(self.asked, blocks)
        for cells in self._cells(site, probe, offset):
            for seen, verb in rivals:
                old = seen.take(cells)
                bad = (old != 0) & (old != blocks)
                if bad.any():
                    self._tell(site, probe, bad, old, offset, geometry, every, "changes what", verb)
                    return
            for seen in marks:
                _note(seen, cells, blocks)

    def _marks(self, checked: bool) -> list[NDArray[np.int32]]:
        """Where an atomic is noted; made when first needed."""
        if self.changer is None:
            self.changer = np.zeros_like(self.writer)
        if checked:
            return [self.changer]
        if self.adder is None:
            self.adder = np.zeros_like(self.writer)
        return [self.changer, self.adder]

    def storing(
        self,
        site: Site,
        probe: Probe,
        offset: int,
        values: tuple[Any, ...],
        blocks: Any,
        geometry: Geometry,
        every: Index,
    ) -> None:
        """Before a store: who was there, and does the value change?"""
        if site.volatile:
            # As an atomic: two of them may meet, but no plain access may.
            if not self.fenced:
                self.atomic(site, probe, offset, blocks, geometry, every)
            return
        changed = self._changed(site, probe, offset, values)
        for k, cells in enumerate(self._cells(site, probe, offset)):
            differs = changed[k * self.grain // int(site.code[1])]
            for seen, verb in ((self.writer, "wrote"), (self.reader, "read"), (self.changer, "changed")):
                if seen is None or (self.fenced and seen is self.reader):
                    continue
                old = seen.take(cells)
                if old.any():
                    bad = (old != 0) & (old != blocks) & differs
                    if self.fenced and seen is self.changer:
                        bad &= ~np.isin(blocks, self.asked)
                    if bad.any():
                        self._tell(site, probe, bad, old, offset, geometry, every, "writes what", verb)
                        return
            self.writer[cells] = blocks

    def _changed(self, site: Site, probe: Probe, offset: int, values: tuple[Any, ...]) -> list[Any]:
        size = int(site.code[1])
        return [gather(probe, site.code, offset + k * size) != v for k, v in enumerate(values)]

    def stored(
        self,
        site: Site,
        probe: Probe,
        offset: int,
        values: tuple[Any, ...],
        blocks: Any,
        geometry: Geometry,
        every: Index,
    ) -> None:
        """After a store: did two threads of it write one place with different values?"""
        if site.volatile:
            return
        size = int(site.code[1])
        for k, changed in enumerate(self._changed(site, probe, offset, values)):
            if not changed.any():
                continue
            cells = probe.index(self.grain) + (offset + k * size) // self.grain
            writer = self.writer.take(cells)
            bad = changed & (writer != blocks)
            if bad.any():
                self._tell(site, probe, bad, writer, offset, geometry, every, "writes what")
                return
            self._same_block(site, probe, offset, changed, geometry, every)

    def _same_block(
        self, site: Site, probe: Probe, offset: int, bad: Any, geometry: Geometry, every: Index
    ) -> None:
        first = int(np.flatnonzero(bad)[0])
        self.findings.add(
            "global-race",
            site.instruction,
            "another thread of the block writes a different value to the same place of global memory",
            "Two threads share an index: only one of the values stays.",
            (geometry, int(probe.lanes(every)[first])),
            int(probe.address[first]) + offset,
        )

    def _tell(
        self,
        site: Site,
        probe: Probe,
        bad: Any,
        seen: Any,
        offset: int,
        geometry: Geometry,
        every: Index,
        what: str,
        verb: str = "wrote",
    ) -> None:
        first = int(np.flatnonzero(bad)[0])
        lane = int(probe.lanes(every)[first])
        other = int(seen[first])
        who = f"block {other - 1}" if other > 0 else "several blocks"
        self.findings.add(
            "block-conflict",
            site.instruction,
            f"{what} {who} {verb}, without atomics: blocks run in any order",
            "Give every block its own part of the output, or use atomics.",
            (geometry, lane),
            int(probe.address[first]) + offset,
        )
