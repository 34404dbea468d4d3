"""Is a kernel right where it will run? It is executed on the device itself, in whole, and sampled blocks of
what it wrote are held against the reference in float64.

A GPU shows that this machine code computes the operator here; it does not show that it was no luck. So
whoever decides on a kernel asks the PTX machine as well (`verify.py`), whose sanitizer sees a race or a stray
access that happened to do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Executes, Wanted
from ekc.devices.execute import BLANKS
from ekc.devices.verify import WRONG, sampled
from ekc.ir.evaluation.agreement import Agreement, compare, compared_places
from ekc.ir.evaluation.expected import Expected
from ekc.ir.evaluation.output import Output
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
        """The launch furthest beyond what rounding explains; it wrapped if any did."""
        worst = max(self.launches, key=lambda x: (not x.ok, x.max_error - x.tolerance))
        return replace(worst, wrapped=any(x.wrapped for x in self.launches))

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
    expected, trees = expected.over(schedule.program.op), kernels(schedule.program)
    blocks = [sampled(tree, seed) for tree in trees]
    specs = [expected.op.tensors[one.arguments[-1]] for one in compiled.launches]
    wanted = [
        Wanted(spec, BLANKS[spec.dtype.name], compared_places(expected.op, tree, chosen))
        for spec, tree, chosen in zip(specs, trees, blocks, strict=True)
    ]
    found = device.sample(compiled, expected.arrays, wanted)
    agreements = []
    for tree, chosen, asked, seen in zip(trees, blocks, wanted, found, strict=True):
        if tree.clears:
            # What it left is no longer there to see: the next launch added to it.
            continue
        output = Output(asked.spec, asked.places[seen.written], seen.values[seen.written])
        agreement = compare(expected, tree, output, chosen)
        # All blocks ran: what others own was written by them, and everything must be.
        agreements.append(replace(agreement, strays=0, complete=seen.unwritten == 0))
    return DeviceVerdict(device.label, tuple(agreements))


def judged(
    device: object, schedule: Schedule, compiled: CompiledKernel, expected: Expected
) -> DeviceVerdict | None:
    """The verdict of a device that can give one, else None."""
    return run_on(device, schedule, compiled, expected) if isinstance(device, Executes) else None
