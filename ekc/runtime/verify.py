"""Correctness checks of a compiled kernel: in the PTX machine under the sanitizer, and on a device.

In the PTX machine, large launches run only some blocks (first, last, corners, random), so that the cost stays
bounded; a launch that reads the output of earlier blocks that did not run reads the reference there. Only the
parts of tensors that these blocks touch are made.

On a device the whole kernel runs, and the output of sampled blocks is compared with the reference in float64.
That shows that this machine code is right on that device once. It does not exclude luck, so a decision about
a kernel needs the check in the PTX machine as well: its sanitizer finds a race or an access out of bounds
that happened to do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import ExecutionDevice, LibraryDevice, OutputSelection
from ekc.emulator import Finding, Report
from ekc.ir.comparison.compare import (
    OutputComparison,
    compare_output,
    count_output_tiles,
    expand_to_blocks,
    find_output_compute,
    iterate_owned_parts,
    list_compared_positions,
    sample_blocks,
)
from ekc.ir.comparison.edge_values import EdgeComparison, EdgeReference, needs_edge_values
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.dtypes import FLOAT32
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.memory_access import find_stored_tensors
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import WrittenOutput, find_positions
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import BLANK_WORDS, execute_blocks

WRONG_RESULT, UNSAFE_KERNEL = "wrong result", "unsafe kernel"

OPERATION_BUDGET = 2.0**26
"""Operations to run of a launch, about a second; but never fewer than `_MIN_BLOCKS` blocks."""
_OPERATIONS_PER_STORE = 8
"""Operations that count for a stored element."""
_MIN_BLOCKS, _MAX_BLOCKS = 4, 64
"""Bounds of the blocks of a sample, each compared separately: many small ones cost more than they show."""


@dataclass(frozen=True)
class LaunchCheck:
    """Check of one launch that ran."""

    agreement: OutputComparison
    report: Report


@dataclass(frozen=True)
class Verdict:
    """Result of the check in the PTX machine."""

    launches: tuple[LaunchCheck, ...]
    edges: tuple[EdgeComparison, ...] = ()
    """The first and the last block of each launch on edge values."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of the sanitizer, of all launches."""
        return tuple(f for x in self.launches for f in x.report.findings)

    @property
    def worst_agreement(self) -> OutputComparison:
        """Agreement of the launch with the largest error beyond rounding; wrapped if any launch wrapped."""
        agreements = [x.agreement for x in self.launches]
        return replace(max(agreements, key=_rank_disagreement), wrapped=any(x.wrapped for x in agreements))

    @property
    def fault(self) -> str:
        """ "unsafe kernel" on a finding, else "wrong result", else nothing."""
        if self.findings:
            return UNSAFE_KERNEL
        is_right = all(x.agreement.ok for x in self.launches) and all(x.ok for x in self.edges)
        return "" if is_right else WRONG_RESULT

    @property
    def ok(self) -> bool:
        """Whether every launch is right and the sanitizer found nothing."""
        return not self.fault

    @property
    def coverage(self) -> str:
        """Blocks that ran, launch by launch: "8 of 512 blocks" or "64 of 64 blocks"."""
        agreements = (x.agreement for x in self.launches)
        return ", then ".join(f"{x.blocks} of {x.total_blocks} blocks" for x in agreements)

    def __str__(self) -> str:
        prefix = f"{self.fault}: " if self.fault else ""
        found = "the sanitizer found nothing"
        if self.findings:
            found = f"sanitizer findings: {len(self.findings)}, first {self.findings[0]}"
        edges = "".join(f"; {x}" for x in self.edges if not x.ok or x is self.edges[-1])
        how = f"compiled PTX executed on the CPU ({self.coverage})"
        return f"{prefix}{how}: {self.worst_agreement}{edges}; {found}"


def verify(
    schedule: Schedule, compiled: CompiledKernel, expected: ReferenceEvaluator, seed: int = 0
) -> Verdict:
    """Execute a kernel in the PTX machine on the inputs of `expected` and compare each launch; `seed` draws
    the blocks. Two blocks of each launch run on edge values too, where
    these may show more. Raises `EkcError` when the machine cannot
    run the PTX."""
    trees, expected = derive_launches(schedule.program), expected.for_operator(schedule.program.op)
    blocks = [choose_blocks(tree, seed) for tree in trees]
    runs = zip(trees, execute_blocks(compiled, expected, trees, blocks), blocks, strict=True)
    checks = (
        LaunchCheck(compare_output(expected, t, output, ids), report) for t, (output, report), ids in runs
    )
    return Verdict(tuple(checks), _check_edges(compiled, expected.op, trees, seed))


def _check_edges(
    compiled: CompiledKernel, op: Operator, trees: Sequence[LaunchTree], seed: int
) -> tuple[EdgeComparison, ...]:
    """Run the first block of each launch, and the last one, which has most guards, on edge values, where
    these may show more than random inputs."""
    if not needs_edge_values(op):
        return ()
    expected = EdgeReference(op, seed)
    blocks = [expand_to_blocks(tree, np.unique([0, count_output_tiles(tree) - 1])) for tree in trees]
    outputs = execute_blocks(compiled, expected.exact, trees, blocks)
    found = []
    for tree, (output, _), ids in zip(trees, outputs, blocks, strict=True):
        if tree.is_zero_fill:
            continue
        compute = find_output_compute(op, tree)
        unstored = set(op.tensors) - find_stored_tensors(tree.nest)
        parts = iterate_owned_parts(tree, compute, ids)
        found += [expected.compare(compute, where, output, owned, unstored) for where, owned in parts]
    return tuple(found)


