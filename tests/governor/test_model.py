"""`ekc govern --model`: the file of a model, its refusals, and jobs whose search begins at its prediction."""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.governor.predict import TRAINING_SEEDS, train_simulated_model
from ekc.errors import InvalidInput
from ekc.governor import model_file
from ekc.governor.event_records import Applied, Event, ModelUnused, Predicted, Shifted
from ekc.governor.governor import Governor
from ekc.governor.live.group import GroupProbe
from ekc.governor.live.session import make_loop
from ekc.governor.loop import govern
from ekc.governor.model_file import COUNTERS, read_model_file
from ekc.governor.protocols import CountersMissing, OfferedSettings, Settings
from ekc.governor.request import GovernorRequest, Policy
from ekc.governor.response_model import ResponseModel, load_model, save_model
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.simulated_run import SimulatedJob, SimulatedRun
from tests.governor.helpers import (
    end_job,
    govern_run,
    make_iterations,
    make_job,
    python_command,
    run_at_default,
    start_govern,
    wait_until_ready,
)
from tests.scripted.nvml.boards import ScriptedBoards

JOB = "print('ready', flush=True); import time; time.sleep(120)"
CLOCKS = np.array([1200.0, 1500.0, 1800.0])


@pytest.fixture(scope="module")
def model() -> ResponseModel:
    return train_simulated_model("h200", seeds=TRAINING_SEEDS[:4])


@pytest.fixture
def file(model: ResponseModel, tmp_path: Path) -> Path:
    save_model(model, tmp_path / "model.json")
    return tmp_path / "model.json"


def change_file(file: Path, **change: Any) -> None:
    """Change the content of a model, with a digest that fits."""
    content = json.loads(file.read_text()) | change
    del content["sha256"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(content | {"sha256": digest}))


def run_with_model(job: SimulatedJob, model: ResponseModel) -> tuple[SimulatedRun, list[Event]]:
    run = SimulatedRun(job)
    return run, govern_run(run, model=model)


def test_model_comes_back_from_its_file(model: ResponseModel, file: Path) -> None:
    back = load_model(read_model_file(file))
    assert back.description == model.description
    run = SimulatedRun(sample_job(3, "compute", "h200", 300.0))
    default = make_loop_reading(run)
    counters = run.read_counters(10.0)
    expected, found = (m.predict_clocks(counters, default, CLOCKS, 1980.0) for m in (model, back))
    assert np.array_equal(expected, found)


def make_loop_reading(run: SimulatedRun) -> Any:
    result = govern(run, run, Policy(remaining_s=0.0))
    return result.phases[0].readings.default_readings[0]


@pytest.mark.parametrize(
    ("change", "found", "needed"),
    [
        ({"format": 7}, "it has format 7", "this ekc reads format 1"),
        ({"counters": ["dram", "ipc"]}, "it needs the counter ipc", "ekc reads sm_active, dram, tensor, fma"),
        ({"xgboost": "99.1.0"}, "its trees are of XGBoost 99.1.0", "pip install 'xgboost>=99.1.0'"),
        ({"clock_ratios": [0.5, 0.9]}, "it is damaged, or no model of ekc", "train one for it"),
        ({"counters": 4}, "it is damaged, or no model of ekc", "train one for it"),
        ({"trees": {"time": ""}}, "it is damaged, or no model of ekc", "train one for it"),
    ],
)
def test_model_that_does_not_fit_is_refused(
    file: Path, change: dict[str, Any], found: str, needed: str
) -> None:
    change_file(file, **change)
    with pytest.raises(InvalidInput) as refusal:
        read_model_file(file)
    line = str(refusal.value)
    assert line.startswith(f"--model {file}: ")
    assert found in line
    assert needed in line
    assert "\n" not in line


def test_model_of_another_board_is_refused(file: Path) -> None:
    model = read_model_file(file)
    model.check_board("GPU 0", "NVIDIA H200 NVL")
    with pytest.raises(InvalidInput, match="it is for the board h200, and GPU 0 is another; train one"):
        model.check_board("GPU 0", "NVIDIA A100-SXM4-80GB")


def test_missing_xgboost_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(model_file, "version", find_none)
    with pytest.raises(InvalidInput, match="and none is installed; pip install 'xgboost>="):
        read_model_file(file)


def test_xgboost_that_cannot_be_imported_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_model_file(file)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(InvalidInput, match="XGBoost refuses its trees"):
        load_model(read)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no model", "\x00", '{"format": 1}'])
