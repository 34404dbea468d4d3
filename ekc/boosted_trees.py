"""Boosted trees (XGBoost), in one thread: the only module that calls XGBoost.

XGBoost uses OpenMP, whose threads a forked child does not have: a request for more than one thread waits
forever there. So every matrix and every booster gets `nthread=1`, which is also the fastest for tables of
some hundred rows.
"""

from __future__ import annotations

import os
import re
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
    """Predict a value of each row `[n]`."""
    with hold_forks():
        # For no rows, some versions of XGBoost return two dimensions.
        return np.asarray(booster.inplace_predict(rows)).reshape(len(rows))


def compute_contributions(booster: Any, rows: NDArray[Any]) -> NDArray[np.float32]:
    """Compute the contribution of each input to each prediction, without the bias: [rows, inputs]."""
    with hold_forks():
        table = _import_xgboost().DMatrix(rows, **_SINGLE_THREAD)
        return np.asarray(booster.predict(table, pred_contribs=True))[:, :-1]


def format_trees(booster: Any) -> str:
    """A booster as text, in XGBoost's own JSON, as all versions from 2.1 on read it."""
    with hold_forks():
        text = str(booster.save_raw("json"), "utf-8")
    # Version 3.1 and later write a list of base scores. Version 2.1 takes a list for no score at all, and
    # predicts 0.5 more without a word.
    return re.sub(r'"base_score":"\[([^],]*)\]"', r'"base_score":"\1"', text)


def parse_trees(text: str) -> Any:
    """The booster of a text of `format_trees`. Raises `ValueError` for a text that XGBoost refuses."""
    with hold_forks():
        xgboost = _import_xgboost()
        try:
            return xgboost.Booster(_SINGLE_THREAD, model_file=bytearray(text, "utf-8"))
        except xgboost.core.XGBoostError as problem:
            raise ValueError(str(problem).partition("\n")[0]) from None


def _import_xgboost() -> Any:
    """The library, whose threads do not spin while they wait."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    return xgboost
