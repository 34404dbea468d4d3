"""Loads, stores and atomics of a batch: probe, check, count, move the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator import atomics
from ekc.emulator.counters import WORD, sectors, wavefronts
from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import (
    GLOBAL_BASE,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    WINDOW_SIZE,
    Index,
    Probe,
    gather,
    gather_into,
    scatter,
)

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch

Mask = NDArray[np.bool_] | None
Probes = Probe | tuple[Probe, ...]


class Pattern:
    """Addresses seen before: what was worked out about them holds for any that differ by a constant."""

    def __init__(self, probe: Probe) -> None:
        self.address = probe.address
        self.act = probe.act
        self.counts: dict[tuple[int, int], tuple[int, int]] = {}
        self.loaded: set[tuple[int, int, tuple[bool, ...]]] = set()
        self.stored: set[tuple[int, int]] = set()
        self.requests = 0

    def shift(self, probe: Probe) -> int | None:
        """By how much a probe's addresses differ from these, if all by the same."""
        if probe.address.shape != self.address.shape or (probe.act is None) != (self.act is None):
            return None
        if probe.act is not None and self.act is not None and not np.array_equal(probe.act, self.act):
            return None
        difference = probe.address - self.address
        low = int(difference[0])
        return low if (difference == low).all() else None


