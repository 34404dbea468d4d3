"""Shared-memory races: accesses are logged, and looked at when a barrier closes the interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Index, Probe
from ekc.emulator.sanitize import Findings
from ekc.emulator.shelf import Site

_SHOWN = 64
"""Conflicting places that are looked at one by one."""


@dataclass(slots=True)
class Entry:
    """One access in the interval."""

    site: Site
    probe: Probe
    offset: int
    kind: str
    """read, write or atomic."""
    values: tuple[Any, ...]
    epoch: NDArray[np.int32]
    """How many times each warp has met (`__syncwarp`); orders accesses of one warp."""

    @property
    def low(self) -> int:
        """The lowest address."""
        return self.probe.low + self.offset

    @property
    def high(self) -> int:
        """One past the highest byte."""
        return self.probe.high + self.offset + self.site.size

    def meets(self, other: Entry) -> bool:
        """Whether the ranges of addresses overlap."""
        return self.low < other.high and other.low < self.high

    def kept(self, keep: Any) -> Entry:
        """The entry for some of its lanes."""
        values = tuple(v if np.ndim(v) == 0 else v[keep] for v in self.values)
        return Entry(self.site, self.probe.moved(0, keep), self.offset, self.kind, values, self.epoch)


class Races:
    """The log of one batch."""

    def __init__(self, findings: Findings, geometry: Geometry, every: Index, warp: Index, size: int) -> None:
        self.findings = findings
        self.geometry = geometry
        self.every = every
        self.warp = warp
        self.owner = np.full(size, -1, np.int32)
        self.log: list[Entry] = []
        self.epoch = np.zeros(int(warp[-1]) + 1, np.int32)

    def note(self, site: Site, probe: Probe, offset: int, kind: str, values: tuple[Any, ...] = ()) -> None:
        """Log an access; volatile ones count as atomic."""
        kind = "atomic" if site.volatile else kind
        copies = tuple(np.array(v) for v in values) if kind == "write" else ()
        self.log.append(Entry(site, probe, offset, kind, copies, self.epoch))

    def meet(self, mask: Any) -> None:
        """The warps of these lanes met."""
        later = self.epoch.copy()
        later[np.unique(self.warp if mask is None else self.warp[mask])] += 1
        self.epoch = later

    def close(self, lanes: Any = None) -> None:
        """A barrier: look at the interval (of some lanes) and forget it."""
        entries, self.log = self.log, []
        if lanes is not None:
            entries = self._split(entries, lanes)
        if any(e.kind != "read" for e in entries):
            self._look(entries)

    def _split(self, entries: list[Entry], lanes: Any) -> list[Entry]:
        """The accesses of these lanes; the rest goes back into the log."""
        inside = []
        for entry in entries:
            keep = lanes[entry.probe.lanes(self.every)]
            if keep.all():
                inside.append(entry)
            elif not keep.any():
                self.log.append(entry)
            else:
                inside.append(entry.kept(keep))
                self.log.append(entry.kept(~keep))
        return inside

    def _look(self, entries: list[Entry]) -> None:
        for kind in ("write", "atomic"):
            writers = [e for e in entries if e.kind == kind]
            others = [e for e in entries if kind == "write" or e.kind != "atomic"]
            touched = [e for e in others if any(e.meets(w) for w in writers)]
            if kind == "atomic" and not touched:
                continue
            grain = min((int(e.site.code[1]) for e in [*writers, *touched]), default=4)
            self._own(writers, grain, True)
            bad = [self._conflicts(e, grain) for e in touched]
            self._own(writers, grain, False)
            if any(b.size for b in bad):
                places = np.unique(np.concatenate(bad))[:_SHOWN]
                self._explain([*writers, *(e for e in touched if e.kind != kind)], places, grain)

    def _cells(self, entry: Entry, grain: int) -> list[Index]:
        first = entry.probe.index(grain) + entry.offset // grain
        return [first + k for k in range(entry.site.size // grain)]

    def _own(self, writers: list[Entry], grain: int, mark: bool) -> None:
        for entry in writers:
            lanes = entry.probe.lanes(self.every)
            for cells in self._cells(entry, grain):
                self.owner[cells] = lanes if mark else -1

    def _conflicts(self, entry: Entry, grain: int) -> Index:
        """Cells that another lane wrote last."""
        lanes, found = entry.probe.lanes(self.every), []
        for cells in self._cells(entry, grain):
            owner = self.owner.take(cells)
            found.append(cells[(owner != lanes) & (owner >= 0)])
        return np.concatenate(found)

    def _explain(self, entries: list[Entry], places: Index, grain: int) -> None:
        """The accesses to each conflicting place, pair by pair."""
        seen: dict[int, list[tuple[Entry, int, Any]]] = {int(p): [] for p in places}
        for entry in entries:
            lanes = entry.probe.lanes(self.every)
            for k, cells in enumerate(self._cells(entry, grain)):
                for at in np.flatnonzero(np.isin(cells, places)):
                    seen[int(cells[at])].append((entry, int(lanes[at]), _value(entry, k, int(at), grain)))
        for accesses in seen.values():
            self._pairs(accesses)

    def _pairs(self, accesses: list[tuple[Entry, int, Any]]) -> None:
        changes = [a for a in accesses if a[0].kind != "read"]
        for writer, lane, value in changes[:_SHOWN]:
            for other, second, found in accesses:
                if (
                    second != lane
                    and self._unordered(writer, lane, other, second)
                    and _matters(writer, value, other, found)
                ):
                    self._tell(writer, lane, other, second)
                    return

    def _unordered(self, a: Entry, lane: int, b: Entry, other: int) -> bool:
        same_warp = self.warp[lane] == self.warp[other]
        return not (same_warp and a.epoch[self.warp[lane]] != b.epoch[self.warp[lane]])

    def _tell(self, writer: Entry, lane: int, other: Entry, second: int) -> None:
        thread = self.geometry.threads
        what = "also writes" if other.kind != "read" else "reads"
        message = (
            f"thread {lane % thread} writes shared memory that thread {second % thread} {what} "
            f"(PTX line {other.site.instruction.line}: {other.site.instruction.text}) with no barrier between"
        )
        at = (
            int(writer.probe.address[np.flatnonzero(writer.probe.lanes(self.every) == lane)[0]])
            + writer.offset
        )
        place = (self.geometry, lane)
        hint = "A __syncthreads() is missing between the two, or two threads share an index."
        self.findings.add("race", writer.site.instruction, message, hint, place, at)


def _value(entry: Entry, cell: int, at: int, grain: int) -> Any:
    if entry.kind != "write":
        return None
    size = int(entry.site.code[1])
    value = entry.values[cell * grain // size]
    value = value if np.ndim(value) == 0 else value[at]
    raw = np.asarray(value).astype(value.dtype).tobytes()
    start = cell * grain % size
    return raw[start : start + grain]


def _matters(a: Entry, value: Any, b: Entry, other: Any) -> bool:
    """Whether the order of the two can be seen."""
    if a.kind == "atomic" and b.kind == "atomic":
        return False
    return not (a.kind == "write" and b.kind == "write" and value == other)
