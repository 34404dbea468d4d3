"""Training of the boosted models, on the rows of a recording; the shipped models and their card."""

from __future__ import annotations

import argparse
import gzip
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_model import train, training_rows
from ekc import devices
from ekc.boosted_trees import predict_values
from ekc.search.cost_model.boosted_prior import FOLDER, INPUT_NAMES, BoostedPrior, add_latency, load_models
from ekc.search.cost_model.features import make_model_inputs
from tests.search.helpers import EACH, legal, space

RECORDING = Path(__file__).parents[2] / "recordings" / "h100" / "recording.jsonl.gz"


@pytest.fixture(scope="module")
def table() -> train.TrainingTable:
    return train.make_table(training_rows.read_recorded_rows(RECORDING))


def test_targets_and_prior_give_back_the_recorded_figures(table: train.TrainingTable) -> None:
    energy = table.expect_log_energy(table.log_latency) + table.log_energy
    np.testing.assert_allclose(np.exp(energy), table.energy_j)
    np.testing.assert_allclose(table.prior.latency_s * np.exp(table.log_latency), table.latency_s)
    assert len(table.select_groups()) == 4
    assert train.compute_row_weights(table).max() == 1.0


def test_model_of_an_operator_has_learned_nothing_of_it(table: train.TrainingTable) -> None:
    label = table.operator[0]
    found = train.predict_left_out(table, table.operator, 0)
    own = table.operator == label
    models = train.train_models(table, ~own, 0)
    log_latency = predict_values(models.latency, table.inputs[own]).astype(np.float64)
    log_energy = predict_values(models.energy, add_latency(table.inputs[own], log_latency))
    expected = np.zeros(len(found))
    expected[own] = log_latency
    np.testing.assert_allclose(found[own], table.expect_log_energy(expected)[own] + log_energy, rtol=1e-6)


def test_perfect_prediction_has_no_error_and_the_prior_a_ratio_of_one(table: train.TrainingTable) -> None:
    noise = np.random.default_rng(0).normal(0, 1e-6, len(table.energy_j))
    perfect = train.score_operators(table, np.log(table.energy_j) + noise, "nothing")[-1]
    assert perfect["error"] < 1e-5 < perfect["prior_error"]
    assert perfect["pick"] == pytest.approx(1.0)
    prior = np.log(table.prior.latency_s * table.prior.power_w)
    same = train.score_operators(table, prior + 3.0, "nothing")
    assert [line["ratio"] for line in same] == pytest.approx([1.0] * len(same))
    assert same[-1]["pass"] is False


def test_written_models_are_loaded_and_have_a_card(table: train.TrainingTable, tmp_path: Path) -> None:
    train.write_models(tmp_path, table, [], argparse.Namespace(seed=0, without=["x"]))
    models = load_models(tmp_path)
    again = train.train_models(table, np.ones(len(table.energy_j), bool), 0)
    np.testing.assert_array_equal(*(predict_values(m.latency, table.inputs) for m in (models, again)))
    assert models.card["left_out"] == ["x"]
    # XGBoost 2.1 takes a list of base scores for none, and predicts 0.5 more.
    text = gzip.decompress((tmp_path / "energy.json.gz").read_bytes()).decode()
    assert '"base_score":"0E0"' in text
    assert len(models.card["operators"]) == 4


def test_card_of_the_shipped_models_is_of_these_inputs_and_passes_its_bar() -> None:
    card = json.loads((FOLDER / "card.json").read_text())
    assert card["inputs"] == list(INPUT_NAMES)
    assert card["operators"] == sorted(training_rows.OPERATORS)
    summed = [line for line in card["errors"] if line["operator"].startswith("all")]
    assert [line["left_out"] for line in summed] == ["operator", "kind", "device"]
    assert all(line["ratio"] <= train.BAR for line in summed)


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("target", ["a100", "rtx2080ti"])
def test_shipped_corrections_are_finite_and_moderate(name: str, target: str) -> None:
    device = devices.open(target)
    booster = BoostedPrior(device.peaks, device.limits.sms)
    make_inputs = partial(make_model_inputs, predict_prior=device.prior, booster=booster)
    found = space(name).extract_inputs(legal(name, 200), make_inputs)
    for correction in (found.latency_correction, found.energy_correction):
        assert np.isfinite(correction).all()
        assert np.abs(correction).max() < 3.0
    assert found.latency_correction.any()
