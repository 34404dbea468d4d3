"""Asynchronous pipelines: results, mistakes in their counts, and copies that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ekc.ir.operators as o
from ekc.codegen.generate import generate
from ekc.devices import open as open_device
from ekc.errors import ScheduleError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.analysis.occupancy import estimate_registers
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import CopyWaitNode, LoopNode, walk_nodes
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree, make_inputs
from tests.ir import interpret as evaluator
from tests.ir.async_examples import async_conv2d, async_matmul, async_twice


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_missing_wait_is_detected(monkeypatch: pytest.MonkeyPatch, stages: int) -> None:
    monkeypatch.setattr(evaluator, "count_pending_groups", lambda stages: stages - 1)
    op = async_matmul(16, 32, 40, stages=stages).op
    found = evaluator.interpret_program(async_matmul(16, 32, 40, stages=stages).program, make_inputs(op))
    assert np.isnan(found.output).any()


def test_tile_copied_too_early_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It overwrites the tile in use."""
    monkeypatch.setattr(evaluator, "count_tiles_ahead", lambda stages: stages)
    schedule = async_matmul(16, 32, 40)
    found = evaluator.interpret_program(schedule.program, make_inputs(schedule.op))
    expected = schedule.op.reference(*make_inputs(schedule.op))
    assert not np.allclose(found.output, expected)


def test_pipeline_has_one_barrier_an_iteration_and_one_between_runs() -> None:
    kernel = derive_launches(async_matmul(16, 32, 40).program)[0]
    loop = next(n for n in walk_nodes(kernel.body) if isinstance(n, LoopNode) and n.is_async)
    assert sum(isinstance(n, CopyWaitNode) for n in walk_nodes(kernel.body)) == 1
    assert loop.loop.name == "k.0"
    assert analyse_program(async_matmul(16, 32, 40).program, LaunchLimits())["barriers"][0] == 5
    # 9 rows x 2 runs of c.0, each 3 tiles and a barrier before the next.
    assert analyse_program(async_conv2d(3).program, LaunchLimits())["barriers"][0] == 9 * 2 * (3 + 1)


def test_tiles_in_flight_use_shared_memory_and_no_registers() -> None:
    through, past = (
        derive_launches(s.program)[0]
        for s in (
            Schedule(async_matmul(64, 64, 64).op).apply_steps(*list_register_steps()),
            async_matmul(64, 64, 64, stages=6),
        )
    )
    assert past.shared_bytes == 3 * through.shared_bytes
    assert estimate_registers(past) < estimate_registers(through)


def list_register_steps() -> Any:
    steps = async_matmul(64, 64, 64).steps
    return [replace(s, stages=2, copy="register") if s.kind == "pipeline" else s for s in steps]


def copy_async(dtype: str, vector: int, order: tuple[int, ...] = ()) -> Schedule:
    s = Schedule(o.matmul(16, 16, 32, dtype=dtype)).split("k", (16,)).reorder("i", "k.0", "j", "k.1")
    s = s.bind("i", "thread.x").cache_write("C")
    s = s.cache_read("A", "shared", at="k.0", vector=vector, order=order)
    return s.pipeline("k.0", stages=2, copy="async")


MISTAKES = {
    "half alone": (copy_async("float16", 1), "2 bytes at once", "4, 8 or 16", "vector=2"),
    "half turned": (copy_async("float16", 1, (1, 0)), "2 bytes at once", "4, 8 or 16", "register"),
    "half turned, together": (copy_async("float16", 2, (1, 0)), "2 elements", "order", "register"),
    "turned": (
        copy_async("float32", 4, (1, 0)),
        "4 elements",
        "must be 1, as the copy changes the order",
        "1",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_illegal_copy_is_refused_with_its_nearest_choice(name: str) -> None:
    schedule, need, limit, nearest = MISTAKES[name]
    with pytest.raises(ScheduleError) as caught:
        enforce_rules(schedule.program, LaunchLimits())
    refusal = caught.value.refusal
    assert refusal.rule == "async copy of A.shared"
    assert need in refusal.need
    assert limit in refusal.limit
    assert nearest in refusal.nearest


@pytest.mark.parametrize("copy", ["register", "async"])
def test_rounds_of_a_pipelined_copy_are_refused(copy: str) -> None:
    """A pipeline writes out all rounds, so the number would do nothing."""
    s = Schedule(o.matmul(16, 16, 32)).split("k", (16,)).reorder("i", "k.0", "j", "k.1")
    s = s.bind("i", "thread.x").cache_write("C").cache_read("A", "shared", at="k.0", unroll=2)
    enforce_rules(s.program, LaunchLimits())
    words = (
        "copy A.shared: 2 rounds to unroll, must be 0, as k.0 is pipelined and writes out all rounds; use 0"
    )
    with pytest.raises(ScheduleError, match=words):
        enforce_rules(s.pipeline("k.0", stages=2, copy=copy).program, LaunchLimits())


@pytest.mark.parametrize(
    "schedule",
    [
        copy_async("float16", 2),
        copy_async("float16", 8),
        copy_async("float32", 1, (1, 0)),
        copy_async("float32", 4),
    ],
)
def test_legal_copy_matches_reference(schedule: Schedule) -> None:
    enforce_rules(schedule.program, LaunchLimits())
    check_tree(schedule)


def test_target_without_cp_async_is_refused() -> None:
    import ekc

    schedule = async_matmul(16, 32, 40)
    with pytest.raises(
        ScheduleError, match=r"async copy of A\.shared: targets before sm_80 have no cp\.async"
    ):
        ekc.compile(schedule, arch="sm_75")
    assert not open_device("rtx2080ti").limits.async_copies
    assert open_device("rtx3090").limits.async_copies
    with pytest.raises(ScheduleError):
        generate(schedule, open_device("rtx2080ti").limits)


@pytest.mark.parametrize("inner", ["async", "register"])
def test_nested_pipelines_match_reference(inner: str) -> None:
    check_tree(async_twice(inner))


def test_tile_moved_out_leaves_a_plain_loop() -> None:
    schedule = copy_async("float32", 1).compute_at("A.shared", None)
    assert not any(isinstance(n, CopyWaitNode) for n in walk_nodes(derive_launches(schedule.program)[0].body))
    check_tree(schedule)
