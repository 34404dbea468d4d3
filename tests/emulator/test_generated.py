"""What codegen emits runs here, agrees with the operator's own reference, and is clean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.codegen.generate import generate
from ekc.emulator import Report
from ekc.ir.schedule import Schedule
from tests.codegen.test_execute_on_host import corners, drawn, features
from tests.ir import examples


def run(schedule: Schedule, arch: str = "sm_80") -> tuple[list[Report], list[np.ndarray], list[np.ndarray]]:
    """Reports of every launch, outputs, and the reference."""
    rng, op = np.random.default_rng(3), schedule.op
    made = generate(schedule)
    ptx = nvrtc.compile(made.source, arch).ptx
    held = {name: np.zeros(t.shape, np.dtype(t.dtype.name)) for name, t in op.tensors.items()}
    for spec in op.inputs:
        held[spec.name][...] = rng.uniform(-1, 1, spec.shape)
    given = [held[spec.name].copy() for spec in op.inputs]
    reports = [
        emulator.launch(ptx, x.name, grid=x.grid, block=x.block, args=[held[a] for a in x.arguments],
                        dynamic_shared=x.shared_bytes)
        for x in made.launches
    ]  # fmt: skip
    expected: Any = op.reference(*given)
    return (
        reports,
        [held[s.name] for s in op.outputs],
        list(expected) if isinstance(expected, tuple) else [expected],
    )


def check(schedule: Schedule, arch: str = "sm_80") -> None:
    reports, found, expected = run(schedule, arch)
    for report in reports:
        assert report.findings == (), f"{report}\n{schedule.to_python()}"
    for one, other in zip(found, expected, strict=True):
        tolerance = 2e-2 if one.dtype == np.float16 else 2e-4
        np.testing.assert_allclose(one.astype(float), other, rtol=tolerance, atol=tolerance)


SMALL = {
    "matmul": lambda: examples.tiled_matmul(256, 128, 64),
    "conv2d": examples.tiled_conv2d,
    "matvec_lanes": examples.lanes_matvec,
    "fused_loops": examples.fused_loops,
    "plain": examples.EXAMPLES["plain"],
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_examples(make: Callable[[], Schedule], arch: str) -> None:
    check(make(), arch)


@pytest.mark.parametrize("some", [features, corners, lambda: drawn(10)], ids=["features", "corners", "drawn"])
def test_schedules(some: Callable[[], list[Schedule]]) -> None:
    for schedule in some():
        check(schedule)
