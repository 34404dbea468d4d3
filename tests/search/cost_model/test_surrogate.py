"""The surrogate: its prior, clipping of bad figures, expected improvement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.search.cost_model.expected_improvement import log_expected_improvement
from ekc.search.cost_model.surrogate import Surrogate, _clip_residuals
from ekc.search.data.defaults import SURROGATE
from tests.search.helpers import bumps

RESIDUAL_CLIP = SURROGATE.residual_clip


def test_expected_improvement_matches_normal_samples() -> None:
    mean, spread, best = np.array([0.0, 0.3, -0.2, 0.05]), np.array([0.1, 0.2, 0.1, 1.0]), 0.1
    drawn = np.random.default_rng(0).normal(mean, spread, (400_000, 4))
    np.testing.assert_allclose(
        np.exp(log_expected_improvement(mean, spread, best)),
        np.maximum(best - drawn, 0).mean(axis=0),
        rtol=0.03,
    )
    far = log_expected_improvement(np.linspace(0.5, 0.7, 200), np.full(200, 0.1), 0.0)
    assert (np.diff(far) < 0).all(), "also where the formula changes"
    assert np.isfinite(log_expected_improvement(np.array([90.0]), np.array([0.01]), 0.0)).all()


def test_surrogate_starts_from_prior_and_learns_figures() -> None:
    rows, targets = bumps(80, 4)
    rows = rows.astype(np.float32)
    prior, values = np.full(80, 2.0), 2.0 * np.exp(0.3 * targets)
    belief = Surrogate(seed=0)
    mean, spread = belief.predict(rows, prior)
    np.testing.assert_allclose(mean, np.log(2.0))
    belief.learn(rows[:3], prior[:3], values[:3])
    np.testing.assert_array_equal(belief.predict(rows, prior)[1], spread)
    belief.learn(rows[3:60], prior[3:60], values[3:60])
    mean, unsure = belief.predict(rows[60:], prior[60:])
    assert np.corrcoef(mean, np.log(values[60:]))[0, 1] > 0.9
    assert (unsure > 0).all()


@given(st.lists(st.floats(-3, 6), min_size=1, max_size=40), st.sampled_from([0.05, 0.3, RESIDUAL_CLIP]))
def test_clipping_keeps_the_order_of_residuals(residuals: list[float], bad: float) -> None:
    residuals_in, priors = np.array(residuals), np.ones(len(residuals))
    bent = _clip_residuals(priors, np.exp(residuals_in), bad)
    good = residuals_in <= np.median(residuals_in) + bad
    np.testing.assert_allclose(bent[good], residuals_in[good], atol=1e-12)
    assert (bent[~good] < residuals_in[~good]).all()
    assert (np.diff(bent[np.argsort(residuals_in, kind="stable")]) >= -1e-12).all()


def test_clipping_is_continuous() -> None:
    # The median of these is 0, and the best far below.
    at = 0.3 + np.array([-1e-6, 0.0, 1e-6])
    residuals_in = np.concatenate([at, -at, [3.0, -3.0]])
    bent = _clip_residuals(np.ones(8), np.exp(residuals_in), 0.3)
    np.testing.assert_allclose(np.diff(bent[:3]), 1e-6, rtol=1e-4)
    assert bent[6] == pytest.approx(0.3 * (1 + math.log(10)))


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.5, 50)), min_size=2, max_size=30))
def test_clipping_never_makes_a_figure_better_than_the_best(some: list[tuple[float, float]]) -> None:
    """Also if the prior is too low for the fastest, so that their residuals are the largest."""
    priors, figures = np.array(some).T
    learned = np.log(priors) + _clip_residuals(priors, figures, 0.05)
    best = np.log(figures.min())
    near = np.log(figures) <= best + 0.05
    np.testing.assert_allclose(learned[near], np.log(figures[near]), atol=1e-12)
    assert (learned[~near] >= best + 0.05 - 1e-12).all()


@pytest.mark.parametrize("seed", range(3))
def test_clipping_keeps_good_figures_accurate_beside_outliers(seed: int) -> None:
    rows, targets = bumps(160, seed)
    rows, good = rows.astype(np.float32), 0.03 * targets
    # A sixth of them spill, and nothing in their rows says so.
    bad = np.where(np.random.default_rng(seed).random(160) < 1 / 6, 3.0, 0.0)

    def median_error(clip: float) -> float:
        """Median error of new rows, with good figures."""
        belief = Surrogate(seed=0, residual_clip=clip)
        belief.learn(rows[:80], np.ones(80), np.exp(good + bad)[:80])
        mean, _ = belief.predict(rows[80:], np.ones(80))
        return float(np.median(np.abs(mean - good[80:])))

    assert median_error(0.05) < 0.7 * median_error(RESIDUAL_CLIP)
    assert median_error(RESIDUAL_CLIP) < median_error(10.0)
