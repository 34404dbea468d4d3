"""The models of a run: latency, spills and power; how many of the timed kernels are metered, and which.

Before kernels are metered, their energies are predicted. Afterwards the predictions are compared with the
measurements, and the power model is fitted to all of them. Every comparison is kept as a `ModelCard`.

A constant share of the timed kernels is metered during the search, kernels of low latency; the finals meter
theirs besides. arXiv 2411.18873 updates it by the signal-to-noise ratio of the predictions; our
update of it saved neither energy nor meterings (docs/decisions/2026-11-28-fixed-metering-share.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.gaussian_process import Array, log_expected_improvement
from ekc.ir.hardware.target import LaunchLimits
from ekc.search.cost_model.boosted_prior import BoostedPrior
from ekc.search.cost_model.features import ModelInputs, collect_inputs
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.cost_model.row_weights import compute_weights, spearman
from ekc.search.cost_model.surrogate import SpillModel, Surrogate, has_spilled
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import METERING, POWER_MODEL, SURROGATE
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod
from ekc.search.data.result import ModelCard, PredictionRecord

MeterFunction = Callable[[Candidate], bool]
"""Meters one candidate; returns whether that succeeded."""


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
    constant_power_w: float
    two_number_w: Array
    """Power by P0 + E0 / latency: the second trivial predictor."""
    feature_rows: NDArray[np.float32]

    @classmethod
    def from_power_model(cls, candidates: Sequence[Candidate], power_model: PowerModel) -> PredictionBatch:
        """Predict the energy of timed kernels."""
        log_s = np.log([c.latency_s for c in candidates])
        mean, std = power_model.predict_timed(candidates)
        rows, median_w = np.stack([c.features for c in candidates]), power_model.median_power_w
        two_number_w = power_model.predict_two_number_w(np.exp(log_s))
        return cls(candidates, mean + log_s, std, median_w, two_number_w, rows)

    def make_records(self, metered: Sequence[int]) -> list[PredictionRecord]:
        """Make the records of candidates that were metered since, by their indices."""
        return [
            PredictionRecord(
                digest=self.candidates[i].schedule.digest,
                predicted_j=float(np.exp(self.mean[i])),
                std=float(self.std[i]),
                constant_j=self.constant_power_w * self.candidates[i].latency_s,
                two_number_j=float(self.two_number_w[i]) * self.candidates[i].latency_s,
                latency_s=self.candidates[i].latency_s,
                measured_j=self.candidates[i].energy_j,
                measured_interval_j=self.candidates[i].meterings[-1].energy_interval_j,
            )
            for i in metered
        ]


@dataclass
class Learner:
    """The models of one run."""

    peaks: Peaks
    limits: LaunchLimits
    max_slowdown: float
    method: SearchMethod = DEFAULT_METHOD
    booster: BoostedPrior | None = None
    """The boosted model of the device; None: its prior is not corrected."""
    model_cards: list[ModelCard] = field(default_factory=list)
    prediction_records: list[PredictionRecord] = field(default_factory=list)
    """Prediction and measurement of every kernel metered after the power model was first fitted."""
    is_latency_corrected: bool = True
    """Whether the boosted model corrects the prior of latency: as long as it makes the kernels timed so far
    differ no more from their prior than they do without it."""
    _budgeted_timing_count: int = 0
    """Timed kernels that the share of meterings has been counted for."""

    def __post_init__(self) -> None:
        self.metering_share = MeteringShare(self.method.metered_share)
        self.latency_model = Surrogate(residual_clip=SURROGATE.latency_residual_clip)
        self.spill_model = SpillModel(self.limits)
        self.power_model = PowerModel(self.peaks, self.booster, self.method.power_source == "constant")

    def predict(self, inputs: ModelInputs) -> tuple[Array, Array, Array, Array]:
        """Predict latency and power of genomes that were not measured.

        Returns (mean, standard deviation) of log latency in seconds, then of log power in watts. Latency
        residuals are clipped (`latency_residual_clip`), so predictions for slow kernels are optimistic.
        """
        expected_s = inputs.expect_latency_s(self.is_latency_corrected)
        mean, std = self.latency_model.predict(inputs.features, expected_s)
        return mean, std, *self.power_model.predict(mean, inputs)

    def learn_latency(self, timed: Sequence[Candidate]) -> None:
        """Learn from all kernels timed so far: their registers, and the latencies of those that did not
        spill. The latency of a kernel that spills says nothing about kernels that do not."""
        compiled = [c for c in timed if c.resources]
        if compiled:
            self.spill_model.learn(np.stack([c.features for c in compiled]), [c.resources for c in compiled])
        fitting = [c for c in timed if not has_spilled(c.resources)]
        if fitting:
            inputs = collect_inputs(fitting, self.booster)
            latency_s = np.array([c.latency_s for c in fitting])
            self.is_latency_corrected = _pays_to_correct(inputs, latency_s)
            expected_s = inputs.expect_latency_s(self.is_latency_corrected)
            self.latency_model.learn(inputs.features, expected_s, latency_s)

    def learn_energy(self, working: list[Candidate], round_number: int, meter: MeterFunction) -> None:
        """Meter a share of the kernels timed since the last call, compare the predictions, and fit the power
        model. `working`: all timed kernels."""
        waiting = self._select_unmetered(working)
        min_count = 0 if self.power_model.row_count else METERING.initial_meterings
        count, exploration_count = self.metering_share.allocate_meterings(
            max(len(working) - self._budgeted_timing_count, 0), len(waiting), min_count
        )
        self._budgeted_timing_count = max(len(working), self._budgeted_timing_count)
        done: list[int] = []
        if count:
            batch = PredictionBatch.from_power_model(waiting, self.power_model)
            best = self._compute_least_log_energy(working)
            picked = select_for_metering(
                count, exploration_count, batch.mean, batch.std, best, batch.feature_rows
            )
            done = [i for i in picked if meter(waiting[i])]
            self._record_predictions(batch, done, round_number)
        self.power_model.learn([waiting[i] for i in done], working)
        self.predict_powers(working)

    def _select_fast(self, working: list[Candidate], slack: float) -> list[Candidate]:
        """Kernels that are at most the allowed slowdown times `slack` slower than the fastest."""
        limit = min((c.latency_s for c in working), default=0.0) * (1 + self.max_slowdown) * slack
        return [c for c in working if c.latency_s <= limit]

    def _select_unmetered(self, working: list[Candidate]) -> list[Candidate]:
        """Fast kernels that are not metered; the first time also slow ones, so that the model learns from
        them."""
        takes_slow = not self.power_model.row_count or self.method.metered_share == 1
        eligible = working if takes_slow else self._select_fast(working, METERING.latency_slack)
        return [c for c in eligible if not c.metered]

    def _compute_least_log_energy(self, working: list[Candidate]) -> float:
        """Log of the least metered energy among kernels that may win; infinity if there is none."""
        metered = [c.energy_j for c in self._select_fast(working, 1.0) if c.metered]
        return float(np.log(min(metered))) if metered else np.inf

    def _record_predictions(
        self, batch: PredictionBatch, metered_indices: Sequence[int], round_number: int
    ) -> None:
        """Compare the predictions with the measurements of the metered candidates."""
        row_count = self.power_model.row_count
        if row_count:
            self.prediction_records += batch.make_records(metered_indices)
        self.model_cards.append(self._make_card(round_number, row_count))

    def _make_card(self, round_number: int, row_count: int) -> ModelCard:
        """The accuracy of the last predictions. `row_count`: kernels that the model had learned from."""
        recent = self.prediction_records[-METERING.card_window :]
        measured = _get_column(recent, "measured_j")
        return ModelCard(
            round=round_number,
            rows=row_count,
            rank_correlation=spearman(_get_column(recent, "predicted_j"), measured),
            error=_median_relative_error(_get_column(recent, "predicted_j"), measured),
            constant_power_error=_median_relative_error(_get_column(recent, "constant_j"), measured),
            two_number_error=_median_relative_error(_get_column(recent, "two_number_j"), measured),
            latency_rank=spearman(_get_column(recent, "latency_s"), measured),
            corrected=self.power_model.is_corrected,
        )

    def predict_powers(self, working: list[Candidate]) -> None:
        """Set `predicted_power_w` of all timed kernels; `Candidate.power_w` uses it for those not metered."""
        if not working:
            return
        watts = np.exp(self.power_model.predict_timed(working)[0])
        for c, predicted in zip(working, watts.tolist(), strict=True):
            c.predicted_power_w = predicted


def _pays_to_correct(inputs: ModelInputs, latency_s: Array) -> bool:
    """Whether the logs of latency over prior spread no more with the correction than without it. Kernels of
    low latency have most weight. Yes where too few were timed."""
    if len(latency_s) < POWER_MODEL.min_rows:
        return True
    weights = compute_weights(latency_s, POWER_MODEL.sharpness)
    spreads = []
    for is_corrected in (True, False):
        residuals = np.log(latency_s / inputs.expect_latency_s(is_corrected))
        center = np.average(residuals, weights=weights)
        spreads.append(np.average((residuals - center) ** 2, weights=weights))
    return bool(spreads[0] <= spreads[1])


def _get_column(records: Sequence[PredictionRecord], name: str) -> Array:
    return np.array([getattr(j, name) for j in records], dtype=np.float64)


def _median_relative_error(predicted: Array, measured: Array) -> float | None:
    """Median absolute relative error; None without measurements."""
    if not len(measured):
        return None
    return float(np.median(np.abs(predicted - measured) / measured))
