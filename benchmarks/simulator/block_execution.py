"""`execute_blocks`: runs of each instruction and bytes of each array in some blocks of any kernel, found
without computing its results.

Only the instructions that decide branches and addresses of global memory run, but every loop to its end. So
loops that begin at the number of the thread, branches for some warps only, and bounds that are arguments are
counted as they are.

`trace_block_loops`: how the addresses depend on the number of the block. A grid is a number in mixed radix,
each digit the number of a tile along some axis, and a tensor moves with some digits. Blocks whose numbers
divide the grid tell which: block 1 differs from block 0 in the fastest digit, and the first block that begins
where block 0 does (or the first that does not) in the next digit. Blocks as far from the last one tell it
too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ekc.devices.simulated.launch_counts import KernelStart
from ekc.emulator.access import MemoryUnit
from ekc.emulator.access_survey import AddressTrace, AnyTrace, run_trace
from ekc.emulator.batch import Batch
from ekc.emulator.decode.context import Site
from ekc.emulator.decode.decode import DecodedKernel, allocate_separate_slots, decode_kernel
from ekc.emulator.memory import AddressProbe
from ekc.emulator.paged_memory import BlankArray
from ekc.emulator.plan import LaunchPlan
from ekc.ptx.address_slice import ReachingWrites, drop_stored_data, find_needed
from ekc.ptx.module import Address, Immediate, Instruction, KernelText, Register, Symbol
from ekc.ptx.parser import parse_module

Access = tuple[int, str]
"""Number of an array argument, and the kind of its accesses: "load", "store" or "atomic"."""
BlockLoops = tuple[tuple[int, bool], ...]
"""(extent, whether the touched part of the array depends on it) of each digit of a block's number, fastest
first."""

Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""First addresses and ends of some ranges."""

SECTOR_BYTES, PAIR_BYTES = 32, 64
_BLOCK_SHIFT = 44
"""Bits of an address, above which the number of a block is put."""
_MAX_NOTED = 1 << 22
"""Ranges of addresses that are noted before they are united."""
_KINDS = {"load": "load", "async": "load", "store": "store", "atom": "atomic"}


@dataclass(frozen=True)
class TouchedMemory:
    """Distinct memory of one array that a block touches."""

    bytes: float
    sectors: float
    """Sectors of 32 bytes."""
    pairs: float
    """Pairs of sectors, 64 bytes."""


@dataclass(frozen=True)
class BlockExecution:
    """Instructions and accesses of some blocks of a kernel."""

    runs: tuple[tuple[Instruction, float], ...]
    """Runs of each instruction by a warp, mean over all warps of these blocks."""
    touched: Mapping[Access, TouchedMemory]
    """Distinct memory that a block touches, the most of all these blocks."""


def execute_blocks(ptx: str, launch: KernelStart, blocks: Iterable[int]) -> BlockExecution:
    """Follow the control flow and the addresses of global memory of some blocks (linear numbers, x fastest).

    Other branches on data (`if (isnan(x[i]))`) take the side of the data given, which are zeros in a
    `BlankArray`. Raises `EkcError` as `launch` does, and where the length of a loop or an address depends on
    an array without content.
    """
    code = _slice_launch(ptx, launch)
    may_wait = code.address_reads or code.loop_reads
    trace = _run_slice(_WaitingTrace if may_wait else _ExecutionTrace, ptx, launch, code, blocks)
    warps, runs = len(trace.warp_starts), trace.plan.counts.warp_runs
    runs_by_first = {block.instructions[0]: runs[block.number] / warps for block in trace.decoded.blocks}
    runs = [(one, runs_by_first[first]) for first, members in code.members.items() for one in members]
    touched = trace.measure_touched()
    trace.close()
    return BlockExecution(tuple(runs), touched)


def trace_block_loops(ptx: str, launch: KernelStart) -> dict[Access, BlockLoops]:
    """The digits of the number of a block on which the touched part of each array depends. Errors as of
    `execute_blocks`."""
    total = prod(launch.grid)
    numbers = np.array([0, *(n for n in _list_divisors(total) if n < total)])
    traced, places = np.unique(np.concatenate([numbers, total - 1 - numbers]), return_inverse=True)
    trace = _run_slice(_StartTrace, ptx, launch, _slice_launch(ptx, launch), traced.tolist())
    starts = trace.group_starts()
    trace.close()
    # The first block may not run an access at the edge of an array, and neither may the last, elsewhere.
    first, last = places[: len(numbers)], places[len(numbers) :]
    return {
        access: _split_into_digits(
            total, numbers.tolist(), _differs(each[:, first]) | _differs(each[:, last])
        )
        for access, each in starts.items()
    }


