"""A model of latency and power learned from measured schedules, and its error on other schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import PriorFunction, Quantities
from ekc.search.cost_model.features import ModelInputs, make_model_inputs
from ekc.search.cost_model.row_weights import spearman
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import SURROGATE
from ekc.search.database.measured_set import MeasuredSet

Array = NDArray[np.float64]

FOLDS = 5
MIN_METERED = SURROGATE.min_rows * FOLDS // (FOLDS - 1)
"""Metered schedules that are needed, at least: with fewer, the model of a fold would be the prior alone."""


@dataclass(frozen=True, eq=False)
class LogPrediction:
    """Predicted latency and power of some schedules."""

    log_latency: Array
    """Natural logs of seconds."""
    log_power: Array
    """Natural logs of watts."""

    @property
    def log_energy(self) -> Array:
        """Natural logs of joules."""
        return self.log_latency + self.log_power


class _LogLinearModel:
    """One figure as a line over the prior, plus the surrogate of the search for the residuals.

    All rows have equal weights. A tuning run gives more weight to good schedules and to the prior; an account
    must be valid for bad schedules too, where the prior may be far off.
    """

    def __init__(self, rows: NDArray[np.float32], physics: Array, logs: Array) -> None:
        self._slope = _fit_slope(physics, logs)
        self._intercept = float(np.median(logs - self._slope * physics))
        self._surrogate = Surrogate()
        self._surrogate.learn(rows, np.exp(self._predict_line(physics)), np.exp(logs))

    def _predict_line(self, physics: Array) -> Array:
        return self._intercept + self._slope * physics

    def predict(self, rows: NDArray[np.float32], physics: Array) -> Array:
        """Predict the log of the figure."""
        return self._surrogate.predict(rows, np.exp(self._predict_line(physics)))[0]


def _fit_slope(physics: Array, logs: Array) -> float:
    """Fit the slope of measured logs over the logs of the prior, limited to 0 to 1."""
    centred = physics - physics.mean()
    variance = float((centred**2).mean())
    return float(np.clip((centred * logs).mean() / variance, 0.0, 1.0)) if variance else 0.0


class ScheduleModel:
    """Latency and power, learned from measured schedules. Deterministic for the same rows."""

    def __init__(self, candidates: Sequence[Candidate], predict_prior: PriorFunction) -> None:
        self._predict_prior = predict_prior
        expected, latency = np.log([(c.expected_latency_s, c.latency_s) for c in candidates]).T
        self._latency_model = _LogLinearModel(np.stack([c.features for c in candidates]), expected, latency)
        metered = [c for c in candidates if c.metered]
        expected, power = np.log([(c.expected_power_w, c.power_w) for c in metered]).T
        self._power_model = _LogLinearModel(np.stack([c.features for c in metered]), expected, power)

    def predict(self, quantities: Quantities) -> LogPrediction:
        """Predict schedules from the quantities of their analysis."""
        return self.predict_inputs(make_model_inputs(quantities, self._predict_prior))

    def predict_inputs(self, inputs: ModelInputs) -> LogPrediction:
        """Predict schedules from their model inputs."""
        physics = predict_by_prior(inputs)
        return LogPrediction(
            self._latency_model.predict(inputs.features, physics.log_latency),
            self._power_model.predict(inputs.features, physics.log_power),
        )


def predict_by_prior(inputs: ModelInputs) -> LogPrediction:
    """Predict by the prior of the device."""
    return LogPrediction(np.log(inputs.expected_latency_s), np.log(inputs.expected_power_w))


@dataclass(frozen=True)
class PredictionScore:
    """Error of predictions for schedules that the model did not learn from."""

    rank: float | None
    """Spearman correlation of predictions and measurements; None if all are equal."""
    error: float
    """Median absolute relative error."""


@dataclass(frozen=True)
class ModelQuality:
    """Errors in a cross-validation with `FOLDS` folds: of the model, and of the prior times one factor, the
    median ratio of the rows learned from."""

    energy: PredictionScore
    latency: PredictionScore
    power: PredictionScore
    energy_by_prior: PredictionScore
    latency_by_prior: PredictionScore
    power_by_prior: PredictionScore


def cross_validate(measured_set: MeasuredSet, predict_prior: PriorFunction, seed: int) -> ModelQuality:
    """Cross-validate the model on measured schedules, of which at least `MIN_METERED` are metered."""
    fold = assign_folds(measured_set.is_metered, seed)
    model, prior = (LogPrediction(np.zeros(len(fold)), np.zeros(len(fold))) for _ in range(2))
    physics = predict_by_prior(make_model_inputs(measured_set.quantities, predict_prior))
    latency = np.log([c.latency_s for c in measured_set.candidates])
    power = np.log([c.power_w if c.metered else np.nan for c in measured_set.candidates])
    for n in range(FOLDS):
        test = fold == n
        (training, _), (_, tested) = measured_set.select(~test), measured_set.select(test)
        found = ScheduleModel(training, predict_prior).predict(tested)
        model.log_latency[test], model.log_power[test] = found.log_latency, found.log_power
        latency_factor = np.median((latency - physics.log_latency)[~test])
        power_factor = np.nanmedian((power - physics.log_power)[~test])
        prior.log_latency[test] = physics.log_latency[test] + latency_factor
        prior.log_power[test] = physics.log_power[test] + power_factor
    metered = measured_set.is_metered
    return ModelQuality(
        *(
            score
            for predicted in (model, prior)
            for score in (
                _score_predictions(predicted.log_energy[metered], (latency + power)[metered]),
                _score_predictions(predicted.log_latency, latency),
                _score_predictions(predicted.log_power[metered], power[metered]),
            )
        )
    )


def assign_folds(metered: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """Assign a fold to each row, so that each fold has an equal share of the metered rows."""
    random = np.random.default_rng(seed)
    order = np.concatenate([random.permutation(np.flatnonzero(which)) for which in (metered, ~metered)])
    fold = np.empty(len(metered), dtype=np.int64)
    fold[order] = np.arange(len(metered)) % FOLDS
    return fold


def _score_predictions(predicted: Array, measured: Array) -> PredictionScore:
    error = float(np.median(np.abs(np.expm1(predicted - measured))))
    return PredictionScore(spearman(predicted, measured), error)
