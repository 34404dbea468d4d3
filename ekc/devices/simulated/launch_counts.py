"""Memory accesses and instructions of one launch, counted from its compiled PTX and machine code.

The branches of the PTX give how often each instruction runs (`ekc/ptx/counting`). The PTX machine, which runs
the address arithmetic of a few blocks, gives how the addresses of a warp are spread. Machine code gives how
many instructions issue, how long a warp takes alone, and what it spills. This module does not know the
schedule, so it can disagree with the analysis that the cost models use.

Occupancy: blocks of a kernel that are resident on one SM, and the resource that limits them.

The rules are those of NVIDIA's occupancy calculator (cuda_occupancy.h).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices.simulated.specs import Capability
from ekc.emulator.access_survey import AccessProfile, survey_accesses
from ekc.emulator.geometry import Shape
from ekc.emulator.paged_memory import BlankArray
from ekc.machine_code.decode import MachineCode, decode_functions
from ekc.machine_code.warp_path import MachineCounts, count_machine_code
from ekc.ptx.counting.branch_slice import Threads
from ekc.ptx.counting.counts import (
    InstructionCounts,
    InstructionRuns,
    list_instruction_runs,
    sum_instruction_counts,
)
from ekc.ptx.parser import parse_module

WARP_SIZE = 32


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that are resident on one SM."""

    blocks: int
    warps_per_block: int
    limited_by: str
    """"registers", "shared memory", "warps" or "blocks"."""

    @property
    def warps(self) -> int:
        """Resident warps of one SM."""
        return self.blocks * self.warps_per_block


