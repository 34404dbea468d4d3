"""The power model: constant power, an accurate prior, learned features, the power cap, quarantine; the
analytic prior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.cost_model.features import FEATURE_NAMES
from ekc.search.cost_model.metering_policy import PredictionBatch
from ekc.search.cost_model.power_model import PowerModel, scale_power
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import POWER_MODEL
from tests.search.helpers import CAP_W, LARGE, MS, PEAKS, STANDBY_W, kernels


def _rows(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Feature rows with five random features."""
    rows = np.zeros((count, len(FEATURE_NAMES)), np.float32)
    rows[:, :5] = np.random.default_rng(seed).normal(size=(count, 5))
    return rows


def _watts(model: PowerModel, new: list[Candidate], which: bool | None = None) -> NDArray[np.float64]:
    return np.exp(model.predict_timed(new, which)[0])


def _explained() -> tuple[NDArray[np.float32], NDArray[np.float64], list[Candidate], PowerModel]:
    """(rows, watts, kernels, model) of 60 kernels whose power follows from their features; the model has
    learned 40 of them."""
    rows = _rows(60)
    watts = 200 * np.exp(0.2 * np.tanh(rows[:, 0]))
    all_of_them = kernels(watts, np.full(60, 150.0), rows)
    model = PowerModel(0, LARGE)
    model.learn(all_of_them[:40])
    return rows, watts, all_of_them, model


def test_prediction_without_meterings_is_prior_up_to_the_cap() -> None:
    new = kernels([1, 1], [120, 900], _rows(2))
    np.testing.assert_allclose(_watts(PowerModel(0, PEAKS), new), [120, CAP_W])


def test_constant_power_is_learned_from_few_kernels() -> None:
    priors = np.random.default_rng(1).uniform(100, 250, 40)
    all_of_them = kernels(np.full(40, 180.0), priors, _rows(40))
    model = PowerModel(0, PEAKS)
    model.learn(all_of_them[:5])
    np.testing.assert_allclose(_watts(model, all_of_them[5:]), 180, rtol=0.1)
    model.learn(all_of_them[5:20])
    np.testing.assert_allclose(_watts(model, all_of_them[20:]), 180, rtol=0.03)


def test_accurate_prior_is_followed() -> None:
    priors = np.random.default_rng(1).uniform(60, 250, 30)
    all_of_them = kernels(0.7 * priors, priors, _rows(30))
    model = PowerModel(0, PEAKS)
    model.learn(all_of_them[:7])
    assert not model.is_ready
    off = np.abs(_watts(model, all_of_them[7:]) / (0.7 * priors[7:]) - 1)
    assert np.median(off) < 0.05
    assert np.median(np.abs(np.median(0.7 * priors[:7]) / (0.7 * priors[7:]) - 1)) > 0.2, "constant is not"


def test_features_are_learned_and_distant_kernels_have_larger_std() -> None:
    rows, watts, all_of_them, model = _explained()
    off = np.abs(_watts(model, all_of_them[40:]) / watts[40:] - 1)
    assert np.median(off) < 0.05 < np.median(np.abs(model.median_power_w / watts[40:] - 1))
    near, far = kernels([1, 1], [150, 150], np.stack([rows[0], rows[0] + 20]))
    spread = model.predict_timed([near, far])[1]
    assert spread[1] > 2 * spread[0]


def test_kernels_that_cannot_win_are_predicted_by_the_line() -> None:
    rows, _, all_of_them, model = _explained()
    new, pace, priors = rows[40:], np.zeros(20), np.full(20, 150.0)
    matter = np.arange(20) % 3 == 0
    every, none, some = (
        model.predict(new, pace, priors, np.full(20, STANDBY_W), m)
        for m in (matter | True, matter & False, matter)
    )
    # Sums over more rows round differently, so these rows are also predicted alone.
    standby_w = np.full(matter.sum(), STANDBY_W)
    alone = model.predict(new[matter], pace[matter], priors[matter], standby_w, matter[matter])
    for figure in range(2):
        np.testing.assert_array_equal(some[figure][~matter], none[figure][~matter])
        np.testing.assert_array_equal(some[figure][matter], alone[figure])
        np.testing.assert_allclose(alone[figure], every[figure][matter], 0, 1e-6)
    np.testing.assert_allclose(np.exp(none[0]), _watts(model, all_of_them[40:], False))
    np.testing.assert_allclose(np.exp(every[0]), _watts(model, all_of_them[40:], True))
    assert (every[0] != none[0]).any()


def test_capped_kernel_has_power_of_capped_kernels() -> None:
    rows, capped = _rows(20), np.arange(20) % 2 == 0
    watts = np.where(capped, 297.0, 200.0)
    all_of_them = kernels(watts, np.full(20, 220.0), rows, capped)
    model = PowerModel(0, PEAKS)
    np.testing.assert_allclose(_watts(model, all_of_them[:1]), CAP_W)
    model.learn(all_of_them[:12])
    np.testing.assert_allclose(_watts(model, all_of_them[12:]), watts[12:], rtol=0.01)
    trivial = PowerModel(0, PEAKS, is_constant=True)
    trivial.learn(all_of_them[:12])
    assert len(set(_watts(trivial, all_of_them[12:]).round(6))) == 1, "the trivial predictor knows no cap"


def _held_back() -> tuple[NDArray[np.bool_], list[Candidate]]:
    """(whether it is throttled, kernel) of 60 kernels with an exact prior, some of them above the cap."""
    priors = np.geomspace(100, 500, 60)
    capped = 0.9 * priors > CAP_W
    return capped, kernels(np.minimum(0.9 * priors, CAP_W), priors, _rows(60), capped)