def _differs(starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each block begins elsewhere than the first one, `[site, block]`; -1 where it runs no access."""
    known = (starts >= 0) & (starts[:, :1] >= 0)
    return np.asarray(((starts != starts[:, :1]) & known).any(axis=0))


def _slice_launch(ptx: str, launch: KernelStart) -> ControlSlice:
    kernel = parse_module(ptx).find_kernel(launch.kernel_name)
    code = slice_control(kernel)
    reads = (*code.address_reads, *(() if launch.has_zero_data else code.loop_reads))
    if reads and any(isinstance(one, BlankArray) for one in launch.arguments.values()):
        raise reads[0].make_error("a loop or an address depends on this data: give arrays with content")
    return slice_control(kernel, is_whole=True) if reads else code


def _run_slice(
    trace_type: type[AnyTrace], ptx: str, launch: KernelStart, code: ControlSlice, blocks: Iterable[int]
) -> AnyTrace:
    module = parse_module(ptx)
    module = replace(module, kernels=module.kernels | {launch.kernel_name: code.kernel})
    decoded = decode_kernel(module, launch.kernel_name, allocate_separate_slots)
    arguments = tuple(launch.arguments.values())
    return run_trace(trace_type, decoded, launch.grid, launch.block, arguments, launch.shared_bytes, blocks)


def _list_divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def _split_into_digits(total: int, numbers: Sequence[int], differs: NDArray[np.bool_]) -> BlockLoops:
    """Digits, from whether blocks at these distances touch different parts; the distances divide the grid."""
    moves = {number: bool(moved) for number, moved in zip(numbers, differs, strict=True) if number}
    digits, stride = [], 1
    while stride < total:
        inside = [n for n in moves if n % stride == 0 and n >= stride]
        end = next((n for n in inside if moves[n] != moves[stride]), total)
        digits.append((end // stride, moves[stride]))
        stride = end
    return tuple(digits) or ((1, False),)


def _find_ranges(addresses: NDArray[np.int64], width: int) -> Ranges:
    """The ranges that accesses of `width` bytes touch, one for each run of neighbours in this order."""
    steps = np.diff(addresses)
    last = np.flatnonzero((steps != width) & (steps != 0))
    starts = addresses[np.r_[0, last + 1]]
    return starts, addresses[np.r_[last, addresses.size - 1]] + width


def _unite_ranges(noted: Sequence[Ranges]) -> Ranges:
    """Ascending ranges with gaps between them that hold the same addresses."""
    starts, ends = (np.concatenate(part) for part in zip(*noted, strict=True))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.r_[0, gaps + 1]], ends[np.r_[gaps, ends.size - 1]]


def _summarize_ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> TouchedMemory:
    """Memory of the block that touches the most of these united ranges. Of several, which may begin at other
    places in a sector, the mean."""
    _, block = np.unique(starts >> _BLOCK_SHIFT, return_inverse=True)
    bytes_by_block = np.bincount(block, ends - starts)
    is_most = bytes_by_block == bytes_by_block.max()
    own, count = is_most[block], np.count_nonzero(is_most)
    sectors, pairs = (
        _count_cells(starts[own], ends[own], size) / count for size in (SECTOR_BYTES, PAIR_BYTES)
    )
    return TouchedMemory(float(bytes_by_block.max()), sectors, pairs)


def _count_cells(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """Cells of `size` bytes that united ranges touch; neighbouring ranges may share one."""
    first, last = starts // size, (ends - 1) // size
    return int(np.sum(last - first + 1) - np.count_nonzero(first[1:] == last[:-1]))


class _NotingMemoryUnit(MemoryUnit):
    """A memory unit that notes accesses of global memory and counts nothing."""

    def count_requests(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Note the addresses of a request."""
        if probe.space.kind == "global":
            assert isinstance(self.batch, _ExecutionTrace | _StartTrace)
            self.batch.note_access(site, probe, offset)


class _ExecutionTrace(Batch):
    """A batch that notes every address of global memory. No loop waits for data, so lanes that have diverged
    meet again as early as they can."""

    memory_unit_type = _NotingMemoryUnit
    fairness_interval = sys.maxsize

    def __init__(self, decoded: DecodedKernel, plan: LaunchPlan, ids: NDArray[np.int64]) -> None:
        self.noted: dict[str, list[Ranges]] = {}
        """Kind -> ranges of addresses, with the index of the block above `_BLOCK_SHIFT` bits."""
        self.noted_count = 0
        """Ranges that were noted since they were united."""
        super().__init__(decoded, plan, ids)
        self.lane_keys = self.geometry.block_numbers() << _BLOCK_SHIFT

    def note_access(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Note the addresses of the active lanes."""
        addresses = self.lane_keys[probe.lane_numbers(self.all_lanes)] + probe.address + offset
        if not addresses.size:
            return
        ranges = _find_ranges(addresses, site.bytes_per_lane)
        self.noted.setdefault(_KINDS[site.action], []).append(ranges)
        self.noted_count += ranges[0].size
        if self.noted_count > _MAX_NOTED:
            for noted in self.noted.values():
                noted[:] = [_unite_ranges(noted)]
            self.noted_count = 0

    def measure_touched(self) -> dict[Access, TouchedMemory]:
        """Distinct memory that a block touches by argument and kind, the most of all blocks."""
        touched: dict[Access, TouchedMemory] = {}
        arrays = np.array(self.spaces["global"].allocation_starts, np.int64)
        for kind, noted in self.noted.items():
            starts, ends = _unite_ranges(noted)
            array = np.searchsorted(arrays, starts & ((1 << _BLOCK_SHIFT) - 1), side="right") - 1
            for one in np.unique(array):
                number = self.plan.find_argument(int(arrays[one]))
                if number is not None:
                    own = array == one
                    touched[number, kind] = _summarize_ranges(starts[own], ends[own])
        return touched


class _WaitingTrace(_ExecutionTrace):
    """The same, where a loop may wait for what other lanes write."""

    fairness_interval = Batch.fairness_interval


class _StartTrace(AddressTrace):
    """A batch that notes the lowest address of each block at the first run of each global access."""

    memory_unit_type = _NotingMemoryUnit

    def __init__(self, decoded: DecodedKernel, plan: LaunchPlan, ids: NDArray[np.int64]) -> None:
        self.starts: dict[tuple[int, str], NDArray[np.int64]] = {}
        """(line of the PTX text, kind) -> lowest address of each block, -1 where it did not run."""
        super().__init__(decoded, plan, ids)
        self.lane_blocks = self.geometry.block_numbers()

    def note_access(self, site: Site, probe: AddressProbe, offset: int) -> None:
        """Note the lowest address of each block that has not run this access before."""
        key = (site.instruction.line, _KINDS[site.action])
        starts = self.starts.setdefault(key, np.full(len(self.geometry.block_ids), -1, np.int64))
        blocks = self.lane_blocks[probe.lane_numbers(self.all_lanes)]
        first = np.flatnonzero(np.r_[True, blocks[1:] != blocks[:-1]])
        lowest = np.minimum.reduceat(probe.address + offset, first)
        own = blocks[first]
        starts[own] = np.where(starts[own] < 0, lowest, starts[own])

    def group_starts(self) -> dict[Access, NDArray[np.int64]]:
        """First addresses `[site, block]` of the accesses to each array argument, by kind."""
        groups: dict[Access, list[NDArray[np.int64]]] = {}
        for (_, kind), starts in self.starts.items():
            number = self.plan.find_argument(int(starts.max()))
            if number is not None:
                groups.setdefault((number, kind), []).append(starts)
        return {access: np.stack(each) for access, each in groups.items()}


@dataclass(frozen=True)
class ControlSlice:
    """A slice of a kernel that runs the same basic blocks as the kernel."""

    kernel: KernelText
    members: Mapping[Instruction, tuple[Instruction, ...]]
    """First instruction of a basic block of the slice -> all instructions of that block of the kernel."""
    loop_reads: tuple[Instruction, ...]
    """Loads and atomics that read what the length of a loop depends on."""
    address_reads: tuple[Instruction, ...]
    """Loads and atomics that read what an address of global memory depends on."""


_MARKER = "%ekc_block"
"""Register that the marker of an empty basic block writes."""


def slice_control(kernel: KernelText, is_whole: bool = False) -> ControlSlice:
    """The kernel without the instructions on which no branch and no address of global memory depends. Stores
    write zeros. A basic block of which nothing is left gets a marker, so that its runs can be counted. A
    slice that `is_whole` keeps every instruction and all data."""
    writes = ReachingWrites(kernel)
    keep, _ = find_needed(writes, [is_whole or _is_control_anchor(one) for one in kernel.code])
    starts = {0, *kernel.labels.values(), *(n + 1 for n, one in enumerate(kernel.code) if one.ends_block)}
    edges = sorted(start for start in starts if start < len(kernel.code))
    readers = kernel.readers_by_register
    code: list[Instruction] = []
    members, moved = {}, {}
    for start, end in zip(edges, [*edges[1:], len(kernel.code)], strict=True):
        moved[start] = len(code)
        kept = [kernel.code[n] for n in range(start, end) if keep[n]]
        kept = kept if is_whole else [drop_stored_data(one, readers) for one in kept]
        code += kept or [_make_marker(kernel.code[start])]
        members[code[moved[start]]] = tuple(kernel.code[start:end])
    sliced = replace(
        kernel,
        code=code,
        labels={label: moved.get(place, len(code)) for label, place in kernel.labels.items()},
        registers=kernel.registers | {_MARKER: "u32"},
    )
    loops = _find_loop_branches(kernel)
    loop_reads = _find_deciding_reads(writes, [number in loops for number in range(len(kernel.code))])
    address_reads = _find_deciding_reads(writes, list(map(_has_global_address, kernel.code)))
    return ControlSlice(sliced, members, loop_reads, address_reads)


def _find_deciding_reads(writes: ReachingWrites, anchors: Sequence[bool]) -> tuple[Instruction, ...]:
    """Reads of memory on which one of these anchors depends."""
    _, used = find_needed(writes, anchors)
    return tuple(one for n, one in enumerate(writes.kernel.code) if n in used and _reads_data(one))


def _find_loop_branches(kernel: KernelText) -> set[int]:
    """Guarded branches that decide whether a loop goes on: back to its start, or out of it. A loop is the
    code from the target of a branch back to that branch, as compilers lay loops out."""
    targets = {
        number: kernel.labels.get(one.operands[-1].name)
        for number, one in enumerate(kernel.code)
        if one.parts[0] == "bra" and isinstance(one.operands[-1], Symbol)
    }
    branches = {number: target for number, target in targets.items() if target is not None}
    loops = [(target, number) for number, target in branches.items() if target <= number]
    return {
        number
        for number, target in branches.items()
        if kernel.code[number].guard is not None
        and any(start <= number <= end and not number < target <= end for start, end in loops)
    }


def _make_marker(first: Instruction) -> Instruction:
    operands = (Register(_MARKER), Immediate(0))
    return Instruction("mov.u32", None, operands, first.line, first.source_line, f"mov.u32 {_MARKER}, 0")


def _reads_data(instruction: Instruction) -> bool:
    """Whether an instruction reads memory that threads or launches may write."""
    is_constant = not {"param", "const"}.isdisjoint(part.split("::")[0] for part in instruction.parts)
    return instruction.parts[0] in ("ld", "ldu", "atom", "ldmatrix") and not is_constant


def _is_control_anchor(instruction: Instruction) -> bool:
    """Whether an instruction stays in a control slice in any case: it branches, copies or has an address that
    may be one of global memory."""
    return instruction.ends_block or instruction.parts[0] == "cp" or _has_global_address(instruction)


def _has_global_address(instruction: Instruction) -> bool:
    """Whether an instruction has an address that may be one of global memory."""
    spaces = {part.split("::")[0] for part in instruction.parts}
    is_copy = instruction.parts[0] == "cp" and "global" in spaces
    on_chip = not is_copy and not spaces.isdisjoint(("shared", "local", "param", "const"))
    return not on_chip and Address in map(type, instruction.operands)
