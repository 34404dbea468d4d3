"""The learned models: gradient-boosted trees on the log of what the prior gets wrong.

Rows weigh by how good they are, so that the trees spend themselves where the search decides
(the weighted loss of arXiv 2411.18873; its constants are not public, these are ours).

Which of many measured kernels a model learns from, where learning from all would cost too much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.boosting import predict_values, train_trees

MIN_ROWS = 8
"""Below this many rows the prior rules alone."""
MIN_WEIGHT = 0.1
"""Of the worst rows: trees that do not see them at all believe that all is good."""
BOOSTING_ROUNDS = 120
XGBOOST_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 5,
    "eta": 0.12,
    "min_child_weight": 0.02,
    "lambda": 1.0,
    "subsample": 0.9,
    "colsample_bytree": 0.7,
    "tree_method": "hist",
}


@dataclass
class ResidualModel:
    """Predicts value = prior x exp(trees(features)). Deterministic for given rows and seed."""

    seed: int
    sharpness: float = 2.0
    """A row of twice the best value weighs 2**-sharpness."""
    _rows: list[NDArray[np.float32]] = field(default_factory=list)
    _priors: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _objective_values: list[float] = field(default_factory=list)
    _booster: Any = None

    @property
    def row_count(self) -> int:
        """How many kernels it has learned from."""
        return len(self._values)

    def add_row(self, row: NDArray[np.float32], prior: float, value: float, objective_value: float) -> None:
        """One measured kernel. `merit` is what the search minimises (energy, latency): it sets the weight."""
        self._rows.append(row)
        self._priors.append(prior)
        self._values.append(value)
        self._objective_values.append(objective_value)

    def fit(self) -> None:
        """Learn afresh from all rows; with few rows only a common factor."""
        if self.row_count < MIN_ROWS:
            return
        merit = np.array(self._objective_values)
        weight = np.maximum((merit.min() / merit) ** self.sharpness, MIN_WEIGHT)
        parameters = XGBOOST_PARAMETERS | {
            "seed": self.seed,
            "base_score": float(np.average(self._compute_targets(), weights=weight)),
        }
        self._booster = train_trees(
            parameters, np.stack(self._rows), self._compute_targets(), BOOSTING_ROUNDS, weight
        )

    def _compute_targets(self) -> NDArray[np.float64]:
        return np.asarray(np.log(np.array(self._values) / np.array(self._priors)))

    def predict(self, rows: NDArray[np.float32], prior: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values for feature rows; while there are no trees the prior, scaled to the rows seen."""
        if self._booster is None:
            scale = float(np.exp(np.median(self._compute_targets()))) if self.row_count else 1.0
            return prior * scale
        return np.asarray(prior * np.exp(predict_values(self._booster, rows).astype(np.float64)))


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Rank correlation; None where there are fewer than three pairs or no spread."""
    if len(a) < 3:
        return None
    ra, rb = _compute_ranks(a), _compute_ranks(b)
    if ra.std() == 0 or rb.std() == 0:
        return None
    return float(np.corrcoef(ra, rb)[0, 1])


def _compute_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + 1 + last) / 2)[inverse], dtype=np.float64)


def select_training_rows(figures: NDArray[np.float64], max_rows: int) -> NDArray[np.int64]:
    """Rows of at most `most` figures, in their order: the lowest half, and an even share of the rest."""
    order = np.argsort(figures, kind="stable")
    if len(order) <= max_rows:
        return np.sort(order)
    half = max_rows // 2
    rest = order[half:][np.linspace(0, len(order) - half - 1, max_rows - half).astype(np.int64)]
    return np.sort(np.concatenate([order[:half], rest]))
