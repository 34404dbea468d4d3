"""Inputs, tolerance, and checks of schedules against the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.ir import expr as ex
from ekc.ir.comparison.compare import sample_blocks
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.printer import format_program
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.execute import execute
from ekc.runtime.verify import Verdict, verify
from tests.ir.interpret import interpret_program

INTEGERS = {"int8": (-128, 128), "int32": (-1000, 1000)}
"""Ranges of integer inputs; floats are between -1 and 1."""


def make_inputs(op: Operator, seed: int = 0) -> list[NDArray[Any]]:
    """Uniform inputs; integers are small where an exponential would overflow every type."""
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(*INTEGERS.get(t.dtype.name, (-1, 1)), t.shape) for t in op.inputs]
    if any(isinstance(e, ex.Call) for c in op.computes for e in ex.walk_expr(c.body)):
        arrays = [a % 5 if t.dtype.is_integer else a for a, t in zip(arrays, op.inputs, strict=True)]
    return [a.astype(t.dtype.numpy_dtype) for a, t in zip(arrays, op.inputs, strict=True)]


def compute_tolerance(op: Operator, expected: NDArray[Any]) -> float:
    """The smaller of two bounds, 0 for integers: one rounding in the coarsest type for each term of each sum;
    and one for each term and each stored result, which readers of the result multiply by their own terms."""
    epsilon, coarsest, all_terms = 0.0, 0.0, 0
    for compute in op.computes:
        terms = math.prod(a.extent for a in compute.reduction_axes) + 2
        epsilon = epsilon * terms + compute.acc_dtype.epsilon * terms + compute.output.dtype.epsilon
        coarsest = max(coarsest, compute.acc_dtype.epsilon, compute.output.dtype.epsilon)
        all_terms += terms
    return 2 * min(epsilon, coarsest * all_terms) * max(1.0, float(np.abs(expected).max()))


def check_tree(schedule: Schedule) -> None:
    """A run of all blocks writes every element correctly; a run of some blocks writes the same values."""
    op = schedule.op
    arrays = make_inputs(op)
    expected = op.reference(*arrays).astype(np.float64)
    whole = interpret_program(schedule.program, arrays)
    assert whole.written_mask.all(), f"{(~whole.written_mask).sum()} elements not written\n{schedule}"
    tolerance = compute_tolerance(op, expected)
    np.testing.assert_allclose(
        whole.output.astype(np.float64), expected, rtol=0, atol=tolerance, err_msg=str(schedule)
    )
    last = derive_launches(schedule.program)[-1]
    blocks = sample_blocks(last, 3, seed=1)
    part = interpret_program(schedule.program, arrays, blocks)
    # Blocks that split a reduction are sampled together, as a single one has no result.
    parts = math.prod(int(x.extent) for x in last.block_loops if x.is_reduction)
    assert part.blocks == len(blocks) == len(set(blocks.tolist())) <= 3 * parts
    assert part.written_mask.any()
    np.testing.assert_array_equal(
        part.output[part.written_mask], whole.output[part.written_mask], err_msg=str(schedule)
    )


def run_everywhere(
    schedule: Schedule, arrays: Sequence[NDArray[Any]], kernel: CompiledKernel | None = None
) -> tuple[NDArray[Any], ...]:
    """Outputs of reference, interpreter and PTX machine, whose sanitizer finds nothing."""
    runs = execute(schedule.program.op, kernel or compile_schedule(schedule), arrays)
    assert not any(run.report.findings for run in runs)
    interpreted = interpret_program(schedule.program, arrays).output
    return schedule.op.reference(*arrays), interpreted, runs[-1].output


def check_text(schedule: Schedule) -> None:
    """The schedule survives JSON and Python text, and its operator JSON."""
    again = Schedule.from_json(schedule.to_json())
    names = {"ekc": SimpleNamespace(Schedule=Schedule), "op": schedule.op}
    typed = eval(f"({schedule.to_python()})", names)
    assert again == typed == schedule
    assert again.digest == typed.digest == schedule.digest
    assert format_program(again.program) == format_program(typed.program) == format_program(schedule.program)
    assert operator_from_json(schedule.op.to_json()) == schedule.op


def judge(schedule: Schedule, kernel: CompiledKernel | None = None) -> Verdict:
    """The verdict on the kernel of a schedule, or on another one in its place, for random inputs."""
    kernel = kernel or compile_schedule(schedule)
    return verify(schedule, kernel, ReferenceEvaluator.from_seed(schedule.op, 0))


def check_verdict(schedule: Schedule) -> None:
    """The compiled kernel runs in the PTX machine, and each of its launches is right."""
    kernel = compile_schedule(schedule)
    verdict = judge(schedule, kernel)
    assert verdict.ok, f"{verdict}\n{schedule}"
    assert len(verdict.launches) == len(kernel.launches)
