"""`survey_accesses`: the memory access patterns of a kernel, found without computing its results.

Only the instructions that decide branches and addresses run, on some blocks, and every loop ends after a few
trips. That is enough to see how coalesced the lanes of a warp are, in a hundredth of the time of a run. It
does not give the runs of an instruction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.access import MemoryUnit
from ekc.emulator.batch import Batch
from ekc.emulator.counters import count_wavefronts, sort_unique
from ekc.emulator.decode.context import Site
from ekc.emulator.decode.decode import DecodedKernel, allocate_separate_slots, decode_kernel
from ekc.emulator.geometry import Shape
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import AddressProbe
from ekc.emulator.plan import LaunchPlan
from ekc.emulator.sanitizer.sanitizer import Sanitizer
from ekc.ptx.address_slice import slice_addresses
from ekc.ptx.cfg import Block, derive_loop_ranges
from ekc.ptx.parser import parse_module
from ekc.tables import group_pairs

LOOP_TRIPS = 2
"""Trips of a loop: the first is often special, the second shows the rest."""
AnyTrace = TypeVar("AnyTrace", bound=Batch)
_BUDGET = 2_000_000
"""Most instructions of a slice that its slowest thread may run."""
_LINE_BITS, _WARP_SHIFT = 7, 44
"""Bits of an address within its line; bits of a line number, above which the number of a warp is put."""


@dataclass(frozen=True)
class AccessProfile:
    """How one memory instruction touches memory; an asynchronous copy touches twice."""

    line: int
    """Line of the PTX text."""
    space: str
    """"global", "shared" or "local"."""
    is_write: bool
    is_atomic: bool
    """Whether the instruction is an atomic."""
    argument_number: int | None
    """Number of the argument whose array it touches (global)."""
    bytes_per_lane: int
    requests: float
    """Requests per run by a warp; below 1 where a guard is false for whole warps."""
    sectors: float
    """32-byte sectors per request (global)."""
    wavefronts: float
    """Passes per request: of shared memory, or of the L1 that shares its banks (global)."""


@dataclass(frozen=True)
class AccessSurvey:
    """Access patterns of the surveyed blocks."""

    profiles: tuple[AccessProfile, ...]
    live_lines: float
    """Distinct 128-byte lines of global memory that a block reads more than once in the few trips; mean."""


def survey_accesses(
    ptx: str,
    kernel_name: str,
    *,
    grid: Shape,
    block: Shape,
    arguments: Sequence[Any],
    dynamic_shared: int = 0,
    blocks: Iterable[int] = (0,),
) -> AccessSurvey:
    """Survey a kernel. `arguments`: as of `launch`, or a `BlankArray` for an array whose content decides
    no branch and no address.

    `blocks`: linear numbers, x fastest. Raises `EkcError` as `launch` does.
    """
    decoded = decode_address_slice(ptx, kernel_name)
    trace = run_trace(AddressTrace, decoded, grid, block, arguments, dynamic_shared, blocks)
    survey = AccessSurvey(tuple(_profile_accesses(trace)), get_notes(trace).count_live_lines())
    trace.close()
    return survey


def run_trace(
    trace_type: type[AnyTrace],
    decoded: DecodedKernel,
    grid: Shape,
    block: Shape,
    arguments: Sequence[Any],
    dynamic_shared: int,
    blocks: Iterable[int],
) -> AnyTrace:
    """Run a trace of a slice, which the caller closes; arguments as of `survey_accesses`."""
    plan = LaunchPlan(decoded, grid, block, arguments, dynamic_shared, False, _BUDGET)
    trace = trace_type(decoded, plan, np.unique(np.fromiter(blocks, np.int64)))
    trace.run()
    return trace


def decode_address_slice(ptx: str, name: str) -> DecodedKernel:
    """The instructions of a kernel on which its branches and addresses depend, ready to run."""
    module = parse_module(ptx)
    kernels = module.kernels | {name: slice_addresses(module.find_kernel(name))}
    return decode_kernel(replace(module, kernels=kernels), name, allocate_separate_slots)


def _find_loop_exits(blocks: Sequence[Block]) -> dict[int, tuple[int, bool]]:
    """Block -> first block of the innermost loop that its branch may leave, and whether the taken branch
    does."""
    ends = dict(derive_loop_ranges((one.number, target) for one in blocks for target in one.exit.targets))
    exits = {}
    for one in blocks:
        if one.exit.kind != "branch":
            continue
        around = sorted((h for h, end in ends.items() if h <= one.number <= end), reverse=True)
        for header in around:
            inside = [header <= target <= ends[header] for target in one.exit.targets]
            if inside[0] != inside[1]:
                exits[one.number] = header, not inside[0]
                break
    return exits


class TracingMemoryUnit(MemoryUnit):
    """A memory unit that also notes each access."""

    def __init__(self, batch: LaneState, sanitizer: Sanitizer | None) -> None:
        super().__init__(batch, sanitizer)
        self.read_lines: list[NDArray[np.int64]] = []
        self.first_access: dict[int, tuple[str, int]] = {}
        """Site number -> address space and one address."""
        self.l1_passes: Counter[int] = Counter()
        """Site number -> passes through L1."""
        self.line_cache: dict[tuple[Any, int, int], tuple[int, NDArray[np.int64], int]] = {}
        """(pattern, width, place in a line) -> (passes, lines, shift of the pattern when they were found)."""

    def count_requests(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Count a request, and note its addresses."""
        super().count_requests(site, probe, offset)
        self.first_access.setdefault(site.number, (probe.space.kind, probe.low + offset))
        if probe.space.kind == "global":
            passes, lines = self._find_lines(site, probe, offset)
            self.l1_passes[site.number] += passes
            if site.action == "load":
                blocks = (lines >> _WARP_SHIFT) // self.batch.geometry.warps_per_block
                self.read_lines.append((blocks << _WARP_SHIFT) + (lines & ((1 << _WARP_SHIFT) - 1)))

    def _find_lines(self, site: Site, probe: AddressProbe, offset: int) -> tuple[int, NDArray[np.int64]]:
        """Passes through L1, and the lines touched, each with its warp's number above `_WARP_SHIFT` bits.

        Both are cached for addresses that differ by a constant and have the same place in their lines."""
        at = probe.shift + offset
        key = (probe.pattern, site.bytes_per_lane, at & ((1 << _LINE_BITS) - 1))
        cached = self.line_cache.get(key) if probe.pattern else None
        if cached is None:
            address, own = probe.address + offset, self.lane_warps[probe.lane_numbers(self.batch.all_lanes)]
            lines = sort_unique((own.astype(np.int64) << _WARP_SHIFT) + (address >> _LINE_BITS))
            # A pass returns one register a lane, and L1 does not pack equal neighbours as shared memory does.
            least = len(sort_unique(own)) * max(1, site.bytes_per_lane // 4)
            passes = max(len(lines), least, count_wavefronts(address, own, site.bytes_per_lane)[0])
            cached = self.line_cache[key] = passes, lines, at
        passes, lines, before = cached
        return passes, lines + ((at - before) >> _LINE_BITS)

    def count_live_lines(self) -> float:
        """Distinct lines read by more than one request, per block."""
        if not self.read_lines:
            return 0.0
        _, requests = np.unique(np.concatenate(self.read_lines), return_counts=True)
        return int(np.count_nonzero(requests > 1)) / len(self.batch.geometry.block_ids)


class AddressTrace(Batch):
    """A batch whose loops end after a few trips."""

    memory_unit_type: type[MemoryUnit] = TracingMemoryUnit

    def __init__(self, decoded: DecodedKernel, plan: LaunchPlan, ids: NDArray[np.int64]) -> None:
        super().__init__(decoded, plan, ids)
        self.loop_exits = _find_loop_exits(decoded.blocks)
        self.visits = [0] * len(decoded.blocks)

    def _charge_budget(self, block: Block) -> None:
        super()._charge_budget(block)
        self.visits[block.number] += 1

    def _evaluate_branch(self, block: Block) -> Any:
        header, leaves_when_taken = self.loop_exits.get(block.number, (None, False))
        if header is not None and self.visits[header] >= LOOP_TRIPS:
            return np.full(self.all_lanes.size, leaves_when_taken)
        return super()._evaluate_branch(block)


def get_notes(trace: AddressTrace) -> TracingMemoryUnit:
    """The memory unit of a trace that notes accesses."""
    assert isinstance(trace.memory_unit, TracingMemoryUnit)
    return trace.memory_unit


def _profile_accesses(trace: AddressTrace) -> list[AccessProfile]:
    """One entry per access that was reached."""
    home = {one.line: block.number for block in trace.decoded.blocks for one in block.code}
    groups = group_reached_sites(trace)
    return [_profile_access(trace, sites, home[line]) for (line, _), sites in groups.items()]


def group_reached_sites(trace: AddressTrace) -> dict[tuple[int, str], list[Site]]:
    """(line of the PTX, action) -> sites of an access that was reached, in plain and in masked form.

    Products of warpgroups are left out: their accesses belong to no single lane."""
    return group_pairs(
        ((site.instruction.line, site.action), site)
        for site in trace.decoded.context.sites
        if trace.plan.counts.requests[site.number] and site.action != "product"
    )


def _profile_access(trace: AddressTrace, sites: list[Site], block: int) -> AccessProfile:
    counts, notes, one = trace.plan.counts, get_notes(trace), sites[0]
    requests = sum(counts.requests[site.number] for site in sites)
    space, address = notes.first_access[one.number]
    passes = notes.l1_passes if space == "global" else counts.wavefronts
    return AccessProfile(
        line=one.instruction.line,
        space=space,
        is_write=one.action != "load",
        is_atomic=one.action == "atom",
        argument_number=trace.plan.find_argument(address) if space == "global" else None,
        bytes_per_lane=one.bytes_per_lane,
        requests=requests / counts.warp_runs[block],
        sectors=sum(counts.sectors[site.number] for site in sites) / requests,
        wavefronts=sum(passes[site.number] for site in sites) / requests,
    )