def choose_blocks(kernel: LaunchTree, seed: int) -> NDArray[np.int64]:
    """Linear numbers of all blocks of a small launch, of some of a large one."""
    compute = kernel.nest.compute
    total = count_output_tiles(kernel)
    work = compute.flops + _OPERATIONS_PER_STORE * compute.output.elements
    count = int(OPERATION_BUDGET * total / work)
    return sample_blocks(kernel, count if count >= total else min(max(count, _MIN_BLOCKS), _MAX_BLOCKS), seed)


def _rank_disagreement(agreement: OutputComparison) -> tuple[bool, bool, float]:
    # A launch without any error, such as one that clears its output, is not the worst of several.
    return not agreement.ok, agreement.max_error > 0, agreement.max_error - agreement.tolerance


@dataclass(frozen=True)
class DeviceVerdict:
    """Result of the check on a device."""

    label: str
    launches: tuple[OutputComparison, ...]

    @property
    def fault(self) -> str:
        """ "wrong result", or nothing."""
        return "" if all(x.ok for x in self.launches) else WRONG_RESULT

    @property
    def worst_agreement(self) -> OutputComparison:
        """Agreement of the launch with the largest error beyond rounding; wrapped if any launch wrapped."""
        worst = max(self.launches, key=lambda x: (not x.ok, x.max_error - x.tolerance))
        return replace(worst, wrapped=any(x.wrapped for x in self.launches))

    @property
    def coverage(self) -> str:
        """Blocks that were compared, launch by launch."""
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
    """Execute a kernel on a device, on the inputs of `expected`; `seed` draws the blocks to compare. Raises
    `DeviceError` when it faults or hangs."""
    expected, trees = expected.for_operator(schedule.program.op), derive_launches(schedule.program)
    blocks = [choose_blocks(tree, seed) for tree in trees]
    specs = [expected.op.tensors[one.arguments[-1]] for one in compiled.launches]
    positions = [list_compared_positions(expected.op, *one) for one in zip(trees, blocks, strict=True)]
    pairs = zip(specs, positions, strict=True)
    selections = [OutputSelection(spec, BLANK_WORDS[spec.dtype.name], compared) for spec, compared in pairs]
    found = device.sample(compiled, expected.arrays, selections)
    agreements = []
    for tree, chosen, selection, sample in zip(trees, blocks, selections, found, strict=True):
        if tree.is_zero_fill:
            # Its output cannot be read any more: the next launch added to it.
            continue
        output = WrittenOutput(
            selection.spec, selection.positions[sample.is_written], sample.values[sample.is_written]
        )
        agreement = compare_output(expected, tree, output, chosen)
        # All blocks ran: elements of other blocks are written by those, and all elements must be written.
        agreements.append(replace(agreement, strays=0, complete=sample.unwritten_count == 0))
    return DeviceVerdict(device.label, tuple(agreements))


def verify_if_executable(
    device: object, schedule: Schedule, compiled: CompiledKernel, expected: ReferenceEvaluator
) -> DeviceVerdict | None:
    """The verdict of a device that can execute kernels; None for others."""
    if not isinstance(device, ExecutionDevice):
        return None
    return verify_on_device(device, schedule, compiled, expected)


_COMPARED_PER_AXIS = 8
"""Indices of each axis at which the result of a library is compared, at most."""


def verify_library_kernel(device: LibraryDevice, kernel: Any, expected: ReferenceEvaluator) -> str:
    """Execute a library's kernel on a device, on the inputs of `expected`, and compare some elements. Returns
    the verdict, which begins with `WRONG_RESULT` for a kernel that is wrong. Raises `DeviceError`."""
    where = draw_compared_indices(expected.op)
    compute = expected.op.computes[-1]
    spec, right = compute.output, expected.evaluate_at(compute, where)
    places = find_positions(where, spec).reshape(-1)
    selection = OutputSelection(spec, BLANK_WORDS[spec.dtype.name], places)
    (found,) = device.sample(kernel, expected.arrays, [selection])
    error = float(np.max(np.abs(found.values.astype(np.float64) - right.values.reshape(-1))))
    allowed = compute_library_tolerance(expected.op, right.tolerance)
    ok = error <= allowed and not found.unwritten_count
    words = f"off by {error:.3g} at most, where rounding explains {allowed:.3g}"
    unwritten = f"; {found.unwritten_count} elements not written" if found.unwritten_count else ""
    prefix = "" if ok else f"{WRONG_RESULT}: "
    return f"{prefix}executed on {device.label}, {len(places)} elements compared: {words}{unwritten}"


def draw_compared_indices(op: Operator) -> dict[str, NDArray[np.int64]]:
    """Indices of the result, ascending by axis, at which a library is compared."""
    axes = op.computes[-1].spatial_axes
    rows = np.random.default_rng(0).integers(0, 2**31, (len(axes), 64))
    drawn = zip(axes, rows, strict=True)
    return {a.name: np.unique(row % a.extent)[:_COMPARED_PER_AXIS] for a, row in drawn}


def compute_library_tolerance(op: Operator, tolerance: float) -> float:
    """The error that a library may have, where ours may have `tolerance`: ten times that, for sums in another
    order; and, as libraries may truncate where ours rounds, four times the last bit of the inputs, as it adds
    up in a sum of random terms. In float32 twice ours, which is enough for any order: a library that used
    narrower factors (TF32, by a switch of its own) has a larger error."""
    read, terms = op.inputs[0].dtype, op.flops / 2 / op.outputs[0].elements
    return (2 if read is FLOAT32 else 10) * tolerance + 4 * read.epsilon * math.sqrt(terms)
