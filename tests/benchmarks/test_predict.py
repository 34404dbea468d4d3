"""Boosted trees of simulated jobs: better than the mean of other jobs, and right on cards of other clocks;
the file that the training command writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.governor.predict import TrainingRow, build_rows, leave_one_out, main, train_model
from ekc.governor.job_meter import make_reading
from ekc.governor.model_file import COUNTERS, read_model_file
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.protocols import Settings
from ekc.governor.readings import JobReading, ProgressRate
from ekc.governor.response_model import ResponseModel
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun, compute_costs

FEW_KINDS = ("compute", "memory", "starved")


def build_rows_of_jobs(kinds: tuple[str, ...]) -> list[TrainingRow]:
    jobs = (sample_job(900 + seed, kind, "rtx3090", 300.0) for kind in kinds for seed in range(5))
    return [row for job in jobs for row in build_rows(job)]


@pytest.fixture(scope="module")
def rows() -> list[TrainingRow]:
    return build_rows_of_jobs(FEW_KINDS)


@pytest.fixture(scope="module")
def model() -> ResponseModel:
    return train_model(build_rows_of_jobs(JOB_KINDS), "rtx3090")


def test_training_rows_are_relative_to_the_default(rows) -> None:
    for row in rows:
        if row.ratio == 1.0:
            # Where a cap lowers the clock of some kernels, others run a little above the median clock.
            assert row.time == pytest.approx(1.0, abs=0.01)
            assert row.energy == pytest.approx(1.0, abs=0.02)
        # A lower SM clock can leave more of the power cap to some kernels, which then run a little faster.
        assert row.time >= 0.98
        assert tuple(row.counters) == COUNTERS


def test_left_out_job_is_predicted_better_than_by_the_mean(rows) -> None:
    errors = leave_one_out(rows, "rtx3090")
    blind = []
    for row in rows:
        others = [r.time for r in rows if r.job != row.job and abs(r.ratio - row.ratio) < 0.03]
        blind.append(abs(np.mean(others) / row.time - 1))
    assert np.mean(errors["time"]) < np.mean(blind)


def observe_default(run: SimulatedRun) -> JobReading:
    """Reading of the default over half a minute."""
    samples = run.record(30.0)
    watts = run.read_energy_j() / 30.0
    return make_reading(Settings(), 0.0, 30.0, watts, ProgressRate(), samples, ProgressSource("none"))


def predict_slowdown(model: ResponseModel, run: SimulatedRun, clock_mhz: float) -> float:
    """Slowdown that the model expects at a clock."""
    observed = observe_default(run)
    counters = run.read_counters(10.0)
    slowdown, _ = model.predict_clocks(counters, observed, np.array([clock_mhz]), observed.clock_mhz)
    return float(slowdown[0])


def test_prediction_follows_the_counters(model: ResponseModel) -> None:
    steepness = []
    for kind in ("compute", "memory"):
        runs = [SimulatedRun(sample_job(seed, kind, "rtx3090", 300.0)) for seed in range(950, 956)]
        steepness.append(np.mean([predict_slowdown(model, run, 1500.0) for run in runs]))
    compute, memory = steepness
    assert compute > memory


def test_prediction_needs_the_counters_of_the_model_alone(rows) -> None:
    blind = train_model(rows, "rtx3090", counters=())
    first = rows[0]
    assert blind.build_inputs({}, first.reading) == blind.build_inputs(first.counters, first.reading)
    with pytest.raises(KeyError):
        train_model(rows, "rtx3090").build_inputs({}, first.reading)


def test_watts_of_several_boards_count_for_each(model: ResponseModel, rows) -> None:
    first = rows[0]
    pair = replace(model, gpu_count=2)
    both = replace(first.reading, watts=2 * first.reading.watts)
    assert pair.build_inputs(first.counters, both) == model.build_inputs(first.counters, first.reading)


def test_prediction_error_matches_that_of_left_out_jobs(model: ResponseModel) -> None:
    """Trees that split at a clock, not between two, once gave a card with slightly lower clocks the slowdown
    of the next lower one: errors were 1.5 times the sigma stated then, always to one side. Here the unit is
    the error of left-out jobs over all clocks, which is larger."""
    usual = np.sqrt(np.mean(np.square(leave_one_out(build_rows_of_jobs(JOB_KINDS), "rtx3090")["time"])))
    off = []
    for kind in JOB_KINDS:
        for seed in range(960, 964):
            job = sample_job(seed, kind, "rtx3090", 120.0)
            clocks = job.card.list_sm_clocks_mhz()
            default_mhz = observe_default(SimulatedRun(job)).clock_mhz
            place = int(np.searchsorted(clocks, 0.85 * default_mhz))
            expected = predict_slowdown(model, SimulatedRun(job), clocks[place])
            seconds = compute_costs(job).seconds[0, -1]
            off.append((seconds[place] / seconds[-1] - 1 - expected) / usual)
    assert np.sqrt(np.mean(np.square(off))) < 0.8
    assert abs(np.mean(off)) < 0.35


def test_training_command_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.json"
    words = ["--card", "h200", "--seeds", "1", "--without-counters", "--out", str(file)]
    assert main(words) == 0
    assert "a model of 6 simulated jobs on a simulated h200" in capsys.readouterr().out
    description = read_model_file(file).description
    assert (description.gpu, description.counters) == ("h200", ())
    assert description.clock_ratios[-1] == 1


@pytest.mark.parametrize("words", [("--out", "x.json"), ("--card", "h200", "--out", "no/such/folder/x.json")])
def test_model_that_cannot_be_written_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--seeds", "1"])
    assert "--out" in capsys.readouterr().err
