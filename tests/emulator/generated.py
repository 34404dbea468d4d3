"""Generated kernels in the PTX machine, beside the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import GeneratedSource, generate
from ekc.emulator import Report
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import make_inputs

TOLERANCE = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 4e-2, "int32": 0, "int8": 0}
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
                one.astype(float), other, rtol=tolerance, atol=tolerance, err_msg=self.schedule.to_python()
            )


def run(
    schedule: Schedule, arch: str = "sm_80", ptx: Ptx = compile_ptx, limits: LaunchLimits | None = None
) -> Ran:
    """Compile and run every launch; inputs are uniform, always the same."""
    op = schedule.op
    made = generate(schedule, limits)
    text = ptx(made.source, arch)
    held = {name: np.zeros(t.shape, t.dtype.numpy_dtype) for name, t in schedule.program.op.tensors.items()}
    given = make_inputs(op, 3)
    for spec, values in zip(op.inputs, given, strict=True):
        held[spec.name][...] = values
    reports = tuple(
        emulator.launch(text, x.name, grid=x.grid, block=x.block, args=[held[a] for a in x.arguments],
                        dynamic_shared=x.shared_bytes)
        for x in made.launches
    )  # fmt: skip
    return Ran(schedule, made, reports, tuple(held[s.name] for s in op.outputs), (op.reference(*given),))
