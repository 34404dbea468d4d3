"""The Gaussian process: what it knows, how sure it is, and that single precision does not show."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.search.cost_model import gaussian_process
from ekc.search.cost_model.gaussian_process import MAX_ROWS, GaussianProcess
from tests.search.made_figures import bumps

FITS = 12


@pytest.mark.parametrize(("features", "rows", "noise"), [(6, 300, 0.0), (6, 40, 0.01), (40, 120, 0.02)])
def test_predictions_are_those_of_double_precision(features: int, rows: int, noise: float) -> None:
    random = np.random.default_rng(features + rows)
    known, asked = random.normal(size=(rows, features)), random.normal(size=(400, features))
    near = random.integers(0, rows, 50)
    asked[:50] = known[near] + random.normal(0, 1e-3, (50, features))
    targets = np.sin(known[:, 0]) + 0.3 * known[:, 1] + random.normal(0, noise, rows)
    process = GaussianProcess()
    # Again and again, as in a run: where nothing is noise, lengths and scale go to their bounds.
    for _ in range(FITS):
        process.fit(known, targets)
    mean, spread, _ = process.predict(asked)

    theta = process._theta
    rows_in_units, asked_in_units = known / process._feature_std, asked / process._feature_std
    covariance = gaussian_process._compute_covariance(rows_in_units, rows_in_units, theta)[0]
    covariance += gaussian_process._noise_variance(theta) * np.eye(rows)
    across = gaussian_process._compute_covariance(asked_in_units, rows_in_units, theta)[0]
    z = (targets - targets.mean()) / targets.std()
    exact = across @ np.linalg.solve(covariance, z) * targets.std() + targets.mean()
    known_part = (across * np.linalg.solve(covariance, across.T).T).sum(axis=1)
    exact_spread = np.sqrt(np.maximum(np.exp(theta[-2]) - known_part, 1e-9)) * targets.std()
    assert np.abs(mean - exact).max() < 0.01 * targets.std()
    np.testing.assert_allclose(spread, exact_spread, rtol=0.1, atol=0.001 * targets.std())


def test_the_process_predicts_what_it_never_saw_and_knows_where_it_is_unsure() -> None:
    rows, targets = bumps(120, 0)
    process = GaussianProcess()
    process.fit(rows, targets)
    fresh, truth = bumps(300, 1)
    mean, spread, surprise = process.predict(fresh)
    error = np.abs(mean - truth)
    assert error.mean() < 0.15 * np.abs(truth - targets.mean()).mean()
    assert (error < 3 * spread).mean() > 0.95
    far = process.predict(np.full((1, 4), 9.0))[1][0]
    assert far > 3 * np.median(spread)
    at_rows, sure, _ = process.predict(rows)
    np.testing.assert_allclose(at_rows, targets, atol=0.1)
    np.testing.assert_array_equal(surprise, 1.0, "nothing was expected before")
    assert sure.max() < np.median(spread) + 0.1


def test_a_process_keeps_the_best_of_many_rows() -> None:
    rows, targets = bumps(MAX_ROWS + 200, 3)
    process = GaussianProcess()
    process.fit(rows, targets)
    best = np.argsort(targets)[:20]
    np.testing.assert_allclose(process.predict(rows[best])[0], targets[best], atol=0.1)
    assert len(process._rows) == MAX_ROWS


def test_the_slope_of_the_likelihood_is_its_derivative() -> None:
    rows, targets = bumps(25, 2)
    z = (targets - targets.mean()) / targets.std()
    theta = np.array([0.3, 0.8, 1.2, 0.5, 0.2, -3.0])

    def cost(t: np.ndarray) -> float:
        k = gaussian_process._compute_covariance(rows, rows, t)[0] + gaussian_process._noise_variance(
            t
        ) * np.eye(25)
        prior = ((t[:-2] - gaussian_process._prior_log_length(4)) ** 2).sum() + t[-2] ** 2
        prior += (t[-1] - gaussian_process._LOG_NOISE_MEAN) ** 2 / gaussian_process._LOG_NOISE_VARIANCE
        return float(0.5 * (z @ np.linalg.solve(k, z) + np.linalg.slogdet(k)[1] + prior))

    steps = np.eye(6) * 1e-5
    numeric = [(cost(theta + s) - cost(theta - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(
        gaussian_process._compute_gradient(rows, z, theta), numeric, rtol=1e-4, atol=1e-4
    )


def test_what_is_alike_is_believed_as_its_like_was_right() -> None:
    rows = np.concatenate([np.random.default_rng(5).normal(at, 0.2, (20, 3)) for at in (-2.0, 0.0, 2.0)])
    targets = np.sin(5.0 * rows).sum(axis=1)
    process = GaussianProcess()
    process.fit(rows, targets, np.repeat([0.01, np.nan, 16.0], 20))
    _, _, surprise = process.predict(np.array([[-2.0] * 3, [2.0] * 3, [40.0] * 3]))
    assert surprise[0] < 0.5
    assert surprise[1] > 4
    assert surprise[2] == pytest.approx(1.0, abs=1e-3), "far from all that was ever expected"
    mean, spread, _ = process.predict(rows)
    plain = GaussianProcess()
    plain.fit(rows, targets)
    for found, without in zip((mean, spread), plain.predict(rows)[:2], strict=True):
        np.testing.assert_array_equal(found, without, "surprises are told apart from what is predicted")


def test_one_surprise_among_few_is_not_the_rule() -> None:
    rows = np.random.default_rng(6).normal(size=(12, 3))
    surprises = np.full(12, np.nan)
    surprises[0] = 9.0
    process = GaussianProcess()
    process.fit(rows, rows[:, 0], surprises)
    _, _, surprise = process.predict(rows[:1])
    assert surprise[0] == pytest.approx(1.0 + 8.0 / (gaussian_process.CALIBRATION_SHRINKAGE + 1.0), rel=1e-3)


def test_of_many_rows_each_keeps_its_own_surprise() -> None:
    random = np.random.default_rng(11)
    at = random.choice([-2.0, 2.0], MAX_ROWS + 200)
    rows = random.normal(at[:, None], 0.2, (len(at), 3))
    process = GaussianProcess()
    process.fit(rows, np.sin(5.0 * rows).sum(axis=1), np.where(at < 0, 0.04, 4.0))
    _, _, surprise = process.predict(rows)
    assert np.median(surprise[at < 0]) < 0.3
    assert np.median(surprise[at > 0]) > 3
