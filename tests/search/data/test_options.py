"""Checks of the options of a tuning run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

import ekc
from ekc.errors import InvalidInput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.options import EFFORTS, SearchMethod, check_executor_and_callback
from tests.search.helpers import MV, tune


def test_efforts_are_sorted_by_size() -> None:
    sizes = [(e.trials, e.expected_calls) for e in EFFORTS.values()]
    assert list(EFFORTS) == ["quick", "standard", "full"]
    assert sizes == sorted(sizes)


def test_effort_with_trials_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^effort and trials: give one"):
        tune(effort="quick")


@pytest.mark.parametrize("bad", ["quik", "", 3])
def test_bad_effort_is_refused_in_one_line(bad: object) -> None:
    with pytest.raises(InvalidInput, match=r"^effort: no .*; choices are quick, standard, full; nearest is"):
        ekc.tune(MV, effort=bad, progress=False)  # type: ignore[arg-type]


async def wait(_: ekc.TuningEvent) -> bool:
    return True


def generate(_: ekc.TuningEvent) -> Iterator[bool]:
    yield True


async def generate_slowly(_: ekc.TuningEvent) -> AsyncIterator[bool]:
    yield True


class Waiting:
    async def __call__(self, _: ekc.TuningEvent) -> bool:
        return True


@pytest.mark.parametrize(
    "callback", [wait, generate, generate_slowly, Waiting(), partial(wait), Waiting().__call__]
)
def test_async_callback_is_refused(callback: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"^callback: .* is async or a generator, .*; give a plain function"
    ):
        check_executor_and_callback(None, callback)


def test_metered_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(InvalidInput, match="metered: 30 is outside 0 to 1"):
        SearchMethod(metered_share=30)


BAD: list[dict[str, Any]] = [
    {"trials": 0},
    {"trials": 2.5},
    {"trials": True},
    {"trials": "many"},
    {"trials": 10**9},
    {"seed": -1},
    {"seed": 2**63},
    {"seed": 0.5},
    {"objective": "speed"},
    {"objective": 7},
    {"max_slowdown": -0.1},
    {"max_slowdown": float("nan")},
    {"max_slowdown": "5%"},
    {"max_slowdown": None},
    {"clocks": "free"},
    {"time_budget_s": 0},
    {"time_budget_s": float("nan")},
    {"time_budget_s": "1m"},
    {"start": [ekc.Schedule(ekc.matvec(8, 8))]},
    {"start": ["split"]},
    {"start": make_naive_schedule(MV)},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_bad_argument_is_refused_in_one_line(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as problem:
        tune(**bad)
    text = str(problem.value)
    assert text.startswith(next(iter(bad)))
    assert "\n" not in text
    assert len(text) < 200
