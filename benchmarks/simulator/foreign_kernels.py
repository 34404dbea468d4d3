"""Kernels that ekc did not generate, for simulated devices: compiled by NVRTC, counted from
their PTX and machine code alone.

    source = "extern \"C\" __global__ void scale(float* x, int n) { ... }"
    start = KernelStart("scale", (512, 1, 1), (256, 1, 1), {"x": BlankArray(4 << 20), "n": 1 << 20})
    kernel = compile_foreign_kernel(source, "sm_80", [start])
    devices.open("a100").time(kernel)

A schedule says which part of a tensor a block touches. Of a foreign kernel the PTX machine finds that: it
follows the addresses of a few blocks (`block_execution.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.simulator.block_execution import BlockExecution, execute_blocks, trace_block_loops
from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel, Footprint, Launch
from ekc.devices.simulated.launch_counts import (
    LAUNCH_PROFILES,
    KernelStart,
    LaunchProfile,
    profile_launch,
    sample_blocks,
)
from ekc.devices.simulated.memory_traffic import compute_compulsory_bytes
from ekc.emulator.paged_memory import PagedSource
from ekc.errors import InvalidInput
from ekc.machine_code.decode import decode_functions


def compile_foreign_kernel(
    source: str,
    arch: str,
    launches: Sequence[KernelStart],
    *,
    name: str = "",
    flops: float = 0.0,
    options: Sequence[str] = (),
) -> CompiledKernel:
    """Compile CUDA C++ text and count its launches, which run one after another.

    `flops`: useful operations, for rates that are printed only. Raises `NvrtcError` for text that NVRTC
    refuses, and `EkcError` for a kernel that cannot be counted: the message names the instruction.
    """
    output = nvrtc.compile(source, arch, options)
    for one in launches:
        if one.kernel_name not in output.resources:
            names = ", ".join(output.resources) or "none"
            raise InvalidInput(f"launches: no kernel {one.kernel_name!r} in this text; kernels are {names}")
    counted = [count_foreign_launch(output.ptx, output.cubin, arch, one) for one in launches]
    footprints = [footprint for launch, _ in counted for footprint in launch.footprints]
    return CompiledKernel(
        name=name or launches[0].kernel_name,
        cuda_source=source,
        ptx=output.ptx,
        cubin=output.cubin,
        arch=arch,
        log=output.log,
        nvrtc_version=output.nvrtc_version,
        launches=tuple(launch for launch, _ in counted),
        resources=tuple(output.resources[one.kernel_name] for one in launches),
        workspace_bytes=0,
        flops=flops,
        min_bytes=sum(compute_compulsory_bytes(footprint) for footprint in footprints),
        facts={LAUNCH_PROFILES: tuple(profile for _, profile in counted)},
    )


def count_foreign_launch(
    ptx: str, cubin: bytes, arch: str, start: KernelStart
) -> tuple[Launch, LaunchProfile]:
    """A launch with the footprints of its blocks, and what it executes, from a few executed blocks."""
    execution = execute_blocks(ptx, start, sample_blocks(start))
    sizes = {name: _count_bytes(value) for name, value in start.arguments.items()}
    launch = Launch(
        name=start.kernel_name,
        grid=start.grid,
        block=start.block,
        shared_bytes=start.shared_bytes,
        arguments=tuple(sizes),
        argument_bytes=tuple(sizes.values()),
        footprints=_find_footprints(ptx, start, execution, sizes),
        scalars=tuple((name, value) for name, value in start.arguments.items() if not sizes[name]),
    )
    code = decode_functions(cubin, arch)[start.kernel_name]
    return launch, profile_launch(ptx, code, start, execution.runs)


def _find_footprints(
    ptx: str, start: KernelStart, execution: BlockExecution, sizes: Mapping[str, int]
) -> tuple[Footprint, ...]:
    """The part of each array that a block touches, and the digits of its number on which that depends."""
    loops, names = trace_block_loops(ptx, start), tuple(sizes)
    return tuple(
        Footprint(
            names[number],
            kind,
            sizes[names[number]],
            touched.bytes,
            loops[number, kind],
            block_sectors=touched.sectors,
            block_pairs=touched.pairs,
        )
        for (number, kind), touched in execution.touched.items()
    )


def _count_bytes(value: Any) -> int:
    """Bytes of an array; 0 for a number."""
    return int(value.nbytes) if isinstance(value, PagedSource | np.ndarray) else 0
