"""From a Schedule to CUDA text and launches, and through NVRTC to a CompiledKernel."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any

from ekc.codegen import nvrtc
from ekc.codegen.cache import compile_cached
from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.codegen.emit.copies import format_declaration
from ekc.codegen.emit.device_functions import build_device_functions
from ekc.codegen.emit.mma import format_lane_lines
from ekc.codegen.emit.names import count_dynamic_shared_bytes, format_index_lines, format_shared_declarations
from ekc.codegen.emit.nodes import build_node_texts
from ekc.codegen.emit.scope import Scope
from ekc.codegen.footprints import list_footprints
from ekc.codegen.nvrtc import NvrtcOutput
from ekc.codegen.render import collect_words, drop_unused_constants, render_template
from ekc.ir.hardware.target import LaunchLimits, find_capabilities, restrict_to_arch
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.memory_access import find_global_reads
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from ekc.version import __version__

GENERATOR = 7
"""Number of the generator. Raise it whenever the text of some schedule changes: measurements of another text
are not used (`ekc.search.database.conditions`)."""


def describe_toolchain() -> str:
    """Compiler and generator that turn a schedule into machine code: `13.5, generator 7`."""
    return f"{nvrtc.version()}, generator {GENERATOR}"


@dataclass(frozen=True)
class GeneratedSource:
    """CUDA text and how to start its kernels."""

    source: str
    launches: tuple[Launch, ...]


def generate(
    schedule: Schedule, limits: LaunchLimits | None = None, name: str | None = None
) -> GeneratedSource:
    """CUDA text for a schedule. Its functions are called `ekc_<name>`, by default after the operator.

    Raises `ScheduleError` where the schedule breaks a rule or a limit of the target.
    """
    enforce_rules(schedule.program, limits or LaunchLimits())
    launches, blocks = [], []
    trees = derive_launches(schedule.program)
    for number, kernel in enumerate(trees):
        function = f"ekc_{name or schedule.op.name}" + (f"_{number}" if len(trees) > 1 else "")
        launches.append(_make_launch(kernel, function))
        blocks.append(_build_kernel_values(kernel, launches[-1]))
    text = drop_unused_constants(render_template("kernels.cu.j2", kernels=blocks))
    functions = build_device_functions(collect_words(text))
    source = render_template("kernel.cu.j2", kernels=text, header=format_header(schedule), **functions)
    return GeneratedSource(source, tuple(launches))


def compile_schedule(
    schedule: Schedule, arch: str = "sm_80", limits: LaunchLimits | None = None, name: str | None = None
) -> CompiledKernel:
    """Generate and compile; CUBIN and PTX come from one NVRTC run, or from the cache."""
    limits = limits or LaunchLimits(shared_bytes_per_block=find_capabilities(arch).shared_bytes)
    generated = generate(schedule, restrict_to_arch(limits, arch), name)
    kernel = assemble_kernel(schedule, generated, compile_cached(generated.source, arch))
    return replace(kernel, name=name or schedule.op.name)


def assemble_kernel(schedule: Schedule, generated: GeneratedSource, output: NvrtcOutput) -> CompiledKernel:
    """Generated text and the output of NVRTC, as one value."""
    op, program = schedule.op, schedule.program
    intermediate = {n.output.name for n in program.nests} - {t.name for t in op.outputs}
    return CompiledKernel(
        name=op.name,
        cuda_source=generated.source,
        ptx=output.ptx,
        cubin=output.cubin,
        arch=output.arch,
        log=output.log,
        nvrtc_version=output.nvrtc_version,
        launches=generated.launches,
        resources=tuple(output.resources[x.name] for x in generated.launches),
        workspace_bytes=sum(program.op.tensors[name].bytes for name in intermediate),
        flops=op.flops,
        min_bytes=op.min_bytes,
        inputs=op.inputs,
    )


def format_header(schedule: Schedule) -> list[str]:
    """Provenance: the operator, the schedule that made the kernel, the version that wrote it."""
    lines = str(schedule.op).splitlines()
    lines = [part for line in lines for part in textwrap.wrap(line, 110, subsequent_indent="      ")]
    lines += ["", f"Written by ekc {__version__} from the schedule"]
    return lines + [f"  {line}" for line in schedule.to_python().splitlines()] + [f"digest {schedule.digest}"]


def _make_launch(kernel: LaunchTree, name: str) -> Launch:
    grid = tuple(int(kernel.compute_level_extent(f"block.{d}")) for d in "xyz")
    block = tuple(int(kernel.compute_level_extent(f"thread.{d}")) for d in "xyz")
    # The tensors that it reads, in order of appearance, and the one that it writes.
    arguments = (*find_global_reads(kernel.nest), kernel.nest.output.name)
    return Launch(
        name=name,
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        shared_bytes=count_dynamic_shared_bytes(kernel),
        arguments=arguments,
        argument_bytes=tuple(kernel.tensors[name].bytes for name in arguments),
        footprints=list_footprints(kernel),
    )


def _build_kernel_values(kernel: LaunchTree, launch: Launch) -> dict[str, Any]:
    scope = Scope.for_kernel(kernel)
    names = scope.names
    out = launch.arguments[-1]
    parameters = [
        f"{'' if t == out else 'const '}{kernel.tensors[t].dtype.cuda_name}* __restrict__ {names[t]}"
        for t in launch.arguments
    ]
    accumulator = f"{kernel.nest.compute.output.name}.acc"
    own = [format_declaration(b, names) for b in kernel.buffers if b.name == accumulator]
    body = build_node_texts(scope, kernel.body)
    return {
        "name": launch.name,
        "grid": launch.grid,
        "block": launch.block,
        "threads": int(kernel.thread_count),
        "parameters": parameters,
        "declarations": [*format_shared_declarations(kernel, names), *own],
        "indices": [*format_index_lines(kernel, names), *format_lane_lines(kernel)],
        "preamble": scope.preamble,
        "body": body,
    }
