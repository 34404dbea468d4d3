"""Boosted trees (XGBoost), in one thread: the only module that calls XGBoost.

XGBoost uses OpenMP, whose threads a forked child does not have: a request for more than one thread waits
forever there. So every matrix and every booster gets `nthread=1`, which is also the fastest for tables of
some hundred rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.forks import hold_forks

_SINGLE_THREAD = {"nthread": 1}


def train_trees(
    parameters: Mapping[str, Any],
    rows: NDArray[Any],
    values: NDArray[Any],
    rounds: int,
    weights: NDArray[Any] | None = None,
) -> Any:
    """Train a booster that predicts values of rows."""
    with hold_forks():
        xgboost = _import_xgboost()
        table = xgboost.DMatrix(rows, label=values, weight=weights, **_SINGLE_THREAD)
        return xgboost.train(dict(parameters) | _SINGLE_THREAD, table, num_boost_round=rounds)


def predict_values(booster: Any, rows: NDArray[Any]) -> NDArray[np.float32]:
    """Predict a value of each row."""
    with hold_forks():
        return np.asarray(booster.inplace_predict(rows))


def _import_xgboost() -> Any:
    """The library, whose threads do not spin while they wait."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    return xgboost
