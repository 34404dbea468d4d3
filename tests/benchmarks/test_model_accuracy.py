"""The energy model on a recording: labelled, folded by schedule, beside the trivial rules."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ekc.devices.recording import read_recording
from tests.benchmarks.running import run
from tests.devices.recording.helpers import COUNT, record


@pytest.fixture
def bench() -> ModuleType:
    from benchmarks.cost_model import recording

    return recording


def test_it_runs_and_says_what_it_is_of(tmp_path: Path, bench: ModuleType) -> None:
    file = record(tmp_path / "all.jsonl.gz", every=1)
    text, figures = run("cost_model.recording", tmp_path, str(file))
    assert "a100 (simulated), recorded" in text
    assert "Simulated: the energies are those of a model, not of a GPU." in text
    model, rule, prior, other = figures["lines"]
    assert model["rows"] == COUNT - 1
    assert model["bar"] == {"mean": rule["mean"]}
    assert model["pass"] == figures["pass"] == (model["mean"] < rule["mean"])
    assert prior["prediction"] == "the prior alone"
    assert other["prediction"].startswith("not judged: at least 10 metered schedules")
    whole = bench.candidates(read_recording(file), 0)
    measured = np.array([c.energy_j for c in whole])
    fold = np.random.default_rng(0).permutation(len(whole)) % bench.FOLDS
    watts = measured / np.array([c.latency_s for c in whole])
    known = np.array([np.median(watts[fold != f]) for f in fold])
    assert rule["mean"] == pytest.approx(np.mean(np.abs(known / watts - 1)))


def test_no_schedule_is_predicted_from_itself(bench: ModuleType) -> None:
    whole = list(range(23))

    def predict(known: list[int], asked: list[int], peaks: object, seed: int) -> np.ndarray:
        assert not set(known) & set(asked)
        assert sorted([*known, *asked]) == whole
        return np.array(asked, dtype=np.float64)

    assert bench.folded(whole, predict, None, 5, 0).tolist() == whole
