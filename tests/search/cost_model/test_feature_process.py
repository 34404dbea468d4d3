"""The Gaussian process: predictions, standard deviation, precision; BLAS in one thread."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ekc.search.cost_model import feature_process
from ekc.search.cost_model.feature_process import FeatureProcess, one_blas_thread
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
    process = FeatureProcess()
    # Repeated fits, as in a run: without noise, length scales and variance go to their bounds.
    for _ in range(FITS):
        process.fit(rows_learned, targets)
    mean, spread = process.predict(rows_predicted)

    theta = process._theta
    rows_in_units, asked_in_units = rows_learned / process._feature_std, rows_predicted / process._feature_std
    covariance = feature_process._compute_covariance(rows_in_units, rows_in_units, theta)[0]
    covariance += feature_process._noise_variance(theta) * np.eye(rows)
    across = feature_process._compute_covariance(asked_in_units, rows_in_units, theta)[0]
    z = (targets - targets.mean()) / targets.std()
    exact = across @ np.linalg.solve(covariance, z) * targets.std() + targets.mean()
    known_part = (across * np.linalg.solve(covariance, across.T).T).sum(axis=1)
    exact_spread = np.sqrt(np.maximum(np.exp(theta[-2]) - known_part, 1e-9)) * targets.std()
    assert np.abs(mean - exact).max() < 0.01 * targets.std()
    np.testing.assert_allclose(spread, exact_spread, rtol=0.1, atol=0.001 * targets.std())


def test_process_predicts_new_rows_with_honest_std() -> None:
    rows, targets = bumps(120, 0)
    process = FeatureProcess()
    process.fit(rows, targets)
    fresh, truth = bumps(300, 1)
    mean, spread = process.predict(fresh)
    error = np.abs(mean - truth)
    assert error.mean() < 0.15 * np.abs(truth - targets.mean()).mean()
    assert (error < 3 * spread).mean() > 0.95
    far = process.predict(np.full((1, 4), 9.0))[1][0]
    assert far > 3 * np.median(spread)
    at_rows, sure = process.predict(rows)
    np.testing.assert_allclose(at_rows, targets, atol=0.1)
    assert sure.max() < np.median(spread) + 0.1


def test_process_keeps_the_best_rows() -> None:
    rows, targets = bumps(MAX_ROWS + 200, 3)
    process = FeatureProcess()
    process.fit(rows, targets)
    best = np.argsort(targets)[:20]
    np.testing.assert_allclose(process.predict(rows[best])[0], targets[best], atol=0.1)
    assert len(process._rows) == MAX_ROWS


def test_rows_of_another_group_teach_less_than_own_rows() -> None:
    rows, targets = bumps(120, 4)
    fresh, truth = bumps(300, 5)
    errors, spreads = [], []
    for group in (0, 1):
        process = FeatureProcess()
        process.fit(rows, targets, np.full(120, group))
        mean, spread = process.predict(fresh)
        errors.append(np.abs(mean - truth).mean())
        spreads.append(np.median(spread))
    assert errors[0] < errors[1] < np.abs(truth - targets.mean()).mean()
    assert spreads[0] < spreads[1]


def test_rows_of_one_group_need_no_names() -> None:
    rows, targets = bumps(30, 6)
    plain, named = FeatureProcess(), FeatureProcess()
    plain.fit(rows, targets)
    named.fit(rows, targets, np.zeros(30, np.int64))
    np.testing.assert_array_equal(plain.predict(rows), named.predict(rows))


@pytest.mark.parametrize("groups", [np.zeros(25, int), np.arange(25) % 3])
def test_gradient_matches_finite_differences(groups: np.ndarray) -> None:
    rows, targets = bumps(25, 2)
    factors = np.where(groups[:, None] == groups, 1.0, 0.6)
    z = (targets - targets.mean()) / targets.std()
    theta = np.array([0.3, 0.8, 1.2, 0.5, 0.2, -3.0])

    def cost(t: np.ndarray) -> float:
        k = factors * feature_process._compute_covariance(rows, rows, t)[0]
        k += feature_process._noise_variance(t) * np.eye(25)
        prior = ((t[:-2] - feature_process._prior_log_length(4)) ** 2).sum() + t[-2] ** 2
        prior += (t[-1] - feature_process._LOG_NOISE_MEAN) ** 2 / feature_process._LOG_NOISE_VARIANCE
        return float(0.5 * (z @ np.linalg.solve(k, z) + np.linalg.slogdet(k)[1] + prior))

    steps = np.eye(6) * 1e-5
    numeric = [(cost(theta + s) - cost(theta - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(
        feature_process._compute_gradient(rows, z, factors, theta), numeric, rtol=1e-4, atol=1e-4
    )


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
