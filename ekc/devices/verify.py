"""Is a compiled kernel right? Its PTX is executed under the sanitizer and held against the reference.

Large launches run only some blocks (first, last, corners, random), so that the cost stays bounded;
a launch that reads what an earlier one left out reads the reference there. Of every tensor only what these
blocks touch is made, however large it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.execute_parts import execute_blocks
from ekc.emulator import Finding, Report
from ekc.ir.interpreter.compare import OutputComparison, compare_output, count_output_tiles, sample_blocks
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.schedule.schedule import Schedule

WRONG_RESULT, UNSAFE_KERNEL = "wrong result", "unsafe kernel"

OPERATION_BUDGET = 2.0**26
"""Operations to run of a launch, about a second; but never fewer than `_FEWEST` blocks."""
_OPERATIONS_PER_STORE = 8
"""How many operations an element costs that is stored."""
_MIN_BLOCKS, _MAX_BLOCKS = 4, 64
"""Blocks of a sample. Each is compared by itself, so many small ones cost more than they tell."""


@dataclass(frozen=True)
class LaunchCheck:
    """One launch that ran."""

    agreement: OutputComparison
    report: Report


@dataclass(frozen=True)
class Verdict:
    """What came of executing a kernel."""

    launches: tuple[LaunchCheck, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the sanitizer saw, of all launches."""
        return tuple(f for x in self.launches for f in x.report.findings)

    @property
    def worst_agreement(self) -> OutputComparison:
        """The agreement of the launch furthest beyond what rounding explains; it wrapped if any did."""
        agreements = [x.agreement for x in self.launches]
        return replace(max(agreements, key=_rank_disagreement), wrapped=any(x.wrapped for x in agreements))

    @property
    def fault(self) -> str:
        """ "unsafe kernel" on a finding, else "wrong result", else nothing."""
        if self.findings:
            return UNSAFE_KERNEL
        return "" if all(x.agreement.ok for x in self.launches) else WRONG_RESULT

    @property
    def ok(self) -> bool:
        """Whether every launch is right and the sanitizer saw nothing."""
        return not self.fault

    @property
    def coverage(self) -> str:
        """How much ran, launch by launch: "8 of 512 blocks" or "64 of 64 blocks"."""
        return ", then ".join(
            f"{x.agreement.blocks} of {x.agreement.total_blocks} blocks" for x in self.launches
        )

    def __str__(self) -> str:
        prefix = f"{self.fault}: " if self.fault else ""
        found = "the sanitizer found nothing"
        if self.findings:
            found = f"sanitizer findings: {len(self.findings)}, first {self.findings[0]}"
        return f"{prefix}compiled PTX executed on the CPU ({self.coverage}): {self.worst_agreement}; {found}"


def verify(
    schedule: Schedule, compiled: CompiledKernel, expected: ReferenceEvaluator, seed: int = 0
) -> Verdict:
    """Execute a kernel on the inputs of `expected` and compare launch by launch; `seed` draws the blocks.

    Raises `EkcError` when the machine cannot run the PTX.
    """
    trees, expected = derive_launches(schedule.program), expected.for_operator(schedule.program.op)
    blocks = [choose_blocks(tree, seed) for tree in trees]
    runs = execute_blocks(compiled, expected, trees, blocks)
    return Verdict(
        tuple(
            LaunchCheck(compare_output(expected, tree, output, ids), report)
            for tree, (output, report), ids in zip(trees, runs, blocks, strict=True)
        )
    )


def choose_blocks(kernel: LaunchTree, seed: int) -> NDArray[np.int64]:
    """The linear numbers of all blocks of a small launch, of some of a large one."""
    compute = kernel.nest.compute
    total = count_output_tiles(kernel)
    work = compute.flops + _OPERATIONS_PER_STORE * compute.output.elements
    count = int(OPERATION_BUDGET * total / work)
    return sample_blocks(kernel, count if count >= total else min(max(count, _MIN_BLOCKS), _MAX_BLOCKS), seed)


def _rank_disagreement(agreement: OutputComparison) -> tuple[bool, bool, float]:
    # A launch without any error, such as one that clears, is not the worst of several.
    return not agreement.ok, agreement.max_error > 0, agreement.max_error - agreement.tolerance
