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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.forks import hold_forks
from ekc.search.data.defaults import BOOSTED_TREES, SURROGATE

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


@dataclass
class ResidualModel:
    """Predicts prior * exp(trees(features)). Deterministic for given rows and seed."""

    seed: int
    sharpness: float = BOOSTED_TREES.sharpness
    """A row of twice the best objective has weight 2**-sharpness."""
    _rows: list[NDArray[np.float32]] = field(default_factory=list)
    _priors: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _objective_values: list[float] = field(default_factory=list)
    _booster: Any = None

    @property
    def row_count(self) -> int:
        """Number of rows that it has learned from."""
        return len(self._values)

    def add_row(self, row: NDArray[np.float32], prior: float, value: float, objective_value: float) -> None:
        """Add a measured kernel. `objective_value`, such as its energy or latency, sets the weight of the
        row."""
        self._rows.append(row)
        self._priors.append(prior)
        self._values.append(value)
        self._objective_values.append(objective_value)

    def fit(self) -> None:
        """Learn from all rows. With few rows, `predict` uses only a common factor."""
        if self.row_count < SURROGATE.min_rows:
            return
        targets = self._compute_targets()
        weight = compute_weights(np.array(self._objective_values), self.sharpness)
        parameters = {
            "objective": "reg:squarederror",
            "max_depth": BOOSTED_TREES.max_depth,
            "eta": BOOSTED_TREES.eta,
            "min_child_weight": BOOSTED_TREES.min_child_weight,
            "lambda": BOOSTED_TREES.l2_penalty,
            "subsample": BOOSTED_TREES.subsample,
            "colsample_bytree": BOOSTED_TREES.colsample_bytree,
            "tree_method": "hist",
            "seed": self.seed,
            "base_score": float(np.average(targets, weights=weight)),
        }
        self._booster = train_trees(
            parameters, np.stack(self._rows), targets, BOOSTED_TREES.boosting_rounds, weight
        )

    def _compute_targets(self) -> NDArray[np.float64]:
        """Log of value over prior of each row."""
        return np.asarray(np.log(np.array(self._values) / np.array(self._priors)))

    def predict(self, rows: NDArray[np.float32], prior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predicted values of feature rows. Without trees: the prior times the median factor of the rows."""
        if self._booster is None:
            scale = float(np.exp(np.median(self._compute_targets()))) if self.row_count else 1.0
            return prior * scale
        return np.asarray(prior * np.exp(predict_values(self._booster, rows).astype(np.float64)))


def compute_weights(objective_values: NDArray[np.float64], sharpness: float) -> NDArray[np.float64]:
    """Weights of rows, 1 for the best: a row of twice the best objective has 2**-`sharpness`. No row has less
    than `min_weight`: a model that never learns bad rows predicts good figures everywhere."""
    relative = objective_values.min() / objective_values
    return np.asarray(np.maximum(relative**sharpness, BOOSTED_TREES.min_weight))


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Rank correlation; None for fewer than three pairs, or if all ranks of one side are equal."""
    if len(a) < 3:
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
