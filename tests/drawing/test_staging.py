"""Timelines of pipelines: every tile is there before it is used, and as many barriers as the kernel has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.drawing.staging import PipelinePlan, plan_timeline
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.drawing.samples import SCHEDULES
from tests.ir.async_examples import async_matmul

PIPELINES = st.tuples(st.integers(1, 6), st.sampled_from(["register", "async"])).map(
    lambda p: (min(p[0], 2), p[1]) if p[1] == "register" else (max(p[0], 2), p[1])
)


@given(PIPELINES, st.integers(1, 20))
def test_tiles_are_complete_before_use_and_not_overwritten(pipeline: tuple[int, str], extent: int) -> None:
    stages, copy = pipeline
    plan = plan_timeline(stages, copy, range(extent), extent)
    assert Counter(s.tile for s in plan.spans if s.kind == "use") == Counter(range(extent))
    assert Counter(s.tile for s in plan.spans if s.kind == "copy") == Counter(range(extent))
    for use in (s for s in plan.spans if s.kind == "use"):
        filled = [s for s in plan.spans if s.tile == use.tile and s.row == use.row and s.kind != "use"]
        (last,) = filled
        assert last.end <= use.start
        # Other threads see it after a barrier.
        assert any(last.end <= b <= use.start for b in plan.barriers)
    for row in plan.rows:
        spans = sorted((s for s in plan.spans if s.row == row), key=lambda s: s.start)
        assert all(a.end <= b.start for a, b in pairwise(spans)), row
    check_order_of_reuse(plan)


def check_order_of_reuse(plan: PipelinePlan) -> None:
    """A barrier between the use of a buffer and the next write to it."""
    for use in (s for s in plan.spans if s.kind == "use"):
        later = [s.start for s in plan.spans if s.row == use.row and s.start >= use.end and s.kind != "use"]
        if later:
            assert any(use.end <= b <= min(later) for b in plan.barriers)


@given(st.integers(2, 6), st.integers(1, 20))
def test_copies_in_flight_are_one_less_than_the_buffers(stages: int, extent: int) -> None:
    plan = plan_timeline(stages, "async", range(extent), extent)
    for i in range(extent):
        flying = [s.tile for s in plan.spans if s.kind == "copy" and s.start <= i < s.end]
        assert flying == list(range(i + 1, min(i + stages, extent)))


@pytest.mark.parametrize(
    ("make", "stages", "copy", "extent"),
    [
        (lambda: samples.matmul(64, 64, 128, pipeline=False), 1, "register", 16),
        (lambda: samples.matmul(64, 64, 128), 2, "register", 16),
        (lambda: async_matmul(64, 64, 64, stages=4), 4, "async", 8),
    ],
)
def test_barriers_are_those_of_the_kernel(
    make: Callable[[], Schedule], stages: int, copy: str, extent: int
) -> None:
    plan = plan_timeline(stages, copy, range(extent), extent)
    assert len(set(plan.barriers)) == analyse_program(make().program, LaunchLimits())["barriers"][0]


def test_part_of_a_long_loop_is_shown_as_in_the_whole() -> None:
    for stages, copy in ((1, "register"), (2, "register"), (5, "async")):
        whole = plan_timeline(stages, copy, range(50), 50)
        part = plan_timeline(stages, copy, [0, 1, 2, 48, 49], 50)
        assert set(part.spans) <= set(whole.spans)
        assert {s.tile for s in part.spans if s.kind == "use"} == {0, 1, 2, 48, 49}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "double_buffer",
            ["A.shared[8, 128+4]", "2 buffers", "4 x float32, 16 bytes", "registers of the copy"],
        ),
        ("cp_async", ["for each k.0, cp.async", "4 buffers, copies 3 ahead (cp.async)", "buffer 3"]),
        ("wgmma", ["wgmma reads the tile", "swizzle 8", "write 2 x float16, 4 bytes"]),
        ("softmax", ["top, computed here", "for 2 warps", "once"]),
        ("naive", ["read where C is computed", "A block has 256 threads and 0 bytes of shared memory."]),
        ("atomic", ["write 1 x float32, 4 bytes, atomic"]),
    ],
)
def test_routes_name_copies_and_sizes(name: str, words: list[str]) -> None:
    text = SCHEDULES[name]().draw("staging")
    for word in words:
        assert word in text, word
