"""A batch is picked one by one, each genome as though those before it had come out as expected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.cost_model.gaussian_process import GaussianProcess
from ekc.search.cost_model.surrogate import log_expected_improvement

Array = NDArray[np.float64]


def alike(place: Array) -> Array:
    """The nearer, the more one tells of the other."""
    return np.asarray(np.exp(-np.abs(place[:, None] - place[None, :])))


def promise(*mean: float, spread: float = 0.1, best: float = 0.0, beside: float = 0.0) -> Acquisition:
    """All equally unsure."""
    return Acquisition(np.array(mean), np.full(len(mean), spread), best, beside)


def test_of_two_that_look_alike_the_second_waits() -> None:
    place = np.array([0.0, 0.01, 1.0, 2.0, 2.01])
    believed = promise(0.00, 0.001, 0.002, 0.003, 0.004)
    assert believed.pick_batch(3, alike(place)) == [0, 3, 2]
    assert sorted(believed.pick_batch(9, alike(place))) == [0, 1, 2, 3, 4]


def test_what_a_timing_does_not_settle_is_still_promised_by_the_twin() -> None:
    """Sure of the latency, unsure of the power: twins are as good as strangers."""
    place, mean = np.array([0.0, 0.01, 5.0]), (0.0, 0.001, 0.05)
    assert promise(*mean).pick_batch(2, alike(place)) == [0, 2]
    assert promise(*mean, spread=0.001, beside=0.1).pick_batch(2, alike(place)) == [0, 1]


def test_what_is_hopeless_does_not_come_before_a_twin_of_the_best() -> None:
    place = np.array([0.0, 0.5, 5.0])
    assert promise(0.0, 0.001, 3.0).pick_batch(2, alike(place)) == [0, 1]


def test_each_is_to_improve_on_those_picked_before() -> None:
    """All far below the mark: without the first pick's figure as the new mark, the sure one would be next."""
    believed = Acquisition(np.array([0.0, 0.1, 0.2]), np.array([0.1, 0.001, 0.4]), 9.0)
    assert believed.pick_batch(2, np.eye(3)) == [0, 2]


def test_of_equals_the_first_and_none_twice() -> None:
    assert promise(0, 0, 0, 0).pick_batch(4, np.ones((4, 4))) == [0, 1, 2, 3]
    assert promise(0, 0, 0, 0).pick_batch(4, np.eye(4)) == [0, 1, 2, 3]
    assert promise().pick_batch(4, np.zeros((0, 0))) == []


def test_what_is_in_the_batch_already_has_told() -> None:
    """The third row is picked: its twin, the best of the rest, waits."""
    place, believed = np.array([0.0, 2.0, 0.01]), promise(0.0, 0.001)
    assert believed.pick_batch(2, alike(place)) == [1, 0]
    assert believed.pick_batch(2, alike(place[:2])) == [0, 1]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_what_is_left_is_the_conditional_variance(seed: int, count: int) -> None:
    """Against the textbook formulas, solved afresh for every pick."""
    random = np.random.default_rng(seed)
    place = random.uniform(0, 3, 12)
    correlation = 0.99 * alike(place) + 0.01 * np.eye(12)
    believed = Acquisition(
        random.normal(size=12), random.uniform(0.1, 1, 12), 0.5, random.uniform(0, 0.3, 12)
    )
    chosen: list[int] = []
    for pick in believed.pick_batch(count, correlation):
        across, known = correlation[:, chosen], correlation[np.ix_(chosen, chosen)]
        left = 1 - (across * np.linalg.solve(known, across.T).T).sum(axis=1) if chosen else np.ones(12)
        spread = np.sqrt(believed.std**2 * np.clip(left, 1e-6, 1) + np.square(believed.unobserved_std))
        best = min([believed.best, *believed.mean[chosen]])
        gain = log_expected_improvement(believed.mean, spread, best)
        gain[chosen] = -np.inf
        assert gain[pick] == pytest.approx(gain.max(), abs=1e-6)
        chosen.append(pick)


