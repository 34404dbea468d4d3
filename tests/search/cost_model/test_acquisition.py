"""Predicted figures: expected improvement with bounds and feasibility, and batches picked one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ekc.gaussian_process import log_expected_improvement
from ekc.search.cost_model.acquisition import PredictedFigures
from ekc.search.cost_model.feature_process import FeatureProcess

Array = NDArray[np.float64]


def correlate(*place: float) -> Array:
    """Correlation that falls with the distance."""
    places = np.array(place)
    return np.asarray(np.exp(-np.abs(places[:, None] - places[None, :])))


def predicted(
    *mean: float, spread: float = 0.1, best: float = 0.0, unobserved_std: float = 0.0
) -> PredictedFigures:
    """Figures of equal standard deviation."""
    return PredictedFigures(np.array(mean), np.full(len(mean), spread), best, unobserved_std)


UNEQUAL = PredictedFigures(np.array([0.0, 0.1, 0.2]), np.array([0.1, 0.001, 0.4]), 9.0)
"""All means are far below the best."""
BOUNDED = PredictedFigures(
    np.array([-0.3, 0.0, 0.05]), np.full(3, 0.1), 0.0, lower_bound=np.array([-0.3, -0.2, -2.0])
)
UNCERTAIN = predicted(0.0, 0.001, 0.05, spread=0.001, unobserved_std=0.1)
PICKS = {
    "similar genomes wait": (predicted(0, 0.001, 0.002, 0.003, 0.004), (0, 0.01, 1, 2, 2.01), [0, 3, 2]),
    "power is known": (predicted(0.0, 0.001, 0.05), (0, 0.01, 5), [0, 2]),
    "power is uncertain, so similar genomes are worth as much": (UNCERTAIN, (0, 0.01, 5), [0, 1]),
    "a bad genome comes after the twin of the best": (predicted(0.0, 0.001, 3.0), (0, 0.5, 5), [0, 1]),
    "a similar genome is in the batch": (predicted(0.0, 0.001), (0, 2, 0.01), [1, 0]),
    "no similar genome is in the batch": (predicted(0.0, 0.001), (0, 2), [0, 1]),
    "the second must improve on the first, not on the best": (UNEQUAL, np.eye(3), [0, 2]),
    "the first is the new best, which only one can improve on": (BOUNDED, np.eye(3), [0, 2]),
    "correlated ties": (predicted(0, 0, 0, 0), np.ones((4, 4)), [0, 1, 2, 3]),
    "ties": (predicted(0, 0, 0, 0), np.eye(4), [0, 1, 2, 3]),
    "nothing": (predicted(), np.zeros((0, 0)), []),
}


@pytest.mark.parametrize(("figures", "places", "picks"), PICKS.values(), ids=PICKS)
def test_batch_is_picked_one_by_one(
    figures: PredictedFigures, places: tuple[float, ...] | Array, picks: list[int]
) -> None:
    correlation = correlate(*places) if isinstance(places, tuple) else places
    assert figures.pick_batch(len(picks), correlation) == picks


def test_batch_larger_than_the_population_has_each_genome_once() -> None:
    figures = predicted(0.00, 0.001, 0.002, 0.003, 0.004)
    assert sorted(figures.pick_batch(9, correlate(0, 0.01, 1, 2, 2.01))) == [0, 1, 2, 3, 4]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_batch_uses_conditional_variance(seed: int, count: int) -> None:
    """Against the textbook formulas, solved again for every pick."""
    random = np.random.default_rng(seed)
    place = random.uniform(0, 3, 12)
    correlation = 0.99 * correlate(*place) + 0.01 * np.eye(12)
    figures = PredictedFigures(
        random.normal(size=12), random.uniform(0.1, 1, 12), 0.5, random.uniform(0, 0.3, 12)
    )
    chosen: list[int] = []
    for pick in figures.pick_batch(count, correlation):
        across, picked = correlation[:, chosen], correlation[np.ix_(chosen, chosen)]
        left = 1 - (across * np.linalg.solve(picked, across.T).T).sum(axis=1) if chosen else np.ones(12)
        spread = np.sqrt(figures.std**2 * np.clip(left, 1e-6, 1) + np.square(figures.unobserved_std))
        best = min([figures.best, *figures.mean[chosen]])
        gain = log_expected_improvement(figures.mean, spread, best)
        gain[chosen] = -np.inf
        assert gain[pick] == pytest.approx(gain.max(), abs=1e-6)
        chosen.append(pick)


def test_learned_rows_reduce_correlation_of_neighbours() -> None:
    """Two rows on either side of a measured one are less correlated afterwards."""
    rows = np.random.default_rng(0).uniform(-4, 4, (40, 3))
    process = FeatureProcess()
    probe = np.array([[0.3, 0.0, 0.0], [-0.3, 0.0, 0.0], [3.9, -3.9, 3.9]])
    before = process.predict_correlation(probe)
    process.fit(np.vstack([rows, np.zeros(3)]), np.sin(np.vstack([rows, np.zeros(3)])).sum(axis=1))
    after = process.predict_correlation(probe)
    for found in (before, after):
        np.testing.assert_allclose(np.diagonal(found), 1)
        np.testing.assert_allclose(found, found.T, atol=1e-9)
        assert np.linalg.eigvalsh(found).min() > -1e-3
    assert abs(after[0, 1]) < before[0, 1]


def test_correlation_stays_bounded_when_all_is_learned() -> None:
    """A linear function on a grid: less variance is left than single precision resolves."""
    grid = np.stack(np.meshgrid(*[np.arange(7.0)] * 3), axis=-1).reshape(-1, 3)
    np.random.default_rng(1).shuffle(grid)
    process = FeatureProcess()
    for rows in range(40, 261, 20):
        process.fit(grid[:rows], grid[:rows].sum(axis=1))
    found = process.predict_correlation(grid[200:])
    np.testing.assert_allclose(np.diagonal(found), 1)
    assert np.abs(found).max() < 1.5


def test_lower_bound_limits_expected_improvement() -> None:
    """Against random figures, none of which is below its lower bound."""
    random = np.random.default_rng(0)
    mean, spread = np.array([0.1, 0.1, 0.1, 0.02]), np.array([0.2, 0.2, 0.2, 0.05])
    floor = np.array([-9.0, -0.1, -0.01, -0.03])
    truth = np.maximum(random.normal(mean, spread, (400_000, 4)), floor)
    figures = PredictedFigures(mean, spread, 0.0, lower_bound=floor)
    np.testing.assert_allclose(np.exp(-figures.score()), np.maximum(-truth, 0).mean(axis=0), rtol=0.02)
    assert figures.score()[0] == pytest.approx(PredictedFigures(mean, spread, 0.0).score()[0])


def test_genomes_that_cannot_improve_come_last_in_order() -> None:
    """A genome with a lower bound above the best comes after the others, whatever its uncertainty."""
    mean, floor = np.array([0.1, 0.2, 0.4]), np.array([0.05, 0.0, -1.0])
    figures = PredictedFigures(mean, np.full(3, 0.2), 0.0, lower_bound=floor)
    urgency = figures.score()
    assert np.isfinite(urgency).all()
    assert list(np.argsort(urgency)) == [2, 0, 1]
    assert figures[np.array([2, 0])].pick_batch(1, np.eye(2)) == [0]


def test_feasibility_scales_expected_improvement() -> None:
    """A genome that is feasible with probability 1/4 is worth a quarter, also in a batch."""
    mean, spread, floor = np.array([0.0, 0.0, 0.02]), np.full(3, 0.1), np.full(3, -0.3)
    chance = np.log([0.25, 1.0, 1.0])
    for bounds in (-np.inf, floor):
        sure = PredictedFigures(mean, spread, 0.0, lower_bound=bounds)
        figures = PredictedFigures(mean, spread, 0.0, lower_bound=bounds, log_feasibility=chance)
        np.testing.assert_allclose(figures.score(), sure.score() - chance)
        assert figures.pick_batch(3, np.eye(3)) == [1, 2, 0]
        assert figures[np.array([0, 2])].pick_batch(1, np.eye(2)) == [1]
