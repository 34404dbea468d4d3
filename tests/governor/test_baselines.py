"""Other people's governors on our protocols, and the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.errors import InvalidInput
from ekc.governor.baselines import gpoeo, odpp, oracle, zeus_sweep
from ekc.governor.baselines.odpp import fft_period
from ekc.governor.baselines.rules import Point, Rule
from ekc.governor.jobs.draw import KINDS, draw
from ekc.governor.jobs.job import bill
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.knob import SM
from ekc.governor.landscape import Beliefs
from ekc.governor.policy import Policy
from ekc.governor.samples import Samples


class NoModel:
    trained_on = "nothing"

    def __call__(self, counters, reading) -> Beliefs:
        return Beliefs(SM.time, SM.power)


no_model = NoModel()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["rtx3090", "h200"])
def test_the_oracle_keeps_the_budget_and_nothing_constant_beats_it(kind: str, device: str) -> None:
    job = draw(11, kind, device, 600.0)
    best = oracle(job, Policy())
    assert 0 <= best.slowdown <= 0.05
    costs = bill(job)
    joules = costs.joules.sum(axis=0)
    allowed = (costs.seconds <= 1.05 * costs.seconds[:, -1:, -1:]).all(axis=0)
    assert best.saving >= 1 - joules[allowed].min() / joules[-1, -1] - 1e-12


@pytest.mark.parametrize("kind", ["compute", "starved", "aperiodic"])
def test_each_runs_a_job_to_its_end(kind: str) -> None:
    for act, hooks in (
        (lambda r: gpoeo(r, r, no_model), False),
        (lambda r: odpp(r, r), False),
        (lambda r: zeus_sweep(r, r), True),
    ):
        run = SimulatedRun(draw(12, kind, "rtx3090", 900.0), hooks=hooks)
        act(run)
        assert not run.running()
        assert run.true_j > 0


def test_gpoeo_counts_in_groups_and_settles_on_a_clock() -> None:
    run = SimulatedRun(draw(13, "compute", "h200", 1500.0))
    gpoeo(run, run, no_model, Rule(0))
    assert len(run.counted_at) >= 4
    assert run.settings().sm_mhz is not None


def test_zeus_needs_hooks_and_takes_the_least_cap_that_keeps_its_limit() -> None:
    job = draw(14, "compute", "h200", 2400.0)
    with pytest.raises(InvalidInput, match="no step hooks"):
        zeus_sweep(SimulatedRun(job), SimulatedRun(job))
    run = SimulatedRun(job, hooks=True)
    zeus_sweep(run, run)
    assert run.settings().power_w is not None


def test_the_published_rule() -> None:
    default, saver, slow = Point(1.0, 100.0), Point(1.04, 90.0), Point(1.2, 50.0)
    assert Rule().better(saver, default, default)
    assert Rule().better(saver, slow, default)
    # Eight percent of energy for four of time: too little for E T^2, enough for E.
    little = Point(1.04, 92.5)
    assert not Rule().better(little, default, default)
    assert Rule(0).better(little, default, default)
    seconds, joules = np.array([1.2, 1.04, 1.0]), np.array([50.0, 92.5, 100.0])
    assert Rule().best_gear(np.arange(3.0), seconds, joules, default) == 2
    assert Rule(0).best_gear(np.arange(3.0), seconds, joules, default) == 1
    assert Rule(0).best_gear(np.arange(3.0), seconds + 1, joules, default) == 2


def test_the_plain_fft_peak_is_found() -> None:
    at = np.arange(0.1, 25.0, 0.1)
    wave = 50 + 40 * np.sin(2 * np.pi * at / 2.5)
    seen = fft_period(Samples(at, 3 * wave, wave, wave, np.full(len(at), 1500.0), power_limit_w=350.0))
    assert seen == pytest.approx(2.5, rel=0.05)
