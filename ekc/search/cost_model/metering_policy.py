"""The metering policy: how many of the timed kernels to meter, and which.

A constant share of the timed kernels is metered during the search, kernels of low latency; the finals meter
theirs besides. arXiv 2411.18873 updates it by the signal-to-noise ratio of the predictions; our
update of it saved neither energy nor meterings (docs/decisions/2026-11-28-fixed-metering-share.md).

`PredictionBatch` keeps predictions, to be compared with the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.gaussian_process import log_expected_improvement
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import METERING
from ekc.search.data.result import PredictionRecord

Array = NDArray[np.float64]


@dataclass
class MeteringShare:
    """The share of timed kernels that is metered, and how much of it is used."""

    share: float
    """Metered kernels per timed kernel."""
    _metering_credit: float = 0.0
    _exploration_credit: float = 0.0

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


def _floor_credit(credit: float) -> int:
    """Whole meterings in a credit."""
    return max(math.floor(credit + 1e-9), 0)


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