class Access:
    """The memory unit of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.patterns: dict[tuple[int, str], list[Pattern]] = {}
        self.warp = batch.warp
        count = len(batch.decoded.shelf.sites) + 1
        self.requests, self.sectors, self.wavefronts, self.conflicts, self.bytes = (
            [0] * count for _ in range(5)
        )

    def grow(self) -> None:
        """Room for the sites of masked text."""
        more = len(self.batch.decoded.shelf.sites) + 1 - len(self.requests)
        for table in (self.requests, self.sectors, self.wavefronts, self.conflicts, self.bytes):
            table.extend([0] * more)

    # -- probes ---------------------------------------------------------------------------------
    def probe(self, space: str, row: Any, mask: Mask, line: int) -> Probes:
        """Look at the addresses of the active lanes."""
        act = None if mask is None else np.flatnonzero(mask)
        row = np.broadcast_to(row, self.batch.every.shape)
        if row.itemsize == 4:
            # 32-bit sums of a base and an offset wrap.
            row = row.view(np.int32)
        address = (row if act is None else row[act]).astype(np.int64)
        if space == "":
            return self._generic(address, act, line)
        return self._make(space, address, act, line)

    def _make(self, space: str, address: Index, act: Index | None, line: int) -> Probe:
        batch = self.batch
        base: Index | int = -GLOBAL_BASE
        if space != "global":
            base = batch.shared_base if space == "shared" else batch.local_base
            base = base if act is None else base[act]
        probe = Probe(batch.spaces[space], address, base, act)
        if address.size:
            self._recognise(probe, line)
        return probe

    def _generic(self, address: Index, act: Index | None, line: int) -> Probes:
        parts = []
        left = np.ones(address.shape, np.bool_)
        for space, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
            inside = (address >= window) & (address < window + WINDOW_SIZE)
            if inside.all() and inside.size:
                return self._make(space, address - window, act, line)
            if inside.any():
                parts.append((space, address - window, inside))
                left &= ~inside
        if not parts:
            return self._make("global", address, act, line)
        parts.append(("global", address, left))
        lanes = self.batch.every if act is None else act
        return tuple(self._make(s, a[keep], lanes[keep], -1) for s, a, keep in parts if keep.any())

    def _recognise(self, probe: Probe, line: int) -> None:
        known = self.patterns.setdefault((line, probe.space.kind), [])
        for pattern in known:
            shift = pattern.shift(probe)
            if shift is not None:
                probe.pattern, probe.shift = pattern, shift
                return
        probe.pattern = Pattern(probe)
        known.insert(0, probe.pattern)
        del known[4:]

    # -- checks and counts ----------------------------------------------------------------------
    def checked(self, site: Site, probe: Probe, offset: int, needed: Any = None) -> tuple[Probe, int]:
        """The probe with only lanes whose access is fine; `needed` bytes of it must be there, if not all."""
        low, high = probe.low + offset, probe.high + offset
        fits = probe.space.inside(low, high + site.size) or probe.space.inside(
            low, high + site.needed(probe.space.kind)
        )
        if fits and not (probe.bits | offset) & (site.size - 1):
            return probe, offset
        batch = self.batch
        return batch.bounds.repair(site, probe, offset, batch.sanitize, needed), 0

    def count(self, site: Site, probe: Probe, offset: int) -> None:
        """Count a request of every warp that takes part."""
        number, pattern = site.number, probe.pattern
        lanes = probe.lanes(self.batch.every)
        self.bytes[number] += site.size * lanes.size
        shared = probe.space.kind == "shared"
        key = (site.size, (probe.shift + offset) % (WORD if shared else 32))
        found = pattern.counts.get(key) if pattern else None
        if found is None:
            warps = self.warp[lanes]
            requests = int(np.count_nonzero(warps[1:] != warps[:-1])) + 1
            if shared:
                found = wavefronts(probe.address + offset, warps, site.size)
            elif probe.space.kind == "global":
                found = (sectors(probe.address + offset, warps, site.size), 0)
            else:
                found = (0, 0)
            if pattern:
                pattern.counts[key], pattern.requests = found, requests
        else:
            requests = pattern.requests
        self.requests[number] += requests
        if shared:
            self.wavefronts[number] += found[0]
            self.conflicts[number] += found[1]
        else:
            self.sectors[number] += found[0]

    # -- data -----------------------------------------------------------------------------------
    def load(
        self,
        number: int,
        probes: Probes,
        offset: int,
        mask: Mask,
        targets: tuple[Any, ...],
        needed: Any = None,
    ) -> None:
        """Load elements into register rows; lanes of one space may need less than all of their bytes."""
        if isinstance(probes, tuple):
            for one in probes:
                self.load(number, one, offset, mask, targets)
            return
        site = self.batch.decoded.shelf.sites[number]
        probe, at = self.checked(site, probes, offset, needed)
        if probe is not probes:
            self._blank(probes, targets)
        if not probe.address.size:
            return
        self.count(site, probe, at)
        probe, at = probe.space.resident(probe, at)
        if self.batch.sanitize:
            self.batch.watch.loaded(site, probe, at)
        size = int(site.code[1])
        for k, target in enumerate(targets):
            if target is None:
                continue
            if probe.act is not None:
                target[probe.act] = gather(probe, site.code, at + k * size)
            elif target.itemsize == size:
                gather_into(probe, site.code, at + k * size, target)
            else:
                np.copyto(target, gather(probe, site.code, at + k * size))

    def _blank(self, probe: Probe, targets: tuple[Any, ...]) -> None:
        """What a refused load gives: zeros."""
        for target in targets:
            if target is not None:
                target[slice(None) if probe.act is None else probe.act] = 0

    def store(self, number: int, probes: Probes, offset: int, mask: Mask, values: tuple[Any, ...]) -> None:
        """Store register rows (or one value for all lanes)."""
        if isinstance(probes, tuple):
            for one in probes:
                self.store(number, one, offset, mask, values)
            return
        site = self.batch.decoded.shelf.sites[number]
        probe, at = self.checked(site, probes, offset)
        if not probe.address.size:
            return
        self.count(site, probe, at)
        probe, at = probe.space.resident(probe, at)
        own = tuple(v if np.ndim(v) == 0 or probe.act is None else v[probe.act] for v in values)
        size = int(site.code[1])
        if self.batch.sanitize:
            self.batch.watch.storing(site, probe, at, own)
        for k, value in enumerate(own):
            scatter(probe, site.code, at + k * size, value)
        if self.batch.sanitize:
            self.batch.watch.stored(site, probe, at, own)

    def atomic(
        self,
        number: int,
        probes: Probes,
        offset: int,
        mask: Mask,
        what: str,
        kind: str,
        values: tuple[Any, ...],
        target: Any,
    ) -> None:
        """Read, change, write; lanes in order."""
        if isinstance(probes, tuple):
            for one in probes:
                self.atomic(number, one, offset, mask, what, kind, values, target)
            return
        site = self.batch.decoded.shelf.sites[number]
        probe, at = self.checked(site, probes, offset)
        if not probe.address.size:
            return
        self.count(site, probe, at)
        probe, at = probe.space.resident(probe, at)
        lanes = probe.lanes(self.batch.every)
        own = tuple(np.broadcast_to(v, self.batch.every.shape)[lanes] for v in values)
        if self.batch.sanitize:
            self.batch.watch.atomic(site, probe, at)
        old = atomics.apply(probe, at, what, kind, own)
        if target is not None:
            target[lanes] = old
