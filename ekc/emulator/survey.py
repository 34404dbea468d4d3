"""`survey`: how a kernel's memory instructions touch memory, told without computing its results.

Only what decides branches and addresses runs, on some blocks, and every loop a few trips: enough to see
how the lanes of a warp lie together, in a hundredth of the time of a run. How often each instruction
runs is not told here; loops end early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.access import Access
from ekc.emulator.batch import Batch
from ekc.emulator.counters import distinct, wavefronts
from ekc.emulator.decoding.decode import Decoded, decode
from ekc.emulator.decoding.shelf import Site
from ekc.emulator.decoding.slots import apart
from ekc.emulator.geometry import Shape
from ekc.emulator.memory import Probe
from ekc.emulator.paged import Blank
from ekc.emulator.plan import Plan
from ekc.emulator.ptx.cfg import Block
from ekc.emulator.ptx.parse import parse
from ekc.emulator.ptx.program import Module
from ekc.emulator.ptx.slice import slice_of

TRIPS = 2
"""Trips of a loop: the first is often special, the second shows the rest."""
_BUDGET = 2_000_000
_LINE, _WARP = 7, 44
"""Bits: an address within its line; a line within what a warp's number stands above."""


@dataclass(frozen=True)
class Touch:
    """How one memory instruction touches memory; an asynchronous copy touches twice."""

    line: int
    """Of the PTX text."""
    space: str
    """"global", "shared" or "local"."""
    writes: bool
    atomic: bool
    """Whether it reads and changes what it writes in one step."""
    argument: int | None
    """Number of the argument whose array it touches (global)."""
    bytes_per_lane: int
    share: float
    """Of the warps, those that ever get here."""
    requests: float
    """Per run of a warp that gets here: below 1 where a guard switches whole warps off."""
    sectors: float
    """32-byte sectors per request (global)."""
    wavefronts: float
    """Passes per request: of shared memory, or of the L1 that shares its banks (global)."""


@dataclass(frozen=True)
class Survey:
    """What the surveyed blocks showed."""

    touches: tuple[Touch, ...]
    live_lines: float
    """Distinct 128-byte lines of global memory that a block reads more than once, mean; few trips ran."""


def survey(
    ptx: str,
    kernel_name: str,
    *,
    grid: Shape,
    block: Shape,
    sizes: Sequence[int],
    dynamic_shared: int = 0,
    blocks: Iterable[int] = (0,),
) -> Survey:
    """Survey a kernel whose parameters are pointers to arrays of `sizes` bytes each.

    `blocks`: linear numbers, x fastest. Raises `EkcError` as `launch` does.
    """
    tour = toured(Tour, ptx, kernel_name, grid, block, sizes, dynamic_shared, blocks)
    found = Survey(tuple(_touches(tour)), tour.notes.live_lines())
    tour.close()
    return found


def toured(
    kind: type[Tour],
    ptx: str,
    kernel_name: str,
    grid: Shape,
    block: Shape,
    sizes: Sequence[int],
    dynamic_shared: int,
    blocks: Iterable[int],
) -> Tour:
    """A tour that has run, to be closed once it was looked at; arguments as of `survey`."""
    decoded = _decoded(ptx, kernel_name)
    arguments = [Blank(size) for size in sizes]
    plan = Plan(decoded, grid, block, arguments, dynamic_shared, sanitize=False, max_instructions=_BUDGET)
    tour = kind(decoded, plan, np.unique(np.fromiter(blocks, np.int64)))
    tour.run()
    return tour


@lru_cache(maxsize=1)
def _parsed(ptx: str) -> Module:
    return parse(ptx)


def _decoded(ptx: str, name: str) -> Decoded:
    module = _parsed(ptx)
    if name not in module.kernels:
        return decode(module, name)
    kernels = module.kernels | {name: slice_of(module.kernels[name])}
    return decode(Module(module.version, module.target, module.variables, kernels), name, apart)


@dataclass(frozen=True)
class _WayOut:
    """A branch that may leave a loop: the loop's first block, and whether the taken side leaves."""

    header: int
    taken: bool


def _ways_out(blocks: Sequence[Block]) -> dict[int, _WayOut]:
    """By block: the innermost loop that its closing branch may leave. Loops are text between a
    backward branch and its target, which is how compilers lay them out."""
    ends: dict[int, int] = {}
    for one in blocks:
        for target in one.exit.targets:
            if target <= one.number:
                ends[target] = max(ends.get(target, 0), one.number)
    found = {}
    for one in blocks:
        if one.exit.kind != "branch":
            continue
        around = sorted((h for h, end in ends.items() if h <= one.number <= end), reverse=True)
        for header in around:
            inside = [header <= target <= ends[header] for target in one.exit.targets]
            if inside[0] != inside[1]:
                found[one.number] = _WayOut(header, taken=not inside[0])
                break
    return found


