"""Features of schedules for the models."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.search.cost_model.features import FEATURE_NAMES, build_features
from tests.search.spaces import OPERATORS, legal, space


@pytest.mark.parametrize("name", OPERATORS)
def test_features_are_finite_for_random_genomes(name: str) -> None:
    for population in (legal(name, 300), space(name).sample(np.random.default_rng(9), 300)):
        table = build_features(space(name).compute_quantities(population))
        assert table.shape == (len(population), len(FEATURE_NAMES))
        assert table.dtype == np.float32
        assert np.isfinite(table).all(), [
            n for i, n in enumerate(FEATURE_NAMES) if not np.isfinite(table[:, i]).all()
        ]
    assert (table.std(axis=0) > 0).sum() >= 15
