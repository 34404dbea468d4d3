"""The residual trees and Spearman correlation on figures whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.cost_model.xgboost_model import predict_with_residual_trees, spearman, train_residual_trees
from ekc.search.data.defaults import BOOSTED_TREES


def _residual(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Features, a prior, and values = prior x something the features explain, with 2 % noise."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(count, 6)).astype(np.float32)
    prior = np.exp(random.normal(0, 1, count))
    truth = np.where(rows[:, 0] > 0, 0.7, -0.4) + 0.3 * np.clip(rows[:, 1], -1, 1)
    return rows, prior, prior * np.exp(truth + random.normal(0, 0.02, count))


def _trained(
    values: NDArray[np.float64], rows: NDArray[np.float32], prior: NDArray[np.float64]
) -> Callable[[NDArray[np.float32], NDArray[np.float64]], NDArray[np.float64]]:
    return partial(predict_with_residual_trees, train_residual_trees(rows, prior, values, values, 0))


def _error(predicted: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    return float(np.median(np.abs(np.log(predicted / values))))


def test_residual_model_learns_errors_of_prior() -> None:
    rows, prior, values = _residual(0, 200)
    model = _trained(values, rows, prior)
    fresh, its_prior, truth = _residual(1, 200)
    learned = model(fresh, its_prior)
    scaled = its_prior * float(np.exp(np.median(np.log(values / prior))))
    assert _error(learned, truth) < 0.4 * _error(scaled, truth)
    np.testing.assert_array_equal(learned, _trained(values, rows, prior)(fresh, its_prior))


def test_residual_model_weights_better_rows_more() -> None:
    """Rows with equal features and contrary residuals: the better ones win, by their weight and no more."""
    rows = np.zeros((20, 3), dtype=np.float32)
    prior = np.ones(20)
    values = np.where(np.arange(20) < 10, 1.0, 10.0)
    weighted_mean = 10 ** (BOOSTED_TREES.min_weight / (1 + BOOSTED_TREES.min_weight))
    predicted = _trained(values, rows, prior)(rows[:1], prior[:1])[0]
    np.testing.assert_allclose(predicted, weighted_mean, rtol=0.1)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        # d = 0, -1, 1, 0: 1 - 6 * 2 / (4 * 15)
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
        ([1, 2, 2, 3], [1, 2, 3, 4], 4.5 / np.sqrt(4.5 * 5)),
        # ranks 1.5, 1.5, 3 against 1, 2.5, 2.5: 0.75 / 1.5
        ([1, 1, 2], [1, 2, 2], 0.5),
        ([1, 2], [1, 2], None),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_spearman_equals_hand_computed_values(a: list[float], b: list[float], expected: float | None) -> None:
    found = spearman(np.array(a, dtype=float), np.array(b, dtype=float))
    assert found == (None if expected is None else pytest.approx(expected))
