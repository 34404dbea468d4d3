"""Generated kernels match the operator's reference and are clean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekc
from ekc.codegen.generate import generate
from ekc.ir.schedule.schedule import Schedule
from tests.codegen.test_execute_on_host import corners, drawn, features
from tests.drawn.types import Types, retyped
from tests.emulator.generated import compile_ptx, run
from tests.ir import examples

SMALL = {"matmul": lambda: examples.tiled_matmul(256, 128, 64)} | {
    name: examples.EXAMPLES[name]
    for name in ("conv2d", "matvec_lanes", "column_lanes", "depth_lanes", "fused_loops", "plain")
}


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_100", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("make", SMALL.values(), ids=SMALL)
def test_example_kernels_match_reference(make: Callable[[], Schedule], arch: str) -> None:
    run(make(), arch).check()


@pytest.mark.parametrize(
    "some",
    [
        lambda: features()[::4],
        corners,
        pytest.param(features, marks=pytest.mark.slow),
        pytest.param(lambda: drawn(10), marks=pytest.mark.slow),
    ],
    ids=["some features", "corners", "features", "drawn"],
)
def test_schedules_match_reference(some: Callable[[], list[Schedule]]) -> None:
    for schedule in some():
        run(schedule).check()


def test_load_widened_over_an_unread_end_is_clean() -> None:
    """Three floats of shared memory are loaded as four. The last one is not read."""
    op = ekc.einsum("ab,bc->ac", (1, 2), (2, 2))
    schedule = (
        Schedule(op).fuse("a", "c").split("b", (3,)).split("a_c", (2,)).cache_write("C")
        .cache_read("A", "shared").compute_at("A.shared", None).cache_read("A.shared", "register")
    )  # fmt: skip
    ran = run(schedule)
    assert "ld.shared.v4" in compile_ptx(ran.made.source, "sm_80")
    ran.check()


@pytest.mark.parametrize("types", [("int8", "int32", "int32"), ("int8", "float32", "float32")])
def test_joined_bytes_may_exceed_an_array_unless_used(types: Types) -> None:
    """91 bytes of shared memory come in six loads of four words; of the last word used, 3 bytes are there."""
    schedule = (
        Schedule(retyped(ekc.matmul(2, 7, 13, transpose_a=True, transpose_b=True), types))
        .reorder("i", "k", "j").split("i", (2,)).bind("i.0", "block.x")
        .cache_read("A", "register").cache_read("B", "shared", order=(1, 0))
    )  # fmt: skip
    run(schedule).check()
    assert "B_shared[91]" in compile_ptx(generate(schedule).source, "sm_80")
    (report,) = run(schedule, ptx=lambda *asked: compile_ptx(*asked).replace("[91]", "[90]")).reports
    assert any("load of 16 bytes" in found.message for found in report.findings)


def test_integers_multiplied_by_two_epilogues_wrap() -> None:
    """Three inputs of 1,000 multiply beyond int32: the harness has to draw smaller ones."""
    once = ekc.matmul(3, 2, 1).epilogue(lambda c, u: c * u, u=(3, 2))
    op = once.epilogue(lambda c, v: c * v, v=(3, 2))
    ran = run(Schedule(retyped(op, ("int32", "int32", "int32"))))
    ran.check()
    assert np.abs(ran.expected[0]).max() > 1000
