"""The Gaussian process: what is computed in single precision must not show."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.search import gaussian
from ekc.search.gaussian import GaussianProcess

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
    mean, spread = process.predict(asked)

    theta = process._theta
    rows_in_units, asked_in_units = known / process._unit, asked / process._unit
    covariance = gaussian._covariance(rows_in_units, rows_in_units, theta)[0]
    covariance += gaussian._noise(theta) * np.eye(rows)
    across = gaussian._covariance(asked_in_units, rows_in_units, theta)[0]
    z = (targets - targets.mean()) / targets.std()
    exact = across @ np.linalg.solve(covariance, z) * targets.std() + targets.mean()
    known_part = (across * np.linalg.solve(covariance, across.T).T).sum(axis=1)
    exact_spread = np.sqrt(np.maximum(np.exp(theta[-2]) - known_part, 1e-9)) * targets.std()
    assert np.abs(mean - exact).max() < 0.01 * targets.std()
    np.testing.assert_allclose(spread, exact_spread, rtol=0.1, atol=0.001 * targets.std())