def compute_occupancy(capability: Capability, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Resident blocks by threads a block, registers a thread, shared bytes a block; zero if none fits."""
    warps = -(-threads // WARP_SIZE)
    bounds = {
        "registers": _limit_by_registers(capability, warps, registers),
        "shared memory": _limit_by_shared_memory(capability, shared_bytes),
        "warps": capability.warps_per_sm // warps,
        "blocks": capability.blocks_per_sm,
    }
    limiter = min(bounds, key=lambda name: bounds[name])
    return Occupancy(bounds[limiter], warps, limiter)


def compute_launch_occupancy(capability: Capability, launch: Launch, resources: Resources) -> Occupancy:
    """Resident blocks of a launch."""
    shared = launch.shared_bytes + resources.shared_bytes
    return compute_occupancy(capability, prod(launch.block), resources.registers, shared)


def _limit_by_registers(capability: Capability, warps: int, registers: int) -> int:
    per_warp = _round_up(max(registers, 1) * WARP_SIZE, capability.register_granularity)
    resident = capability.registers_per_sm // per_warp
    resident -= resident % capability.warp_granularity
    return resident // warps


def _limit_by_shared_memory(capability: Capability, shared_bytes: int) -> int:
    if shared_bytes > capability.shared_bytes_per_block:
        return 0
    block_bytes = _round_up(
        shared_bytes + capability.reserved_shared_bytes_per_block, capability.shared_granularity_bytes
    )
    return capability.shared_bytes_per_sm // block_bytes if block_bytes else capability.blocks_per_sm


def _round_up(a: int, b: int) -> int:
    return -(-a // b) * b


SURVEY_LANES = 2048
"""Approximate number of lanes to survey: blocks are alike but at the edges."""
MIN_SURVEY_BLOCKS, MAX_SURVEY_BLOCKS = 2, 16
"""Bounds of the number of blocks to survey, where there are so many."""


@dataclass(frozen=True)
class KernelStart:
    """How to start a kernel: of ekc, or of anybody else."""

    kernel_name: str
    """Name in the PTX: mangled, where the function is not `extern "C"`."""
    grid: Shape
    block: Shape
    arguments: Mapping[str, Any]
    """Values of the parameters in their order, under any names: a number, an array, or a `BlankArray` for an
    array whose content decides neither the length of a loop nor an address."""
    shared_bytes: int = 0
    """Dynamic shared memory."""
    has_zero_data: bool = False
    """Whether zeros may decide the length of loops where arrays have no content."""


@dataclass(frozen=True)
class AccessGroup:
    """Accesses of one kind: same tensor, same width, same pattern."""

    tensor: str
    """Argument that the accesses touch; "" in shared memory."""
    space: str
    """"global" or "shared"."""
    kind: str
    """"load", "store" or "atomic"."""
    bytes_per_lane: int
    requests: float
    """Warp-level requests of one block from start to end."""
    sectors: float
    """32-byte sectors per request (global)."""
    wavefronts: float
    """Passes per request through the banks that shared memory and L1 share."""
    is_async: bool = False
    """Whether an asynchronous copy makes the accesses: the data pass no register."""


@dataclass(frozen=True)
class LaunchProfile:
    """Instructions and accesses that one launch executes."""

    counts: InstructionCounts
    """Instructions that one thread executes."""
    accesses: tuple[AccessGroup, ...]
    live_lines: float
    """128-byte lines of global memory that a block reads more than once in two trips of its loops."""
    machine: MachineCounts
    """Machine instructions that a warp executes."""


LAUNCH_PROFILES = "launch profiles"
"""Name of the profiles among the `facts` of a compiled kernel."""


def collect_facts(kernel: CompiledKernel) -> dict[str, tuple[LaunchProfile, ...]]:
    """The facts that a simulated device needs of a kernel. Raises `EkcError` as `profile_kernel` does."""
    return {LAUNCH_PROFILES: profile_kernel(kernel)}


def get_launch_profiles(kernel: CompiledKernel) -> tuple[LaunchProfile, ...]:
    """The profiles among a kernel's facts; made here if the compile job did not. Raises `EkcError`."""
    profiles: tuple[LaunchProfile, ...] | None = kernel.facts.get(LAUNCH_PROFILES)
    return profile_kernel(kernel) if profiles is None else profiles


def profile_kernel(kernel: CompiledKernel) -> tuple[LaunchProfile, ...]:
    """One profile per launch. Raises `EkcError` for an unknown instruction or an uncountable loop."""
    return _profile_launches(kernel.ptx, kernel.cubin, kernel.arch, kernel.launches)


@lru_cache(maxsize=64)
def _profile_launches(
    ptx: str, cubin: bytes, arch: str, launches: tuple[Launch, ...]
) -> tuple[LaunchProfile, ...]:
    """See `profile_kernel`. Those of the last kernels are kept: a search of 16 trials that is repeated in a
    process then takes 1.5 CPU seconds instead of 2.6."""
    functions = decode_functions(cubin, arch)
    return tuple(_profile_launch(ptx, functions[one.name], one) for one in launches)


def _profile_launch(ptx: str, code: MachineCode, launch: Launch) -> LaunchProfile:
    sizes = zip(launch.arguments, launch.argument_bytes, strict=True)
    arguments = {name: BlankArray(size) for name, size in sizes} | dict(launch.scalars)
    start = KernelStart(launch.name, launch.grid, launch.block, arguments, launch.shared_bytes)
    kernel = parse_module(ptx).find_kernel(launch.name)
    return profile_launch(ptx, code, start, list_instruction_runs(kernel, sample_threads(start)))


def sample_threads(launch: KernelStart) -> Threads:
    """The threads of `sample_blocks`."""
    return Threads(launch.grid, launch.block, tuple(sample_blocks(launch)), tuple(launch.arguments.values()))


def profile_launch(ptx: str, code: MachineCode, launch: KernelStart, runs: InstructionRuns) -> LaunchProfile:
    """The profile of a launch of any kernel, from the runs of its instructions in some blocks."""
    survey = survey_accesses(
        ptx,
        launch.kernel_name,
        grid=launch.grid,
        block=launch.block,
        arguments=tuple(launch.arguments.values()),
        dynamic_shared=launch.shared_bytes,
        blocks=sample_blocks(launch),
    )
    runs_by_line = {one.line: times for one, times in runs}
    copies = frozenset(one.line for one, _ in runs if one.parts[:2] == ("cp", "async"))
    kernel = parse_module(ptx).find_kernel(launch.kernel_name)
    groups: dict[tuple[object, ...], list[tuple[AccessProfile, float]]] = {}
    for touch in survey.profiles:
        if touch.space in ("global", "shared"):
            key = (touch.space, _classify_access(touch), touch.argument_number, touch.bytes_per_lane)
            pattern = (touch.line in copies, touch.sectors, touch.wavefronts)
            groups.setdefault((*key, *pattern), []).append((touch, runs_by_line[touch.line]))
    accesses = tuple(_make_access_group(launch, one, copies) for one in groups.values())
    machine = count_machine_code(code, kernel, runs_by_line)
    return LaunchProfile(sum_instruction_counts(runs), accesses, survey.live_lines, machine)


def sample_blocks(launch: KernelStart) -> Sequence[int]:
    """Some blocks of the grid, drawn evenly; the same ones every time."""
    total = launch.grid[0] * launch.grid[1] * launch.grid[2]
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    number = min(total, MAX_SURVEY_BLOCKS, max(MIN_SURVEY_BLOCKS, SURVEY_LANES // threads))
    if number == total:
        return range(total)
    return list(map(int, np.random.default_rng(0).choice(total, number, replace=False)))


def _classify_access(touch: AccessProfile) -> str:
    if touch.is_atomic:
        return "atomic"
    return "store" if touch.is_write else "load"


def _make_access_group(
    launch: KernelStart,
    group: list[tuple[AccessProfile, float]],
    async_copy_lines: frozenset[int],
) -> AccessGroup:
    one, names = group[0][0], tuple(launch.arguments)
    warps = -(-(launch.block[0] * launch.block[1] * launch.block[2]) // WARP_SIZE)
    return AccessGroup(
        tensor=names[one.argument_number] if one.argument_number is not None else "",
        space=one.space,
        kind=_classify_access(one),
        bytes_per_lane=one.bytes_per_lane,
        requests=sum(warp_runs * touch.requests for touch, warp_runs in group) * warps,
        sectors=one.sectors,
        wavefronts=one.wavefronts,
        is_async=one.line in async_copy_lines,
    )
