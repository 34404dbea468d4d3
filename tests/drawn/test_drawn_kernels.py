"""Random schedules of every feature: interpreter and PTX machine compute the float64 reference; kernels are
clean, with the traffic that the analysis predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest
from hypothesis import HealthCheck, assume, given, settings

from ekc.errors import ScheduleError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.checks import check_text, check_tree, check_verdict
from tests.drawn.features import (
    BRED,
    GRAPHS,
    MORE,
    breed_schedule,
    draw_fused,
    draw_swizzled,
    step_atomic,
    step_in_parts,
    step_schedule,
)
from tests.drawn.operators import FIRST, Choose, draw_conv_of_any_rank, draw_conv_transpose, draw_operator
from tests.drawn.schedules import draw_any, draw_atomic, draw_by, draw_divided, keep_legal
from tests.drawn.types import TRIPLES, retyped
from tests.emulator.generated import run
from tests.emulator.predicted import count_traffic, predict_traffic
from tests.ir.async_examples import draw_async
from tests.ir.tensor_examples import draw_tensor
from tests.ir.view_examples import draw_view
from tests.ir.warpgroup_examples import ARCH, HOPPER, draw_group

SHARED = tuple(f"shared_{way}_{what}" for way in ("load", "store") for what in ("requests", "wavefronts"))
WGMMA, FUSED = ("shared_load_wavefronts", "barriers"), ("barriers", "shuffles", SHARED[2])
LIMITS = LaunchLimits()


@dataclass(frozen=True)
class Feature:
    """A kind of random schedules, and their checks."""

    draw: Callable[[Choose], Schedule | None]
    interpreted: tuple[int, int] = (0, 0)
    """Examples for the interpreter: of the fast and of the slow test."""
    emulated: tuple[int, int] = (0, 0)
    """Examples for the PTX machine."""
    exact: tuple[str, ...] = ()
    """Quantities that the analysis predicts exactly."""
    rules: Literal["obeyed", "filter", "ignored"] = "obeyed"
    """Whether every schedule obeys the rules of a launch, or those that break one are dropped. Schedules for
    the interpreter alone may ignore them."""
    is_verified: bool = False
    """Whether the kernel is judged launch by launch."""
    arch: str = "sm_80"
    limits: LaunchLimits = LIMITS
    rel: float = 1e-9
    abs: float = 0.0
    """Tolerances of the predictions."""


def draw_bred(choose: Choose) -> Schedule:
    """A schedule as the search makes it."""
    return breed_schedule(choose(sorted(BRED | MORE)), choose(range(2**32)))


def draw_typed(choose: Choose) -> Schedule:
    """Any schedule over other element types."""
    schedule = draw_any(choose)
    return keep_legal(schedule, retyped(schedule.op, choose(TRIPLES)))


def step_any_types(choose: Choose) -> Schedule:
    """Any small operator of any types with random steps."""
    schedule, types = step_schedule(choose, FIRST), choose((None, *TRIPLES))
    return schedule if types is None else keep_legal(schedule, retyped(schedule.op, types))


def draw_division(choose: Choose) -> Schedule | None:
    """A convolution whose groups or phases are divided."""
    return draw_divided(choose, choose((draw_conv_of_any_rank, draw_conv_transpose))(choose), 12)


MANY = max(160, settings.default.max_examples)
FEATURES = {
    "steps": Feature(draw_any, (30, 250), rules="ignored"),
    "element types": Feature(draw_typed, (15, 80)),
    "divide": Feature(draw_division, (15, 100), rules="ignored"),
    "atomic": Feature(lambda c: draw_atomic(c, draw_operator(c), 14), (15, 150), rules="ignored"),
    "legal atomic": Feature(step_atomic, emulated=(0, 10), is_verified=True),
    "split-K": Feature(step_in_parts, emulated=(0, 10), is_verified=True),
    # No choice of the compiler can change how often threads wait for each other or exchange values.
    "search space": Feature(draw_bred, emulated=(4, MANY), exact=("barriers", "shuffles"), abs=0.5),
    "random steps": Feature(step_any_types, emulated=(5, MANY), exact=("barriers", "shuffles"), abs=0.5),
    "cp.async": Feature(draw_async, (30, 60), (4, 40), ("barriers", *SHARED[2:])),
    "swizzle": Feature(draw_swizzled, (8, 60), (8, 60), SHARED),
    "mma": Feature(draw_tensor, (5, 40), (5, 40), SHARED[:2]),
    "wgmma": Feature(draw_group, (3, 25), (3, 25), WGMMA, "filter", arch=ARCH, limits=HOPPER),
    "implicit GEMM": Feature(draw_view, (15, 40), (1, 12)),
} | {f"fused {name}": Feature(partial(draw_fused, name), (2, 30), (2, 30), FUSED, rel=0.0) for name in GRAPHS}


def check_emulated(feature: Feature, schedule: Schedule) -> None:
    if feature.is_verified:
        check_verdict(schedule)
        return
    ran = run(schedule, feature.arch, limits=feature.limits)
    ran.check()
    counted, expected = count_traffic(ran), predict_traffic(schedule, feature.limits)
    for name in feature.exact:
        prediction = pytest.approx(expected[name], rel=feature.rel, abs=feature.abs)
        assert counted[name] == prediction, f"{name}\n{schedule.to_python()}"


def check_examples(name: str, machine: Callable[[Feature, Schedule], None], count: int) -> None:
    feature = FEATURES[name]
    unusual = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example,
               HealthCheck.filter_too_much]  # fmt: skip

    @settings(max_examples=count, deadline=None, print_blob=True, suppress_health_check=unusual)
    @given(draw_by(feature.draw))
    def check(schedule: Schedule) -> None:
        if feature.rules != "ignored":
            try:
                enforce_rules(schedule.program, feature.limits)
            except ScheduleError:
                assume(feature.rules == "obeyed")
                raise
        if name.startswith("fused"):
            assert len(schedule.program.nests) == 1
        check_text(schedule)
        machine(feature, schedule)

    check()


def list_examples(field: str) -> list[object]:
    """Parameters (feature, examples): few, and more in the slow test."""
    return [
        pytest.param(name, count, id=f"{name}-{size}", marks=[pytest.mark.slow] * (size == "many"))
        for name, feature in FEATURES.items()
        for size, count in zip(("few", "many"), getattr(feature, field), strict=True)
        if count
    ]


@pytest.mark.parametrize(("name", "count"), list_examples("interpreted"))
def test_drawn_schedule_is_interpreted_as_the_reference(name: str, count: int) -> None:
    check_examples(name, lambda _, schedule: check_tree(schedule), count)


@pytest.mark.parametrize(("name", "count"), list_examples("emulated"))
def test_drawn_kernel_matches_reference(name: str, count: int) -> None:
    """More by `pytest --hypothesis-profile=many`."""
    check_examples(name, check_emulated, count)
