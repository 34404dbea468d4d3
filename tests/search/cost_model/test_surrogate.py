"""The surrogate: its prior, clipping of bad figures, expected improvement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.gaussian_process import log_expected_improvement
from ekc.search.cost_model.surrogate import PeerRows, ResidualRows, Surrogate, _clip_residuals
from ekc.search.data.defaults import PEERS, SURROGATE
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
    belief = Surrogate()
    mean, spread = belief.predict(rows, prior)
    np.testing.assert_allclose(mean, np.log(2.0))
    belief.learn(rows[:3], prior[:3], values[:3])
    np.testing.assert_array_equal(belief.predict(rows, prior)[1], spread)
    belief.learn(rows[:60], prior[:60], values[:60])
    mean, unsure = belief.predict(rows[60:], prior[60:])
    assert np.corrcoef(mean, np.log(values[60:]))[0, 1] > 0.9
    assert (unsure > 0).all()


def learn_layer(peers: PeerRows, count: int, factor: float = 1.0, seed: int = 7) -> Surrogate:
    """A surrogate of a layer whose figures are `factor` times those of bumps, with so many rows."""
    layer = Surrogate()
    layer.join(peers)
    rows, targets = bumps(count, seed)
    if count:
        layer.learn(rows.astype(np.float32), np.ones(count), factor * np.exp(0.3 * targets))
    return layer


def test_layer_without_rows_predicts_by_the_other_layers() -> None:
    rows, targets = bumps(200, 8)
    alone = Surrogate().predict(rows.astype(np.float32), np.ones(200))[1]
    for factor in (1.0, 50.0):
        peers = PeerRows()
        new = learn_layer(peers, 0)
        learn_layer(peers, 60, factor)
        mean, spread = new.predict(rows.astype(np.float32), np.ones(200))
        assert np.corrcoef(mean, targets)[0, 1] > 0.9, factor
        assert abs(np.median(mean)) < 0.2, "a factor of another layer carries no meaning here"
        assert np.median(spread) < alone[0]


def test_own_rows_count_more_than_those_of_others() -> None:
    peers = PeerRows()
    layer = Surrogate()
    layer.join(peers)
    learn_layer(peers, 60)
    rows, targets = bumps(60, 9)
    fresh, truth = bumps(100, 10)
    layer.learn(rows.astype(np.float32), np.ones(60), 5 * np.exp(-0.3 * targets))
    mean, _ = layer.predict(fresh.astype(np.float32), np.ones(100))
    assert np.corrcoef(mean, -truth)[0, 1] > 0.8
    assert abs(np.median(mean + 0.3 * truth) - math.log(5)) < 0.1


def test_few_rows_of_all_layers_are_no_model() -> None:
    peers = PeerRows()
    layer = learn_layer(peers, 3)
    learn_layer(peers, SURROGATE.min_rows - 4)
    rows = bumps(5, 11)[0].astype(np.float32)
    np.testing.assert_array_equal(layer.predict(rows, np.full(5, 2.0))[0], np.log(np.full(5, 2.0)))
    learn_layer(peers, 1)
    assert (layer.predict(rows, np.full(5, 2.0))[0] != np.log(2.0)).any()


def test_rows_of_the_nearest_layers_are_taken() -> None:
    peers = PeerRows()
    for i in range(PEERS.max_peers + 10):
        place = peers.join()
        rows = np.full((40, 2), float(i)) + np.linspace(0, 0.1, 40)[:, None]
        peers.publish(place, ResidualRows(rows, np.linspace(-1, 1, 40) + i))
    found = peers.collect(5)
    assert len(found) == PEERS.max_peers
    assert sum(len(x.rows) for x in found) <= PEERS.max_rows
    nearest = {int(x.rows[0, 0]) for x in found}
    assert nearest == set(range(PEERS.max_peers + 1)) - {5}
    assert all(x.residuals.min() == x.rows[0, 0] - 1 for x in found), "the best are among them"
    new = peers.join()
    assert {int(x.rows[0, 0]) for x in peers.collect(new)} == set(range(10, PEERS.max_peers + 10))


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
        belief = Surrogate(residual_clip=clip)
        belief.learn(rows[:80], np.ones(80), np.exp(good + bad)[:80])
        mean, _ = belief.predict(rows[80:], np.ones(80))
        return float(np.median(np.abs(mean - good[80:])))

    assert median_error(0.05) < 0.7 * median_error(RESIDUAL_CLIP)
    assert median_error(RESIDUAL_CLIP) < median_error(10.0)
