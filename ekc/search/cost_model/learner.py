"""What a run learns: a latency model, a power model, and how many kernels still need the meter.

Predictions are written down before a kernel is metered and judged against its figures afterwards,
then the models are fitted afresh. Everything that metering taught is kept as a `ModelCard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.ir.hardware.limits import Limits
from ekc.search.cost_model.features import ModelInputs
from ekc.search.cost_model.metering_policy import (
    EXPECTED_FINALS_METERINGS,
    INITIAL_METERINGS,
    INITIAL_SHARE,
    VERDICT_WINDOW,
    MeteringShare,
    PredictionBatch,
    PredictionRecord,
    select_for_metering,
)
from ekc.search.cost_model.power_model import PowerModel
from ekc.search.cost_model.spill_model import SpillModel, has_spilled
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import DEFAULT_METHOD, SearchMethod
from ekc.search.data.result import ModelCard

Array = NDArray[np.float64]
MeterFunction = Callable[[Candidate], bool]
"""Measures one candidate and says whether it worked."""

METERING_SLACK = 1.1
"""Kernels up to this much slower than the slowdown allows are metered too: they teach, and noise moves."""
LOWER_BOUND_STDS = 2.0
"""So many spreads below what is believed, a latency hardly is."""
LATENCY_RESIDUAL_CLIP = 0.3
"""Residuals this much above the median are of kernels that hit what the prior does not know (bank conflicts,
waits): how hard teaches little of those that did not."""


@dataclass
class Learner:
    """The models of one run."""

    peaks: Peaks
    limits: Limits
    seed: int
    max_slowdown: float
    method: SearchMethod = DEFAULT_METHOD
    model_cards: list[ModelCard] = field(default_factory=list)
    prediction_records: list[PredictionRecord] = field(default_factory=list)
    """Every kernel metered since the first ones: what was expected of it, and what it was."""
    _budgeted_timing_count: int = 0
    """Kernels that a share of metering was counted for."""

    def __post_init__(self) -> None:
        fixed = self.method.metered_share
        share = INITIAL_SHARE if fixed is None else fixed
        self.metering_share = MeteringShare(
            share, fixed is None, reserved_meterings=EXPECTED_FINALS_METERINGS * (1 - share)
        )
        self.latency_model = Surrogate(self.seed, residual_clip=LATENCY_RESIDUAL_CLIP)
        self.spill_model = SpillModel(self.limits, self.seed)
        self.power_model = PowerModel(self.seed, self.peaks, self.method.power_source == "constant")

    def predict(self, inputs: ModelInputs, limit_s: float = np.inf) -> tuple[Array, Array, Array, Array]:
        """(log seconds, spread of that, log watts, spread of that) expected of analysed genomes. How slow the
        slow are is bent (`LATENCY_BAD`), and their watts are those of that pace; of those that will hardly
        take less than `limit_s` as the line has them (`HARDLY`)."""
        mean, spread = self.latency_model.predict(inputs.features, inputs.expected_latency_s)
        pace = mean - np.log(inputs.expected_latency_s)
        matter = mean - LOWER_BOUND_STDS * spread <= np.log(limit_s)
        return mean, spread, *self.power_model.predict(inputs.features, pace, inputs.expected_power_w, matter)

    def learn_latency(self, timed: list[Candidate]) -> None:
        """Learn what spilled in a round, and from the latencies of what did not: how slow a kernel is that
        spilled says nothing of those that do not."""
        told = [c for c in timed if c.resources]
        if told:
            self.spill_model.learn(np.stack([c.features for c in told]), [c.resources for c in told])
        fit = [c for c in timed if not has_spilled(c.resources)]
        if fit:
            rows, priors = np.stack([c.features for c in fit]), np.array([c.expected_latency_s for c in fit])
            self.latency_model.learn(rows, priors, np.array([c.latency_s for c in fit]))

    def learn_energy(self, working: list[Candidate], round_number: int, meter: MeterFunction) -> None:
        """Meter a share of what was timed since, judge what was expected of it, then fit."""
        waiting = self._select_unmetered(working)
        fewest = 0 if self.power_model.row_count else INITIAL_METERINGS
        count, curious = self.metering_share.allocate_meterings(
            max(len(working) - self._budgeted_timing_count, 0), len(waiting), fewest
        )
        self._budgeted_timing_count = max(len(working), self._budgeted_timing_count)
        done: list[int] = []
        if count:
            foresight = PredictionBatch.from_power_model(waiting, self.power_model)
            picked = select_for_metering(
                count,
                curious,
                foresight.mean,
                foresight.std,
                self._find_least_log_energy(working),
                foresight.feature_rows,
            )
            done = [i for i in picked if meter(waiting[i])]
            self._record_predictions(foresight, done, round_number)
        self.power_model.learn([waiting[i] for i in done], working)
        self.predict_powers(working)

    def _select_fast(self, working: list[Candidate], slack: float) -> list[Candidate]:
        """The low-latency set."""
        limit = min((c.latency_s for c in working), default=0.0) * (1 + self.max_slowdown) * slack
        return [c for c in working if c.latency_s <= limit]

    def _select_unmetered(self, working: list[Candidate]) -> list[Candidate]:
        """The low-latency set, not yet metered; the first time all, so that slow ones teach too."""
        anyone = not self.power_model.row_count or self.method.metered_share == 1
        return [
            c for c in (working if anyone else self._select_fast(working, METERING_SLACK)) if not c.metered
        ]

    def _find_least_log_energy(self, working: list[Candidate]) -> float:
        """Log of the least energy metered of those that may win."""
        metered = [c.energy_j for c in self._select_fast(working, 1.0) if c.metered]
        return float(np.log(min(metered))) if metered else np.inf

    def _record_predictions(
        self, batch: PredictionBatch, metered_indices: Sequence[int], round_number: int
    ) -> None:
        """Hold the predictions against the figures of the kernels `done`."""
        learned = self.power_model.row_count
        if learned:
            self.prediction_records += batch.make_records(metered_indices)
            recent = self.prediction_records[-VERDICT_WINDOW:]
            self.metering_share.update(
                _get_column(recent, "believed_j"), _get_column(recent, "measured_j"), len(metered_indices)
            )
            modelled = [j for j in recent if np.isfinite(j.model_j)]
            self.power_model.update_quarantine(
                *(_get_column(modelled, name) for name in ("model_j", "line_j", "measured_j"))
            )
        self.model_cards.append(self._make_card(round_number, learned))

    def _make_card(self, round_number: int, row_count: int) -> ModelCard:
        """What the last predictions were worth."""
        recent = self.prediction_records[-VERDICT_WINDOW:]
        measured = _get_column(recent, "measured_j")
        return ModelCard(
            round=round_number,
            rows=row_count,
            rank_correlation=spearman(_get_column(recent, "believed_j"), measured),
            error=_median_relative_error(_get_column(recent, "believed_j"), measured),
            constant_power_error=_median_relative_error(_get_column(recent, "constant_j"), measured),
            latency_rank=spearman(_get_column(recent, "latency_s"), measured),
            share=self.metering_share.share,
            quarantined=self.power_model.is_quarantined,
        )

    def predict_powers(self, working: list[Candidate]) -> None:
        """What the rest carries: predictions, told apart from figures by `Candidate.metered`."""
        if not working:
            return
        watts = np.exp(self.power_model.predict_timed(working)[0])
        for c, predicted in zip(working, watts.tolist(), strict=True):
            c.predicted_power_w = predicted


def _get_column(records: Sequence[PredictionRecord], name: str) -> Array:
    return np.array([getattr(j, name) for j in records], dtype=np.float64)


def _median_relative_error(predicted: Array, measured: Array) -> float | None:
    """Median absolute relative error."""
    if not len(measured):
        return None
    return float(np.median(np.abs(predicted - measured) / measured))
