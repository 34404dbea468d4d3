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
from ekc.devices.execute_parts import execute_parts
from ekc.emulator import Finding, Report
from ekc.ir.evaluation.agreement import Agreement, compare
from ekc.ir.evaluation.expected import Expected
from ekc.ir.evaluation.sampling import sample_blocks, sums
from ekc.ir.nodes import Kernel
from ekc.ir.schedule import Schedule
from ekc.ir.tree import kernels

WRONG, UNSAFE = "wrong result", "unsafe kernel"

WORK = 2.0**26
"""Operations to run of a launch, about a second; but never fewer than `_FEWEST` blocks."""
_PER_STORE = 8
"""How many operations an element costs that is stored."""
_FEWEST, _MOST = 4, 64
"""Blocks of a sample. Each is compared by itself, so many small ones cost more than they tell."""


@dataclass(frozen=True)
class Checked:
    """One launch that ran."""

    agreement: Agreement
    report: Report


@dataclass(frozen=True)
class Verdict:
    """What came of executing a kernel."""

    launches: tuple[Checked, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the sanitizer saw, of all launches."""
        return tuple(f for x in self.launches for f in x.report.findings)

    @property
    def worst(self) -> Agreement:
        """The agreement of the launch furthest beyond what rounding explains; it wrapped if any did."""
        agreements = [x.agreement for x in self.launches]
        return replace(max(agreements, key=_badness), wrapped=any(x.wrapped for x in agreements))

    @property
    def fault(self) -> str:
        """ "unsafe kernel" on a finding, else "wrong result", else nothing."""
        if self.findings:
            return UNSAFE
        return "" if all(x.agreement.ok for x in self.launches) else WRONG

    @property
    def ok(self) -> bool:
        """Whether every launch is right and the sanitizer saw nothing."""
        return not self.fault

    @property
    def share(self) -> str:
        """How much ran, launch by launch: "8 of 512 blocks" or "64 of 64 blocks"."""
        return ", then ".join(
            f"{x.agreement.blocks} of {x.agreement.total_blocks} blocks" for x in self.launches
        )

    def __str__(self) -> str:
        prefix = f"{self.fault}: " if self.fault else ""
        found = "the sanitizer found nothing"
        if self.findings:
            found = f"sanitizer findings: {len(self.findings)}, first {self.findings[0]}"
        return f"{prefix}compiled PTX executed on the CPU ({self.share}): {self.worst}; {found}"


def verify(schedule: Schedule, compiled: CompiledKernel, expected: Expected, seed: int = 0) -> Verdict:
    """Execute a kernel on the inputs of `expected` and compare launch by launch; `seed` draws the blocks.

    Raises `EkcError` when the machine cannot run the PTX.
    """
    trees, expected = kernels(schedule.program), expected.over(schedule.program.op)
    blocks = [sampled(tree, seed) for tree in trees]
    runs = execute_parts(compiled, expected, trees, blocks)
    return Verdict(
        tuple(
            Checked(compare(expected, tree, output, ids), report)
            for tree, (output, report), ids in zip(trees, runs, blocks, strict=True)
        )
    )


def sampled(kernel: Kernel, seed: int) -> NDArray[np.int64]:
    """The linear numbers of all blocks of a small launch, of some of a large one."""
    compute = kernel.nest.compute
    total = sums(kernel)
    work = compute.flops + _PER_STORE * compute.output.elements
    count = int(WORK * total / work)
    return sample_blocks(kernel, count if count >= total else min(max(count, _FEWEST), _MOST), seed)


def _badness(agreement: Agreement) -> tuple[bool, bool, float]:
    # A launch without any error, such as one that clears, is not the worst of several.
    return not agreement.ok, agreement.max_error > 0, agreement.max_error - agreement.tolerance
