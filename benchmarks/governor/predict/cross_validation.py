"""Error estimates of the trees by cross-validation: jobs are left out and predicted from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.governor.predict.model import (
    COUNTERS,
    WITHOUT_COUNTERS,
    BoostedModel,
    CoefficientSpread,
    TrainingRow,
    fit_coefficients,
)
from ekc.governor.decision import find_best
from ekc.governor.request import Policy
from ekc.governor.response_curve import compute_lengthening, compute_reduction
from ekc.governor.samples import Values

MAX_FOLDS = 8
UNIT_SPREAD = CoefficientSpread((1.0, 1.0), (1.0, 1.0, 1.0))
MIN_VARIANCE = 0.02**2
BUDGETS = (0.02, 0.05, 0.1)
"""Slowdown budgets at which predictions for left-out jobs are judged."""
RATIO_GRID = np.linspace(0.55, 1.0, 91)
"""Ratios of the SM clock to the default's."""

TrainBoosters = Callable[[Sequence[TrainingRow], Sequence[str]], Mapping[str, Any]]
"""Trains trees of the given kinds on rows."""


@dataclass(frozen=True)
class _LeftOutPrediction:
    """One job at several clock ratios: true and predicted slowdown and power, relative to the default."""

    ratio: Values
    slowdown: Values
    predicted_slowdown: Values
    power: Values
    predicted_power: Values


def estimate_spread(
    rows: Sequence[TrainingRow], kind: str, train_boosters: TrainBoosters
) -> CoefficientSpread:
    """Errors of trees with or without counters (`kind`).

    Standard deviations over all clocks, those of time widened by the larger error at the clocks that would be
    chosen: a clock looks best in part because its prediction is too good.
    """
    inputs = [r if kind != WITHOUT_COUNTERS else remove_counters(r) for r in rows]
    jobs = sorted({r.job for r in inputs})
    folds = [set(jobs[n::MAX_FOLDS]) for n in range(min(MAX_FOLDS, len(jobs)))]
    predictions = [p for jobs_out in folds for p in _predict_left_out(inputs, jobs_out, kind, train_boosters)]
    spread = _fit_coefficient_spread(predictions)
    factor = _compute_widening(predictions, spread)
    return CoefficientSpread(tuple(factor * sigma for sigma in spread.time), spread.power)


def remove_counters(row: TrainingRow) -> TrainingRow:
    """The row as a card without counters would give it."""
    return replace(row, features=(float("nan"),) * len(COUNTERS) + row.features[len(COUNTERS) :])


def _predict_left_out(
    rows: Sequence[TrainingRow], left_out: set[str], kind: str, train_boosters: TrainBoosters
) -> Iterator[_LeftOutPrediction]:
    others_only = train_boosters([r for r in rows if r.job not in left_out], (kind,))
    others = BoostedModel("", dict(others_only), UNIT_SPREAD, UNIT_SPREAD)
    for job in sorted(left_out):
        job_rows = sorted((r for r in rows if r.job == job), key=lambda r: r.ratio)
        ratio, time, energy = np.array([(r.ratio, r.time, r.energy) for r in job_rows]).T
        coefficients = fit_coefficients(ratio, *others.predict(job_rows[0].features, ratio))
        slow, watts = (
            _evaluate_polynomial(x, c)
            for x, c in zip(
                (compute_lengthening(RATIO_GRID, 1), compute_reduction(RATIO_GRID, 1)),
                coefficients,
                strict=True,
            )
        )
        power = energy / time / (energy[-1] / time[-1]) - 1
        truth = (np.interp(RATIO_GRID, ratio, y) for y in (time / time[-1] - 1, power))
        yield _LeftOutPrediction(RATIO_GRID, next(truth), slow, next(truth), watts)


def _evaluate_polynomial(x: Values, coefficients: Sequence[float]) -> Values:
    return np.asarray(sum(c * x**n for n, c in enumerate(coefficients, 1)))


def _fit_coefficient_spread(predictions: Sequence[_LeftOutPrediction]) -> CoefficientSpread:
    """Standard deviations of the first two coefficients that explain the prediction errors at their
    clocks."""
    ratio = np.concatenate([m.ratio[:-1] for m in predictions])
    time = np.concatenate([(m.predicted_slowdown - m.slowdown)[:-1] for m in predictions])
    power = np.concatenate([(m.predicted_power - m.power)[:-1] for m in predictions])
    return CoefficientSpread(
        _fit_spread(compute_lengthening(ratio, 1), time),
        (*_fit_spread(compute_reduction(ratio, 1), power), 1.0),
    )


def _fit_spread(x: Values, error: Values) -> tuple[float, float]:
    """Sigmas (a, b) with error^2 about a^2 x^2 + b^2 x^4 (least squares, no square below `MIN_VARIANCE`)."""
    rows = np.stack([np.ones(len(x)), x**2], axis=1)
    first, second = np.linalg.lstsq(rows, (error / x) ** 2, rcond=None)[0]
    return max(MIN_VARIANCE, float(first)) ** 0.5, max(MIN_VARIANCE, float(second)) ** 0.5


def _compute_widening(predictions: Sequence[_LeftOutPrediction], spread: CoefficientSpread) -> float:
    """Root mean square error at the clocks that would be chosen, over the expected error; at least 1."""
    errors = []
    for job in predictions:
        x = compute_lengthening(job.ratio, 1)
        sigma = np.sqrt((spread.time[0] * x) ** 2 + (spread.time[1] * x**2) ** 2)
        saving = 1 - (1 + job.predicted_power) * (1 + job.predicted_slowdown)
        for budget in BUDGETS:
            place = find_best(Policy(max_slowdown=budget), job.predicted_slowdown, saving)
            if place is not None and x[place] > 0:
                errors.append((job.slowdown[place] - job.predicted_slowdown[place]) / sigma[place])
    return max(1.0, float(np.sqrt(np.mean(np.square(errors))))) if errors else 1.0
