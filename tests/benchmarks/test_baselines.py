"""Governors of other authors and the oracle on simulated jobs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.governor.baselines import gpoeo, run_gpoeo, run_odpp, run_zeus_sweep
from benchmarks.governor.baselines.odpp import CostPoint, GpoeoRule, compute_fft_period
from benchmarks.governor.oracle import choose_oracle_clocks
from ekc.errors import InvalidInput
from ekc.governor.request import Policy
from ekc.governor.response_curve import SM_CLOCK, compute_lengthening, compute_reduction
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun, compute_costs


class PriorModel:
    """Predicts every job as the mean of recorded kernels."""

    def predict_clocks(self, counters, reading, clocks_mhz, default_mhz):
        x = compute_lengthening(clocks_mhz, default_mhz)
        slowdown = SM_CLOCK.time_prior.predict_mean(x)
        power = SM_CLOCK.power_prior.predict_mean(compute_reduction(clocks_mhz, default_mhz))
        return slowdown, 1 - (1 + slowdown) * (1 + power)


class CountingRun(SimulatedRun):
    """A run that counts the readings of counters."""

    counter_readings = 0

    def read_counters(self, seconds: float) -> dict[str, float]:
        self.counter_readings += 1
        return super().read_counters(seconds)


@pytest.mark.parametrize("kind", JOB_KINDS)
@pytest.mark.parametrize("device", ["rtx3090", "h200"])
def test_oracle_keeps_the_budget_and_beats_constant_clocks(kind: str, device: str) -> None:
    job = sample_job(11, kind, device, 600.0)
    best = choose_oracle_clocks(job, Policy())
    assert 0 <= best.slowdown <= 0.05
    costs = compute_costs(job)
    joules = costs.joules.sum(axis=0)
    allowed = (costs.seconds <= 1.05 * costs.seconds[:, -1:, -1:]).all(axis=0)
    assert best.saving >= 1 - joules[allowed].min() / joules[-1, -1] - 1e-12


@pytest.mark.parametrize("kind", ["compute", "starved", "aperiodic"])
def test_baselines_run_a_job_to_its_end(kind: str) -> None:
    for act, hooks in (
        (lambda r: run_gpoeo(r, PriorModel()), False),
        (lambda r: run_odpp(r, r), False),
        (lambda r: run_zeus_sweep(r, r), True),
    ):
        run = SimulatedRun(sample_job(12, kind, "rtx3090", 900.0), has_hooks=hooks)
        act(run)
        assert not run.is_running()
        assert run.true_j > 0


def test_counter_windows_cost_time_with_a_profiler() -> None:
    run = SimulatedRun(sample_job(3, "compute", "rtx3090", 300.0))
    counted = run.read_counters(30.0)
    assert 0 < counted["fma"] + counted["tensor"] < 120
    while run.is_running():
        run.record(30.0)
    assert run.now() > 300.0 + 2.0


def test_gpoeo_reads_counters_in_groups_and_chooses_a_clock() -> None:
    run = CountingRun(sample_job(13, "compute", "h200", 1500.0))
    run_gpoeo(run, PriorModel(), GpoeoRule(0))
    assert run.counter_readings >= 4
    assert run.settings().sm_mhz is not None


def test_gpoeo_goes_on_by_instructions_where_the_period_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpoeo, "track_period_near", lambda *_: None)
    run = SimulatedRun(sample_job(13, "compute", "h200", 900.0))
    run_gpoeo(run, PriorModel())
    assert not run.is_running()


def test_zeus_needs_hooks_and_chooses_a_cap() -> None:
    job = sample_job(14, "compute", "h200", 2400.0)
    with pytest.raises(InvalidInput, match="no step hooks"):
        run_zeus_sweep(SimulatedRun(job), SimulatedRun(job))
    run = SimulatedRun(job, has_hooks=True)
    run_zeus_sweep(run, run)
    assert run.settings().power_w is not None


def test_gpoeo_rule_compares_as_published() -> None:
    default, saver, slow = CostPoint(1.0, 100.0), CostPoint(1.04, 90.0), CostPoint(1.2, 50.0)
    assert GpoeoRule().is_better(saver, default, default)
    assert GpoeoRule().is_better(saver, slow, default)
    # 7.5 % of energy for 4 % of time: not better by E T^2, better by E.
    little = CostPoint(1.04, 92.5)
    assert not GpoeoRule().is_better(little, default, default)
    assert GpoeoRule(0).is_better(little, default, default)
    seconds, joules = np.array([1.2, 1.04, 1.0]), np.array([50.0, 92.5, 100.0])
    assert GpoeoRule().choose_best_gear(np.arange(3.0), seconds, joules, default) == 2
    assert GpoeoRule(0).choose_best_gear(np.arange(3.0), seconds, joules, default) == 1
    assert GpoeoRule(0).choose_best_gear(np.arange(3.0), seconds + 1, joules, default) == 2


def test_odpp_finds_the_fft_peak() -> None:
    at = np.arange(0.1, 25.0, 0.1)
    wave = 50 + 40 * np.sin(2 * np.pi * at / 2.5)
    observed = compute_fft_period(
        SensorSamples(at, 3 * wave, wave, wave, np.full(len(at), 1500.0), power_limit_w=350.0)
    )
    assert observed == pytest.approx(2.5, rel=0.05)
