"""What the rounds make small: the objective, dearer for what is too slow to win."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.devices.statistics import Interval
from ekc.ir.analysis.analysis import analyse_program
from ekc.search.cost_model import features
from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.measure import Measurer
from ekc.search.loop.selection import INFEASIBILITY_EXPONENT, Incumbent, compute_tie_margin
from ekc.search.loop.task import ScheduleTask
from ekc.search.space.space import Space


def _kernel(latency_s: float, ok: bool = True, metered: bool = False) -> Any:
    span = Interval(0.998 * latency_s, 1.002 * latency_s)
    return SimpleNamespace(
        latency_s=latency_s, latency_interval_s=span, power_w=100.0, ok=ok, metered=metered
    )


def test_how_far_level_goes() -> None:
    """As far as timings can tell, and no further than 1 %; of energy, always 1 %."""
    wish = TuneOptions(8, "latency", 0.05, False, 0, None)
    assert Incumbent(wish, [_kernel(20e-6), _kernel(10e-6)]).tie_margin == pytest.approx(0.004)
    assert Incumbent(replace(wish, objective="energy"), [_kernel(10e-6)]).tie_margin == 0.01
    assert compute_tie_margin(Interval(0.9, 1.1)) == compute_tie_margin(None) == 0.01


def test_what_is_too_slow_to_win_counts_as_dearer() -> None:
    fastest, near, slow = _kernel(10e-6), _kernel(10.5e-6), _kernel(20e-6)
    standing = Incumbent(TuneOptions(8, "energy", 0.05, False, 0, None), [slow, near, fastest])
    assert standing.scores == pytest.approx([20e-4 * (20 / 10.5) ** INFEASIBILITY_EXPONENT, 10.5e-4, 10e-4])
    assert standing.best is fastest


def test_of_what_is_believed_level_the_leanest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a timing may not tell from the best figure by their slots, then the others as they are
    believed."""
    device = devices.open("a100")
    with RecordStore(None) as store, ThreadPoolExecutor(1) as workers:
        space = Space(ekc.matvec(256, 256), device.limits)
        wish = TuneOptions(8, "latency", 0.05, False, 0, None)
        task = ScheduleTask(space, Measurer(device, store), workers, wish)
        drawn = Breeder(space, np.random.default_rng(0)).sample(64)
        mean = np.linspace(-0.02, 0.04, len(drawn))[::-1]
        believed = Acquisition(mean, np.full(len(drawn), 0.1), 0.0)
        monkeypatch.setattr(task, "_compute_acquisitions", lambda population: (believed,))
        task.candidates = [_kernel(1.0)]
        order = np.argsort(task.score_tie_breaks(drawn), kind="stable")
        slots = task.input_cache.get_inputs(drawn).issue_slots
    level = int((mean <= np.log(1.004)).sum())
    assert 0 < level < len(drawn)
    assert set(order[:level]) == set(np.flatnonzero(mean <= np.log(1.004)))
    assert (np.diff(slots[order[:level]]) >= 0).all()
    assert (np.diff(mean[order[level:]]) > 0).all()
    for row in range(8):
        figures = analyse_program(space.build_schedule(drawn, row).program, device.limits)
        assert slots[row] == pytest.approx(features.count_issue_slots(figures)[0])


def test_what_failed_after_it_was_timed_makes_nothing_too_slow() -> None:
    device = devices.open("a100")
    with RecordStore(None) as store, ThreadPoolExecutor(1) as workers:
        space = Space(ekc.matvec(64, 64), device.limits)
        wish = TuneOptions(8, "energy", 0.05, False, 0, None)
        task = ScheduleTask(space, Measurer(device, store), workers, wish)
        task.candidates = [_kernel(1e-6, ok=False), _kernel(20e-6)]
        assert task.incumbent.scores == pytest.approx([20e-4])


def test_what_is_to_be_beaten_may_be_believed() -> None:
    """A run that meters few would otherwise try to beat a kernel of its first round until its finals."""
    believed, metered = _kernel(10e-6), _kernel(10.2e-6, metered=True)
    standing = Incumbent(TuneOptions(8, "energy", 0.05, False, 0, None), [believed, metered])
    assert standing.best is believed
    assert standing.scores == pytest.approx([10e-4, 10.2e-4])
