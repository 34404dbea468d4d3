"""Models of simulated jobs: better than knowing nothing, the same after a trip to disk, only a start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ekc.errors import InvalidInput, RecordError
from ekc.governor.advise import Advised, advise
from ekc.governor.events import CountersRead, Event, Predicted
from ekc.governor.governor import Governor
from ekc.governor.live import pretrained
from ekc.governor.loop import govern
from ekc.governor.measure import JobEnded, make_reading
from ekc.governor.policy import Policy
from ekc.governor.predict import (
    BoostedModel,
    TrainingRow,
    build_rows,
    leave_one_out,
    train_model,
    train_simulated_model,
)
from ekc.governor.predict.model import COUNTERS
from ekc.governor.progress import ProgressSource
from ekc.governor.protocols import NullActuator, Settings
from ekc.governor.readings import ProgressRate
from ekc.governor.simulation.job import compute_costs, find_clock_indices
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.run import SimulatedRun

FEW_KINDS = ("compute", "memory", "starved")


def build_rows_of_jobs(kinds: tuple[str, ...]) -> list[TrainingRow]:
    jobs = (sample_job(900 + seed, kind, "rtx3090", 300.0) for kind in kinds for seed in range(5))
    return [row for job in jobs for row in build_rows(job)]


@pytest.fixture(scope="module")
def rows() -> list[TrainingRow]:
    return build_rows_of_jobs(FEW_KINDS)


@pytest.fixture(scope="module")
def model() -> BoostedModel:
    return train_model("rtx3090", build_rows_of_jobs(JOB_KINDS))


def test_rows_are_relative_to_the_default(rows) -> None:
    for row in rows:
        if row.ratio == 1.0:
            # Where a cap holds the clock of some kernels, others run a little above the typical one.
            assert row.time == pytest.approx(1.0, abs=0.01)
            assert row.energy == pytest.approx(1.0, abs=0.02)
        # A lower memory clock leaves more of the power cap to the kernels: a little faster, sometimes.
        assert row.time >= 0.98
        assert len(row.features) == 7


def test_a_job_left_out_is_predicted_better_than_by_the_mean_of_the_others(rows) -> None:
    errors = leave_one_out("rtx3090", rows)
    blind = []
    for row in rows:
        others = [r.time for r in rows if r.job != row.job and abs(r.ratio - row.ratio) < 0.03]
        blind.append(abs(np.mean(others) / row.time - 1))
    assert np.mean(errors["time"]) < np.mean(blind)


def test_a_model_is_the_same_after_a_trip_to_disk(model: BoostedModel, rows, tmp_path: Path) -> None:
    model.save(tmp_path / "model.json")
    again = BoostedModel.load(tmp_path / "model.json")
    assert again.trained_on == "simulated jobs"
    assert again.spread == model.spread
    ratios = np.linspace(0.6, 1.0, 5)
    told = (one.predict(rows[0].features, ratios) for one in (model, again))
    for old, new in zip(*told, strict=True):
        assert np.array_equal(old, new)


class CountingBooster:
    """A booster that remembers."""

    def __init__(self, booster: object) -> None:
        self.booster, self.call_count = booster, 0

    def inplace_predict(self, table: object) -> np.ndarray:
        self.call_count += 1
        return self.booster.inplace_predict(table)  # type: ignore[attr-defined, no-any-return]


def test_every_model_that_is_trained_is_asked(model: BoostedModel) -> None:
    """Half of the trees, those of the memory clock, were trained and saved for nobody."""
    asked = {name: CountingBooster(booster) for name, booster in model.boosters.items()}
    run = SimulatedRun(sample_job(950, "compute", "rtx3090", 300.0))
    samples = run.record(30.0)
    seen = make_reading(
        Settings(), 0.0, 30.0, run.read_energy_j() / 30.0, ProgressRate(), samples, ProgressSource("none")
    )
    for counters in (run.read_counters(10.0) or {}, {}):
        replace(model, boosters=asked)(counters, seen)
    assert {name: one.call_count for name, one in asked.items()} == dict.fromkeys(model.boosters, 1)


def test_a_model_of_an_earlier_version_is_read_without_its_memory_clock(
    model: BoostedModel, tmp_path: Path
) -> None:
    file = tmp_path / "model.json"
    model.save(file)
    whole = json.loads(file.read_text())
    whole["models"]["memory_time"] = whole["models"]["sm_time"]
    file.write_text(json.dumps(whole))
    assert set(BoostedModel.load(file).boosters) == set(model.boosters)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1, "features": ["x"], "models": {}}'])
def test_what_is_no_model_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(RecordError, match=r"model\.json"):
        BoostedModel.load(tmp_path / "model.json")


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("models", [], "sm_time"),
        ("models", {}, "sm_time"),
        ("models", {"sm_time": {}}, "no model"),
        ("card", None, "card"),
        ("card", "", "card"),
        ("trust", {"time": [1], "power": [1, 1, 1]}, "trust"),
        ("trust", {"time": [0, 0], "power": [1, 1, 1]}, "trust"),
        ("trust", {"time": ["a", "b"], "power": [1, 1, 1]}, "float"),
        ("blind_trust", {"time": [0, 0], "power": [1, 1, 1]}, "trust"),
    ],
)
def test_a_model_with_a_part_spoiled_is_refused_in_one_line(
    model: BoostedModel, part: str, value: object, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.json"
    model.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {part: value}))
    with pytest.raises(RecordError, match=rf"model\.json.*{said}") as refused:
        BoostedModel.load(file)
    assert "\n" not in str(refused.value)


def test_a_model_of_other_inputs_is_refused(model: BoostedModel, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    model.save(file)
    whole = json.loads(file.read_text())
    whole["models"]["sm_time"] = whole["models"]["blind_sm_time"]
    file.write_text(json.dumps(whole))
    with pytest.raises(RecordError, match="sm_time takes 4 inputs, not 8"):
        BoostedModel.load(file)


def test_beliefs_follow_the_counters(model: BoostedModel) -> None:
    steepness = []
    for kind in ("compute", "memory"):
        expected = []
        for seed in range(950, 956):
            run = SimulatedRun(sample_job(seed, kind, "rtx3090", 300.0))
            samples = run.record(30.0)
            seen = make_reading(
                Settings(),
                0.0,
                30.0,
                run.read_energy_j() / 30.0,
                ProgressRate(),
                samples,
                ProgressSource("none"),
            )
            first, second = model(run.read_counters(10.0) or {}, seen).time.mean
            # At nine tenths of the clock.
            expected.append(first / 9 + second / 81)
        steepness.append(np.mean(expected))
    compute, memory = steepness
    assert compute > memory


def test_counters_are_read_once_a_phase_and_only_for_a_model(model: BoostedModel) -> None:
    told: list[Event] = []
    run = SimulatedRun(sample_job(951, "compute", "rtx3090", 900.0))
    govern(run, run, on_event=told.append, model=model)
    phases = {regime for _, regime in run.counter_windows}
    assert len(run.counter_windows) == len(phases)
    assert sum(isinstance(e, CountersRead) for e in told) == len(run.counter_windows)
    assert any(isinstance(e, Predicted) for e in told)
    without = SimulatedRun(sample_job(951, "compute", "rtx3090", 900.0))
    govern(without, without)
    assert not without.counter_windows


class NoCountersRun(SimulatedRun):
    """A card whose counters may not be read."""

    def read_counters(self, seconds: float) -> dict[str, float] | None:
        return None


def test_without_counters_the_signals_must_do(model: BoostedModel, rows) -> None:
    told: list[Event] = []
    run = NoCountersRun(sample_job(951, "compute", "rtx3090", 600.0))
    govern(run, run, on_event=told.append, model=model)
    assert not any(isinstance(e, CountersRead) for e in told)
    (expected,) = [e for e in told if isinstance(e, Predicted)][:1]
    assert expected.settings.sm_mhz is not None
    assert "simulated jobs" in expected.format_line()
    first = rows[0].features
    blind, seeing = (
        model.predict(inputs, np.array([0.7]))
        for inputs in ((float("nan"),) * len(COUNTERS) + first[len(COUNTERS) :], first)
    )
    assert blind != seeing


def test_a_model_is_trusted_as_far_as_it_was_right_of_jobs_left_out(rows) -> None:
    """Rows whose times are noise are no ground for a sure belief."""
    rng = np.random.default_rng(0)
    noise = [replace(r, time=r.time * float(rng.normal(1, 0.1)) if r.ratio < 1 else r.time) for r in rows]
    assert train_model("rtx3090", noise).spread.time[0] > 2 * train_model("rtx3090", rows).spread.time[0]


def test_advice_is_off_by_what_it_says(model: BoostedModel) -> None:
    """Trees that split at a clock, not between two, were told the slowdown of the next lower one by a card
    whose clocks lie a hair below: advice was off by half as much again as it said, always to one side."""
    off = []
    for kind in JOB_KINDS:
        for seed in range(960, 964):
            job = sample_job(seed, kind, "rtx3090", 120.0)
            run = SimulatedRun(job)
            told: list[Event] = []
            advise(run, NullActuator(run.gears()), Policy(), told.append, model)
            for advice in (e for e in told if isinstance(e, Advised) and e.settings != Settings()):
                memory, gear, _ = find_clock_indices(job.card, advice.settings)
                seconds = compute_costs(job).seconds[0]
                true = seconds[memory, gear] / seconds[-1, -1] - 1
                off.append((true - advice.slowdown) / advice.sigma)
    assert len(off) > 12
    assert np.sqrt(np.mean(np.square(off))) < 1.35
    assert abs(np.mean(off)) < 0.6


def test_training_ends_soon_after_nobody_waits_for_it() -> None:
    asked = []

    def going() -> bool:
        asked.append(True)
        return len(asked) < 3

    with pytest.raises(JobEnded):
        train_simulated_model("h200", going)
    assert len(asked) == 3
    # And so for who asks by name, once the job that a model is for has ended.
    with pytest.raises(JobEnded):
        pretrained.open_model("simulated", "NVIDIA H200", lambda: False)


def test_which_model_is_opened(model: BoostedModel, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    model.save(file)
    pretrained.check_model(str(file))
    assert pretrained.open_model("none", "NVIDIA A40") is None
    opened = pretrained.open_model(str(file), "NVIDIA GeForce RTX 3090")
    assert opened is not None
    assert opened.card == "rtx3090"
    with pytest.raises(InvalidInput, match="made for rtx3090, and this is NVIDIA GeForce RTX 3090 Ti"):
        pretrained.open_model(str(file), "NVIDIA GeForce RTX 3090 Ti")
    with pytest.raises(InvalidInput, match="there are simulated rtx3090, h200, and this is NVIDIA A40"):
        pretrained.open_model("simulated", "NVIDIA A40")


@pytest.mark.parametrize("text", [None, "", "[1]", "{}"])
def test_a_file_that_can_be_no_model_is_refused_before_the_job(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "model.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"--model .*model\.json"):
        Governor(model=tmp_path / "model.json")
