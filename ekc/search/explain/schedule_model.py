"""What is expected of schedules that nobody measured: by physics alone, and by what the search learns with,
once it has seen those that were. And how good both are on schedules that they have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.search.cost_model.features import ModelInputs, Quantities, make_model_inputs
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import SURROGATE
from ekc.search.database.measured_set import MeasuredSet

Array = NDArray[np.float64]

FOLDS = 5
MIN_METERED = SURROGATE.min_rows * FOLDS // (FOLDS - 1)
"""Each fold must leave the model as many rows as it needs to say more than the prior, or the score would be
that of another model."""


@dataclass(frozen=True, eq=False)
class LogPrediction:
    """Logs of seconds, and of watts, of some schedules."""

    log_latency: Array
    log_power: Array

    @property
    def log_energy(self) -> Array:
        """Logs of joules."""
        return self.log_latency + self.log_power


class _LogLinearModel:
    """One figure as a line over what physics says of it, and the belief of the search on what that misses.

    Every row weighs alike. A tuning run cares for good schedules, and weighs rows and trusts the prior
    accordingly; an account must hold for bad ones, where physics may be far off.
    """

    def __init__(self, rows: NDArray[np.float32], physics: Array, logs: Array, seed: int) -> None:
        self._slope = _fit_slope(physics, logs)
        self._intercept = float(np.median(logs - self._slope * physics))
        self._surrogate = Surrogate(seed)
        self._surrogate.learn(
            rows, np.exp(self._predict_line(physics)), np.exp(logs), objective_values=np.ones(len(logs))
        )

    def _predict_line(self, physics: Array) -> Array:
        return self._intercept + self._slope * physics

    def predict(self, rows: NDArray[np.float32], physics: Array) -> Array:
        """The log of the figure."""
        return self._surrogate.predict(rows, np.exp(self._predict_line(physics)))[0]


def _fit_slope(physics: Array, logs: Array) -> float:
    """How much of what physics says shows in the figures: 0 to 1."""
    apart = physics - physics.mean()
    spread = float((apart**2).mean())
    return float(np.clip((apart * logs).mean() / spread, 0.0, 1.0)) if spread else 0.0


class ScheduleModel:
    """Latency and power, learned from what is on file. Deterministic for the same rows and seed."""

    def __init__(self, candidates: Sequence[Candidate], peaks: Peaks, seed: int) -> None:
        self._peaks = peaks
        metered = [c for c in candidates if c.metered]
        self._latency_model = _LogLinearModel(
            np.stack([c.features for c in candidates]),
            np.log([c.expected_latency_s for c in candidates]),
            np.log([c.latency_s for c in candidates]),
            seed,
        )
        self._power_model = _LogLinearModel(
            np.stack([c.features for c in metered]),
            np.log([c.expected_power_w for c in metered]),
            np.log([c.power_w for c in metered]),
            seed,
        )

    def predict(self, quantities: Quantities) -> LogPrediction:
        """Of schedules by the figures of their analysis alone."""
        return self.predict_inputs(make_model_inputs(quantities, self._peaks))

    def predict_inputs(self, inputs: ModelInputs) -> LogPrediction:
        """The same, analysed."""
        physics = predict_by_prior(inputs)
        return LogPrediction(
            self._latency_model.predict(inputs.features, physics.log_latency),
            self._power_model.predict(inputs.features, physics.log_power),
        )


def predict_by_prior(inputs: ModelInputs) -> LogPrediction:
    """Counted work and the ceilings of the device."""
    return LogPrediction(np.log(inputs.expected_latency_s), np.log(inputs.expected_power_w))


@dataclass(frozen=True)
class PredictionScore:
    """Predictions of schedules that were not learned from, against what was measured of them."""

    rank: float | None
    """Spearman; None where all are alike."""
    error: float
    """Median absolute relative error."""


@dataclass(frozen=True)
class ModelQuality:
    """How good the model is: held-out schedules in `FOLDS` folds, no schedule in two."""

    energy: PredictionScore
    latency: PredictionScore
    power: PredictionScore
    energy_by_prior: PredictionScore
    """The prior times one factor, the median of the rows learned from; as the next two."""
    latency_by_prior: PredictionScore
    power_by_prior: PredictionScore


def cross_validate(measured_set: MeasuredSet, peaks: Peaks, seed: int) -> ModelQuality:
    """Of models that learn from `evidence`, at least `FEWEST_METERED` of it metered."""
    fold = _assign_folds(measured_set.is_metered, seed)
    model, prior = (LogPrediction(np.zeros(len(fold)), np.zeros(len(fold))) for _ in range(2))
    seen = make_model_inputs(measured_set.quantities, peaks)
    physics = predict_by_prior(seen)
    latency = np.log([c.latency_s for c in measured_set.candidates])
    power = np.log([c.power_w if c.metered else np.nan for c in measured_set.candidates])
    for n in range(FOLDS):
        held = fold == n
        known, asked = measured_set.select(~held), measured_set.select(held)
        found = ScheduleModel(known[0], peaks, seed).predict(asked[1])
        model.log_latency[held], model.log_power[held] = found.log_latency, found.log_power
        prior.log_latency[held] = physics.log_latency[held] + np.median(
            (latency - physics.log_latency)[~held]
        )
        prior.log_power[held] = physics.log_power[held] + np.nanmedian((power - physics.log_power)[~held])
    metered = measured_set.is_metered
    return ModelQuality(
        *(
            score
            for said in (model, prior)
            for score in (
                _score_predictions(said.log_energy[metered], (latency + power)[metered]),
                _score_predictions(said.log_latency, latency),
                _score_predictions(said.log_power[metered], power[metered]),
            )
        )
    )


def _assign_folds(metered: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """A fold for each row, the metered ones dealt first: each fold has its even share of them."""
    random = np.random.default_rng(seed)
    dealt = np.concatenate([random.permutation(np.flatnonzero(which)) for which in (metered, ~metered)])
    fold = np.empty(len(metered), dtype=np.int64)
    fold[dealt] = np.arange(len(metered)) % FOLDS
    return fold


def _score_predictions(predicted: Array, measured: Array) -> PredictionScore:
    return PredictionScore(
        spearman(predicted, measured), float(np.median(np.abs(np.expm1(predicted - measured))))
    )
