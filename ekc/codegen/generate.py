"""From a Schedule to CUDA text and launches, and through NVRTC to a CompiledKernel."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ekc.codegen import nvrtc
from ekc.codegen.cache import cached_compile
from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.codegen.copy_views import declaration
from ekc.codegen.footprints import footprints
from ekc.codegen.indices import index_lines
from ekc.codegen.nvrtc import NvrtcOutput
from ekc.codegen.render import render
from ekc.codegen.scope import Scope
from ekc.codegen.shared_memory import asked_for, shared_declarations
from ekc.codegen.tensor_views import lane_lines, needed
from ekc.codegen.unused import drop_unused_constants, words
from ekc.codegen.views import views
from ekc.codegen.warpgroup_views import group_functions
from ekc.ir.async_copy import COMMIT, COPIES, WAIT
from ekc.ir.footprint import global_reads
from ekc.ir.limits import Limits, shared_bytes
from ekc.ir.nodes import Kernel, StageNode, walk
from ekc.ir.rules.launch import enforce
from ekc.ir.schedule import Schedule
from ekc.ir.target import on_target
from ekc.ir.tree import kernels
from ekc.version import __version__

GENERATOR = 4
"""Raise it whenever the text of some schedule changes: figures of another text do not answer."""


def toolchain() -> str:
    """What makes machine code of a schedule: NVRTC, and which text it is given."""
    return f"{nvrtc.version()}, generator {GENERATOR}"


@dataclass(frozen=True)
class Generated:
    """CUDA text and how to start its kernels."""

    source: str
    launches: tuple[Launch, ...]


def generate(schedule: Schedule, limits: Limits | None = None, name: str | None = None) -> Generated:
    """CUDA text for a schedule, its functions called `ekc_<name>` (the operator's name if nothing is said);
    refuses (ScheduleError) what breaks a rule or a limit of the target."""
    enforce(schedule.program, limits or Limits())
    launches, blocks = [], []
    trees = kernels(schedule.program)
    for number, kernel in enumerate(trees):
        function = f"ekc_{name or schedule.op.name}" + (f"_{number}" if len(trees) > 1 else "")
        launches.append(_launch(kernel, function))
        blocks.append(_kernel_text(kernel, launches[-1]))
    text = drop_unused_constants(render("kernels.cu.j2", kernels=blocks))
    copies = [COPIES[n] for n in sorted({n for tree in trees for n in _copied_bytes(tree)})]
    values = {
        "header": header(schedule),
        "used": words(text),
        "copies": copies,
        "commit": COMMIT,
        "wait": WAIT,
        **needed([*trees]),
        **group_functions(trees),
    }
    return Generated(render("kernel.cu.j2", kernels=text, **values), tuple(launches))


def _copied_bytes(kernel: Kernel) -> Iterator[int]:
    """The widths of its asynchronous copies."""
    for node in walk(kernel.body):
        if isinstance(node, StageNode) and node.asynchronous:
            yield int(node.staging.vector) * node.buffer.dtype.bytes


def compile_schedule(
    schedule: Schedule, arch: str = "sm_80", limits: Limits | None = None, name: str | None = None
) -> CompiledKernel:
    """Generate and compile; CUBIN and PTX come from one NVRTC run, or from the cache."""
    limits = limits or Limits(shared_bytes_per_block=shared_bytes(arch))
    made = generate(schedule, on_target(limits, arch), name)
    return replace(assemble(schedule, made, cached_compile(made.source, arch)), name=name or schedule.op.name)


def assemble(schedule: Schedule, made: Generated, output: NvrtcOutput) -> CompiledKernel:
    """Generated text and what NVRTC made of it, as one value."""
    op, program = schedule.op, schedule.program
    left = {n.output.name for n in program.nests} - {t.name for t in op.outputs}
    return CompiledKernel(
        name=op.name,
        cuda_source=made.source,
        ptx=output.ptx,
        cubin=output.cubin,
        arch=output.arch,
        log=output.log,
        nvrtc_version=output.nvrtc_version,
        launches=made.launches,
        resources=tuple(output.resources[x.name] for x in made.launches),
        workspace_bytes=sum(program.op.tensors[name].bytes for name in left),
        flops=op.flops,
        min_bytes=op.min_bytes,
        inputs=op.inputs,
    )


def header(schedule: Schedule) -> list[str]:
    """Provenance: the operator, the schedule that made the kernel, the version that wrote it."""
    lines = str(schedule.op).splitlines()
    lines = [part for line in lines for part in textwrap.wrap(line, 110, subsequent_indent="      ")]
    lines += ["", f"Written by ekc {__version__} from the schedule"]
    return lines + [f"  {line}" for line in schedule.to_python().splitlines()] + [f"digest {schedule.digest}"]


def _launch(kernel: Kernel, name: str) -> Launch:
    grid = tuple(int(kernel.extent(f"block.{d}")) for d in "xyz")
    block = tuple(int(kernel.extent(f"thread.{d}")) for d in "xyz")
    arguments = _arguments(kernel)
    return Launch(
        name=name,
        grid=(grid[0], grid[1], grid[2]),
        block=(block[0], block[1], block[2]),
        shared_bytes=asked_for(kernel),
        arguments=arguments,
        argument_bytes=tuple(kernel.tensors[name].bytes for name in arguments),
        footprints=footprints(kernel),
    )


def _arguments(kernel: Kernel) -> tuple[str, ...]:
    """The tensors a kernel reads, in order of appearance, and the one it writes."""
    return (*global_reads(kernel.nest), kernel.nest.output.name)


def _kernel_text(kernel: Kernel, launch: Launch) -> dict[str, Any]:
    scope = Scope.of(kernel)
    names = scope.names
    out = launch.arguments[-1]
    parameters = [
        f"{'' if t == out else 'const '}{kernel.tensors[t].dtype.cuda}* __restrict__ {names[t]}"
        for t in launch.arguments
    ]
    held = f"{kernel.nest.compute.output.name}.acc"
    own = [declaration(b, names) for b in kernel.buffers if b.name == held]
    body = views(scope, kernel.body)
    return {
        "name": launch.name,
        "grid": launch.grid,
        "block": launch.block,
        "threads": int(kernel.threads),
        "parameters": parameters,
        "declarations": [*shared_declarations(kernel, names), *own],
        "indices": [*index_lines(kernel, names), *lane_lines(kernel)],
        "early": scope.early,
        "body": body,
    }
