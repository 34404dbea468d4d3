"""Races in shared memory: accesses are logged, and compared when a barrier closes an interval.

Two accesses of different lanes to one cell race if one of them changes it, no synchronisation orders them,
and their order can change a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import Access, Index, list_cell_contents
from ekc.emulator.numerics import warp
from ekc.emulator.sanitizer.in_flight import IN_FLIGHT_HINT, InFlightProduct
from ekc.ptx.constants import WARP_SIZE

CHANGING_KINDS = ("write", "atomic")
_KIND_CODES = {"read": 0, "look": 1, "atomic": 2, "write": 3}
"""Access kind -> code. A look is a volatile read, which may meet atomics."""


def _find_cells_in_conflict(columns: Sequence[tuple[Any, ...]], kind: str) -> Index:
    """Cells that one lane changes (by a write or an atomic, as `kind` says) and another accesses, unordered.

    `columns`: cells, lanes, warps, epochs, codes of kinds and values of some accesses, an item for every lane
    and cell. Within an interval, lanes of different warps are never ordered, and lanes of one warp only by
    `bar.warp.sync`. Writes of the same value do not conflict.
    """
    cell, lane, warp, epoch, kinds, value = (np.concatenate(x) for x in zip(*columns, strict=True))
    across_warps = _select_mixed_groups([cell], warp, kinds, value, _KIND_CODES[kind])
    within_warps = _select_mixed_groups([cell, warp, epoch], lane, kinds, value, _KIND_CODES[kind])
    return np.unique(np.concatenate([across_warps, within_warps]))


def _select_mixed_groups(groups: list[Any], actors: Any, kinds: Any, value: Any, kind: int) -> Index:
    """First keys of the groups of accesses with a change of this kind and several of `actors`.

    Groups of atomics only, and of writes of one value only, are left out."""
    order = np.lexsort(groups[::-1])
    keys = [g[order] for g in groups]
    new = np.ones(order.size, np.bool_)
    new[1:] = np.logical_or.reduce([k[1:] != k[:-1] for k in keys])
    first = np.flatnonzero(new)
    actors, kinds, value = actors[order], kinds[order], value[order]

    def differ(row: NDArray[Any]) -> Any:
        return np.minimum.reduceat(row, first) != np.maximum.reduceat(row, first)

    changed = np.logical_or.reduceat(kinds == kind, first)
    strong = np.logical_and.reduceat((kinds == _KIND_CODES["atomic"]) | (kinds == _KIND_CODES["look"]), first)
    same = np.logical_and.reduceat(kinds == _KIND_CODES["write"], first) & ~differ(value)
    return np.asarray(keys[0][first][changed & differ(actors) & ~strong & ~same])


@dataclass(frozen=True, slots=True)
class WarpClock:
    """A moment in the life of all warps, by the synchronisations before it."""

    epoch: NDArray[np.int32]
    """Number of synchronisations of each whole warp."""
    lane_clocks: NDArray[np.int16] | None = None
    """Vector clocks (warps, 32, 32): [w, i, k] is the number of partial synchronisations of lane k that
    precede this moment of lane i. None before the first partial synchronisation."""

    def precedes(self, later: WarpClock, warp: int, lane: int, other_lane: int) -> bool:
        """Whether an action of `lane` at this moment precedes one of `other_lane` at the moment `later`."""
        if later.lane_clocks is None:
            return False
        own = 0 if self.lane_clocks is None else self.lane_clocks[warp, lane, lane]
        return bool(later.lane_clocks[warp, other_lane, lane] > own)

    def is_ordered(self, other: WarpClock, warp: int, lane: int, other_lane: int) -> bool:
        """Whether synchronisations order two actions of lanes of a warp, at this moment and at `other`."""
        return bool(
            self.epoch[warp] != other.epoch[warp]
            or self.precedes(other, warp, lane, other_lane)
            or other.precedes(self, warp, other_lane, lane)
        )

    def advance(self, lane_warps: Any, member_masks: Any, living_masks: Any) -> WarpClock:
        """The moment after a `bar.warp.sync` of these masks. `living_masks`: lanes that still run."""
        is_partial = (member_masks & living_masks[lane_warps]) != living_masks[lane_warps]
        epoch, clocks = self.epoch, self.lane_clocks
        if not is_partial.all():
            epoch = epoch.copy()
            epoch[np.unique(lane_warps[~is_partial])] += 1
        if is_partial.any():
            shape = (epoch.size, WARP_SIZE, WARP_SIZE)
            clocks = np.zeros(shape, np.int16) if clocks is None else clocks.copy()
            for word in np.unique(member_masks[is_partial]):
                _merge_lane_clocks(clocks, np.unique(lane_warps[is_partial & (member_masks == word)]), word)
        return WarpClock(epoch, clocks)


def _merge_lane_clocks(lane_clocks: Any, warps: Any, member_mask: Any) -> None:
    """Synchronise the lanes of a mask: each gets the latest clocks of all of them, and each ticks."""
    members = np.flatnonzero(warp.unpack_members(member_mask)[0])
    joint = lane_clocks[warps][:, members].max(axis=1)
    joint[:, members] += 1
    lane_clocks[warps[:, None], members] = joint[:, None]


_REPORTED_TOGETHER = 64
"""Cells with conflicts that are examined together."""


@dataclass(eq=False, slots=True)
class LoggedAccess(Access):
    """One access of the current interval."""

    kind: str
    """"read", "write", "atomic", or "look": a volatile read, which may meet atomics."""
    values: tuple[Any, ...]
    clock: WarpClock
    """The time of the access, which orders accesses of one warp."""
    product: InFlightProduct | None = None
    """The product of a warpgroup that reads the memory until it is waited for."""
    carried: bool = False
    """Whether the product was in flight when a barrier was crossed."""

    def overlaps(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether the addresses overlap with one of these ranges, given as [low, high)."""
        low, high = self.low, self.high
        return any(low < end and begin < high for begin, end in spans)

    def select_lanes(self, keep: Any) -> LoggedAccess:
        """The access of some of its lanes."""
        values = tuple(v if np.ndim(v) == 0 else v[keep] for v in self.values)
        return replace(self, probe=self.probe.select_lanes(0, keep), values=values)

    def list_in_flight(self, all_lanes: Index) -> list[LoggedAccess]:
        """The part of the access that continues after a barrier: products in flight."""
        if self.product is None:
            return []
        keep = self.product.is_in_flight(self.probe.lane_numbers(all_lanes))
        if not keep.any():
            return []
        return [replace(self if keep.all() else self.select_lanes(keep), carried=True)]


