"""The energy model on a recording, compared with trivial rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_model import recording
from ekc.devices.recording import read_recording
from tests.benchmarks.helpers import Run
from tests.devices.recording.helpers import COUNT, record


@pytest.mark.slow
def test_model_is_compared_with_constant_power(run: Run, tmp_path: Path) -> None:
    file = record(tmp_path / "all.jsonl.gz", every=1)
    text, figures = run("cost_model.recording", str(file))
    assert "a100 (simulated), recorded" in text
    assert "Simulated: the energies are those of a model, not of a GPU." in text
    model, rule, prior, other = figures["lines"]
    assert model["rows"] == COUNT - 1
    assert model["bar"] == {"mean": rule["mean"]}
    assert model["pass"] == figures["pass"] == (model["mean"] < rule["mean"])
    assert prior["prediction"] == "the prior alone"
    assert other["prediction"].startswith("not judged: at least 10 metered schedules")
    whole = recording.make_candidates(read_recording(file), 0)
    measured = np.array([c.energy_j for c in whole])
    fold = np.random.default_rng(0).permutation(len(whole)) % recording.FOLDS
    watts = measured / np.array([c.latency_s for c in whole])
    known = np.array([np.median(watts[fold != f]) for f in fold])
    assert rule["mean"] == pytest.approx(np.mean(np.abs(known / watts - 1)))


def test_folds_never_predict_a_schedule_from_itself() -> None:
    whole = list(range(23))

    def predict(known: list[int], asked: list[int], peaks: object, seed: int) -> np.ndarray:
        assert not set(known) & set(asked)
        assert sorted([*known, *asked]) == whole
        return np.array(asked, dtype=np.float64)

    assert recording.predict_folds(whole, predict, None, 5, 0).tolist() == whole
