"""Shared-memory races: accesses are logged, and looked at when a barrier closes the interval.

Of cells that several lanes touched between two barriers, those where their order can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decode.context import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import AddressProbe, Index, list_cell_contents, list_cells
from ekc.emulator.report import Findings
from ekc.emulator.sanitizer.warp_sync import WarpClock
from ekc.emulator.sanitizer.wgmma_in_flight import IN_FLIGHT_HINT, InFlightProduct
from ekc.ptx.constants import WARP_SIZE

CHANGING_KINDS = ("write", "atomic")
_KIND_CODES = {"read": 0, "look": 1, "atomic": 2, "write": 3}
"""A look is a read that goes with atomics."""


class CellAccesses:
    """All accesses to some cells, flat: one element for every lane and cell."""

    def __init__(self) -> None:
        self.cells: list[Any] = []
        self.lanes: list[Any] = []
        self.warps: list[Any] = []
        self.epochs: list[Any] = []
        self.kinds: list[Any] = []
        self.values: list[Any] = []

    def add_accesses(self, cell: Index, lane: Any, warp: Any, epoch: Any, kind: str, values: Any) -> None:
        """Accesses of one kind; `values` of writes only."""
        self.cells.append(cell)
        self.lanes.append(lane)
        self.warps.append(warp)
        self.epochs.append(epoch)
        self.kinds.append(np.full(cell.size, _KIND_CODES[kind]))
        self.values.append(np.zeros(cell.size, np.uint64) if values is None else values.astype(np.uint64))

    def find_conflicts(self, kind: str) -> Index:
        """Cells that a change of this kind (a plain write or an atomic) shares with another lane, unordered.

        Lanes of several warps are never ordered here; those of one warp are by its meetings. Writes of one
        value may come in any order.
        """
        cell, lane, warp, epoch, what, value = (
            np.concatenate(x)
            for x in (self.cells, self.lanes, self.warps, self.epochs, self.kinds, self.values)
        )
        apart = _find_mixed_groups([cell], warp, what, value, _KIND_CODES[kind])
        close = _find_mixed_groups([cell, warp, epoch], lane, what, value, _KIND_CODES[kind])
        return np.unique(np.concatenate([apart, close]))


def _find_mixed_groups(groups: list[Any], who: Any, what: Any, value: Any, kind: int) -> Index:
    """First keys of the groups that hold a change of this kind, several of `who`, and not only atomics or
    only writes of one value."""
    order = np.lexsort(groups[::-1])
    keys = [g[order] for g in groups]
    new = np.ones(order.size, np.bool_)
    new[1:] = np.logical_or.reduce([k[1:] != k[:-1] for k in keys])
    first = np.flatnonzero(new)
    who, what, value = who[order], what[order], value[order]

    def differ(row: NDArray[Any]) -> Any:
        return np.minimum.reduceat(row, first) != np.maximum.reduceat(row, first)

    changed = np.logical_or.reduceat(what == kind, first)
    strong = np.logical_and.reduceat((what == _KIND_CODES["atomic"]) | (what == _KIND_CODES["look"]), first)
    same = np.logical_and.reduceat(what == _KIND_CODES["write"], first) & ~differ(value)
    return np.asarray(keys[0][first][changed & differ(who) & ~strong & ~same])


_REPORTED_TOGETHER = 64
"""Places of races that are told one by one."""


@dataclass(slots=True)
class LoggedAccess:
    """One access in the interval."""

    site: Site
    probe: AddressProbe
    offset: int
    kind: str
    """read, write, atomic, or look: a read that goes with atomics."""
    values: tuple[Any, ...]
    clock: WarpClock
    """Orders accesses of one warp."""
    product: InFlightProduct | None = None
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
        return self.probe.high + self.offset + self.site.bytes_per_lane

    def overlaps(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether the range of addresses overlaps with one of some: lowest, and one past the highest."""
        low, high = self.low, self.high
        return any(low < end and begin < high for begin, end in spans)

    def select_lanes(self, keep: Any) -> LoggedAccess:
        """The entry for some of its lanes."""
        values = tuple(v if np.ndim(v) == 0 else v[keep] for v in self.values)
        probe = self.probe.select_lanes(0, keep)
        return replace(self, probe=probe, values=values)

    def list_in_flight(self, all_lanes: Index) -> list[LoggedAccess]:
        """What of it goes on beyond a barrier."""
        if self.product is None:
            return []
        keep = self.product.is_in_flight(self.probe.lane_numbers(all_lanes))
        if not keep.any():
            return []
        return [replace(self if keep.all() else self.select_lanes(keep), carried=True)]


