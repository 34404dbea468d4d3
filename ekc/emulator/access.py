"""Loads, stores and atomics of a batch: addresses are checked and counted, and the data moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator import memory
from ekc.emulator.counters import WORD_BYTES, count_sectors, count_wavefronts
from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import (
    GLOBAL_BASE,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    WINDOW_SIZE,
    Access,
    AddressProbe,
    Index,
)
from ekc.emulator.sanitizer.sanitizer import Sanitizer, drop_bad_lanes

Mask = NDArray[np.bool_] | None
Probes = AddressProbe | tuple[AddressProbe, ...]


class AddressPattern:
    """Addresses of an earlier access. Results about them hold for addresses that differ by a constant."""

    def __init__(self, probe: AddressProbe) -> None:
        self.address = probe.address
        self.active_lanes = probe.act
        self.counts: dict[tuple[int, int], tuple[int, int, int]] = {}
        """Requests, and their passes (or sectors) and conflicts."""
        self.checked_loads: set[tuple[int, int, tuple[bool, ...]]] = set()
        self.marked_stores: set[tuple[int, int]] = set()

    def find_shift(self, probe: AddressProbe) -> int | None:
        """The constant by which the addresses of a probe differ from these; None where they do not."""
        if probe.address.shape != self.address.shape or (probe.act is None) != (self.active_lanes is None):
            return None
        if probe.act is not None and not np.array_equal(probe.act, self.active_lanes):  # type: ignore[arg-type]
            return None
        difference = probe.address - self.address
        low = int(difference[0])
        return low if (difference == low).all() else None


class MemoryUnit:
    """The memory unit of one batch."""

    def __init__(self, batch: LaneState, sanitizer: Sanitizer | None) -> None:
        self.batch, self.sanitizer = batch, sanitizer
        self.patterns: dict[tuple[int, str], list[AddressPattern]] = {}
        self.lane_warps = batch.lane_warps
        self.counts = batch.plan.counts

    # -- probes ---------------------------------------------------------------------------------
    def probe(self, space: str, row: Any, mask: Mask, line: int) -> Probes:
        """The addresses of the active lanes, as one probe for each address space."""
        act = None if mask is None else np.flatnonzero(mask)
        row = np.broadcast_to(row, self.batch.all_lanes.shape)
        if row.itemsize == 4:
            # 32-bit sums of a base and an offset wrap.
            row = row.view(np.int32)
        address = (row if act is None else row[act]).astype(np.int64)
        if space == "":
            return self._probe_generic(address, act, line)
        return self._make_probe(space, address, act, line)

    def _make_probe(self, space: str, address: Index, active_lanes: Index | None, line: int) -> AddressProbe:
        batch = self.batch
        base: Any = -GLOBAL_BASE
        if space != "global":
            base = batch.shared_base if space == "shared" else batch.local_base
            base = base if active_lanes is None else base[active_lanes]
        probe = AddressProbe(batch.spaces[space], address, base, active_lanes)
        if address.size:
            self._match_pattern(probe, line)
        return probe

    def _probe_generic(self, address: Index, active_lanes: Index | None, line: int) -> Probes:
        parts = []
        left = np.ones(address.shape, np.bool_)
        for space, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
            inside = (address >= window) & (address < window + WINDOW_SIZE)
            if inside.all() and inside.size:
                return self._make_probe(space, address - window, active_lanes, line)
            if inside.any():
                parts.append((space, address - window, inside))
                left &= ~inside
        if not parts:
            return self._make_probe("global", address, active_lanes, line)
        parts.append(("global", address, left))
        lanes = self.batch.all_lanes if active_lanes is None else active_lanes
        return tuple(self._make_probe(s, a[keep], lanes[keep], -1) for s, a, keep in parts if keep.any())

    def _match_pattern(self, probe: AddressProbe, line: int) -> None:
        candidates = self.patterns.setdefault((line, probe.space.kind), [])
        for pattern in candidates:
            shift = pattern.find_shift(probe)
            if shift is not None:
                probe.pattern, probe.shift = pattern, shift
                return
        probe.pattern = AddressPattern(probe)
        candidates.insert(0, probe.pattern)
        del candidates[4:]

    # -- checks and counts ----------------------------------------------------------------------
    def check_bounds(self, access: Access, needed_bytes: Any = None) -> Access:
        """The access without lanes for which it is invalid. `needed_bytes` must exist; None: all."""
        site, space, low, high = access.site, access.probe.space, access.low, access.high
        least = site.count_needed_bytes(space.kind)
        fits = space.find_allocation(low, high)
        is_aligned = not (access.probe.bits | access.offset) & (site.bytes_per_lane - 1)
        if is_aligned and (fits or space.find_allocation(low, high - site.bytes_per_lane + least)):
            return access
        findings = self.batch.findings if self.batch.is_sanitized else None
        return drop_bad_lanes(findings, access, needed_bytes)

    def count_requests(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Count one request for every warp with active lanes."""
        number, pattern = site.number, probe.pattern
        lanes = probe.lane_numbers(self.batch.all_lanes)
        self.counts.bytes[number] += site.bytes_per_lane * lanes.size
        shared = probe.space.kind == "shared"
        key = (site.bytes_per_lane, (probe.shift + offset) % (WORD_BYTES if shared else 32))
        counts = pattern.counts.get(key) if pattern else None
        if counts is None:
            counts = self._measure_requests(site, probe, offset, self.lane_warps[lanes])
            if pattern:
                pattern.counts[key] = counts
        requests, passes, conflicts = counts
        self.counts.requests[number] += requests
        self.counts.conflicts[number] += conflicts
        of_space = self.counts.wavefronts if shared else self.counts.sectors
        of_space[number] += passes

    def _measure_requests(
        self, site: Site, probe: AddressProbe, offset: int, warps: Index
    ) -> tuple[int, int, int]:
        """Requests of these warps, and their wavefronts and conflicts (shared), or sectors and 0 (global)."""
        requests = int(np.count_nonzero(warps[1:] != warps[:-1])) + 1
        access = probe.address + offset, warps, site.bytes_per_lane
        if probe.space.kind == "shared":
            return requests, *count_wavefronts(*access)
        return requests, count_sectors(*access) if probe.space.kind == "global" else 0, 0

    # -- data -----------------------------------------------------------------------------------
    def _start_accesses(
        self,
        site_number: int,
        probes: Probes,
        offset: int,
        needed_bytes: Any = None,
        targets: Iterable[Any] = (),
    ) -> Iterator[Access]:
        """Check and count an access in each address space that it touches; yields those of valid lanes.

        `targets` become zero where the access is invalid."""
        site = self.batch.sites[site_number]
        for given in probes if isinstance(probes, tuple) else (probes,):
            access = self.check_bounds(Access(site, given, offset), needed_bytes)
            for target in targets if access.probe is not given else ():
                if target is not None:
                    target[slice(None) if given.act is None else given.act] = 0
            if access.probe.address.size:
                self.count_requests(site, access.probe, access.offset)
                yield access.probe.space.make_resident(access)

    def load(
        self,
        site_number: int,
        probes: Probes,
        offset: int,
        targets: tuple[Any, ...],
        needed_bytes: Any = None,
    ) -> None:
        """Load elements into register rows. `needed_bytes`: bytes that each lane needs, if not all."""
        for access in self._start_accesses(site_number, probes, offset, needed_bytes, targets):
            if self.sanitizer is not None:
                self.sanitizer.check_load(access)
            active = access.probe.act
            for k, target in enumerate(targets):
                if target is None:
                    continue
                if active is not None:
                    target[active] = access.read(k)
                elif target.itemsize == access.site.element_bytes:
                    access.read(k, out=target)
                else:
                    np.copyto(target, access.read(k))

    def store(self, site_number: int, probes: Probes, offset: int, values: tuple[Any, ...]) -> None:
        """Store register rows, or one value for all lanes."""
        for access in self._start_accesses(site_number, probes, offset):
            active = access.probe.act
            own = tuple(v if np.ndim(v) == 0 or active is None else v[active] for v in values)
            if self.sanitizer is not None:
                self.sanitizer.check_store(access, own)
            access.write(own)
            if self.sanitizer is not None:
                self.sanitizer.record_store(access, own)

    def atomic(
        self,
        site_number: int,
        probes: Probes,
        offset: int,
        operation: str,
        type_name: str,
        values: tuple[Any, ...],
        target: Any,
    ) -> None:
        """Run an atomic operation, lane after lane; `target` gets the old values."""
        for access in self._start_accesses(site_number, probes, offset):
            lanes = access.probe.lane_numbers(self.batch.all_lanes)
            own = tuple(np.broadcast_to(v, self.batch.all_lanes.shape)[lanes] for v in values)
            if self.sanitizer is not None:
                self.sanitizer.check_atomic(access)
            old = memory.apply_atomic(access.probe, access.offset, operation, type_name, own)
            if target is not None:
                target[lanes] = old
