"""Is a kernel right where it will run? It is executed on the device itself, in whole, and sampled blocks of
what it wrote are held against the reference in float64.

A GPU shows that this machine code computes the operator here; it does not show that it was no luck. So
whoever decides on a kernel asks the PTX machine as well (`verify.py`), whose sanitizer sees a race or a stray
access that happened to do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Executes
from ekc.devices.execute import BLANKS, blank
from ekc.devices.verify import WRONG, sampled
from ekc.ir.evaluation.agreement import Agreement, compare
from ekc.ir.evaluation.expected import Expected
from ekc.ir.evaluation.output import WholeOutput
from ekc.ir.schedule import Schedule
from ekc.ir.tree import kernels


@dataclass(frozen=True)
class DeviceVerdict:
    """What came of executing a kernel on a device."""

    label: str
    launches: tuple[Agreement, ...]

    @property
    def fault(self) -> str:
        """ "wrong result", or nothing."""
        return "" if all(x.ok for x in self.launches) else WRONG

    @property
    def worst(self) -> Agreement:
        """The launch furthest beyond what rounding explains."""
        return max(self.launches, key=lambda x: (not x.ok, x.max_error - x.tolerance))

    @property
    def share(self) -> str:
        """How much was compared, launch by launch."""
        return ", then ".join(f"{x.blocks} of {x.total_blocks} blocks" for x in self.launches)

    def __str__(self) -> str:
        prefix = f"{self.fault}: " if self.fault else ""
        return f"{prefix}executed on {self.label}, {self.share} compared: {self.worst}"


def run_on(
    device: Executes, schedule: Schedule, compiled: CompiledKernel, expected: Expected, seed: int = 0
) -> DeviceVerdict:
    """Execute a kernel on a device, on the inputs of `expected`; `seed` draws the blocks to compare.

    Raises `DeviceError` when it faults or hangs there.
    """
    expected = expected.over(schedule.program.op)
    outputs, written = _outputs(device, schedule, compiled, expected)
    agreements = []
    for tree, output, wrote in zip(kernels(schedule.program), outputs, written, strict=True):
        if tree.clears:
            # What it left is no longer there to see: the next launch added to it.
            continue
        found = compare(expected, tree, WholeOutput(output, wrote), sampled(tree, seed))
        # All blocks ran: what others own was written by them, and everything must be.
        agreements.append(replace(found, strays=0, complete=bool(wrote.all())))
    return DeviceVerdict(device.label, tuple(agreements))


def _outputs(
    device: Executes, schedule: Schedule, compiled: CompiledKernel, expected: Expected
) -> tuple[list[NDArray[Any]], list[NDArray[np.bool_]]]:
    """What each launch left, and which elements it wrote: those that kept no blank. Integers are run from two
    blanks, as any may be a result."""
    specs = [schedule.program.op.tensors[x.arguments[-1]] for x in compiled.launches]
    words = [BLANKS[spec.dtype.name] for spec in specs]
    outputs: list[NDArray[Any]] = []
    written = [np.zeros(spec.shape, np.bool_) for spec in specs]
    for turn in range(max(map(len, words))):
        blanks = tuple(blank(spec, w[turn % len(w)]) for spec, w in zip(specs, words, strict=True))
        outputs = list(device.execute(compiled, expected.arrays, blanks))
        for wrote, output, began in zip(written, outputs, blanks, strict=True):
            word = f"u{output.itemsize}"
            wrote |= output.view(word) != began.view(word)
    return outputs, written


def judged(
    device: object, schedule: Schedule, compiled: CompiledKernel, expected: Expected
) -> DeviceVerdict | None:
    """The verdict of a device that can give one, else None."""
    return run_on(device, schedule, compiled, expected) if isinstance(device, Executes) else None
