"""Random kernels of every kind match the float64 reference, are clean, and have the traffic that the analysis
predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ekc.errors import ScheduleError
from ekc.ir.hardware.target import Limits
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.emulator.drawn import (
    BRED,
    GRAPHS,
    MORE,
    breed_schedule,
    draw_by,
    draw_fused,
    draw_swizzled,
    step_schedule,
)
from tests.emulator.generated import check_tree, run
from tests.emulator.predicted import count_traffic, predict_traffic
from tests.ir.async_examples import draw_async
from tests.ir.drawn_operators import FIRST, Choose
from tests.ir.tensor_examples import draw_tensor
from tests.ir.test_schedules import assert_same
from tests.ir.typed import TRIPLES, rescheduled, retyped
from tests.ir.view_examples import draw_view
from tests.ir.warpgroup_examples import ARCH, HOPPER, draw_group

SHARED = (
    "shared_load_requests",
    "shared_load_wavefronts",
    "shared_store_requests",
    "shared_store_wavefronts",
)

LIMITS = Limits()


@dataclass(frozen=True)
class Feature:
    """A kind of random schedules, and their checks."""

    schedules: st.SearchStrategy[Schedule]
    exact: tuple[str, ...] = ()
    """Quantities that the analysis predicts exactly."""
    examples: int = 40
    """Examples of the slow test."""
    few: int = 5
    """Examples of the fast test."""
    check_tree: Callable[[Schedule], None] | None = None
    """Check of the tree in NumPy."""
    arch: str = "sm_80"
    limits: Limits = LIMITS
    rel: float = 1e-9
    abs: float = 0.0
    """Tolerances of the predictions."""


def step_any_types(choose: Choose) -> Schedule:
    """Any small operator of any types with random steps."""
    schedule, types = step_schedule(choose, FIRST), choose((None, *TRIPLES))
    return schedule if types is None else rescheduled(schedule, retyped(schedule.op, types))


def check_one_launch(schedule: Schedule) -> None:
    """A fused graph is one launch whose tree computes the operator."""
    assert len(schedule.program.nests) == 1
    assert_same(schedule)


MANY = max(160, settings.default.max_examples)
FEATURES = {
    # No choice of the compiler can change how often threads wait for each other or exchange values.
    "search space": Feature(
        st.builds(breed_schedule, st.sampled_from(sorted(BRED | MORE)), st.integers(0, 2**32 - 1)),
        ("barriers", "shuffles"), MANY, few=4, abs=0.5,
    ),
    "random steps": Feature(draw_by(step_any_types), ("barriers", "shuffles"), MANY, few=8, abs=0.5),
    "cp.async": Feature(
        draw_by(draw_async), ("barriers", "shared_store_requests", "shared_store_wavefronts")
    ),
    "swizzle": Feature(draw_swizzled(), SHARED, 60, few=8, check_tree=assert_same),
    "mma": Feature(draw_by(draw_tensor), SHARED[:2], check_tree=check_tree),
    "wgmma": Feature(
        draw_by(draw_group), ("shared_load_wavefronts", "barriers"), 25, few=3, check_tree=check_tree,
        arch=ARCH, limits=HOPPER,
    ),
    "implicit GEMM": Feature(draw_by(draw_view), (), 12, few=1),
    **{
        f"fused {name}": Feature(
            draw_fused(name), ("barriers", "shuffles", "shared_store_requests"), 30, few=2,
            check_tree=check_one_launch, rel=0.0,
        )
        for name in GRAPHS
    },
}  # fmt: skip


def check_schedule(feature: Feature, schedule: Schedule) -> None:
    try:
        enforce_rules(schedule.program, feature.limits)
    except ScheduleError:
        assume(False)
    assert Schedule.from_json(schedule.to_json()) == schedule
    if feature.check_tree is not None:
        feature.check_tree(schedule)
    ran = run(schedule, feature.arch, limits=feature.limits)
    ran.check()
    found, expected = count_traffic(ran), predict_traffic(schedule, feature.limits)
    for name in feature.exact:
        prediction = pytest.approx(expected[name], rel=feature.rel, abs=feature.abs)
        assert found[name] == prediction, f"{name}\n{schedule.to_python()}"


def check_examples(feature: Feature, count: int) -> None:
    too_slow = [HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=count, deadline=None, print_blob=True, suppress_health_check=too_slow)
    @given(feature.schedules)
    def check(schedule: Schedule) -> None:
        check_schedule(feature, schedule)

    check()


@pytest.mark.parametrize("name", FEATURES)
def test_drawn_kernels_match_reference(name: str) -> None:
    check_examples(FEATURES[name], FEATURES[name].few)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_many_drawn_kernels_match_reference(name: str) -> None:
    """More by `pytest --hypothesis-profile=many`."""
    check_examples(FEATURES[name], FEATURES[name].examples)
