"""`cp.async`: copies that are issued now and land when their group is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import Probe, scatter
from ekc.emulator.sanitizer.cells import cells, contents

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch


@dataclass(slots=True)
class Copy:
    """One issued copy: where it goes, what it carries, and the group of each lane (-1: not committed)."""

    site: Site
    probe: Probe
    offset: int
    values: tuple[Any, ...]
    group: Any

    def kept(self, keep: Any) -> Copy:
        """The copy for some of its lanes."""
        values = tuple(v[keep] for v in self.values)
        return Copy(self.site, self.probe.moved(0, keep), self.offset, values, self.group[keep])


class Copies:
    """The copies in flight of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.flying: list[Copy] = []
        self.groups = np.zeros(batch.every.size, np.int64)
        """Groups that each lane has committed."""

    def issue(
        self,
        into: int,
        out_of: int,
        target: Probe,
        first: int,
        source: Probe,
        second: int,
        mask: Any,
        filled: Any,
    ) -> None:
        """Read the source now; bytes beyond `filled` are zeros."""
        batch = self.batch
        site = batch.decoded.shelf.sites[into]
        rows = [np.zeros(batch.every.size, site.code) for _ in range(site.count)]
        if filled is None:
            batch.access.load(out_of, source, second, mask, tuple(rows))
        else:
            self._partial(out_of, source, second, rows, np.broadcast_to(filled, batch.every.shape))
        probe, at = batch.access.checked(site, target, first)
        if not probe.address.size:
            return
        batch.access.count(site, probe, at)
        lanes = probe.lanes(batch.every)
        copy = Copy(site, probe, at, tuple(r[lanes] for r in rows), np.full(lanes.size, -1))
        if batch.sanitize:
            self.check(site, probe, at, "copies over", copy.values)
            batch.watch.changing(site, probe, at, "copies over")
        self.flying.append(copy)
        if batch.sanitize:
            # It may land from now on.
            batch.watch.races.note(site, probe, at, "write", copy.values)

    def _partial(self, number: int, source: Probe, offset: int, rows: list[Any], filled: Any) -> None:
        """Only lanes whose source has any bytes read; those with fewer keep and need a part."""
        lanes, site = source.lanes(self.batch.every), self.batch.decoded.shelf.sites[number]
        self._beyond(site, lanes, filled)
        keep = filled[lanes] > 0
        if keep.any():
            reading = source if keep.all() else source.moved(0, keep)
            needed = np.minimum(filled[lanes[keep]].astype(np.int64), site.size)
            self.batch.access.load(number, reading, offset, None, tuple(rows), needed)
        size = int(self.batch.decoded.shelf.sites[number].code[1])
        for k, row in enumerate(rows):
            left = np.clip(filled.astype(np.int64) - k * size, 0, size)
            whole = np.where(
                left >= size, ~row.dtype.type(0), (np.uint64(1) << (8 * left).astype("u8")) - np.uint64(1)
            )
            row &= whole.astype(row.dtype)

    def _beyond(self, site: Site, lanes: Any, filled: Any) -> None:
        """A finding where the source is said to be larger than the copy, which is undefined."""
        bad = filled[lanes] > site.size
        if bad.any() and self.batch.sanitize:
            first = int(lanes[np.flatnonzero(bad)[0]])
            message = f"src-size is {filled[first]}: more than the {site.size} bytes of the copy"
            hint = "Pass the number of bytes to read, at most the size of the copy."
            place = (self.batch.geometry, first)
            self.batch.plan.findings.add("async-copy", site.instruction, message, hint, place)

    def commit(self, mask: Any) -> None:
        """What each lane has issued becomes its next group."""
        for copy in self.flying:
            lanes = copy.probe.lanes(self.batch.every)
            open_ = copy.group == -1
            if mask is not None:
                open_ = open_ & mask[lanes]
            copy.group[open_] = self.groups[lanes[open_]]
        self.groups += 1 if mask is None else mask

    def wait(self, left: int, mask: Any, number: int, everything: bool) -> None:
        """All but the last `left` groups of the lanes that wait land now."""
        flying, self.flying = self.flying, []
        for copy in flying:
            lanes = copy.probe.lanes(self.batch.every)
            lands = copy.group < self.groups[lanes] - left
            if not everything:
                lands &= copy.group >= 0
            if mask is not None:
                lands &= mask[lanes]
            if lands.all():
                self._land(copy)
            elif lands.any():
                self._land(copy.kept(lands))
                self.flying.append(copy.kept(~lands))
            else:
                self.flying.append(copy)

    def _land(self, copy: Copy) -> None:
        size = int(copy.site.code[1])
        for k, value in enumerate(copy.values):
            scatter(copy.probe, copy.site.code, copy.offset + k * size, value)
        if self.batch.sanitize:
            self.batch.watch.stored(copy.site, copy.probe, copy.offset, copy.values)

    def check(
        self, site: Site, probe: Probe, offset: int, verb: str, values: tuple[Any, ...] | None = None
    ) -> None:
        """A finding if an access touches what is still in flight; a store of what lands there anyway may."""
        for copy in self.flying:
            if probe.low + offset >= copy.probe.high + copy.offset + copy.site.size:
                continue
            if probe.high + offset + site.size <= copy.probe.low + copy.offset:
                continue
            grain = min(int(site.code[1]), int(copy.site.code[1]))
            pending = cells(copy.site, copy.probe, copy.offset, grain).ravel()
            mine = cells(site, probe, offset, grain)
            # The table spans no more than the shared memory of a batch; to sort would cost more.
            bad = np.isin(mine, pending, kind="table")
            if bad.any() and values is not None:
                lands = contents(copy.site, copy.probe, copy.values, grain).ravel()
                order = np.argsort(pending, kind="stable")
                at = order[np.searchsorted(pending[order], mine).clip(max=order.size - 1)]
                bad &= lands[at] != contents(site, probe, values, grain)
            if bad.any():
                self._tell(site, probe, offset, bad.any(axis=1), copy, verb)
                return

    def _tell(self, site: Site, probe: Probe, offset: int, bad: Any, copy: Copy, verb: str) -> None:
        first = int(np.flatnonzero(bad)[0])
        self.batch.plan.findings.add(
            "async-copy",
            site.instruction,
            f"{verb} what a copy still in flight will write (PTX line {copy.site.instruction.line})",
            "Wait for the group with cp.async.wait_group, then cross a barrier, before touching it.",
            (self.batch.geometry, int(probe.lanes(self.batch.every)[first])),
            int(probe.address[first]) + offset,
        )