@dataclass
class _Notes:
    """What the accesses of a tour showed, by site."""

    reads: list[NDArray[np.int64]] = field(default_factory=list)
    first: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Space and an address of each site."""
    passes: Counter[int] = field(default_factory=Counter)
    """Of L1, by site."""
    seen: dict[tuple[Any, int, int], tuple[int, NDArray[np.int64], int]] = field(default_factory=dict)
    """By pattern, width and place in a line: passes, lines, and by how much the pattern was shifted."""
    blocks: int = 1
    block_warps: int = 1

    def see(self, site: Site, probe: Probe, offset: int, warps: NDArray[Any]) -> None:
        """Note an access of the active lanes; `warps` are those of all lanes."""
        self.first.setdefault(site.number, (probe.space.kind, probe.low + offset))
        if probe.space.kind == "global":
            passes, lines = self._looked_at(site, probe, offset, warps)
            self.passes[site.number] += passes
            if site.action == "load":
                self.read(lines)

    def _looked_at(
        self, site: Site, probe: Probe, offset: int, warps: NDArray[Any]
    ) -> tuple[int, NDArray[np.int64]]:
        """Passes through L1, and the lines touched, each with its warp's number above `_WARP`. Both are known
        of addresses that differ from others by a constant, if they lie in their lines alike."""
        at = probe.shift + offset
        key = (probe.pattern, site.size, at & ((1 << _LINE) - 1))
        known = self.seen.get(key) if probe.pattern else None
        if known is None:
            address, own = probe.address + offset, warps if probe.act is None else warps[probe.act]
            lines = distinct((own.astype(np.int64) << _WARP) + (address >> _LINE))
            # A pass returns one register a lane, and L1 does not pack equal neighbours as shared memory does.
            least = len(distinct(own)) * max(1, site.size // 4)
            passes = max(len(lines), least, wavefronts(address, own, site.size)[0])
            known = self.seen[key] = passes, lines, at
        passes, lines, before = known
        return passes, lines + ((at - before) >> _LINE)

    def read(self, lines: NDArray[np.int64]) -> None:
        """Note lines that warps load, each with its warp's number above `_WARP`."""
        blocks = (lines >> _WARP) // self.block_warps
        self.reads.append((blocks << _WARP) + (lines & ((1 << _WARP) - 1)))

    def live_lines(self) -> float:
        """Distinct lines read by more than one request, per block."""
        if not self.reads:
            return 0.0
        _, requests = np.unique(np.concatenate(self.reads), return_counts=True)
        return int(np.count_nonzero(requests > 1)) / self.blocks


class NotingAccess(Access):
    """Accesses that are noted as well."""

    def count(self, site: Site, probe: Probe, offset: int) -> None:
        """Count, and note where."""
        super().count(site, probe, offset)
        batch = self.batch
        assert isinstance(batch, Tour)
        batch.notes.see(site, probe, offset, self.warp)


class Tour(Batch):
    """A batch whose loops end after a few trips."""

    access_type = NotingAccess

    def __init__(self, decoded: Decoded, plan: Plan, ids: NDArray[np.int64]) -> None:
        self.notes = _Notes()
        super().__init__(decoded, plan, ids)
        self.notes.blocks, self.notes.block_warps = len(self.geometry.ids), self.geometry.block_warps
        self.ways_out = _ways_out(decoded.blocks)
        self.visits = [0] * len(decoded.blocks)
        self.came = np.zeros((len(decoded.blocks), len(self.starts)), np.bool_)
        self.masked_runs = [0] * len(decoded.blocks)

    def _spend(self, block: Block) -> None:
        super()._spend(block)
        self.visits[block.number] += 1

    def _taken(self, block: Block) -> Any:
        way = self.ways_out.get(block.number)
        if way is not None and self.visits[way.header] >= TRIPS:
            return np.full(self.every.size, way.taken)
        return super()._taken(block)

    def _leave(self, block: Block, mask: Any) -> None:
        if mask is not None:
            warps = np.logical_or.reduceat(mask, self.starts)
            self.came[block.number] |= warps
            self.masked_runs[block.number] += int(np.count_nonzero(warps))
        super()._leave(block, mask)

    def share(self, number: int) -> float:
        """Of the warps, those that ever ran a block."""
        together = self.warp_runs[number] > self.masked_runs[number]
        return 1.0 if together else float(self.came[number].mean())


def _touches(tour: Tour) -> list[Touch]:
    """One entry per access that was reached."""
    home = {one.line: block.number for block in tour.decoded.blocks for one in block.code}
    return [_touch(tour, sites, home[line]) for (line, _), sites in reached(tour).items()]


def reached(tour: Tour) -> dict[tuple[int, str], list[Site]]:
    """By line of the PTX and action, the sites of an access that was reached: the masked form of an
    instruction counts with the plain one. Products of warpgroups are none: no lane touches by itself."""
    groups: dict[tuple[int, str], list[Site]] = {}
    for site in tour.decoded.shelf.sites:
        if tour.access.requests[site.number] and site.action != "product":
            groups.setdefault((site.instruction.line, site.action), []).append(site)
    return groups


def _touch(tour: Tour, sites: list[Site], block: int) -> Touch:
    access, one = tour.access, sites[0]
    requests = sum(access.requests[site.number] for site in sites)
    space, address = tour.notes.first[one.number]
    passes = tour.notes.passes if space == "global" else access.wavefronts
    return Touch(
        line=one.instruction.line,
        space=space,
        writes=one.action != "load",
        atomic=one.action == "atom",
        argument=tour.plan.argument_at(address) if space == "global" else None,
        bytes_per_lane=one.size,
        share=tour.share(block),
        requests=requests / tour.warp_runs[block],
        sectors=sum(access.sectors[site.number] for site in sites) / requests,
        wavefronts=sum(passes[site.number] for site in sites) / requests,
    )
