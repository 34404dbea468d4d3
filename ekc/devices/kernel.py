"""A compiled schedule that can be called with NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.ir.evaluate import evaluate
from ekc.ir.schedule import Schedule


@dataclass(frozen=True, repr=False)
class Kernel:
    """A schedule, and the CUDA, PTX and CUBIN made of it. Call it: NumPy in, NumPy out.

    A call does not run the compiled code yet: the schedule's own tree is evaluated in NumPy. That shows
    what the schedule computes, and says nothing about the CUDA text; see `executed_by`.
    """

    schedule: Schedule
    compiled: CompiledKernel
    executed_by: ClassVar[str] = "ekc.ir.evaluate: the schedule, not the compiled CUDA"

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
        """The result for input arrays in the operator's order, evaluated from the IR (see the class).

        Raises `InvalidInput` for an array of another shape or dtype than declared.
        """
        return evaluate(self.schedule.program, arrays).output

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.schedule.op.inputs))
        return f"Kernel({self.compiled.name}({inputs}), {self.arch}, calls run by {self.executed_by})"
