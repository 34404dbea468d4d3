"""Boosted trees as a learner of recorded figures. Their residual on recorded spaces is an upper bound of the
part that each kernel has alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.recordings import RECORDINGS, Recording, read
from benchmarks.cost_model.energy_rows import USED_IF, compute_deviations
from ekc.search.replay.table_space import compute_table_features

Vector = NDArray[np.float64]

FOLDS = 5
DEPTHS = (4, 6, 8)
"""Depths of the trees; the depth with the least residual is printed."""
ROUNDS = 300
PARAMETERS = {
    "objective": "reg:squarederror",
    "eta": 0.12,
    "subsample": 0.7,
    "colsample_bytree": 0.7,
    "min_child_weight": 2.0,
    "tree_method": "hist",
    "nthread": 1,
}
FAST = 0.02
NORMAL = 1.4826
"""Standard deviation over the median distance from the middle, of a normal distribution."""
MOST_COMPARED = 2000
"""Kernels whose neighbours are looked for."""


def compute_robust_std(values: Vector) -> float:
    """Standard deviation, estimated by the median distance from the median."""
    return float(NORMAL * np.median(np.abs(values - np.median(values))))


def train_trees(features: NDArray[Any], figures: Vector, depth: int, seed: int) -> Callable[[Any], Vector]:
    """Boosted trees that predict a figure from features `[n, d]`."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    data = xgboost.DMatrix(features, figures)
    trees = xgboost.train(PARAMETERS | {"max_depth": depth, "seed": seed}, data, ROUNDS)
    return lambda rows: np.asarray(trees.predict(xgboost.DMatrix(rows)), dtype=np.float64)


def predict_out_of_fold(
    features: NDArray[Any],
    figures: Vector,
    fold: NDArray[np.int64],
    is_known: NDArray[np.bool_],
    depth: int,
    seed: int,
) -> Vector:
    """Predictions of all rows by boosted trees, each by known rows of the other folds."""
    found = np.empty(len(figures))
    for one in np.unique(fold):
        known = is_known & (fold != one)
        model = train_trees(features[known], figures[known], depth, seed)
        found[fold == one] = model(features[fold == one])
    return found


def compute_residuals(settings: Vector, logs: Vector, seed: int) -> Vector:
    """Out-of-fold residuals `[n]` of the log of a figure, by boosted trees on settings `[n, d]`."""
    fold = np.random.default_rng(seed).permutation(len(logs)) % FOLDS
    known, features = np.ones(len(logs), dtype=bool), compute_table_features(settings)
    found = [logs - predict_out_of_fold(features, logs, fold, known, depth, seed) for depth in DEPTHS]
    return min(found, key=compute_robust_std)


def measure_all(data: Path, seed: int) -> list[dict[str, Any]]:
    """Every recorded space, time and, where it was metered, power."""
    found = []
    for recording in RECORDINGS:
        figures = ("time_ms", "power_w") if recording.figure == "energy_j" else ("time_ms",)
        found += [measure_space(data, replace(recording, figure=figure), seed) for figure in figures]
    return found


def measure_space(data: Path, recording: Recording, seed: int) -> dict[str, Any]:
    """One figure of one space, as shares. Rows that are one kernel are averaged: they tell the noise."""
    table = read(data, recording)
    ok = np.isfinite(table.figures)
    settings, figures = table.settings[ok].copy(), table.figures[ok]
    for name, switch in USED_IF.items():
        if name in table.decision_names:
            settings[
                settings[:, table.decision_names.index(switch)] == 0, table.decision_names.index(name)
            ] = 0
    kernels, place = np.unique(settings, axis=0, return_inverse=True)
    place = place.reshape(-1)
    logs = np.bincount(place, np.log(figures)) / np.bincount(place)
    rest, noise = compute_residuals(kernels, logs, seed), compute_deviations(figures, place)
    fast = logs <= np.quantile(logs, FAST)
    return {
        "space": recording.name.removesuffix(" energy"),
        "figure": recording.figure.partition("_")[0],
        "rows": len(figures),
        "kernels": len(kernels),
        "repeats": compute_robust_std(noise) if noise.size else None,
        "robust": compute_robust_std(rest),
        "rms": float(np.std(rest)),
        "fast": compute_robust_std(rest[fast]),
        "neighbours": _correlate_neighbours(kernels, rest, seed),
    }


def _correlate_neighbours(settings: Vector, rest: Vector, seed: int) -> float | None:
    """Correlation of what is left of two kernels that differ in one setting; None where none do."""
    some = np.random.default_rng(seed).permutation(len(rest))[:MOST_COMPARED]
    bound = 4 * compute_robust_std(rest)
    clipped = np.clip(rest - np.median(rest), -bound, bound)
    neighbours = [np.flatnonzero((settings != settings[one]).sum(axis=1) == 1) for one in some]
    here, there = np.repeat(some, [len(one) for one in neighbours]), np.concatenate(neighbours)
    if not len(here) or bound == 0:
        return None
    return float(np.corrcoef(clipped[here], clipped[there])[0, 1])
