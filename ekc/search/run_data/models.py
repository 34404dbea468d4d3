"""Which decisions and features matter: boosted trees on the trials, their error, and a map of the space.

Decisions are the numbers of a schedule that a search chooses, read from its Program. The trees are made for
the pictures alone; the search does not use them. So each comes with its error on schedules that it did not
learn from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.ir.schedule.schedule import Schedule
from ekc.report.run_data import Dependence, Importance, SpaceMap, TrialColumns
from ekc.search.cost_model.features import FEATURE_NAMES
from ekc.search.cost_model.xgboost_model import compute_contributions, predict_values, train_trees
from ekc.search.data.result import TuningData
from ekc.search.data.trial import list_decisions
from ekc.tables import count_nouns

Array = NDArray[np.float64]

FOLDS, MIN_ROWS = 5, 20
MAX_NAMES, MAX_DEPENDENCES, MAX_VALUES = 10, 3, 16
"""Inputs in a bar chart, inputs with a curve of partial dependence, and points of such a curve, at most."""
TREE_COUNT = 80
FEATURE_LABELS = tuple(name.removeprefix("total_").replace("_", " ") for name in FEATURE_NAMES)
_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 4,
    "eta": 0.15,
    "min_child_weight": 2,
    "lambda": 1.0,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "tree_method": "hist",
    "seed": 0,
}


def read_decisions(schedules: Sequence[Schedule]) -> tuple[tuple[str, ...], Array]:
    """Read the decisions of schedules: (names, [schedules, names]). A decision that a schedule does not have
    is 0 there; those that are equal in all schedules are left out."""
    rows = [list_decisions(s.program) for s in schedules]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64)
    table = table.reshape(len(rows), len(names))
    varies = (table != table[:1]).any(axis=0)
    return tuple(n for n, keep in zip(names, varies, strict=True) if keep), table[:, varies]


def measure_importance(
    data: TuningData, trials: TrialColumns, missing: dict[str, str]
) -> tuple[Importance, ...]:
    """Measure the importance of decisions and features for metered energy and for latency."""
    metered = trials.ok & trials.metered & np.isfinite(trials.energy_j)
    figures = ("energy", metered, trials.energy_j), ("latency", trials.ok, trials.latency_s)
    found = []
    for figure, chosen, values in figures:
        logs = np.log(values[chosen])
        if len(logs) < MIN_ROWS or not np.ptp(logs):
            continue
        schedules = [t.schedule for t, c in zip(data.trials, chosen, strict=True) if c]
        found.append(_explain("decisions", figure, *read_decisions(schedules), logs))
        if data.features is not None:
            table = data.features[chosen].astype(np.float64)
            found.append(_explain("features", figure, FEATURE_LABELS, table, logs))
    if not found:
        missing["importance"] = (
            f"{count_nouns(int(trials.ok.sum()), 'timed schedule')}; a model needs {MIN_ROWS} that differ"
        )
    return tuple(found)


def _explain(inputs: str, figure: str, names: tuple[str, ...], table: Array, logs: Array) -> Importance:
    """Train trees on a table, and describe what moves their predictions."""
    rows = table.astype(np.float32)
    error, explained = _cross_validate(rows, logs)
    trees = _train(rows, logs)
    effects = np.abs(compute_contributions(trees, rows)).mean(axis=0)
    order = [int(i) for i in np.argsort(-effects, kind="stable")[:MAX_NAMES] if effects[i] > 0]
    dependences = tuple(
        _compute_dependence(trees, rows, i, names[i], inputs) for i in order[:MAX_DEPENDENCES]
    )
    return Importance(
        inputs=inputs,
        figure=figure,
        rows=len(rows),
        error=error,
        explained=explained,
        names=tuple(names[i] for i in order),
        effect=effects[order],
        dependences=dependences,
    )


def _train(rows: NDArray[np.float32], logs: Array) -> object:
    return train_trees(_PARAMETERS | {"base_score": float(np.median(logs))}, rows, logs, TREE_COUNT)


def _cross_validate(rows: NDArray[np.float32], logs: Array) -> tuple[float, float]:
    """(median absolute relative error, share of the variance of the logs that is explained) on rows that were
    not learned from."""
    fold = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    predicted = np.empty_like(logs)
    for n in range(FOLDS):
        test = fold == n
        predicted[test] = predict_values(_train(rows[~test], logs[~test]), rows[test])
    errors = predicted - logs
    return float(np.median(np.abs(np.expm1(errors)))), float(1 - (errors**2).mean() / logs.var())


def _compute_dependence(
    trees: object, rows: NDArray[np.float32], column: int, name: str, inputs: str
) -> Dependence:
    """Compute the mean prediction where one input has the same value in all rows."""
    values = np.unique(rows[:, column])
    if len(values) > MAX_VALUES:
        values = np.unique(np.quantile(rows[:, column], np.linspace(0, 1, MAX_VALUES), method="nearest"))
    changed = np.repeat(rows[None], len(values), axis=0)
    changed[:, :, column] = values[:, None]
    logs = predict_values(trees, changed.reshape(-1, rows.shape[1])).reshape(len(values), -1).mean(axis=1)
    shown = values.astype(np.float64)
    return Dependence(name, shown, np.exp(logs.astype(np.float64) - logs.mean()))


def map_space(data: TuningData, missing: dict[str, str]) -> SpaceMap | None:
    """Map the decisions of all trials to two principal components of their logs, scaled to equal variance."""
    names, table = read_decisions([t.schedule for t in data.trials])
    if len(table) < 3 or len(names) < 2:
        missing["space"] = (
            f"{count_nouns(len(table), 'trial')} with {count_nouns(len(names), 'different decision')}: no map"
        )
        return None
    logs = np.log2(1 + table)
    scaled = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    left, spread, right = np.linalg.svd(scaled, full_matrices=False)
    # The sign of a component is free: its largest weight is positive, so that maps are reproducible.
    signs = np.sign(right[np.arange(2), np.abs(right[:2]).argmax(axis=1)])
    places = left[:, :2] * spread[:2] * signs
    shares = spread**2 / (spread**2).sum()
    top = [tuple(names[i] for i in np.argsort(-np.abs(right[c]), kind="stable")[:3]) for c in (0, 1)]
    return SpaceMap(
        places[:, 0], places[:, 1], (float(shares[0]), float(shares[1])), top[0], top[1], len(names)
    )
