"""Scores of candidates and genomes: the objective, its penalty on slow ones, ties."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.devices.statistics import Interval
from ekc.search.cost_model.acquisition import Incumbent
from ekc.search.data.defaults import ACQUISITION
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.loop.task import ScheduleTask
from ekc.search.space.space import Space
from tests.search.helpers import THREADS, make_options


def _kernel(latency_s: float, ok: bool = True, metered: bool = False) -> Any:
    span = Interval(0.998 * latency_s, 1.002 * latency_s)
    return SimpleNamespace(
        latency_s=latency_s, latency_interval_s=span, power_w=100.0, ok=ok, metered=metered
    )


def test_score_penalises_slow_candidates() -> None:
    fastest, near, slow = _kernel(10e-6), _kernel(10.5e-6), _kernel(20e-6)
    incumbent = Incumbent(make_options(), [slow, near, fastest])
    assert incumbent.scores == pytest.approx(
        [20e-4 * (20 / 10.5) ** ACQUISITION.infeasibility_exponent, 10.5e-4, 10e-4]
    )
    assert incumbent.best is fastest


@contextmanager
def open_task(op: ekc.Operator, objective: str = "energy") -> Iterator[ScheduleTask]:
    """A task on the a100 that has measured nothing."""
    device = devices.open("a100")
    with RecordStore(None) as store:
        options = make_options(objective=objective)
        yield ScheduleTask(Space(op, device.limits), Measurer(device, store), THREADS, options)


def test_incumbent_ignores_failed_candidates() -> None:
    with open_task(ekc.matvec(64, 64)) as task:
        task.candidates = [_kernel(1e-6, ok=False), _kernel(20e-6)]
        assert task.incumbent.scores == pytest.approx([20e-4])


def test_incumbent_may_have_predicted_energy() -> None:
    """A run that meters few would otherwise try to beat a kernel of its first round until its finals."""
    predicted, metered = _kernel(10e-6), _kernel(10.2e-6, metered=True)
    incumbent = Incumbent(make_options(), [predicted, metered])
    assert incumbent.best is predicted
    assert incumbent.scores == pytest.approx([10e-4, 10.2e-4])
