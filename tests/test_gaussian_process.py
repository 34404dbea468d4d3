"""The Gaussian process against the formulas of its posterior."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.gaussian_process import BLOCK_COLUMNS, GaussianProcess


def compute_kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * np.subtract.outer(x, y) ** 2)


@pytest.mark.parametrize("count", [1, 5, BLOCK_COLUMNS + 10])
def test_posterior_matches_its_formula(count: int) -> None:
    random = np.random.default_rng(count)
    x, at = random.uniform(-3, 3, count), np.linspace(-4, 4, 9)
    values, noise = np.sin(x), 0.1 * np.eye(count)
    covariance, cross = compute_kernel(x, x) + noise, compute_kernel(at, x)
    process = GaussianProcess(covariance, values)
    np.testing.assert_allclose(process.predict_mean(cross), cross @ np.linalg.solve(covariance, values))
    explained = cross @ np.linalg.solve(covariance, cross.T)
    np.testing.assert_allclose(process.compute_explained_variance(cross), np.diag(explained))
    np.testing.assert_allclose(process.compute_explained_covariance(cross, cross[:3]), explained[:, :3])


def test_nothing_observed_explains_nothing() -> None:
    process, cross = GaussianProcess(np.zeros((0, 0)), np.zeros(0)), np.zeros((3, 0))
    assert not process.predict_mean(cross).any()
    assert not process.compute_explained_variance(cross).any()


def test_moved_draws_have_the_mean_and_spread_of_the_posterior() -> None:
    random = np.random.default_rng(0)
    x, at = np.array([-1.0, 0.5]), np.array([-1.0, 0.0, 2.0])
    values, everywhere = np.array([0.3, -0.4]), np.concatenate([x, at])
    process = GaussianProcess(compute_kernel(x, x) + 0.01 * np.eye(2), values)
    root = np.linalg.cholesky(compute_kernel(everywhere, everywhere) + 1e-9 * np.eye(5))
    prior = random.standard_normal((20000, 5)) @ root.T
    missed = values - prior[:, :2] - 0.1 * random.standard_normal((20000, 2))
    cross = compute_kernel(at, x)
    draws = process.move_draws(prior[:, 2:], missed, cross)
    np.testing.assert_allclose(draws.mean(axis=0), process.predict_mean(cross), atol=0.02)
    variance = 1 - process.compute_explained_variance(cross)
    np.testing.assert_allclose(draws.var(axis=0), variance, atol=0.02)
