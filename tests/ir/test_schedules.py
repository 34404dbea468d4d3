"""Long random schedules compute the result of their operator; steps from numbers of NumPy."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import ekc
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.schedule import STEP_CLASSES, Step
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_tree
from tests.drawn.schedules import draw_any, draw_by, seeded_schedule

FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
FAST_SEEDS = 30


@pytest.mark.parametrize(
    "seed", [*range(FAST_SEEDS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(FAST_SEEDS, 100))]
)
def test_fixed_sample_of_long_schedules_matches_reference(seed: int) -> None:
    check_tree(seeded_schedule(seed))


def test_split_sum_of_one_term_matches_reference() -> None:
    schedule = Schedule(ekc.matmul(5, 3, 1)).split("k", (8,)).reorder("i", "k.0", "k.1", "j").cache_write("C")
    check_tree(schedule.cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0"))


@FEW
@given(draw_by(draw_any))
def test_numpy_integers_give_the_same_schedule(schedule: Schedule) -> None:
    """Factors may come from an array of a user."""
    typed = Schedule(schedule.op).apply_steps(*(replace(s, **_with_numpy(s)) for s in schedule.steps))
    assert typed == schedule
    assert (typed.to_json(), typed.to_python()) == (schedule.to_json(), schedule.to_python())


def _with_numpy(step: Step) -> dict[str, Any]:
    def numpy(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(numpy, value))
        return np.int64(value) if isinstance(value, int) else value

    return {f.name: numpy(getattr(step, f.name)) for f in fields(step)}


@pytest.mark.slow
def test_random_schedules_have_every_step_and_rare_shapes() -> None:
    sample = [seeded_schedule(seed) for seed in range(600)]
    kinds = Counter(step.kind for schedule in sample for step in schedule.steps)
    # Lanes of a tensorized loop need the layout of the instruction; `tensor_examples` has those.
    assert set(kinds) == set(STEP_CLASSES) - {"tensorize"}
    assert min(kinds.values()) >= 5, kinds
    assert max(len(s.steps) for s in sample) == 20
    nests = [kernel for s in sample for kernel in derive_launches(s.program)]
    assert any(x.is_thread and x.is_reduction for k in nests for x in k.nest.loops), "no sum across lanes"
    assert any(s.source != s.tensor for k in nests for s in k.nest.stagings), "no copy of a copy"
    assert any(s.producer for k in nests for s in k.nest.stagings), "no fused producer"
    assert any(k.nest.epilogue for k in nests), "no epilogue"
    assert any(x.is_block and x.is_reduction for k in nests for x in k.nest.loops), (
        "no reduction split over blocks"
    )


def test_vthread_outside_of_the_sum_warns() -> None:
    s = (
        Schedule(ekc.matmul(32, 32, 32))
        .split("i", (4,))
        .split("k", (8,))
        .reorder("i.0", "i.1", "k.0", "k.1", "j")
    )
    words = r"vthread i.1 is outside of reduction loop k.0, which runs 4 times, .* reorder i.1 behind k.1"
    with pytest.warns(UserWarning, match=words):
        s.bind("i.1", "vthread")


def test_vthread_inside_of_the_sum_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    s = Schedule(ekc.matmul(32, 32, 32)).split("i", (4,)).reorder("i.0", "k", "i.1", "j")
    s.bind("i.1", "vthread")
    assert not recwarn.list
