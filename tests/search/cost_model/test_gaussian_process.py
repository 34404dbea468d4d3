"""The Gaussian process: predictions, standard deviation, calibration, precision; BLAS in one thread."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ekc.search.cost_model import gaussian_process
from ekc.search.cost_model.gaussian_process import GaussianProcess, one_blas_thread
from ekc.search.data.defaults import GAUSSIAN_PROCESS
from tests.search.helpers import bumps

FITS = 12
MAX_ROWS = GAUSSIAN_PROCESS.max_rows


@pytest.mark.parametrize(("features", "rows", "noise"), [(6, 300, 0.0), (6, 40, 0.01), (40, 120, 0.02)])
def test_predictions_match_double_precision(features: int, rows: int, noise: float) -> None:
    random = np.random.default_rng(features + rows)
    rows_learned, rows_predicted = random.normal(size=(rows, features)), random.normal(size=(400, features))
    near = random.integers(0, rows, 50)
    rows_predicted[:50] = rows_learned[near] + random.normal(0, 1e-3, (50, features))
    targets = np.sin(rows_learned[:, 0]) + 0.3 * rows_learned[:, 1] + random.normal(0, noise, rows)
    process = GaussianProcess()
    # Repeated fits, as in a run: without noise, length scales and variance go to their bounds.
    for _ in range(FITS):
        process.fit(rows_learned, targets)
    mean, spread, _ = process.predict(rows_predicted)

    theta = process._theta
    rows_in_units, asked_in_units = rows_learned / process._feature_std, rows_predicted / process._feature_std
    covariance = gaussian_process._compute_covariance(rows_in_units, rows_in_units, theta)[0]
    covariance += gaussian_process._noise_variance(theta) * np.eye(rows)
    across = gaussian_process._compute_covariance(asked_in_units, rows_in_units, theta)[0]
    z = (targets - targets.mean()) / targets.std()
    exact = across @ np.linalg.solve(covariance, z) * targets.std() + targets.mean()
    known_part = (across * np.linalg.solve(covariance, across.T).T).sum(axis=1)
    exact_spread = np.sqrt(np.maximum(np.exp(theta[-2]) - known_part, 1e-9)) * targets.std()
    assert np.abs(mean - exact).max() < 0.01 * targets.std()
    np.testing.assert_allclose(spread, exact_spread, rtol=0.1, atol=0.001 * targets.std())


def test_process_predicts_new_rows_with_honest_std() -> None:
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
    np.testing.assert_array_equal(surprise, 1.0, "there were no z-scores")
    assert sure.max() < np.median(spread) + 0.1


def test_process_keeps_the_best_rows() -> None:
    rows, targets = bumps(MAX_ROWS + 200, 3)
    process = GaussianProcess()
    process.fit(rows, targets)
    best = np.argsort(targets)[:20]
    np.testing.assert_allclose(process.predict(rows[best])[0], targets[best], atol=0.1)
    assert len(process._rows) == MAX_ROWS


def test_gradient_matches_finite_differences() -> None:
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


def test_calibration_follows_z_scores_of_similar_rows() -> None:
    rows = np.concatenate([np.random.default_rng(5).normal(at, 0.2, (20, 3)) for at in (-2.0, 0.0, 2.0)])
    targets = np.sin(5.0 * rows).sum(axis=1)
    process = GaussianProcess()
    process.fit(rows, targets, np.repeat([0.01, np.nan, 16.0], 20))
    _, _, surprise = process.predict(np.array([[-2.0] * 3, [2.0] * 3, [40.0] * 3]))
    assert surprise[0] < 0.5
    assert surprise[1] > 4
    assert surprise[2] == pytest.approx(1.0, abs=1e-3), "far from all rows with z-scores"
    mean, spread, _ = process.predict(rows)
    plain = GaussianProcess()
    plain.fit(rows, targets)
    for found, without in zip((mean, spread), plain.predict(rows)[:2], strict=True):
        np.testing.assert_array_equal(found, without, "z-scores do not change mean and std")


def test_calibration_shrinks_a_single_large_z_score() -> None:
    rows = np.random.default_rng(6).normal(size=(12, 3))
    surprises = np.full(12, np.nan)
    surprises[0] = 9.0
    process = GaussianProcess()
    process.fit(rows, rows[:, 0], surprises)
    _, _, surprise = process.predict(rows[:1])
    assert surprise[0] == pytest.approx(1.0 + 8.0 / (GAUSSIAN_PROCESS.calibration_shrinkage + 1.0), rel=1e-3)


def test_z_scores_stay_with_their_rows_when_rows_are_dropped() -> None:
    random = np.random.default_rng(11)
    at = random.choice([-2.0, 2.0], MAX_ROWS + 200)
    rows = random.normal(at[:, None], 0.2, (len(at), 3))
    process = GaussianProcess()
    process.fit(rows, np.sin(5.0 * rows).sum(axis=1), np.where(at < 0, 0.04, 4.0))
    _, _, surprise = process.predict(rows)
    assert np.median(surprise[at < 0]) < 0.3
    assert np.median(surprise[at > 0]) > 3


def blas_threads() -> set[int]:
    """Threads of the BLAS of NumPy; XGBoost loads SciPy, which has its own."""
    np.ones((2, 2)) @ np.ones((2, 2))
    pools = (p for p in threadpool_info() if p["user_api"] == "blas" and "numpy" in p["filepath"])
    return {pool["num_threads"] for pool in pools}


@pytest.mark.parametrize("first_out", [0, 1])
def test_blas_threads_return_when_the_last_user_ends(first_out: int) -> None:
    """In any order of ending. The second user saw a single thread when it began."""
    with threadpool_limits(2, user_api="blas"):
        stacks = [ExitStack(), ExitStack()]
        for stack in stacks:
            stack.enter_context(one_blas_thread())
        assert blas_threads() == {1}
        stacks[first_out].close()
        assert blas_threads() == {1}
        stacks[1 - first_out].close()
        assert blas_threads() == {2}
