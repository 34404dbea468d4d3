"""What codegen emits runs here, agrees with the operator's own reference, and is clean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ekc.ir.schedule.schedule import Schedule
from tests.codegen.test_execute_on_host import corners, drawn, features
from tests.emulator.generated import run
from tests.ir import examples

SMALL = {
    "matmul": lambda: examples.tiled_matmul(256, 128, 64),
    "conv2d": examples.tiled_conv2d,
    "matvec_lanes": examples.lanes_matvec,
    "column_lanes": examples.column_lanes,
    "depth_lanes": examples.depth_lanes,
    "fused_loops": examples.fused_loops,
    "plain": examples.EXAMPLES["plain"],
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_examples(make: Callable[[], Schedule], arch: str) -> None:
    run(make(), arch).check()


@pytest.mark.parametrize("some", [features, corners, lambda: drawn(10)], ids=["features", "corners", "drawn"])
def test_schedules(some: Callable[[], list[Schedule]]) -> None:
    for schedule in some():
        run(schedule).check()
