"""The job that goes to an executor: what is done about a schedule before a device sees it.

It is a pure function of plain values: it may run in another thread, in another process, on another machine,
or not ahead at all. Its answer names the versions that made the kernel, so that a worker with another
compiler is found out before anything of its work is filed.
"""

from __future__ import annotations

import platform
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ekc.codegen import generate, nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.errors import EkcError, ToolchainError
from ekc.ir.hardware.limits import Limits
from ekc.ir.schedule.schedule import Schedule
from ekc.version import __version__

CountFunction = Callable[[CompiledKernel], Any]


@dataclass(frozen=True)
class ToolchainVersions:
    """The programs that make a kernel of a schedule and count what it executes."""

    nvrtc: str
    """Such as "13.5", or "not installed"."""
    generator: int
    ekc: str

    def __str__(self) -> str:
        return f"NVRTC {self.nvrtc}, generator {self.generator}, ekc {self.ekc}"


@dataclass(frozen=True)
class CompileResult:
    """The answer of a worker; of a worker with other versions nothing but these."""

    versions: ToolchainVersions
    host: str
    """The name of the machine that the worker runs on."""
    kernel: CompiledKernel | None = None
    counts: Any = None
    """None where nothing was asked for, or counting failed."""
    error: Exception | None = None
    """Raised by the compile."""

    def unwrap(self, local_versions: ToolchainVersions) -> tuple[CompiledKernel, Any]:
        """The kernel and its counts. Raises what compiling raised, and `ToolchainError` where other versions
        than these made it."""
        if self.versions != local_versions:
            raise ToolchainError(
                f"executor: a worker on {self.host} has {self.versions}, and this process {local_versions}; "
                "install the same versions on both"
            )
        if self.error is not None:
            raise self.error
        assert self.kernel is not None  # what else there is to answer was raised
        return self.kernel, self.counts


def read_versions() -> ToolchainVersions:
    """The versions of this process."""
    try:
        compiler = nvrtc.version()
    except EkcError:
        compiler = "not installed"
    return ToolchainVersions(compiler, generate.GENERATOR, __version__)


def compile_schedule_json(schedule_json: str, arch: str, limits: Limits) -> CompiledKernel:
    """Compile a schedule given as JSON."""
    return compile_schedule(Schedule.from_json(schedule_json), arch, limits)


def run_compile_job(
    schedule_json: str,
    arch: str,
    limits: Limits,
    count: CountFunction | None,
    required_versions: ToolchainVersions,
) -> CompileResult:
    """The kernel of a schedule given as JSON, and what its device would `count` of it. Where that fails the
    device counts when it times the kernel, and says why it cannot. Nothing is compiled where this process has
    other versions than are `wanted`; what compiling raises is in the answer."""
    here, host = read_versions(), platform.node()
    if here != required_versions:
        return CompileResult(here, host)
    try:
        kernel = compile_schedule_json(schedule_json, arch, limits)
        return CompileResult(here, host, kernel, _count_kernel(kernel, count))
    except EkcError as problem:
        return CompileResult(here, host, error=problem)
    except Exception as problem:
        # A bug: the parent's traceback would end where the job was sent off.
        problem.add_note(traceback.format_exc())
        return CompileResult(here, host, error=problem)


def _count_kernel(kernel: CompiledKernel, count: CountFunction | None) -> Any:
    try:
        return count(kernel) if count else None
    except EkcError:
        return None
