"""The power model: constant power, an accurate prior, learned features, the power cap, quarantine; the
analytic prior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.cost_model.features import FEATURE_NAMES
from ekc.search.cost_model.learner import PredictionBatch
from ekc.search.cost_model.power_model import LayeredPowerModel, PowerModel, fit_two_numbers, scale_power
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


def test_kernels_that_cannot_win_are_predicted_by_the_parametric_part() -> None:
    rows, _, all_of_them, model = _explained()
    new = rows[40:]
    inputs = np.full(20, np.log(MS)), np.full(20, MS), np.full(20, 150.0), np.full(20, STANDBY_W)
    matter = np.arange(20) % 3 == 0
    every, none, some = (model.predict(new, *inputs, m) for m in (matter | True, matter & False, matter))
    # Sums over more rows round differently, so these rows are also predicted alone.
    alone = model.predict(new[matter], *(x[matter] for x in inputs), matter[matter])
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


def test_metering_window_says_whether_the_cap_acts() -> None:
    """The timing of a kernel may show the throttling of the kernel before."""
    all_of_them = kernels(np.full(20, 200.0), np.full(20, 220.0), _rows(20))
    flagged = kernels(np.full(20, 200.0), np.full(20, 220.0), _rows(20), np.ones(20, bool))
    for candidate, other in zip(all_of_them, flagged, strict=True):
        candidate.timings = other.timings
    hot = kernels([297.0], [220.0], _rows(1), [True])
    model = PowerModel(0, PEAKS)
    model.learn([*hot, *all_of_them[:12]])
    np.testing.assert_allclose(_watts(model, all_of_them[12:]), 200.0, rtol=0.02)
    np.testing.assert_allclose(_watts(model, hot), 297.0)


def _held_back() -> tuple[NDArray[np.bool_], list[Candidate]]:
    """(whether it is throttled, kernel) of 60 kernels with an exact prior, some of them above the cap."""
    priors = np.geomspace(100, 500, 60)
    capped = 0.9 * priors > CAP_W
    return capped, kernels(np.minimum(0.9 * priors, CAP_W), priors, _rows(60), capped)


def test_unmetered_throttled_kernels_raise_predictions_of_similar_ones() -> None:
    capped, all_of_them = _held_back()
    # Four similar kernels of low power are metered: too few for a slope, so it is shrunk to its prior.
    few = [0, 1, 2, 3]
    blind, seeing = (PowerModel(0, PEAKS) for _ in range(2))
    blind.learn([all_of_them[i] for i in few])
    unmetered = [all_of_them[i] for i in np.flatnonzero(capped)[::2]]
    for c in unmetered:
        c.meterings = []
    seeing.learn([all_of_them[i] for i in few], unmetered)
    rest = np.flatnonzero(capped)[1::2]
    expected = np.array([(all_of_them[i].expected_power_w, all_of_them[i].standby_w) for i in rest]).T
    new = _rows(60)[rest], np.full(len(rest), np.log(MS)), np.full(len(rest), MS), *expected
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
    predicted, parametric = _watts(model, new, True), _watts(model, new, False)
    contrary = np.sort(truth)[::-1][np.argsort(np.argsort(predicted))]
    model.update_quarantine(predicted, contrary, contrary)
    assert model.is_quarantined
    np.testing.assert_array_equal(_watts(model, new), parametric)
    np.testing.assert_array_equal(_watts(model, new, True), predicted)
    model.update_quarantine(predicted, contrary, truth)
    assert not model.is_quarantined
    poor = truth * np.exp(np.random.default_rng(3).normal(0, 0.5, len(truth)))
    model.update_quarantine(poor, contrary, truth)
    assert not model.is_quarantined, "a poor model is used while the parametric part is worse"
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
        slopes.append(model._layers.parametric.slope)
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
    # The kernels take equally long, so P0 + E0 / latency is a constant power too.
    assert second.two_number_j == pytest.approx(MS * np.mean([k.power_w for k in all_of_them[:10]]), rel=0.02)


def _make_world(count: int, seed: int, informative: bool) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """(features, [latency in seconds, priors, watts]) of kernels whose power is P0 + E0 / latency, times a
    factor of a feature and the noise of a meter. The prior is equal for all kernels, or knows the power to
    10 %."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 4)).astype(np.float32)
    latency = MS * np.exp(random.uniform(0, np.log(random.choice([1.2, 3, 30])), count))
    watts = random.uniform(20, 200) + random.choice([0, 1]) * random.uniform(0, 0.3) / latency
    watts = watts * np.exp(random.uniform(0, 0.3) * np.tanh(rows[:, 0]))
    priors = 0.6 * watts * np.exp(random.normal(0, 0.1, count)) if informative else np.ones(count)
    return rows, np.stack([latency, priors, watts * np.exp(random.normal(0, 0.03, count))])


