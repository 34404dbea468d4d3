"""All checks of one batch behind one face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import Allocation, Probe
from ekc.emulator.sanitizer.races import Races
from ekc.emulator.sanitizer.sanitize import Written
from ekc.emulator.sanitizer.warpgroups import Warpgroups

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch


class Watch:
    """Shadows and logs of one batch."""

    def __init__(self, batch: Batch) -> None:
        findings, geometry = batch.plan.findings, batch.geometry
        self.batch = batch
        spaces = {name: batch.spaces[name] for name in ("shared", "local")}
        self.written = {n: Written(space, findings, geometry, batch.every) for n, space in spaces.items()}
        self.races = Races(findings, geometry, batch.every, batch.warp, spaces["shared"].bytes.size)
        self.numbers = (np.repeat(geometry.ids, geometry.threads) + 1).astype(np.int32)
        assert batch.plan.conflicts is not None
        self.conflicts, self.cache = batch.plan.conflicts, batch.plan.cache
        self.warpgroups = Warpgroups(batch) if batch.plan.grouped else None

    def _blocks(self, probe: Probe) -> Any:
        """The block of each lane, counted from 1."""
        return self.numbers[probe.lanes(self.batch.every)]

    def _fit(self, probe: Probe) -> None:
        """Room for the marks of all global memory that is held by now."""
        for marks in (self.conflicts, self.cache):
            if marks is not None:
                marks.fit(probe.space.bytes.size)

    def _changing(self, site: Site, probe: Probe, offset: int) -> None:
        """Global memory is about to change."""
        self._fit(probe)
        self._protected(site, probe, offset)
        if self.cache is not None:
            self.cache.changing(site, probe, offset, self.batch.geometry, self.batch.every)

    def loaded(self, site: Site, probe: Probe, offset: int) -> None:
        """A load is about to happen."""
        kind = probe.space.kind
        if kind == "global":
            if self._whole(site, probe, offset, False) is None:
                self._fit(probe)
                place = self.batch.geometry, self.batch.every
                if self.cache is not None:
                    self.cache.loaded(site, probe, offset, *place)
                self.conflicts.loaded(site, probe, offset, self._blocks(probe), *place)
            return
        self.written[kind].load(site, probe, offset)
        if kind == "shared":
            self.batch.copies.check(site, probe, offset, "reads")
            self.races.note(site, probe, offset, "read")

    def storing(self, site: Site, probe: Probe, offset: int, values: tuple[Any, ...]) -> None:
        """A store is about to happen."""
        if probe.space.kind == "global":
            self._changing(site, probe, offset)
            place = self.batch.geometry, self.batch.every
            self.conflicts.storing(site, probe, offset, values, self._blocks(probe), *place)
        if probe.space.kind == "shared":
            self.batch.copies.check(site, probe, offset, "writes over", values)
            self.changing(site, probe, offset, "overwrites")

    def stored(self, site: Site, probe: Probe, offset: int, values: tuple[Any, ...]) -> None:
        """A store has happened."""
        kind = probe.space.kind
        if kind == "global":
            place = self.batch.geometry, self.batch.every
            self.conflicts.stored(site, probe, offset, values, self._blocks(probe), *place)
            return
        self.written[kind].store(site, probe, offset)
        if kind == "shared":
            self.races.note(site, probe, offset, "write", values)
            self._changed(site, probe, offset)

    def atomic(self, site: Site, probe: Probe, offset: int) -> None:
        """An atomic is about to happen."""
        if probe.space.kind == "global":
            self._changing(site, probe, offset)
            place = self.batch.geometry, self.batch.every
            self.conflicts.atomic(site, probe, offset, self._blocks(probe), *place)
        if probe.space.kind == "shared":
            if "exch" in site.instruction.parts:
                self.written["shared"].store(site, probe, offset)
            else:
                self.written["shared"].load(site, probe, offset)
            self.batch.copies.check(site, probe, offset, "changes")
            self.races.note(site, probe, offset, "atomic")
            self.changing(site, probe, offset, "changes")
            self._changed(site, probe, offset)

    def changing(self, site: Site, probe: Probe, offset: int, verb: str) -> None:
        """Shared memory is about to change, or may from now on."""
        if self.warpgroups is not None:
            self.warpgroups.flights.overwritten(site, probe, offset, verb)

    def _changed(self, site: Site, probe: Probe, offset: int) -> None:
        """Shared memory has changed."""
        if self.warpgroups is not None:
            self.warpgroups.proxies.stored(site, probe, offset)

    def barrier(self, lanes: Any = None) -> None:
        """Lanes (None: all) cross a barrier."""
        self.races.close(lanes)
        if self.warpgroups is not None:
            self.warpgroups.proxies.crossed(lanes)

    def _whole(self, site: Site, probe: Probe, offset: int, writable: bool) -> Allocation | None:
        """The allocation of this kind that holds the whole access, if one does."""
        place = probe.space.inside(probe.low + offset, probe.high + offset + site.size)
        return place if place is not None and place.writable == writable else None

    def _protected(self, site: Site, probe: Probe, offset: int) -> None:
        """A finding where a lane changes what this launch may only read."""
        if self._whole(site, probe, offset, True) is not None:
            return
        bad = ~probe.space.allowed(probe.address + offset, site.size, writable=True)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        where = int(probe.address[first]) + offset
        place = probe.space.inside(where, where + site.size)
        assert place is not None
        self.batch.plan.findings.add(
            "read-only",
            site.instruction,
            f"{site.action} to {place.name}, which is only to be read, by {int(bad.sum())} lanes",
            "Write to an output; an input must stay as it was given.",
            (self.batch.geometry, int(probe.lanes(self.batch.every)[first])),
            where,
        )
