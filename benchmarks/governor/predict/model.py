"""Boosted trees that predict a job's time and energy over the SM clock, relative to the default clock.

As in GPOEO (arXiv 2201.01684) their inputs are counters and the ratio of a clock to the default's. GPOEO's
two models of the memory clock are left out: memory clocks are few, and the governor measures them. The trees
are trained on simulated jobs (`train.py`); recordings of a real card can be used in the same form
(`TrainingRow`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.governor.readings import JobReading
from ekc.governor.response_curve import (
    CoefficientPrior,
    compute_lengthening,
    compute_reduction,
)
from ekc.governor.samples import Values
from ekc.search.cost_model.xgboost_model import predict_values

COUNTERS = ("sm_active", "dram", "tensor", "fma")
FEATURES = (*COUNTERS, "sm_util", "memory_util", "watts")
TARGETS = ("sm_time", "sm_energy")
CLOCK_RATIOS = np.linspace(0.55, 1.0, 10)
"""Ratios of the SM clock to the default's at which predictions are turned into a prior."""
WITH_COUNTERS, WITHOUT_COUNTERS = "", "blind_"
"""Prefixes of a target's name: predicted from counters and sensor readings, or from sensor readings alone."""


@dataclass(frozen=True)
class TrainingRow:
    """One job at one SM clock."""

    job: str
    features: tuple[float, ...]
    """Counters and readings at the default clock, in the order of `FEATURES`."""
    ratio: float
    """SM clock over the default SM clock."""
    time: float
    """Seconds over the seconds at the default clock."""
    energy: float
    """Joules over the joules at the default clock."""


@dataclass(frozen=True)
class CoefficientSpread:
    """Errors of predicted coefficients, measured on jobs that a model was not trained on."""

    time: tuple[float, ...]
    """Standard deviations of the coefficients of the slowdown."""
    power: tuple[float, ...]
    """Standard deviations of the coefficients of the power."""


ResponseModel = Callable[[Mapping[str, float], JobReading], "ResponsePrior"]
"""Predicts a job from its counters, which may be missing, and the reading at the default."""


def build_features(counters: Mapping[str, float], reading: JobReading) -> tuple[float, ...]:
    """The inputs of the trees but the clock ratio; NaN for a counter that is missing or not permitted."""
    measured = {"sm_util": reading.sm_util, "memory_util": reading.memory_util, "watts": reading.watts}
    values = {**counters, **measured}
    return tuple(float(values.get(name, float("nan"))) for name in FEATURES)


@dataclass(frozen=True)
class ResponsePrior:
    """Predicted slowdown over the lengthening of a clock cycle, and power over the reduction of the clock."""

    time: CoefficientPrior
    power: CoefficientPrior


@dataclass(frozen=True)
class BoostedModel:
    """The trees of one card; a call predicts a job (`ResponseModel`)."""

    trained_on: str
    """Description of the training rows for people, e.g. "12 simulated jobs of each kind"."""
    boosters: dict[str, Any]
    """XGBoost models by name of target."""
    spread: CoefficientSpread
    """Errors of predictions from counters and sensor readings."""
    blind_spread: CoefficientSpread
    """Errors of predictions from sensor readings alone."""

    def __call__(self, counters: Mapping[str, float], reading: JobReading) -> ResponsePrior:
        """Prior of slowdown and power over the SM clock."""
        inputs = build_features(counters, reading)
        slow, watts = fit_coefficients(CLOCK_RATIOS, *self.predict(inputs, CLOCK_RATIOS))
        spread = self.blind_spread if _has_no_counters(inputs) else self.spread
        return ResponsePrior(CoefficientPrior(slow, spread.time), CoefficientPrior(watts, spread.power))

    def predict(self, inputs: tuple[float, ...], ratio: Values) -> tuple[Values, Values]:
        """Time and energy relative to the default at each ratio of the SM clock."""
        inputs, kind = (
            (inputs[len(COUNTERS) :], WITHOUT_COUNTERS)
            if _has_no_counters(inputs)
            else (inputs, WITH_COUNTERS)
        )
        table = np.column_stack([np.tile(inputs, (len(ratio), 1)), ratio])
        time, energy = (predict_values(self.boosters[kind + target], table) for target in TARGETS)
        return np.exp(time), np.exp(energy)


def _has_no_counters(inputs: tuple[float, ...]) -> bool:
    """Whether every counter is missing."""
    return bool(np.isnan(inputs[: len(COUNTERS)]).all())


def fit_coefficients(
    ratio: Values, time: Values, energy: Values
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Coefficients of slowdown and of power, as in a `ResponsePrior`, fitted to time and energy at clock
    ratios.

    Ratios ascend to 1.
    """
    power = energy / time
    slow = _fit_polynomial(compute_lengthening(ratio, 1.0), time / time[-1] - 1, 2)
    return slow, _fit_polynomial(compute_reduction(ratio, 1.0), power / power[-1] - 1, 3)


def _fit_polynomial(x: Values, y: Values, count: int) -> tuple[float, ...]:
    """Coefficients of a polynomial without constant, fitted to y / x.

    The governor chooses clocks near the default. A fit that weighs all clocks equally follows the lowest
    ones and predicts a third too much slowdown near the default.
    """
    positive = x > 0
    rows = x[positive][:, None] ** np.arange(count)
    # A small ridge term: the highest clocks alone do not determine the curvature.
    solved = np.linalg.solve(rows.T @ rows + 1e-3 * np.eye(count), rows.T @ (y[positive] / x[positive]))
    return tuple(float(v) for v in solved)
