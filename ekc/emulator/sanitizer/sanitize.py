"""Findings, and who may touch what: bounds, alignment, memory that nobody wrote."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry, unravel
from ekc.emulator.memory import Probe, Space, gather, scatter
from ekc.emulator.ptx.program import Instruction
from ekc.emulator.report import Finding

LIMIT = 64
"""Findings that a launch keeps."""


class Findings:
    """Collects findings: one of a kind for each instruction."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.found: dict[tuple[str, int], tuple[tuple[int, int], Finding]] = {}

    def add(
        self,
        kind: str,
        one: Instruction,
        message: str,
        hint: str,
        place: tuple[Geometry, int],
        address: int | None = None,
    ) -> None:
        """Keep a finding; of several of one instruction, the one of the lowest block and thread."""
        geometry, lane = place
        block, thread = int(geometry.ids[lane // geometry.threads]), lane % geometry.threads
        finding = Finding(
            kind,
            message,
            self.kernel,
            one.brief,
            one.line,
            one.source_line,
            unravel(block, geometry.grid),
            unravel(thread, geometry.block),
            address,
            hint,
        )
        old = self.found.get((kind, one.line))
        if (old is None and len(self.found) < LIMIT) or (old is not None and (block, thread) < old[0]):
            self.found[kind, one.line] = ((block, thread), finding)

    def all(self) -> tuple[Finding, ...]:
        """In order of the PTX text."""
        return tuple(f for _, f in sorted(self.found.values(), key=lambda item: (item[1].line, item[1].kind)))


class Bounds:
    """Reports accesses outside of memory or off their alignment, and drops those lanes."""

    def __init__(self, findings: Findings, geometry: Geometry, every: Any) -> None:
        self.findings = findings
        self.geometry = geometry
        self.every = every

    def repair(self, site: Site, probe: Probe, offset: int, report: bool, needed: Any = None) -> Probe:
        """The lanes whose access is fine, with the offset added; `needed` bytes must be there, if given."""
        address = probe.address + offset
        inside = probe.space.allowed(address, site.needed(probe.space.kind) if needed is None else needed)
        aligned = (address & (site.size - 1)) == 0
        if report:
            self._tell(site, probe, address, ~inside, "out-of-bounds")
            self._tell(site, probe, address, inside & ~aligned, "misaligned")
        return probe.moved(offset, inside & aligned)

    def _tell(self, site: Site, probe: Probe, address: Any, bad: Any, kind: str) -> None:
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        where = int(address[first])
        what = f"{site.action} of {site.size} bytes in {probe.space.kind} memory"
        if kind == "misaligned":
            message, hint = f"misaligned {what}", f"The address must be a multiple of {site.size}."
        else:
            message = f"{what} {probe.space.nearest(where)}, by {int(bad.sum())} lanes"
            hint = "Look at the guard of this access and at the index that leads to it."
        lane = int(probe.lanes(self.every)[first])
        self.findings.add(kind, site.instruction, message, hint, (self.geometry, lane), where)


class Written:
    """Which bytes of a space were written: a shadow of one byte for each."""

    def __init__(self, space: Space, findings: Findings, geometry: Geometry, every: Any) -> None:
        self.shadow = np.zeros(space.bytes.size, np.uint8)
        self.views = {code: self.shadow.view(code) for code in ("u1", "u2", "u4", "u8")}
        self.full = {f"u{n}": np.dtype(f"u{n}").type(int("01" * n, 16)) for n in (1, 2, 4, 8)}
        self.findings = findings
        self.geometry = geometry
        self.every = every

    def store(self, site: Site, probe: Probe, offset: int) -> None:
        """Mark what a store wrote."""
        code = "u" + site.code[1]
        done = probe.pattern.stored if probe.pattern else None
        key = (probe.shift + offset, site.size)
        if done is not None and key in done:
            return
        for k in range(site.count):
            scatter(probe, code, offset + k * int(code[1]), self.full[code], self.views)
        if done is not None:
            done.add(key)

    def load(self, site: Site, probe: Probe, offset: int) -> None:
        """Report what is read before it is written. The compiler joins loads of shared halves and bytes into
        vectors of words, so a word of such a vector is judged by what of it was written at all."""
        joined = probe.space.kind == "shared" and site.count > 1
        done = probe.pattern.loaded if probe.pattern else None
        key = (probe.shift + offset, site.size, site.wanted)
        if done is not None and key in done:
            return
        code = "u" + site.code[1]
        for k in range(site.count):
            if site.wanted and not site.wanted[k]:
                continue
            found = gather(probe, code, offset + k * int(code[1]), self.views)
            bad = found == 0 if joined else found != self.full[code]
            if bad.any():
                self._tell(site, probe, offset + k * int(code[1]), bad)
                return
        if done is not None:
            done.add(key)

    def _tell(self, site: Site, probe: Probe, offset: int, bad: Any) -> None:
        first = int(np.flatnonzero(bad)[0])
        lane = int(probe.lanes(self.every)[first])
        self.findings.add(
            "uninitialised",
            site.instruction,
            f"{site.action} of {probe.space.kind} memory that nobody wrote, by {int(bad.sum())} lanes",
            "Look for the store that should come first, and for the range its threads cover.",
            (self.geometry, lane),
            int(probe.address[first]) + offset,
        )
