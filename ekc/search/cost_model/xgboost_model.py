"""XGBoost model of the prior's error: boosted trees on the log of figure over prior.

Good rows have more weight, because the search decides among them (the weighted loss of arXiv 2411.18873; its
constants are not public, these are chosen by us).

Also here: rank correlation, and the choice of the rows that a model learns from.

Boosted trees (XGBoost), in one thread: the only module that calls XGBoost.

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
from ekc.search.data.defaults import BOOSTED_TREES

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


def _import_xgboost() -> Any:
    """The library, whose threads do not spin while they wait."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    return xgboost


def train_residual_trees(
    rows: NDArray[np.float32],
    priors: NDArray[np.float64],
    values: NDArray[np.float64],
    objective_values: NDArray[np.float64],
    seed: int,
) -> Any:
    """Train trees on the log of value over prior. `objective_values`, such as energies or latencies, set the
    weights of the rows: one of twice the best objective has weight 2**-sharpness. The trees depend
    on the arguments alone."""
    targets = np.log(values / priors)
    weight = compute_weights(objective_values, BOOSTED_TREES.sharpness)
    parameters = {
        "objective": "reg:squarederror",
        "max_depth": BOOSTED_TREES.max_depth,
        "eta": BOOSTED_TREES.eta,
        "min_child_weight": BOOSTED_TREES.min_child_weight,
        "lambda": BOOSTED_TREES.l2_penalty,
        "subsample": BOOSTED_TREES.subsample,
        "colsample_bytree": BOOSTED_TREES.colsample_bytree,
        "tree_method": "hist",
        "seed": seed,
        "base_score": float(np.average(targets, weights=weight)),
    }
    return train_trees(parameters, rows, targets, BOOSTED_TREES.boosting_rounds, weight)


def predict_with_residual_trees(
    booster: Any, rows: NDArray[np.float32], priors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the values of rows: prior * exp(trees)."""
    return np.asarray(priors * np.exp(predict_values(booster, rows).astype(np.float64)))


def compute_weights(objective_values: NDArray[np.float64], sharpness: float) -> NDArray[np.float64]:
    """Weights of rows, 1 for the best: a row of twice the best objective has 2**-`sharpness`. No row has less
    than `min_weight`: a model that never learns bad rows predicts good figures everywhere."""
    relative = objective_values.min() / objective_values
    return np.asarray(np.maximum(relative**sharpness, BOOSTED_TREES.min_weight))


def spearman(a: NDArray[np.float64], b: NDArray[np.float64], min_pairs: int = 3) -> float | None:
    """Rank correlation; None for fewer pairs than `min_pairs`, or if all ranks of one side are equal."""
    if len(a) < min_pairs:
        return None
    ra, rb = _compute_ranks(a), _compute_ranks(b)
    if ra.std() == 0 or rb.std() == 0:
        return None
    return float(np.corrcoef(ra, rb)[0, 1])


def _compute_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank of each value; ties have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + 1 + last) / 2)[inverse], dtype=np.float64)


def select_training_rows(figures: NDArray[np.float64], max_rows: int) -> NDArray[np.int64]:
    """Select at most `max_rows` rows, in order: those of the lowest figures, and evenly spaced ranks of the
    rest."""
    order = np.argsort(figures, kind="stable")
    if len(order) <= max_rows:
        return np.sort(order)
    half = max_rows // 2
    rest = order[half:][np.linspace(0, len(order) - half - 1, max_rows - half).astype(np.int64)]
    return np.sort(np.concatenate([order[:half], rest]))
