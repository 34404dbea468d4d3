"""Shared-memory races: accesses are logged, and looked at when a barrier closes the interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import WARP, Geometry
from ekc.emulator.memory import Index, Probe
from ekc.emulator.sanitizer.cells import cells, contents
from ekc.emulator.sanitizer.flights import HINT, Flight
from ekc.emulator.sanitizer.meetings import Moment
from ekc.emulator.sanitizer.rivals import CHANGES, Rivals
from ekc.emulator.sanitizer.sanitize import Findings

_SHOWN = 64
"""Places of races that are told one by one."""


@dataclass(slots=True)
class Entry:
    """One access in the interval."""

    site: Site
    probe: Probe
    offset: int
    kind: str
    """read, write, atomic, or look: a read that goes with atomics."""
    values: tuple[Any, ...]
    moment: Moment
    """Orders accesses of one warp."""
    flight: Flight | None = None
    """The product of a warpgroup that reads, until somebody waits for it."""
    carried: bool = False
    """It was in flight when a barrier was crossed."""

    @property
    def low(self) -> int:
        """The lowest address."""
        return self.probe.low + self.offset

    @property
    def high(self) -> int:
        """One past the highest byte."""
        return self.probe.high + self.offset + self.site.size

    def meets(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether the range of addresses overlaps with one of some: lowest, and one past the highest."""
        low, high = self.low, self.high
        return any(low < end and begin < high for begin, end in spans)

    def kept(self, keep: Any) -> Entry:
        """The entry for some of its lanes."""
        values = tuple(v if np.ndim(v) == 0 else v[keep] for v in self.values)
        probe = self.probe.moved(0, keep)
        return replace(self, probe=probe, values=values)

    def aloft(self, every: Index) -> list[Entry]:
        """What of it goes on beyond a barrier."""
        if self.flight is None:
            return []
        keep = self.flight.aloft(self.probe.lanes(every))
        if not keep.any():
            return []
        return [replace(self if keep.all() else self.kept(keep), carried=True)]


