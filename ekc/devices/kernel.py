"""A compiled schedule that can be called with NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices.execute import EXECUTED_BY, execute
from ekc.errors import KernelFault
from ekc.ir.schedule import Schedule


@dataclass(frozen=True, repr=False)
class Kernel:
    """A schedule, and the CUDA, PTX and CUBIN made of it. Call it: NumPy in, NumPy out.

    A call executes the compiled PTX in a machine made of NumPy, under a sanitizer: every launch, every
    thread, and no GPU. That shows what the kernel computes, not how fast it is.
    """

    schedule: Schedule
    compiled: CompiledKernel
    executed_by: ClassVar[str] = EXECUTED_BY

    @property
    def cuda_source(self) -> str:
        """The CUDA C++ text of all launches."""
        return self.compiled.cuda_source

    @property
    def ptx(self) -> str:
        """The PTX of all launches."""
        return self.compiled.ptx

    @property
    def cubin(self) -> bytes:
        """The machine code for `arch`, an ELF file."""
        return self.compiled.cubin

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Registers, shared memory and spills, one entry per launch."""
        return self.compiled.resources

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What to start, in order, with which grid and block."""
        return self.compiled.launches

    @property
    def arch(self) -> str:
        """The target it was compiled for, such as "sm_80"."""
        return self.compiled.arch

    def __call__(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """The result for input arrays in the operator's order; see the class.

        Raises `InvalidInput` for an array of another shape or dtype than declared, `KernelFault` when the
        sanitizer sees a stray access, a race or the like, or when an element is never written, and
        `EkcError` for an instruction that the machine does not know.
        """
        runs = execute(self.schedule.op, self.compiled, arrays)
        for run in runs:
            if run.report.findings:
                raise KernelFault(f"{len(run.report.findings)} findings; the first: {run.report.findings[0]}")
            if not run.written.all():
                missing = f"{(~run.written).sum()} of {run.written.size} elements"
                raise KernelFault(f"{run.report.kernel} leaves {missing} of its output unwritten")
        return runs[-1].output

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.schedule.op.inputs))
        return f"Kernel({self.compiled.name}({inputs}), {self.arch}, calls run by {self.executed_by})"
