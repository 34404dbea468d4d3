"""The metering policy: how many of the timed kernels to meter, and which.

The share of metered kernels counts all timed kernels and includes the finals; it is spent on the low-latency
set. It shrinks while predictions agree with the measurements made afterwards, and grows when they do not: the
dynamic update of arXiv 2411.18873, with constants chosen by us. Agreement is judged on the last predictions,
of any round, by rank correlation and by a signal-to-noise ratio with means removed (a raw ratio flatters a
model that predicts the mean). Between accurate and inaccurate there is a gap in which the share stays.

`PredictionBatch` keeps predictions, to be compared with the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.expected_improvement import log_expected_improvement
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import METERING
from ekc.search.data.result import PredictionRecord

Array = NDArray[np.float64]


@dataclass
class MeteringShare:
    """The share of timed kernels that is metered, and its update."""

    share: float = METERING.initial_share
    """Metered kernels per timed kernel."""
    is_adaptive: bool = True
    """Whether `update` changes the share."""
    reserved_meterings: float = 0.0
    """Meterings that the share includes and the finals make."""
    _new_prediction_count: int = 0
    _metering_credit: float = field(init=False)
    _exploration_credit: float = 0.0

    def __post_init__(self) -> None:
        self._metering_credit = -self.reserved_meterings

    def allocate_meterings(self, timed_count: int, max_count: int, min_count: int = 0) -> tuple[int, int]:
        """(kernels to meter, those of them to choose for exploration) after `timed_count` more timings.

        `max_count`: kernels that can be metered. `min_count`: meterings at least, even ahead of the share.
        Fractions and meterings ahead of the share are carried over; meterings beyond `max_count` are not.
        """
        self._metering_credit += self.share * timed_count
        due = max(_floor_credit(self._metering_credit), min_count)
        self._metering_credit -= due
        count = min(due, max_count)
        self._exploration_credit += METERING.exploration_share * count
        exploration_count = _floor_credit(self._exploration_credit)
        self._exploration_credit -= exploration_count
        return count, exploration_count

    def update(self, predicted: Array, measured: Array, new_count: int) -> None:
        """Update the share from the last energies, at most `verdict_window` of them, as predicted before
        metering and as measured. `new_count`: how many of them are new."""
        self._new_prediction_count += new_count
        has_few_new = self._new_prediction_count < METERING.min_new_predictions
        if not self.is_adaptive or len(measured) < METERING.min_predictions or has_few_new:
            return
        self._new_prediction_count = 0
        accurate = is_accurate(predicted, measured)
        # Earlier predictions may be of a model with few rows. If the last are right, it needs no more rows.
        last = slice(-METERING.min_new_predictions, None)
        has_improved = log_error_quantile(predicted[last], measured[last]) <= METERING.negligible_error
        if accurate is True:
            self.share = max(self.share * METERING.shrink_factor, METERING.min_share)
        elif accurate is False and not has_improved:
            self.share = min(self.share * METERING.growth_factor, METERING.max_share)


def _floor_credit(credit: float) -> int:
    """Whole meterings in a credit."""
    return max(math.floor(credit + 1e-9), 0)


def is_accurate(predicted: Array, measured: Array) -> bool | None:
    """Whether predictions agree with measurements: True, False, or None in between."""
    rank, snr = spearman(predicted, measured) or 0.0, signal_to_noise(predicted, measured)
    error = log_error_std(predicted, measured)
    if log_error_quantile(predicted, measured) <= METERING.negligible_error:
        return True
    if error > METERING.useless_error_std:
        return False
    if rank < METERING.inaccurate_rank and snr < METERING.inaccurate_snr:
        return False
    # Few pairs may have a high rank correlation by chance: it counts with a signal only.
    ranks_well = rank >= METERING.accurate_rank and snr >= METERING.inaccurate_snr
    return True if snr >= METERING.accurate_snr or ranks_well else None


def signal_to_noise(predicted: Array, measured: Array) -> float:
    """Variance of the log of measurements over variance of the log of prediction errors, means removed."""
    return float(np.log(measured).var()) / max(log_error_std(predicted, measured) ** 2, 1e-12)


def log_error_std(predicted: Array, measured: Array) -> float:
    """Standard deviation of log(predicted / measured): a common factor is no error."""
    return float((np.log(predicted) - np.log(measured)).std())


def log_error_quantile(predicted: Array, measured: Array) -> float:
    """Quantile `error_quantile` of |log(predicted / measured)|, the median factor removed."""
    errors = np.log(predicted) - np.log(measured)
    return float(np.quantile(np.abs(errors - np.median(errors)), METERING.error_quantile))


def select_for_metering(
    count: int,
    exploration_count: int,
    mean_log_energy: Array,
    std: Array,
    best_log_energy: float,
    feature_rows: NDArray[np.float32],
) -> list[int]:
    """Select `count` kernels to meter, `exploration_count` of them to learn from; returns sorted indices.

    `mean_log_energy`, `std`: prediction of the log energy of each kernel. `best_log_energy`: least log energy
    metered so far. The others are those with the largest expected improvement. To learn from, kernels are
    taken whose prediction is uncertain and whose features are far from those selected. Ties go to the first.
    """
    # Without a metered kernel that may win, there is no best to improve on.
    improvement = -mean_log_energy
    if np.isfinite(best_log_energy):
        improvement = log_expected_improvement(mean_log_energy, std, best_log_energy)
    order = np.argsort(-improvement, kind="stable").tolist()
    chosen = order[: count - exploration_count]
    unit = feature_rows.std(axis=0)
    scaled = feature_rows / np.where(unit > 0, unit, 1.0)
    for _ in range(exploration_count):
        rest = [i for i in order if i not in chosen]
        distances = np.array([_nearest_distance(scaled[i], scaled[chosen]) for i in rest])
        chosen.append(rest[int(np.argmax(distances * std[rest]))])
    return sorted(chosen)


def _nearest_distance(row: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Distance of a row to the nearest of the others; 1 if there are none."""
    return float(np.min(np.linalg.norm(others - row, axis=1))) if len(others) else 1.0


