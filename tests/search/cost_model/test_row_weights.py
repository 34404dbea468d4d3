"""Weights of rows, contributions of inputs, and Spearman correlation on figures whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.boosted_trees import compute_contributions, predict_values, train_trees
from ekc.search.cost_model.row_weights import compute_weights, spearman
from ekc.search.data.defaults import ROW_WEIGHTS


def test_better_rows_weigh_more_and_the_worst_no_less_than_the_least_weight() -> None:
    weights = compute_weights(np.array([2.0, 1.0, 4.0, 1e6]), 2.0)
    np.testing.assert_allclose(weights, [0.25, 1.0, ROW_WEIGHTS.min_weight, ROW_WEIGHTS.min_weight])


def test_contributions_of_all_inputs_and_the_bias_add_up_to_the_prediction() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(200, 6)).astype(np.float32)
    booster = train_trees({"max_depth": 4, "base_score": 0.0}, rows, rows[:, 0] * rows[:, 1], 30)
    parts = compute_contributions(booster, rows)
    differences = parts.sum(axis=1) - predict_values(booster, rows)
    np.testing.assert_allclose(differences, differences[0], rtol=0, atol=1e-4, err_msg="the bias")


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
