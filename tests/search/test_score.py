"""What the rounds make small: the objective, dearer for what is too slow to win."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.search.measuring import Bench
from ekc.search.options import Wish
from ekc.search.records import RecordStore
from ekc.search.space import Space
from ekc.search.standing import TOO_SLOW, Standing
from ekc.search.task import ScheduleTask


def _kernel(latency_s: float, ok: bool = True, metered: bool = False) -> Any:
    return SimpleNamespace(latency_s=latency_s, power_w=100.0, ok=ok, metered=metered)


def test_what_is_too_slow_to_win_counts_as_dearer() -> None:
    fastest, near, slow = _kernel(10e-6), _kernel(10.5e-6), _kernel(20e-6)
    standing = Standing(Wish(8, "energy", 0.05, False, 0, None), [slow, near, fastest])
    assert standing.scores == pytest.approx([20e-4 * (20 / 10.5) ** TOO_SLOW, 10.5e-4, 10e-4])
    assert standing.best is fastest


def test_what_failed_after_it_was_timed_makes_nothing_too_slow() -> None:
    device = devices.open("a100")
    with RecordStore(None) as store, ThreadPoolExecutor(1) as workers:
        space = Space(ekc.matvec(64, 64), device.limits)
        wish = Wish(8, "energy", 0.05, False, 0, None)
        task = ScheduleTask(space, Bench(device, store), workers, wish, lambda done, text: None)
        task.candidates = [_kernel(1e-6, ok=False), _kernel(20e-6)]
        assert task.standing.scores == pytest.approx([20e-4])


def test_a_prediction_is_no_mark_where_something_was_metered() -> None:
    predicted, metered = _kernel(10e-6), _kernel(10.2e-6, metered=True)
    standing = Standing(Wish(8, "energy", 0.05, False, 0, None), [predicted, metered])
    assert standing.best is metered
    assert standing.scores == pytest.approx([10.2e-4])
