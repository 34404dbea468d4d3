"""Is a kernel right where it will run? It is executed on the device itself, in whole, and sampled blocks of
what it wrote are held against the reference in float64.

A GPU shows that this machine code computes the operator here; it does not show that it was no luck. So
whoever decides on a kernel asks the PTX machine as well (`verify.py`), whose sanitizer sees a race or a stray
access that happened to do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import ExecutionDevice, OutputSelection
from ekc.devices.execute import BLANK_WORDS
from ekc.devices.verify import WRONG_RESULT, choose_blocks
from ekc.ir.interpreter.compare import OutputComparison, compare_output, list_compared_positions
from ekc.ir.interpreter.random_arrays import WrittenOutput
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule.schedule import Schedule


@dataclass(frozen=True)
class DeviceVerdict:
    """What came of executing a kernel on a device."""

    label: str
    launches: tuple[OutputComparison, ...]

    @property
    def fault(self) -> str:
        """ "wrong result", or nothing."""
        return "" if all(x.ok for x in self.launches) else WRONG_RESULT

    @property
    def worst_agreement(self) -> OutputComparison:
        """The launch furthest beyond what rounding explains; it wrapped if any did."""
        worst = max(self.launches, key=lambda x: (not x.ok, x.max_error - x.tolerance))
        return replace(worst, wrapped=any(x.wrapped for x in self.launches))

    @property
    def coverage(self) -> str:
        """How much was compared, launch by launch."""
        return ", then ".join(f"{x.blocks} of {x.total_blocks} blocks" for x in self.launches)

    def __str__(self) -> str:
        prefix = f"{self.fault}: " if self.fault else ""
        return f"{prefix}executed on {self.label}, {self.coverage} compared: {self.worst_agreement}"


def verify_on_device(
    device: ExecutionDevice,
    schedule: Schedule,
    compiled: CompiledKernel,
    expected: ReferenceEvaluator,
    seed: int = 0,
) -> DeviceVerdict:
    """Execute a kernel on a device, on the inputs of `expected`; `seed` draws the blocks to compare.

    Raises `DeviceError` when it faults or hangs there.
    """
    expected, trees = expected.for_operator(schedule.program.op), derive_launches(schedule.program)
    blocks = [choose_blocks(tree, seed) for tree in trees]
    specs = [expected.op.tensors[one.arguments[-1]] for one in compiled.launches]
    wanted = [
        OutputSelection(
            spec, BLANK_WORDS[spec.dtype.name], list_compared_positions(expected.op, tree, chosen)
        )
        for spec, tree, chosen in zip(specs, trees, blocks, strict=True)
    ]
    found = device.sample(compiled, expected.arrays, wanted)
    agreements = []
    for tree, chosen, asked, seen in zip(trees, blocks, wanted, found, strict=True):
        if tree.is_zero_fill:
            # What it left is no longer there to see: the next launch added to it.
            continue
        output = WrittenOutput(asked.spec, asked.positions[seen.is_written], seen.values[seen.is_written])
        agreement = compare_output(expected, tree, output, chosen)
        # All blocks ran: what others own was written by them, and everything must be.
        agreements.append(replace(agreement, strays=0, complete=seen.unwritten_count == 0))
    return DeviceVerdict(device.label, tuple(agreements))


def verify_if_executable(
    device: object, schedule: Schedule, compiled: CompiledKernel, expected: ReferenceEvaluator
) -> DeviceVerdict | None:
    """The verdict of a device that can give one, else None."""
    return (
        verify_on_device(device, schedule, compiled, expected)
        if isinstance(device, ExecutionDevice)
        else None
    )