def test_what_is_known_makes_neighbours_tell_less_of_each_other() -> None:
    """Two rows on either side of a measured one: its figure was most of what they had in common."""
    rows = np.random.default_rng(0).uniform(-4, 4, (40, 3))
    process = GaussianProcess()
    probe = np.array([[0.3, 0.0, 0.0], [-0.3, 0.0, 0.0], [3.9, -3.9, 3.9]])
    before = process.predict_correlation(probe)
    process.fit(np.vstack([rows, np.zeros(3)]), np.sin(np.vstack([rows, np.zeros(3)])).sum(axis=1))
    after = process.predict_correlation(probe)
    for found in (before, after):
        np.testing.assert_allclose(np.diagonal(found), 1)
        np.testing.assert_allclose(found, found.T, atol=1e-9)
        assert np.linalg.eigvalsh(found).min() > -1e-3
    assert abs(after[0, 1]) < before[0, 1]


def test_a_process_that_has_seen_all_correlates_within_bounds() -> None:
    """A linear law on a grid: nearly nothing is left, and less than single precision resolves."""
    grid = np.stack(np.meshgrid(*[np.arange(7.0)] * 3), axis=-1).reshape(-1, 3)
    np.random.default_rng(1).shuffle(grid)
    process = GaussianProcess()
    for rows in range(40, 261, 20):
        process.fit(grid[:rows], grid[:rows].sum(axis=1))
    found = process.predict_correlation(grid[200:])
    np.testing.assert_allclose(np.diagonal(found), 1)
    assert np.abs(found).max() < 1.5


def test_what_cannot_be_faster_promises_no_more_than_its_floor() -> None:
    """Against draws of the truth, none of which is below its floor."""
    random = np.random.default_rng(0)
    mean, spread = np.array([0.1, 0.1, 0.1, 0.02]), np.array([0.2, 0.2, 0.2, 0.05])
    floor = np.array([-9.0, -0.1, -0.01, -0.03])
    truth = np.maximum(random.normal(mean, spread, (400_000, 4)), floor)
    believed = Acquisition(mean, spread, 0.0, lower_bound=floor)
    np.testing.assert_allclose(np.exp(-believed.score()), np.maximum(-truth, 0).mean(axis=0), rtol=0.02)
    assert believed.score()[0] == pytest.approx(Acquisition(mean, spread, 0.0).score()[0])


def test_what_can_improve_on_nothing_comes_last_and_in_order() -> None:
    """What pads has a floor above the best: however little is known of it, others come first."""
    mean, floor = np.array([0.1, 0.2, 0.4]), np.array([0.05, 0.0, -1.0])
    believed = Acquisition(mean, np.full(3, 0.2), 0.0, lower_bound=floor)
    urgency = believed.score()
    assert np.isfinite(urgency).all()
    assert list(np.argsort(urgency)) == [2, 0, 1]
    assert believed[np.array([2, 0])].pick_batch(1, np.eye(2)) == [0]


def test_a_floor_holds_for_what_is_left_of_a_batch_too() -> None:
    """The first pick is the new mark: what cannot be below it waits for what can."""
    believed = Acquisition(
        np.array([-0.3, 0.0, 0.05]), np.full(3, 0.1), 0.0, lower_bound=np.array([-0.3, -0.2, -2.0])
    )
    assert believed.pick_batch(2, np.eye(3)) == [0, 2]


def test_a_promise_holds_as_far_as_its_figures_are_likely_to_come() -> None:
    """What improves on the best one time in four is worth a quarter; and so the batch is picked."""
    mean, spread, floor = np.array([0.0, 0.0, 0.02]), np.full(3, 0.1), np.full(3, -0.3)
    chance = np.log([0.25, 1.0, 1.0])
    for bounds in (-np.inf, floor):
        sure = Acquisition(mean, spread, 0.0, lower_bound=bounds)
        believed = Acquisition(mean, spread, 0.0, lower_bound=bounds, log_feasibility=chance)
        np.testing.assert_allclose(believed.score(), sure.score() - chance)
        assert believed.pick_batch(3, np.eye(3)) == [1, 2, 0]
        assert believed[np.array([0, 2])].pick_batch(1, np.eye(2)) == [1]
