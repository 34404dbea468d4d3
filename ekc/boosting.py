"""Boosted trees (XGBoost), in one thread: the only module that calls XGBoost.

XGBoost works with OpenMP, whose threads a forked child does not have: whatever asks for more than one there
waits for ever. So every matrix and every booster gets `nthread=1`, which is also the quickest for tables of
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
    """A booster that predicts values of rows."""
    with hold_forks():
        xgboost = _import_xgboost()
        table = xgboost.DMatrix(rows, label=values, weight=weights, **_SINGLE_THREAD)
        return xgboost.train(dict(parameters) | _SINGLE_THREAD, table, num_boost_round=rounds)


def predict_values(booster: Any, rows: NDArray[Any]) -> NDArray[np.float32]:
    """A value of each row."""
    with hold_forks():
        return np.asarray(booster.inplace_predict(rows))


def _import_xgboost() -> Any:
    """The library, its threads set not to spin while they wait."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    return xgboost