def test_unmetered_throttled_kernels_raise_predictions_of_similar_ones() -> None:
    capped, all_of_them = _held_back()
    # Four similar kernels of low power are metered: too few for a slope, so the line is shrunk to its prior.
    few = [0, 1, 2, 3]
    blind, seeing = (PowerModel(0, PEAKS) for _ in range(2))
    blind.learn([all_of_them[i] for i in few])
    unmetered = [all_of_them[i] for i in np.flatnonzero(capped)[::2]]
    for c in unmetered:
        c.meterings = []
    seeing.learn([all_of_them[i] for i in few], unmetered)
    rest = np.flatnonzero(capped)[1::2]
    expected = np.array([(all_of_them[i].expected_power_w, all_of_them[i].standby_w) for i in rest]).T
    new = _rows(60)[rest], np.zeros(len(rest)), *expected
    off = [1 - np.exp(m.predict(*new, np.ones(len(rest), bool))[0]) / CAP_W for m in (blind, seeing)]
    assert np.median(off[0]) > 0.2
    assert np.median(off[1]) < 0.02
    assert (off[1] < off[0]).all()


def test_throttled_kernel_predicted_above_the_cap_changes_nothing() -> None:
    capped, all_of_them = _held_back()
    free = [c for c, is_capped in zip(all_of_them, capped, strict=True) if not is_capped]
    plain, informed = (PowerModel(0, PEAKS) for _ in range(2))
    plain.learn(free)
    informed.learn(free, [c for c, is_capped in zip(all_of_them, capped, strict=True) if is_capped][10:])
    new = kernels(np.ones(20), np.geomspace(100, 300, 20), _rows(20, 1))
    np.testing.assert_array_equal(_watts(informed, new), _watts(plain, new))


def test_constant_model_ignores_the_cap() -> None:
    _, all_of_them = _held_back()
    model = PowerModel(0, PEAKS, is_constant=True)
    model.learn(all_of_them[:4], all_of_them)
    np.testing.assert_allclose(_watts(model, all_of_them), model.median_power_w, rtol=1e-3)


def test_unknown_clock_is_null_in_json() -> None:
    (one,) = kernels([100.0], [100.0], _rows(1))
    silent = replace(one.meterings[0].conditions, clock_mhz=float("nan"))
    one.meterings = [replace(one.meterings[0], conditions=silent)]
    assert one.to_trial().to_json()["clock_mhz"] is None


def test_constant_model_predicts_the_median() -> None:
    all_of_them = kernels([100, 200, 250], [50, 100, 150], _rows(3))
    model = PowerModel(0, PEAKS, is_constant=True)
    model.learn(all_of_them)
    np.testing.assert_allclose(_watts(model, all_of_them), 200)
    assert not model.is_ready


def test_bad_ranking_causes_quarantine_until_it_improves() -> None:
    _, watts, all_of_them, model = _explained()
    new, truth = all_of_them[40:], watts[40:]
    predicted, line = _watts(model, new, True), _watts(model, new, False)
    contrary = np.sort(truth)[::-1][np.argsort(np.argsort(predicted))]
    model.update_quarantine(predicted, contrary, contrary)
    assert model.is_quarantined
    np.testing.assert_array_equal(_watts(model, new), line)
    np.testing.assert_array_equal(_watts(model, new, True), predicted)
    model.update_quarantine(predicted, contrary, truth)
    assert not model.is_quarantined
    poor = truth * np.exp(np.random.default_rng(3).normal(0, 0.5, len(truth)))
    model.update_quarantine(poor, contrary, truth)
    assert not model.is_quarantined, "a poor model is used while the line is worse"
    np.testing.assert_array_equal(_watts(model, new), predicted)


def test_power_above_standby_doubles_at_half_the_latency() -> None:
    watts, standby = np.array([100.0, 180.0]), np.array([CAP_W / 3, CAP_W / 4])
    np.testing.assert_allclose(scale_power(watts, np.zeros(2), standby), watts)
    np.testing.assert_allclose(
        scale_power(watts, np.full(2, -np.log(2)), standby), standby + 2 * (watts - standby)
    )


def test_slope_starts_from_its_prior() -> None:
    similar, spread = np.exp([5.0, 5.001, 5.002, 5.003]), np.exp(np.linspace(4.4, 5.4, 4))
    slopes = []
    for priors in (similar, spread):
        model = PowerModel(0, LARGE)
        model.learn(kernels(np.full(4, 200.0), priors, _rows(4)))
        slopes.append(model._slope)
    assert slopes[0] == pytest.approx(POWER_MODEL.prior_slope, rel=0.01)
    assert slopes[1] < 0.02


def test_prediction_batch_keeps_earlier_predictions() -> None:
    rows = _rows(30)
    all_of_them = kernels(np.linspace(150, 220, 30), np.full(30, 150.0), rows)
    model = PowerModel(0, PEAKS)
    early = PredictionBatch.from_power_model(all_of_them[:10], model)
    assert np.isnan(early.model_mean).all()
    model.learn(all_of_them[:10])
    late = PredictionBatch.from_power_model(all_of_them[10:], model)
    model.learn(all_of_them[10:])
    first, second = late.make_records([0, 3])
    assert first.measured_j == pytest.approx(0.15 * (1 + 10 * 70 / 29 / 150))
    assert second.predicted_j == pytest.approx(np.exp(late.mean[3]))
    assert second.constant_j == pytest.approx(MS * np.median([k.power_w for k in all_of_them[:10]]))