def _compare_with_two_numbers(count: int, seed: int, informative: bool) -> float:
    """Mean error of the model over that of P0 t + E0, on 60 kernels after learning `count`."""
    rows, figures = _make_world(count + 60, seed, informative)
    model = LayeredPowerModel(0)
    model.learn(rows[:count], *figures[:, :count])
    latency, priors, watts = figures[:, count:]
    fit = fit_two_numbers(figures[0, :count], figures[2, :count])
    errors = [
        np.abs(np.exp(log_power) / watts - 1).mean()
        for log_power in (model.predict(rows[count:], latency, priors)[0], fit.predict_log_power(latency))
    ]
    return float(errors[0] / errors[1])


@pytest.mark.parametrize(("count", "worlds"), [(4, 60), (8, 12), (24, 12)])
def test_error_is_less_than_twice_that_of_two_numbers(count: int, worlds: int) -> None:
    ratios = [_compare_with_two_numbers(count, seed, False) for seed in range(worlds)]
    assert max(ratios) < 2
    assert np.median(ratios) < 1.02


@pytest.mark.parametrize(("count", "worlds"), [(4, 60), (8, 12), (24, 12)])
def test_informative_prior_beats_two_numbers(count: int, worlds: int) -> None:
    ratios = [_compare_with_two_numbers(count, seed, True) for seed in range(worlds)]
    assert np.median(ratios) < 0.95
    # A prior that misleads by chance on few kernels is trusted by its prior slope all the same.
    assert count < 8 or max(ratios) < 2


@pytest.mark.parametrize("constant_w", [5.0, 60.0, 300.0])
@pytest.mark.parametrize("work_j", [0.0, 0.05, 2.0])
def test_constant_power_and_work_are_recovered_from_few_kernels(constant_w: float, work_j: float) -> None:
    latency = MS * np.array([1.0, 4.0, 16.0])
    watts, asked = constant_w + work_j / latency, MS * np.geomspace(1, 16, 20)
    two = fit_two_numbers(latency[[0, 2]], watts[[0, 2]])
    np.testing.assert_allclose(
        np.exp(two.predict_log_power(asked)), constant_w + work_j / asked, rtol=0.02, err_msg="2 kernels"
    )
    model = LayeredPowerModel(0)
    model.learn(_rows(3), latency, np.ones(3), watts)
    found = np.exp(model.predict(_rows(20, 1), asked, np.ones(20))[0])
    np.testing.assert_allclose(found, constant_w + work_j / asked, rtol=0.05, err_msg="3 kernels")


@pytest.mark.parametrize(
    ("latency_ms", "watts"),
    [
        ([1.0], [100.0]),
        ([1.0] * 5, [100.0] * 5),
        ([1.0] * 12, [50.0, 150.0] * 6),
        ([1.0, 100.0], [300.0, 40.0]),
        ([1.0, 100.0], [40.0, 300.0]),
        ([1e-3, 1.0, 1e4], [400.0, 100.0, 30.0]),
        ([1.0, 1.0 + 1e-12, 1.0 - 1e-12], [100.0, 10.0, 300.0]),
    ],
)
def test_power_is_positive_wherever_it_is_asked(latency_ms: list[float], watts: list[float]) -> None:
    count, asked = len(watts), MS * np.geomspace(1e-4, 1e5, 30)
    model = LayeredPowerModel(0)
    model.learn(_rows(1).repeat(count, axis=0), MS * np.array(latency_ms), np.ones(count), np.array(watts))
    for use_surrogate in (True, False):
        log_power, std = model.predict(_rows(30), asked, np.ones(30), use_surrogate)
        assert np.isfinite(log_power).all()
        assert (std > 0).all()
    assert min(model.parametric.predict_log_power(np.array([MS]), np.ones(1))) > np.log(1.0)


def test_kernels_are_predicted_alike_alone_and_together() -> None:
    rows, (latency, priors, watts) = _make_world(60, 5, True)
    model = LayeredPowerModel(0)
    model.learn(rows[:20], latency[:20], priors[:20], watts[:20])
    for use_surrogate in (True, False):
        together = model.predict(rows, latency, priors, use_surrogate)
        alone = [model.predict(rows[[i]], latency[[i]], priors[[i]], use_surrogate) for i in range(len(rows))]
        for figure in range(2):
            np.testing.assert_allclose(
                together[figure], np.concatenate([one[figure] for one in alone]), rtol=0, atol=1e-5
            )


def test_unit_of_time_does_not_matter() -> None:
    rows, (latency, priors, watts) = _make_world(60, 7, True)
    found = []
    for unit in (1.0, 1e3):
        model = LayeredPowerModel(0)
        model.learn(rows[:20], unit * latency[:20], priors[:20], watts[:20])
        found.append(model.predict(rows[20:], unit * latency[20:], priors[20:])[0])
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)
