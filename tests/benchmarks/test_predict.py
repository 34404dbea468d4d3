"""Boosted trees of simulated jobs: better than the mean of other jobs, and right on cards of other clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.governor.counted_run import CountedRun
from benchmarks.governor.model import (
    COUNTERS,
    BoostedModel,
    TrainingRow,
    build_rows,
    leave_one_out,
    train_model,
)
from ekc.governor.job_meter import make_reading
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, ProgressRate
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import compute_costs

FEW_KINDS = ("compute", "memory", "starved")


def build_rows_of_jobs(kinds: tuple[str, ...]) -> list[TrainingRow]:
    jobs = (sample_job(900 + seed, kind, "rtx3090", 300.0) for kind in kinds for seed in range(5))
    return [row for job in jobs for row in build_rows(job)]


@pytest.fixture(scope="module")
def rows() -> list[TrainingRow]:
    return build_rows_of_jobs(FEW_KINDS)


@pytest.fixture(scope="module")
def model() -> BoostedModel:
    return train_model(build_rows_of_jobs(JOB_KINDS))


def test_training_rows_are_relative_to_the_default(rows) -> None:
    for row in rows:
        if row.ratio == 1.0:
            # Where a cap lowers the clock of some kernels, others run a little above the median clock.
            assert row.time == pytest.approx(1.0, abs=0.01)
            assert row.energy == pytest.approx(1.0, abs=0.02)
        # A lower SM clock can leave more of the power cap to some kernels, which then run a little faster.
        assert row.time >= 0.98
        assert len(row.features) == 7


def test_left_out_job_is_predicted_better_than_by_the_mean(rows) -> None:
    errors = leave_one_out(rows)
    blind = []
    for row in rows:
        others = [r.time for r in rows if r.job != row.job and abs(r.ratio - row.ratio) < 0.03]
        blind.append(abs(np.mean(others) / row.time - 1))
    assert np.mean(errors["time"]) < np.mean(blind)


class CountingBooster:
    """A booster that counts its predictions."""

    def __init__(self, booster: object) -> None:
        self.booster, self.call_count = booster, 0

    def inplace_predict(self, table: object) -> np.ndarray:
        self.call_count += 1
        return self.booster.inplace_predict(table)  # type: ignore[attr-defined, no-any-return]


def observe_default(run: CountedRun) -> JobReading:
    """Reading of the default over half a minute."""
    samples = run.record(30.0)
    watts = run.read_energy_j() / 30.0
    return make_reading(Settings(), 0.0, 30.0, watts, ProgressRate(), samples, ProgressSource("none"))


def test_every_booster_is_used(model: BoostedModel) -> None:
    """Half of the trees, those of the memory clock, once had no use."""
    boosters = {name: CountingBooster(booster) for name, booster in model.boosters.items()}
    run = CountedRun(sample_job(950, "compute", "rtx3090", 300.0))
    observed = observe_default(run)
    for counters in (run.read_counters(10.0) or {}, {}):
        replace(model, boosters=boosters)(counters, observed)
    assert {name: one.call_count for name, one in boosters.items()} == dict.fromkeys(model.boosters, 1)


def test_prediction_follows_the_counters(model: BoostedModel) -> None:
    steepness = []
    for kind in ("compute", "memory"):
        expected = []
        for seed in range(950, 956):
            run = CountedRun(sample_job(seed, kind, "rtx3090", 300.0))
            observed = observe_default(run)
            (first, second), _ = model(run.read_counters(10.0) or {}, observed)
            # Slowdown at nine tenths of the clock.
            expected.append(first / 9 + second / 81)
        steepness.append(np.mean(expected))
    compute, memory = steepness
    assert compute > memory


def test_prediction_without_counters_uses_the_signals(model: BoostedModel, rows) -> None:
    first = rows[0].features
    blind, seeing = (
        model.predict(inputs, np.array([0.7]))
        for inputs in ((float("nan"),) * len(COUNTERS) + first[len(COUNTERS) :], first)
    )
    assert blind != seeing


def test_prediction_error_matches_that_of_left_out_jobs(model: BoostedModel) -> None:
    """Trees that split at a clock, not between two, once gave a card with slightly lower clocks the slowdown
    of the next lower one: errors were 1.5 times the sigma stated then, always to one side. Here the unit is
    the error of left-out jobs over all clocks, which is larger."""
    usual = np.sqrt(np.mean(np.square(leave_one_out(build_rows_of_jobs(JOB_KINDS))["time"])))
    off = []
    for kind in JOB_KINDS:
        for seed in range(960, 964):
            job = sample_job(seed, kind, "rtx3090", 120.0)
            run = CountedRun(job)
            observed = observe_default(run)
            (first, second), _ = model(run.read_counters(10.0) or {}, observed)
            clocks = job.card.list_sm_clocks_mhz()
            place = int(np.searchsorted(clocks, 0.85 * observed.clock_mhz))
            seconds = compute_costs(job).seconds[0, -1]
            x = observed.clock_mhz / clocks[place] - 1
            off.append((seconds[place] / seconds[-1] - 1 - first * x - second * x**2) / usual)
    assert np.sqrt(np.mean(np.square(off))) < 0.8
    assert abs(np.mean(off)) < 0.35
