"""How far a model may be trusted: by what models of other jobs were off, jobs left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.governor import policy
from ekc.governor.policy import Policy
from ekc.governor.predict.model import (
    COUNTERS,
    WITHOUT_COUNTERS,
    BoostedModel,
    CoefficientSpread,
    TrainingRow,
    fit_coefficients,
)
from ekc.governor.response_curve import compute_lengthening, compute_reduction
from ekc.governor.samples import Values

MAX_FOLDS = 8
UNIT_SPREAD = CoefficientSpread((1.0, 1.0), (1.0, 1.0, 1.0))
MIN_VARIANCE = 0.02**2
BUDGETS = (0.02, 0.05, 0.1)
"""Slowdowns within which jobs left out are advised."""
RATIO_GRID = np.linspace(0.55, 1.0, 91)
"""Clocks over the default's."""

TrainBoosters = Callable[[Sequence[TrainingRow], Sequence[str]], Mapping[str, Any]]
"""Trains kinds of models on rows."""


@dataclass(frozen=True)
class _LeftOutPrediction:
    """One job by models of others: at ratios of the clock, slowdown and power, as told and as they are."""

    ratio: Values
    slowdown: Values
    predicted_slowdown: Values
    power: Values
    predicted_power: Values


def estimate_spread(
    rows: Sequence[TrainingRow], kind: str, train_boosters: TrainBoosters
) -> CoefficientSpread:
    """Of models that see counters, or not (`kind`).

    Deviations are those over all clocks, widened by as much as the slowdown at the very clocks that would be
    advised is farther off: what looks best is so in part because it is told too well.
    """
    mine = [r if kind != WITHOUT_COUNTERS else remove_counters(r) for r in rows]
    jobs = sorted({r.job for r in mine})
    folds = [set(jobs[n::MAX_FOLDS]) for n in range(min(MAX_FOLDS, len(jobs)))]
    missed = [one for left_out in folds for one in _predict_left_out(mine, left_out, kind, train_boosters)]
    plain = _fit_coefficient_spread(missed)
    wider = _compute_widening(missed, plain)
    return CoefficientSpread(tuple(wider * sigma for sigma in plain.time), plain.power)


def remove_counters(row: TrainingRow) -> TrainingRow:
    """As a card without counters would have told it."""
    return replace(row, features=(float("nan"),) * len(COUNTERS) + row.features[len(COUNTERS) :])


def _predict_left_out(
    rows: Sequence[TrainingRow], left_out: set[str], kind: str, train_boosters: TrainBoosters
) -> Iterator[_LeftOutPrediction]:
    others_only = train_boosters([r for r in rows if r.job not in left_out], (kind,))
    others = BoostedModel("", "", dict(others_only), UNIT_SPREAD, UNIT_SPREAD)
    for job in sorted(left_out):
        own = sorted((r for r in rows if r.job == job), key=lambda r: r.ratio)
        ratio, time, energy = np.array([(r.ratio, r.time, r.energy) for r in own]).T
        told = fit_coefficients(ratio, *others.predict(own[0].features, ratio))
        slow, watts = (
            _evaluate_polynomial(x, c)
            for x, c in zip(
                (compute_lengthening(RATIO_GRID, 1), compute_reduction(RATIO_GRID, 1)), told, strict=True
            )
        )
        power = energy / time / (energy[-1] / time[-1]) - 1
        truth = (np.interp(RATIO_GRID, ratio, y) for y in (time / time[-1] - 1, power))
        yield _LeftOutPrediction(RATIO_GRID, next(truth), slow, next(truth), watts)


def _evaluate_polynomial(x: Values, coefficients: Sequence[float]) -> Values:
    return np.asarray(sum(c * x**n for n, c in enumerate(coefficients, 1)))


def _fit_coefficient_spread(predictions: Sequence[_LeftOutPrediction]) -> CoefficientSpread:
    """Deviations of the first two coefficients that explain what was missed, each at its clock."""
    ratio = np.concatenate([m.ratio[:-1] for m in predictions])
    time = np.concatenate([(m.predicted_slowdown - m.slowdown)[:-1] for m in predictions])
    power = np.concatenate([(m.predicted_power - m.power)[:-1] for m in predictions])
    return CoefficientSpread(
        _fit_spread(compute_lengthening(ratio, 1), time),
        (*_fit_spread(compute_reduction(ratio, 1), power), 1.0),
    )


def _fit_spread(x: Values, error: Values) -> tuple[float, float]:
    """Sigmas (a, b) with off^2 about a^2 x^2 + b^2 x^4 (least squares, none below `LEAST_TRUST`)."""
    rows = np.stack([np.ones(len(x)), x**2], axis=1)
    first, second = np.linalg.lstsq(rows, (error / x) ** 2, rcond=None)[0]
    return max(MIN_VARIANCE, float(first)) ** 0.5, max(MIN_VARIANCE, float(second)) ** 0.5


def _compute_widening(predictions: Sequence[_LeftOutPrediction], spread: CoefficientSpread) -> float:
    """Root mean square of what was missed at the clocks that would be advised, over what was expected."""
    off = []
    for one in predictions:
        x = compute_lengthening(one.ratio, 1)
        sigma = np.sqrt((spread.time[0] * x) ** 2 + (spread.time[1] * x**2) ** 2)
        saving = 1 - (1 + one.predicted_power) * (1 + one.predicted_slowdown)
        for budget in BUDGETS:
            place = policy.find_best(Policy(max_slowdown=budget), one.predicted_slowdown, saving)
            if place is not None and x[place] > 0:
                off.append((one.slowdown[place] - one.predicted_slowdown[place]) / sigma[place])
    return max(1.0, float(np.sqrt(np.mean(np.square(off))))) if off else 1.0
