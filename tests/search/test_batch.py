"""A batch is picked one by one, each as though those before it had been measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ekc.search.batch import ITS_OWN, one_by_one
from ekc.search.gaussian import GaussianProcess

Array = NDArray[np.float64]


def alike(place: Array) -> Array:
    """The nearer, the more one tells of the other."""
    return np.asarray(np.exp(-np.abs(place[:, None] - place[None, :])))


def test_of_two_that_look_alike_the_second_waits() -> None:
    place = np.array([0.0, 0.01, 1.0, 2.0, 2.01])
    scores = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    assert one_by_one(scores, 3, alike(place)) == [0, 2, 3]
    assert sorted(one_by_one(scores, 9, alike(place))) == [0, 1, 2, 3, 4]


def test_what_promises_far_more_comes_first_however_alike() -> None:
    place = np.array([0.0, 0.01, 5.0])
    assert one_by_one(np.array([0.0, 0.1, 9.0]), 2, alike(place)) == [0, 1]


def test_of_equals_the_first_and_none_twice() -> None:
    same = np.ones((4, 4))
    assert one_by_one(np.zeros(4), 4, same) == [0, 1, 2, 3]
    assert one_by_one(np.zeros(0), 4, np.zeros((0, 0))) == []
    assert one_by_one(np.zeros(4), 4, np.eye(4)) == [0, 1, 2, 3]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_what_is_left_is_the_conditional_variance(seed: int, count: int) -> None:
    """Against the textbook formula, solved afresh for every pick."""
    random = np.random.default_rng(seed)
    correlation, scores = alike(random.uniform(0, 3, 12)), random.normal(size=12)
    chosen: list[int] = []
    for pick in one_by_one(scores, count, correlation):
        known = correlation[np.ix_(chosen, chosen)] + ITS_OWN * np.eye(len(chosen))
        across = correlation[:, chosen]
        unknown = 1 - (across * np.linalg.solve(known, across.T).T).sum(axis=1) if chosen else np.ones(12)
        now = scores - np.log(np.clip(unknown, ITS_OWN, 1)) / 2
        now[chosen] = np.inf
        assert now[pick] == pytest.approx(now.min(), abs=1e-6)
        chosen.append(pick)


def test_what_is_known_makes_neighbours_tell_less_of_each_other() -> None:
    """Two rows on either side of a measured one: its figure was most of what they had in common."""
    rows = np.random.default_rng(0).uniform(-4, 4, (40, 3))
    process = GaussianProcess()
    probe = np.array([[0.3, 0.0, 0.0], [-0.3, 0.0, 0.0], [3.9, -3.9, 3.9]])
    before = process.correlation(probe)
    process.fit(np.vstack([rows, np.zeros(3)]), np.sin(np.vstack([rows, np.zeros(3)])).sum(axis=1))
    after = process.correlation(probe)
    for found in (before, after):
        np.testing.assert_allclose(np.diagonal(found), 1, atol=1e-3)
        np.testing.assert_allclose(found, found.T, atol=1e-9)
        assert np.linalg.eigvalsh(found).min() > -1e-3
    assert abs(after[0, 1]) < before[0, 1]


def test_what_is_in_the_batch_already_has_told() -> None:
    """The third row is picked: its twin, the best of the rest, waits."""
    place = np.array([0.0, 2.0, 0.01])
    assert one_by_one(np.array([0.0, 0.1]), 2, alike(place)) == [1, 0]
    assert one_by_one(np.array([0.0, 0.1]), 2, alike(place[:2])) == [0, 1]
