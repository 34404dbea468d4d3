"""Generated kernels in the PTX machine, beside the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import GeneratedSource, generate
from ekc.emulator import Report
from ekc.ir.hardware.target import Limits
from ekc.ir.interpreter.interpret import interpret_program
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule

TOLERANCE = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 4e-2, "int32": 0, "int8": 0}
INTEGERS = {"int8": (-128, 128), "int32": (-1000, 1000)}
"""Ranges of integer inputs; floats are between -1 and 1."""
Ptx = Callable[[str, str], str]
"""PTX of a CUDA text for an arch."""


def compile_ptx(source: str, arch: str) -> str:
    return nvrtc.compile(source, arch).ptx


@dataclass(frozen=True)
class Ran:
    """A schedule's kernels after their run: reports of every launch, outputs, and the float64 reference."""

    schedule: Schedule
    made: GeneratedSource
    reports: tuple[Report, ...]
    found: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]

    def check(self) -> None:
        """Outputs agree with the reference, and the sanitizer saw nothing."""
        for report in self.reports:
            assert report.findings == (), f"{report}\n{self.schedule.to_python()}"
        for one, other in zip(self.found, self.expected, strict=True):
            tolerance = TOLERANCE[one.dtype.name]
            np.testing.assert_allclose(
                one.astype(float),
                other,
                rtol=tolerance,
                atol=tolerance,
                err_msg=self.schedule.to_python(),
            )


def run(schedule: Schedule, arch: str = "sm_80", ptx: Ptx = compile_ptx, limits: Limits | None = None) -> Ran:
    """Compile and run every launch; inputs are uniform, always the same."""
    op = schedule.op
    made = generate(schedule, limits)
    text = ptx(made.source, arch)
    held = {name: np.zeros(t.shape, t.dtype.numpy_dtype) for name, t in schedule.program.op.tensors.items()}
    given, expected = _inputs_and_results(op)
    for spec, values in zip(op.inputs, given, strict=True):
        held[spec.name][...] = values
    reports = tuple(
        emulator.launch(text, x.name, grid=x.grid, block=x.block, args=[held[a] for a in x.arguments],
                        dynamic_shared=x.shared_bytes)
        for x in made.launches
    )  # fmt: skip
    return Ran(schedule, made, reports, tuple(held[s.name] for s in op.outputs), expected)


def _inputs_and_results(op: Operator) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
    """Integers multiplied by epilogue after epilogue leave int32, and wrap."""
    rng = np.random.default_rng(3)
    given = [
        rng.uniform(*INTEGERS.get(t.dtype.name, (-1, 1)), t.shape).astype(t.dtype.numpy_dtype)
        for t in op.inputs
    ]
    return given, (op.reference(*given),)


def check_tree(schedule: Schedule) -> None:
    """The tree of a schedule, interpreted in NumPy, matches the reference."""
    rng, op = np.random.default_rng(5), schedule.op
    low, high = (-128, 128) if op.inputs[0].dtype.is_integer else (-1, 1)
    arrays = [rng.uniform(low, high, t.shape).astype(t.dtype.numpy_dtype) for t in op.inputs]
    found, expected = interpret_program(schedule.program, arrays), op.reference(*arrays)
    assert found.written_mask.all()
    tolerance = TOLERANCE[found.output.dtype.name]
    np.testing.assert_allclose(found.output.astype(float), expected, rtol=tolerance, atol=tolerance)