class Races:
    """The log of one batch."""

    def __init__(self, findings: Findings, geometry: Geometry, every: Index, warp: Index, size: int) -> None:
        self.findings = findings
        self.geometry = geometry
        self.every = every
        self.warp = warp
        self.owner = np.full(size, -1, np.int32)
        self.log: list[Entry] = []
        self.moment = Moment(np.zeros(int(warp[-1]) + 1, np.int32))

    def note(
        self,
        site: Site,
        probe: Probe,
        offset: int,
        kind: str,
        values: tuple[Any, ...] = (),
        flight: Flight | None = None,
    ) -> None:
        """Log an access; volatile ones go with atomics."""
        if site.volatile:
            kind = "look" if kind == "read" else "atomic"
        copies = tuple(np.array(v) for v in values) if kind == "write" else ()
        self.log.append(Entry(site, probe, offset, kind, copies, self.moment, flight))

    def meet(self, lanes: Any, members: Any, living: Any) -> None:
        """These lanes met, each those that its mask names of the living of its warp."""
        self.moment = self.moment.met(self.warp[lanes], members[lanes], living)

    def close(self, lanes: Any = None) -> None:
        """A barrier: look at the interval (of some lanes) and forget it."""
        entries, self.log = self.log, []
        if lanes is not None:
            entries = self._split(entries, lanes)
        if any(e.kind in CHANGES for e in entries):
            self._look(entries)
        self.log += [left for e in entries for left in e.aloft(self.every)]

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
            others = [e for e in entries if e.kind == "read" or (kind == "write" and e.kind != kind)]
            spans = tuple({(e.low, e.high) for e in writers})
            touched = [e for e in others if e.meets(spans)]
            if kind == "atomic" and not touched:
                continue
            touched += writers
            grain = min((int(e.site.code[1]) for e in touched), default=4)
            self._own(writers, grain, True)
            bad = [self._conflicts(e, grain) for e in touched]
            self._own(writers, grain, False)
            if any(b.size for b in bad):
                self._tell_of(touched, np.unique(np.concatenate(bad)), kind, grain)

    def _own(self, writers: list[Entry], grain: int, mark: bool) -> None:
        for entry in writers:
            lanes = entry.probe.lanes(self.every)[:, None]
            self.owner[cells(entry.site, entry.probe, entry.offset, grain)] = lanes if mark else -1

    def _conflicts(self, entry: Entry, grain: int) -> Index:
        """Cells that another lane wrote last."""
        mine, lanes = cells(entry.site, entry.probe, entry.offset, grain), entry.probe.lanes(self.every)
        owner = self.owner.take(mine)
        return np.asarray(mine[(owner != lanes[:, None]) & (owner >= 0)])

    def _tell_of(self, entries: list[Entry], places: Index, kind: str, grain: int) -> None:
        """Of the places that several lanes touched, some of those where their order can be seen."""
        rivals = Rivals()
        for entry in entries:
            mine, lanes = cells(entry.site, entry.probe, entry.offset, grain), entry.probe.lanes(self.every)
            at, column = np.nonzero(np.isin(mine, places))
            lane = lanes[at]
            warp = self.warp[lane]
            values = None
            if entry.kind == "write":
                values = contents(entry.site, entry.probe, entry.values, grain)[at, column]
            rivals.add(mine[at, column], lane, warp, entry.moment.epoch[warp], entry.kind, values)
        seen = rivals.seen(kind)
        # All of them are told, but those that a meeting of a part of a warp orders.
        for start in range(0, seen.size, _SHOWN):
            if self._explain(entries, seen[start : start + _SHOWN], grain):
                return

    def _explain(self, entries: list[Entry], places: Index, grain: int) -> bool:
        """The accesses to each place, pair by pair, those that change it first; whether any were told."""
        found: dict[int, list[tuple[Entry, int, Any]]] = {int(p): [] for p in places}
        for entry in sorted(entries, key=lambda one: one.kind not in CHANGES):
            mine, lanes = cells(entry.site, entry.probe, entry.offset, grain), entry.probe.lanes(self.every)
            values = None
            if entry.kind == "write":
                values = contents(entry.site, entry.probe, entry.values, grain)
            for at, k in zip(*np.nonzero(np.isin(mine, places)), strict=True):
                value = None if values is None else int(values[at, k])
                found[int(mine[at, k])].append((entry, int(lanes[at]), value))
        told = [self._pairs(accesses) for accesses in found.values()]
        return any(told)

    def _pairs(self, accesses: list[tuple[Entry, int, Any]]) -> bool:
        changes = [a for a in accesses if a[0].kind in CHANGES]
        for writer, lane, value in changes:
            for other, second, found in accesses:
                if (
                    second != lane
                    and self._unordered(writer, lane, other, second)
                    and _matters(writer, value, other, found)
                ):
                    self._tell(writer, lane, other, second)
                    return True
        return False

    def _unordered(self, a: Entry, lane: int, b: Entry, other: int) -> bool:
        warp, thread = self.warp[lane], self.geometry.threads
        if warp != self.warp[other]:
            return True
        return not a.moment.ordered(b.moment, warp, lane % thread % WARP, other % thread % WARP)

    def _tell(self, writer: Entry, lane: int, other: Entry, second: int) -> None:
        if other.carried:
            self._tell_flight(writer, lane, other)
            return
        thread, rival = self.geometry.threads, other.site.instruction
        what = "also writes" if other.kind in CHANGES else "reads"
        message = (
            f"thread {lane % thread} writes shared memory that thread {second % thread} {what} "
            f"(PTX line {rival.line}: {rival.brief}) with no barrier between"
        )
        hint = "A __syncthreads() is missing between the two, or two threads share an index."
        self._add("race", writer, lane, message, hint)

    def _tell_flight(self, writer: Entry, lane: int, other: Entry) -> None:
        line = other.site.instruction.line
        message = f"overwrites what a product still in flight reads (PTX line {line})"
        self._add("async-product", writer, lane, message, HINT)

    def _add(self, kind: str, writer: Entry, lane: int, message: str, hint: str) -> None:
        own = np.flatnonzero(writer.probe.lanes(self.every) == lane)[0]
        at = int(writer.probe.address[own]) + writer.offset
        self.findings.add(kind, writer.site.instruction, message, hint, (self.geometry, lane), at)


def _matters(a: Entry, value: Any, b: Entry, other: Any) -> bool:
    """Whether the order of the two can be seen."""
    if a.kind == "atomic" and b.kind in ("atomic", "look"):
        return False
    return not (a.kind == "write" and b.kind == "write" and value == other)