def test_file_that_is_no_model_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"model\.json: it is damaged, or no model of ekc"):
        read_model_file(file)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.json: it cannot be read \(No such file"):
        read_model_file(tmp_path / "none.json")


@pytest.mark.parametrize("seed", range(20))
def test_corrupted_file_is_refused(file: Path, seed: int) -> None:
    """A single changed byte, or a file that ends too early, never becomes a prediction."""
    rng, content = np.random.default_rng(seed), bytearray(file.read_bytes().rstrip())
    place = int(rng.integers(len(content)))
    content[place] ^= 1 << int(rng.integers(7))
    for bad in (bytes(content), file.read_bytes()[:place]):
        file.write_bytes(bad)
        with pytest.raises(InvalidInput, match=r"model\.json: "):
            read_model_file(file)


def test_trees_that_xgboost_refuses_are_refused(file: Path) -> None:
    """The digest fits, but the text is none of XGBoost's."""
    change_file(file, trees={"time": '{"learner": 1}', "energy": ""})
    with pytest.raises(InvalidInput, match=r"model\.json: XGBoost refuses its trees") as refusal:
        load_model(read_model_file(file))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("kind", "seed"), [("compute", 21), ("memory", 22), ("starved", 23)])
def test_job_starts_at_the_predicted_clock_and_saves(model: ResponseModel, kind: str, seed: int) -> None:
    job = sample_job(seed, kind, "h200", 1800.0)
    run, events = run_with_model(job, model)
    predicted = next(x for x in events if isinstance(x, Predicted))
    tried = [x.settings for x in events if isinstance(x, Applied) and x.settings != Settings()]
    assert tried[0] == predicted.settings
    assert tuple(predicted.counters) == COUNTERS
    assert "24 simulated jobs" in predicted.format_line()
    default = run_at_default(job)
    assert run.true_j < 0.98 * default.true_j
    assert run.now() < 1.07 * default.now()


def test_every_new_phase_is_predicted(model: ResponseModel) -> None:
    parts = [make_iterations(1500.0).with_regime(0), make_iterations(1500.0, stages=(1, 4, 3)).with_regime(1)]
    _, events = run_with_model(make_job(parts), model)
    shifts = [x for x in events if isinstance(x, Shifted) and x.level != "known"]
    assert len(shifts) == 1
    assert len([x for x in events if isinstance(x, Predicted)]) == 2


class UncountedRun(SimulatedRun):
    """A run on a card that permits no counters."""

    def read_counters(self, seconds: float) -> dict[str, float]:
        raise CountersMissing("counters cannot be read: no permission")


def test_without_counters_the_job_is_governed_without_the_model(model: ResponseModel) -> None:
    job = sample_job(21, "compute", "h200", 1800.0)
    blind, plain = UncountedRun(job), SimulatedRun(job)
    events = govern_run(blind, model=model)
    govern_run(plain)
    (unused,) = [x for x in events if isinstance(x, ModelUnused)]
    assert unused.format_line().endswith("without the model: counters cannot be read: no permission")
    assert blind.true_j == plain.true_j


def test_model_of_readings_alone_needs_no_counters() -> None:
    blind = train_simulated_model("h200", counters=(), seeds=TRAINING_SEEDS[:2])
    run = UncountedRun(sample_job(21, "compute", "h200", 1800.0))
    events = govern_run(run, model=blind)
    assert [x.counters for x in events if isinstance(x, Predicted)] == [{}]


class CappedRun(SimulatedRun):
    """A run on a card whose clocks cannot be set."""

    def list_offered(self) -> OfferedSettings:
        return OfferedSettings(power_w=super().list_offered().power_w)


def test_model_is_not_used_where_power_caps_alone_can_be_set(model: ResponseModel) -> None:
    events = govern_run(CappedRun(sample_job(21, "compute", "h200", 900.0)), model=model)
    assert [x.reason for x in events if isinstance(x, ModelUnused)] == [
        "no SM clock that it was trained over can be set"
    ]


def test_counters_of_a_group_are_means(model: ResponseModel) -> None:
    first, second = (SimulatedRun(sample_job(n, "compute", "h200", 300.0)) for n in (1, 2))
    counters = GroupProbe([first, second]).read_counters(10.0)
    alone = [SimulatedRun(sample_job(n, "compute", "h200", 300.0)).read_counters(10.0) for n in (1, 2)]
    assert counters == pytest.approx({n: (alone[0][n] + alone[1][n]) / 2 for n in COUNTERS})


def test_loop_of_a_request_uses_its_model(file: Path) -> None:
    run = SimulatedRun(sample_job(21, "compute", "h200", 900.0))
    events: list[Event] = []
    request = GovernorRequest(Policy(), model=read_model_file(file))
    make_loop(request, False, ("GPU-0",), 0.0, lambda line: None)(run, run, events.append)
    assert [x for x in events if isinstance(x, Predicted)]


def test_governor_of_a_script_refuses_a_bad_model_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="it cannot be read"):
        Governor(model=tmp_path / "none.json")


def test_model_of_another_board_leaves_the_job_ungoverned(one: ScriptedBoards, file: Path) -> None:
    process = wait_until_ready(start_govern(one, "--model", str(file), *python_command(JOB)))
    line = process.stderr.readline()
    assert f"--model {file}: it is for the board h200, and GPU 0 (Scripted GPU) is another" in line
    assert line.endswith("the job runs ungoverned\n")
    end_job(process)
    assert not one.read_calls()