class RaceDetector:
    """The log of accesses of one batch, and its check."""

    def __init__(self, batch: LaneState) -> None:
        self.findings, self.all_lanes, self.lane_warps = batch.findings, batch.all_lanes, batch.lane_warps
        self.block_threads = batch.geometry.threads_per_block
        self.cell_owners = np.full(batch.spaces["shared"].bytes.size, -1, np.int32)
        self.log: list[LoggedAccess] = []
        self.clock = WarpClock(np.zeros(int(batch.lane_warps[-1]) + 1, np.int32))

    def log_access(
        self,
        access: Access,
        kind: str,
        values: tuple[Any, ...] = (),
        product: InFlightProduct | None = None,
    ) -> None:
        """Log an access. Volatile accesses count as atomics."""
        if access.site.is_volatile:
            kind = "look" if kind == "read" else "atomic"
        copies = tuple(np.array(v) for v in values) if kind == "write" else ()
        self.log.append(
            LoggedAccess(access.site, access.probe, access.offset, kind, copies, self.clock, product)
        )

    def sync_lanes(self, lanes: Any, member_masks: Any, living_masks: Any) -> None:
        """`bar.warp.sync` of these lanes, each with the lanes of its member mask that still run."""
        self.clock = self.clock.advance(self.lane_warps[lanes], member_masks[lanes], living_masks)

    def close_interval(self, lanes: Any = None) -> None:
        """A barrier (of some lanes): check the accesses of the interval and drop them."""
        entries, self.log = self.log, []
        if lanes is not None:
            entries = self._take_lanes(entries, lanes)
        if any(e.kind in CHANGING_KINDS for e in entries):
            self._check_interval(entries)
        self.log += [left for e in entries for left in e.list_in_flight(self.all_lanes)]

    def _take_lanes(self, entries: list[LoggedAccess], lanes: Any) -> list[LoggedAccess]:
        """The accesses of these lanes; those of other lanes go back into the log."""
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
            grain = min((e.site.element_bytes for e in touched), default=4)
            self._mark_owners(writers, grain, True)
            bad = [self._find_conflicts(e, grain) for e in touched]
            self._mark_owners(writers, grain, False)
            if any(b.size for b in bad):
                self._report_conflicts(touched, np.unique(np.concatenate(bad)), kind, grain)

    def _mark_owners(self, writers: list[LoggedAccess], cell_bytes: int, is_set: bool) -> None:
        for entry in writers:
            lanes = entry.probe.lane_numbers(self.all_lanes)[:, None]
            self.cell_owners[entry.list_cells(cell_bytes)] = lanes if is_set else -1

    def _find_conflicts(self, entry: LoggedAccess, cell_bytes: int) -> Index:
        """Cells of the access whose last writer is another lane."""
        mine, lanes = entry.list_cells(cell_bytes), entry.probe.lane_numbers(self.all_lanes)
        owner = self.cell_owners.take(mine)
        return np.asarray(mine[(owner != lanes[:, None]) & (owner >= 0)])

    def _report_conflicts(self, entries: list[LoggedAccess], places: Index, kind: str, size: int) -> None:
        """Report races at some of the cells that several lanes accessed."""
        columns = []
        for entry in entries:
            cells, lanes, values = self._list_accesses(entry, places, size)
            warp = self.lane_warps[lanes]
            kinds = np.full(cells.size, _KIND_CODES[entry.kind])
            columns.append((cells, lanes, warp, entry.clock.epoch[warp], kinds, values))
        conflicts = _find_cells_in_conflict(columns, kind)
        # One group of cells with a race is enough. A bar.warp.sync of some lanes may order a whole group.
        for start in range(0, conflicts.size, _REPORTED_TOGETHER):
            if self._report_places(entries, conflicts[start : start + _REPORTED_TOGETHER], size):
                return

    def _list_accesses(self, entry: LoggedAccess, places: Index, cell_bytes: int) -> tuple[Any, Any, Any]:
        """Cells, lanes and values of an access to some of these cells; only writes have values."""
        mine, lanes = entry.list_cells(cell_bytes), entry.probe.lane_numbers(self.all_lanes)
        at, column = np.nonzero(np.isin(mine, places))
        values = np.zeros(at.size)
        if entry.kind == "write":
            values = list_cell_contents(entry.probe, entry.values, cell_bytes)[at, column]
        return mine[at, column], lanes[at], values.astype(np.uint64)

    def _report_places(self, entries: list[LoggedAccess], places: Index, cell_bytes: int) -> bool:
        """Report one race at each cell, if its accesses have one; returns whether any was reported."""
        accesses_by_cell: dict[int, list[tuple[LoggedAccess, int, Any]]] = {int(p): [] for p in places}
        for entry in sorted(entries, key=lambda one: one.kind not in CHANGING_KINDS):
            columns = (column.tolist() for column in self._list_accesses(entry, places, cell_bytes))
            for cell, lane, value in zip(*columns, strict=True):
                accesses_by_cell[cell].append((entry, lane, value))
        are_reported = [self._report_pair(accesses) for accesses in accesses_by_cell.values()]
        return any(are_reported)

    def _report_pair(self, accesses: list[tuple[LoggedAccess, int, Any]]) -> bool:
        changes = [a for a in accesses if a[0].kind in CHANGING_KINDS]
        for writer, lane, value in changes:
            for other, second, other_value in accesses:
                if (
                    second != lane
                    and self._is_unordered(writer, lane, other, second)
                    and _is_order_visible(writer, value, other, other_value)
                ):
                    self._report_race(writer, lane, other, second)
                    return True
        return False

    def _is_unordered(self, a: LoggedAccess, lane: int, b: LoggedAccess, other: int) -> bool:
        warp = self.lane_warps[lane]
        if warp != self.lane_warps[other]:
            return True
        first, second = (x % self.block_threads % WARP_SIZE for x in (lane, other))
        return not a.clock.is_ordered(b.clock, warp, first, second)

    def _report_race(self, writer: LoggedAccess, lane: int, other: LoggedAccess, second: int) -> None:
        rival = other.site.instruction
        access = "also writes" if other.kind in CHANGING_KINDS else "reads"
        first, second = lane % self.block_threads, second % self.block_threads
        message = (
            f"thread {first} writes shared memory that thread {second} {access} "
            f"(PTX line {rival.line}: {rival.short_text}) with no barrier between"
        )
        kind, hint = "race", "A __syncthreads() is missing between the two, or two threads share an index."
        if other.carried:
            kind, hint = "async-product", IN_FLIGHT_HINT
            message = f"overwrites what a product still in flight reads (PTX line {rival.line})"
        is_own = writer.probe.lane_numbers(self.all_lanes) == lane
        self.findings.add_access(kind, writer, is_own, message, hint)


def _is_order_visible(a: LoggedAccess, value: Any, b: LoggedAccess, other: Any) -> bool:
    """Whether the order of two accesses can change a result."""
    if a.kind == "atomic" and b.kind in ("atomic", "look"):
        return False
    return not (a.kind == "write" and b.kind == "write" and value == other)
