"""Boosting that goes on in a run: trees on what the parametric part of the power model leaves of the kernels
that the run has metered. Kernels of little energy have most weight, as in arXiv 2411.18873.

They are used while their own errors on kernels left out are clearly below those of the parametric part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.boosted_trees import predict_values, train_trees
from ekc.search.cost_model.row_weights import compute_weights
from ekc.search.data.defaults import METERED_TREES, POWER_MODEL

Array = NDArray[np.float64]


def train_metered_trees(rows: NDArray[np.float32], rest: Array, energies_j: Array) -> Any | None:
    """Train trees on the log watts that the parametric part leaves; None where they would not help.

    `rows`: [kernels, features]. `rest`: log of measured over predicted watts. Deterministic."""
    if len(rest) < METERED_TREES.min_rows:
        return None
    weights = compute_weights(energies_j, POWER_MODEL.sharpness)
    left = np.empty_like(rest)
    for n in range(METERED_TREES.folds):
        fold = np.arange(len(rest)) % METERED_TREES.folds == n
        trees = _train(rows[~fold], rest[~fold], weights[~fold])
        left[fold] = rest[fold] - predict_values(trees, rows[fold])
    helps = is_clearly_more(np.abs(rest), np.abs(left), METERED_TREES.standard_errors)
    return _train(rows, rest, weights) if helps else None


def is_clearly_more(errors: Array, others: Array, standard_errors: float) -> bool:
    """Whether errors of the same kernels are larger in the mean, by more than so many standard errors of
    their difference."""
    difference = errors - others
    return bool(difference.mean() > standard_errors * difference.std(ddof=1) / len(difference) ** 0.5)


def _train(rows: NDArray[np.float32], rest: Array, weights: Array) -> Any:
    parameters = {
        "objective": "reg:squarederror",
        "max_depth": METERED_TREES.max_depth,
        "eta": METERED_TREES.eta,
        "min_child_weight": METERED_TREES.min_child_weight,
        "subsample": METERED_TREES.subsample,
        "colsample_bytree": METERED_TREES.colsample_bytree,
        "tree_method": "hist",
        "seed": 0,
        "base_score": 0.0,
    }
    return train_trees(parameters, rows, rest, METERED_TREES.rounds, weights)