class RaceDetector:
    """The log of one batch."""

    def __init__(
        self, findings: Findings, geometry: Geometry, all_lanes: Index, lane_warps: Index, shared_bytes: int
    ) -> None:
        self.findings = findings
        self.geometry = geometry
        self.all_lanes = all_lanes
        self.lane_warps = lane_warps
        self.cell_owners = np.full(shared_bytes, -1, np.int32)
        self.log: list[LoggedAccess] = []
        self.clock = WarpClock(np.zeros(int(lane_warps[-1]) + 1, np.int32))

    def log_access(
        self,
        site: Site,
        probe: AddressProbe,
        offset: int,
        kind: str,
        values: tuple[Any, ...] = (),
        product: InFlightProduct | None = None,
    ) -> None:
        """Log an access; volatile ones go with atomics."""
        if site.is_volatile:
            kind = "look" if kind == "read" else "atomic"
        copies = tuple(np.array(v) for v in values) if kind == "write" else ()
        self.log.append(LoggedAccess(site, probe, offset, kind, copies, self.clock, product))

    def sync_lanes(self, lanes: Any, member_masks: Any, living_masks: Any) -> None:
        """These lanes met, each those that its mask names of the living of its warp."""
        self.clock = self.clock.advance(self.lane_warps[lanes], member_masks[lanes], living_masks)

    def close_interval(self, lanes: Any = None) -> None:
        """A barrier: look at the interval (of some lanes) and forget it."""
        entries, self.log = self.log, []
        if lanes is not None:
            entries = self._take_lanes(entries, lanes)
        if any(e.kind in CHANGING_KINDS for e in entries):
            self._check_interval(entries)
        self.log += [left for e in entries for left in e.list_in_flight(self.all_lanes)]

    def _take_lanes(self, entries: list[LoggedAccess], lanes: Any) -> list[LoggedAccess]:
        """The accesses of these lanes; the rest goes back into the log."""
        inside = []
        for entry in entries:
            keep = lanes[entry.probe.lane_numbers(self.all_lanes)]
            if keep.all():
                inside.append(entry)
            elif not keep.any():
                self.log.append(entry)
            else:
                inside.append(entry.select_lanes(keep))
                self.log.append(entry.select_lanes(~keep))
        return inside

    def _check_interval(self, entries: list[LoggedAccess]) -> None:
        for kind in ("write", "atomic"):
            writers = [e for e in entries if e.kind == kind]
            others = [e for e in entries if e.kind == "read" or (kind == "write" and e.kind != kind)]
            spans = tuple({(e.low, e.high) for e in writers})
            touched = [e for e in others if e.overlaps(spans)]
            if kind == "atomic" and not touched:
                continue
            touched += writers
            grain = min((int(e.site.dtype_code[1]) for e in touched), default=4)
            self._mark_owners(writers, grain, True)
            bad = [self._find_conflicts(e, grain) for e in touched]
            self._mark_owners(writers, grain, False)
            if any(b.size for b in bad):
                self._report_conflicts(touched, np.unique(np.concatenate(bad)), kind, grain)

    def _mark_owners(self, writers: list[LoggedAccess], cell_bytes: int, is_set: bool) -> None:
        for entry in writers:
            lanes = entry.probe.lane_numbers(self.all_lanes)[:, None]
            self.cell_owners[list_cells(entry.site, entry.probe, entry.offset, cell_bytes)] = (
                lanes if is_set else -1
            )

    def _find_conflicts(self, entry: LoggedAccess, cell_bytes: int) -> Index:
        """Cells that another lane wrote last."""
        mine, lanes = (
            list_cells(entry.site, entry.probe, entry.offset, cell_bytes),
            entry.probe.lane_numbers(self.all_lanes),
        )
        owner = self.cell_owners.take(mine)
        return np.asarray(mine[(owner != lanes[:, None]) & (owner >= 0)])

    def _report_conflicts(
        self, entries: list[LoggedAccess], places: Index, kind: str, cell_bytes: int
    ) -> None:
        """Of the places that several lanes touched, some of those where their order can be seen."""
        rivals = CellAccesses()
        for entry in entries:
            mine, lanes = (
                list_cells(entry.site, entry.probe, entry.offset, cell_bytes),
                entry.probe.lane_numbers(self.all_lanes),
            )
            at, column = np.nonzero(np.isin(mine, places))
            lane = lanes[at]
            warp = self.lane_warps[lane]
            values = None
            if entry.kind == "write":
                values = list_cell_contents(entry.site, entry.probe, entry.values, cell_bytes)[at, column]
            rivals.add_accesses(mine[at, column], lane, warp, entry.clock.epoch[warp], entry.kind, values)
        seen = rivals.find_conflicts(kind)
        # All of them are told, but those that a meeting of a part of a warp orders.
        for start in range(0, seen.size, _REPORTED_TOGETHER):
            if self._report_places(entries, seen[start : start + _REPORTED_TOGETHER], cell_bytes):
                return

    def _report_places(self, entries: list[LoggedAccess], places: Index, cell_bytes: int) -> bool:
        """The accesses to each place, pair by pair, those that change it first; whether any were told."""
        found: dict[int, list[tuple[LoggedAccess, int, Any]]] = {int(p): [] for p in places}
        for entry in sorted(entries, key=lambda one: one.kind not in CHANGING_KINDS):
            mine, lanes = (
                list_cells(entry.site, entry.probe, entry.offset, cell_bytes),
                entry.probe.lane_numbers(self.all_lanes),
            )
            values = None
            if entry.kind == "write":
                values = list_cell_contents(entry.site, entry.probe, entry.values, cell_bytes)
            for at, k in zip(*np.nonzero(np.isin(mine, places)), strict=True):
                value = None if values is None else int(values[at, k])
                found[int(mine[at, k])].append((entry, int(lanes[at]), value))
        told = [self._report_pair(accesses) for accesses in found.values()]
        return any(told)

    def _report_pair(self, accesses: list[tuple[LoggedAccess, int, Any]]) -> bool:
        changes = [a for a in accesses if a[0].kind in CHANGING_KINDS]
        for writer, lane, value in changes:
            for other, second, found in accesses:
                if (
                    second != lane
                    and self._is_unordered(writer, lane, other, second)
                    and _is_order_visible(writer, value, other, found)
                ):
                    self._report_race(writer, lane, other, second)
                    return True
        return False

    def _is_unordered(self, a: LoggedAccess, lane: int, b: LoggedAccess, other: int) -> bool:
        warp, thread = self.lane_warps[lane], self.geometry.threads_per_block
        if warp != self.lane_warps[other]:
            return True
        return not a.clock.is_ordered(b.clock, warp, lane % thread % WARP_SIZE, other % thread % WARP_SIZE)

    def _report_race(self, writer: LoggedAccess, lane: int, other: LoggedAccess, second: int) -> None:
        if other.carried:
            self._report_in_flight(writer, lane, other)
            return
        thread, rival = self.geometry.threads_per_block, other.site.instruction
        what = "also writes" if other.kind in CHANGING_KINDS else "reads"
        message = (
            f"thread {lane % thread} writes shared memory that thread {second % thread} {what} "
            f"(PTX line {rival.line}: {rival.short_text}) with no barrier between"
        )
        hint = "A __syncthreads() is missing between the two, or two threads share an index."
        self._add_finding("race", writer, lane, message, hint)

    def _report_in_flight(self, writer: LoggedAccess, lane: int, other: LoggedAccess) -> None:
        line = other.site.instruction.line
        message = f"overwrites what a product still in flight reads (PTX line {line})"
        self._add_finding("async-product", writer, lane, message, IN_FLIGHT_HINT)

    def _add_finding(self, kind: str, writer: LoggedAccess, lane: int, message: str, hint: str) -> None:
        own = np.flatnonzero(writer.probe.lane_numbers(self.all_lanes) == lane)[0]
        at = int(writer.probe.address[own]) + writer.offset
        self.findings.add(kind, writer.site.instruction, message, hint, (self.geometry, lane), at)


def _is_order_visible(a: LoggedAccess, value: Any, b: LoggedAccess, other: Any) -> bool:
    """Whether the order of the two can be seen."""
    if a.kind == "atomic" and b.kind in ("atomic", "look"):
        return False
    return not (a.kind == "write" and b.kind == "write" and value == other)
