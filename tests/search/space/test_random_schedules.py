"""Random schedules of random operators: right results, and round trips through JSON and Python.

`tests/ir` has some 300 shallow schedules, built step by step. Here are 250 of the spaces of some 60
operators, each of 15 steps or more; 40 of them in the fast run.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.errors import Refusal, ScheduleError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.rules.launch import enforce_rules
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space
from tests.drawn.checks import check_tree
from tests.search.helpers import find_refusals

DEPTH, EACH = 15, 4
"""Steps of a schedule, and schedules of one space: a new space costs more than a schedule."""
SMALL = (2, 3, 4, 5, 7, 8, 9, 12, 13)
WINDOW = (1, 2, 3)


def _matmul(draw: Any) -> Operator:
    flip = st.booleans()
    return o.matmul(*_three(draw), dtype=_dtype(draw), transpose_a=draw(flip), transpose_b=draw(flip))


def _batch(draw: Any) -> Operator:
    return o.batch_matmul(draw(st.sampled_from((2, 3))), *_three(draw), dtype=_dtype(draw))


def _conv(draw: Any) -> Operator:
    pick = {
        "out_channels": draw(st.sampled_from((4, 8))),
        "kernel": (draw(st.sampled_from(WINDOW)), draw(st.sampled_from(WINDOW))),
        "stride": draw(st.sampled_from((1, 2))),
        "padding": draw(st.sampled_from((0, 1, 2))),
        "groups": draw(st.sampled_from((1, 1, 2, 4))),
    }
    return o.conv2d(draw(st.sampled_from((1, 2))), 4, draw(st.sampled_from((6, 7))), 8, **pick)


def _band(draw: Any) -> Operator:
    n, m, width = draw(st.sampled_from((9, 16))), draw(st.sampled_from(SMALL)), draw(st.sampled_from((3, 4)))
    return o.compute(
        "band",
        axes={"i": n, "j": m},
        reduce={"b": width},
        inputs={"A": (n, width), "B": (n, m)},
        body=lambda A, B, i, j, b: A[i, b] * B[i + b - width // 2, j],
    )


def _largest(draw: Any) -> Operator:
    m, n, k = _three(draw)
    return o.compute(
        "largest",
        axes={"i": m, "j": n},
        reduce={"k": k},
        inputs={"A": (m, k), "B": (n, k)},
        body=lambda A, B, i, j, k: A[i, k] + B[j, k],
        combine="max",
    )


def _epilogue(draw: Any) -> Operator:
    m, n, k = _three(draw)
    return o.matmul(m, n, k).then(
        "D",
        axes={"p": m, "q": n},
        inputs={"bias": (n,)},
        body=lambda C, bias, p, q: ex.relu(C[p, q] + bias[q]),
    )


def _three(draw: Any) -> list[int]:
    return [draw(st.sampled_from(SMALL)) for _ in range(3)]


def _dtype(draw: Any) -> str:
    return draw(st.sampled_from(("float32", "float32", "float16")))


KINDS = (_matmul, _batch, _conv, _band, _largest, _epilogue)


def sample_deep(op: Operator, seed: int, limits: LaunchLimits) -> list[Schedule]:
    """Random legal schedules, at most `EACH`, of the structures with enough steps."""
    space, random = Space(op, limits), np.random.default_rng(seed)
    deep = np.array([len(s.steps) >= DEPTH for s in space.structures])
    drawn = space.sample(random, 100)
    legal, dropped = space.repair(random, drawn[np.flatnonzero(deep[drawn.structure])[:EACH]])
    assert len(legal), dropped
    return [space.build_schedule(legal, row) for row in range(len(legal))]


@st.composite
def deep_schedules(draw: st.DrawFn) -> list[Schedule]:
    """Strategy: a small operator with random schedules of its space, each of 15 steps or more."""
    op = draw(st.sampled_from(KINDS))(draw)
    schedules = sample_deep(op, draw(st.integers(0, 2**20)), LaunchLimits(threads_per_block=64))
    for schedule in schedules:
        assert len(schedule.steps) >= DEPTH, schedule.to_python()
    return schedules


@pytest.mark.parametrize("cases", [20, pytest.param(250, marks=pytest.mark.slow)])
def test_random_schedules_match_reference_and_round_trip(cases: int) -> None:
    found: list[tuple[str, int]] = []

    @settings(
        max_examples=math.ceil(1.1 * cases / EACH),  # Repair drops some.
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(deep_schedules())
    def one(schedules: list[Schedule]) -> None:
        for schedule in schedules:
            found.append((schedule.op.name, len(schedule.steps)))
            check_tree(schedule)
            _comes_back(schedule)

    one()
    assert len(found) >= cases
    assert min(depth for _, depth in found) >= DEPTH
    if cases < 250:
        return
    assert {name for name, _ in found} == {"matmul", "batch_matmul", "conv2d", "band", "largest", "matmul_D"}
    assert max(depth for _, depth in found) >= 24


def _comes_back(schedule: Schedule) -> None:
    """Round trip through JSON and through Python text."""
    again = Schedule.from_json(schedule.to_json())
    names = {"ekc": SimpleNamespace(Schedule=Schedule), "op": schedule.op}
    typed = eval(f"({schedule.to_python()})", names)
    assert again == typed == schedule
    assert again.digest == typed.digest == schedule.digest


def _complete(refusal: Refusal) -> None:
    assert all((refusal.rule, refusal.need, refusal.limit, refusal.nearest)), refusal
    assert str(refusal).count("\n") == 0


@pytest.mark.parametrize(
    "tight",
    [
        LaunchLimits(threads_per_block=2),
        LaunchLimits(shared_bytes_per_block=16),
        LaunchLimits(registers_per_thread=25),
        LaunchLimits(grid_x=1),
    ],
)
@pytest.mark.parametrize(
    "make", [o.matmul(13, 24, 9), o.conv2d(1, 4, 8, 8, out_channels=8, kernel=3, padding=1)]
)
def test_refusals_name_rule_need_limit_and_nearest(make: Operator, tight: LaunchLimits) -> None:
    space, random = Space(make, tight), np.random.default_rng(0)
    raw, refused = space.sample(random, 60), 0
    for row in range(len(raw)):
        for refusal in find_refusals(space, raw, row):
            _complete(refusal)
            refused += 1
        try:
            enforce_rules(space.build_schedule(raw, row).program, tight)
        except ScheduleError as problem:
            _complete(problem.refusal)
    assert refused >= 20
