"""All checks of one batch behind one face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.memory import Probe
from ekc.emulator.races import Races
from ekc.emulator.sanitize import Written
from ekc.emulator.shelf import Site

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
        self.conflicts = batch.plan.conflicts

    def loaded(self, site: Site, probe: Probe, offset: int) -> None:
        """A load is about to happen."""
        kind = probe.space.kind
        if kind == "global":
            blocks = self.numbers[probe.lanes(self.batch.every)]
            self.conflicts.loaded(site, probe, offset, blocks, self.batch.geometry, self.batch.every)
            return
        self.written[kind].load(site, probe, offset)
        if kind == "shared":
            self.batch.copies.check(site, probe, offset)
            self.races.note(site, probe, offset, "read")

    def storing(self, site: Site, probe: Probe, offset: int, values: tuple[Any, ...]) -> None:
        """A store is about to happen."""
        if probe.space.kind == "global":
            blocks = self.numbers[probe.lanes(self.batch.every)]
            self.conflicts.storing(site, probe, offset, values, blocks, self.batch.geometry, self.batch.every)

    def stored(self, site: Site, probe: Probe, offset: int, values: tuple[Any, ...]) -> None:
        """A store has happened."""
        kind = probe.space.kind
        if kind == "global":
            blocks = self.numbers[probe.lanes(self.batch.every)]
            self.conflicts.stored(site, probe, offset, values, blocks, self.batch.geometry, self.batch.every)
            return
        self.written[kind].store(site, probe, offset)
        if kind == "shared":
            self.races.note(site, probe, offset, "write", values)

    def atomic(self, site: Site, probe: Probe, offset: int) -> None:
        """An atomic is about to happen."""
        if probe.space.kind == "global":
            blocks = self.numbers[probe.lanes(self.batch.every)]
            self.conflicts.atomic(site, probe, offset, blocks, self.batch.geometry, self.batch.every)
        if probe.space.kind == "shared":
            self.written["shared"].load(site, probe, offset)
            self.races.note(site, probe, offset, "atomic")