@dataclass(frozen=True)
class PredictionBatch:
    """Predictions for timed kernels. Arrays have one element per candidate."""

    candidates: Sequence[Candidate]
    mean: Array
    """Log energy in joules per call, as the run uses it."""
    std: Array
    """Standard deviation of `mean`."""
    model_mean: Array
    """Log energy by the surrogate of the power model, also under quarantine; NaN before it is fitted."""
    parametric_mean: Array
    """Log energy by the parametric part of the power model."""
    constant_power_w: float
    two_number_w: Array
    """Power by P0 + E0 / latency: the second trivial predictor."""
    feature_rows: NDArray[np.float32]

    @classmethod
    def from_power_model(cls, candidates: Sequence[Candidate], power_model: PowerModel) -> PredictionBatch:
        """Predict the energy of timed kernels."""
        log_s = np.log([c.latency_s for c in candidates])
        mean, std = power_model.predict_timed(candidates)
        model, parametric = (
            power_model.predict_timed(candidates, use_model=which)[0] for which in (True, False)
        )
        model = model if power_model.is_ready else np.full(len(model), np.nan)
        rows, median_w = np.stack([c.features for c in candidates]), power_model.median_power_w
        two_number_w = power_model.predict_two_number_w(np.exp(log_s))
        energies = mean + log_s, std, model + log_s, parametric + log_s
        return cls(candidates, *energies, median_w, two_number_w, rows)

    def make_records(self, metered: Sequence[int]) -> list[PredictionRecord]:
        """Make the records of candidates that were metered since, by their indices."""
        return [
            PredictionRecord(
                digest=self.candidates[i].schedule.digest,
                predicted_j=float(np.exp(self.mean[i])),
                std=float(self.std[i]),
                model_j=float(np.exp(self.model_mean[i])),
                parametric_j=float(np.exp(self.parametric_mean[i])),
                constant_j=self.constant_power_w * self.candidates[i].latency_s,
                two_number_j=float(self.two_number_w[i]) * self.candidates[i].latency_s,
                latency_s=self.candidates[i].latency_s,
                measured_j=self.candidates[i].energy_j,
                measured_interval_j=self.candidates[i].meterings[-1].energy_interval_j,
            )
            for i in metered
        ]
