"""How many of the timed kernels to meter, and which.

The share is of all kernels timed, pays for the finals too, and is spent on the low-latency set. It
shrinks while predictions made beforehand agree with what the meter then says, and grows when they do not: the
dynamic update of arXiv 2411.18873, with constants of our own. Agreement is judged on the last predictions,
in whatever round they were made: rank correlation, and a signal-to-noise ratio whose mean is removed (a raw
one flatters a model that predicts the mean). Between faithful and not lies a gap where the share stays.

What is expected of kernels before they are metered, kept to be held against what the meter says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.power_model import PowerModel
from ekc.search.cost_model.surrogate import log_expected_improvement
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.data.candidate import Candidate

Array = NDArray[np.float64]

MIN_SHARE, INITIAL_SHARE, MAX_SHARE = 0.05, 0.13, 1.0
"""Of the timed kernels. At the ceiling there is one to meter for each that was timed."""
EXPECTED_FINALS_METERINGS = 3.75
"""So many finalists are metered there for the first time where little was metered before: the mean of 60 runs
of 64 trials (`benchmarks/search/paper.py`)."""
INITIAL_METERINGS = 4
"""Kernels of the first round that are metered, ahead of the share: without them nothing is known."""
SHRINK_FACTOR, GROWTH_FACTOR = 0.7, 2.5
"""Growing is quick: too much metering costs seconds, too little may cost the best kernel."""
VERDICT_WINDOW = 12
"""Predictions that a verdict looks back on."""
MIN_PREDICTIONS, MIN_NEW_PREDICTIONS = 6, 3
"""Predictions that a verdict wants: in all, and since the last one."""
ACCURATE_RANK, ACCURATE_SNR = 0.7, 2.0
INACCURATE_RANK, INACCURATE_SNR = 0.5, 1.25
"""Below both, the model says no more than the mean of what was metered. Few pairs may rank well by luck, so a
rank counts only with a signal above this."""
NEGLIGIBLE_ERROR, ERROR_QUANTILE = 0.01, 0.75
"""An error that matters to nobody, the figures that a run quotes being hardly surer, and the share of the
predictions that must not have a larger one. The first of a window were made by a model that knew next to
nothing."""
USELESS_ERROR_STD = 0.25
"""A spread of the error with which nobody can choose: kernels as fast as each other hardly differ by more in
what they draw. Ranks do not tell: where latencies differ, which are measured, energies rank well with any
power."""
EXPLORATION_SHARE = 0.3
"""The part of the metered kernels chosen to learn from, not because they look good."""


@dataclass
class MeteringShare:
    """The share of timed kernels that is metered."""

    share: float = INITIAL_SHARE
    is_adaptive: bool = True
    reserved_meterings: float = 0.0
    """Kernels that the share pays for and others meter: those of the finals."""
    _new_prediction_count: int = 0
    _metering_credit: float = field(init=False)
    _exploration_credit: float = 0.0

    def __post_init__(self) -> None:
        self._metering_credit = -self.reserved_meterings

    def allocate_meterings(self, timed_count: int, max_count: int, min_count: int = 0) -> tuple[int, int]:
        """(how many to meter, how many of those to learn from), `timed` more kernels having been timed
        and `most` waiting to be metered. Fractions are carried over, and so is what `fewest` asks for
        ahead of its time; what `most` cuts off is not, so the share is one at most."""
        self._metering_credit += self.share * timed_count
        whole = max(_floor_credit(self._metering_credit), min_count)
        self._metering_credit -= whole
        count = min(whole, max_count)
        self._exploration_credit += EXPLORATION_SHARE * count
        curious = _floor_credit(self._exploration_credit)
        self._exploration_credit -= curious
        return count, curious

    def update(self, predicted: Array, measured: Array, new_count: int) -> None:
        """The last energies (`WINDOW` at most) predicted beforehand, what the meter said then, and how
        many of them are new."""
        self._new_prediction_count += new_count
        if (
            not self.is_adaptive
            or len(measured) < MIN_PREDICTIONS
            or self._new_prediction_count < MIN_NEW_PREDICTIONS
        ):
            return
        self._new_prediction_count = 0
        verdict = is_accurate(predicted, measured)
        # Those before may be of a model that knew next to nothing; more figures would teach this one nothing.
        mended = (
            log_error_quantile(predicted[-MIN_NEW_PREDICTIONS:], measured[-MIN_NEW_PREDICTIONS:])
            <= NEGLIGIBLE_ERROR
        )
        if verdict is True:
            self.share = max(self.share * SHRINK_FACTOR, MIN_SHARE)
        elif verdict is False and not mended:
            self.share = min(self.share * GROWTH_FACTOR, MAX_SHARE)


def _floor_credit(credit: float) -> int:
    """What can be paid of it."""
    return max(math.floor(credit + 1e-9), 0)


def is_accurate(predicted: Array, measured: Array) -> bool | None:
    """Whether predictions were true to what was measured; None where neither can be said."""
    rank, snr = spearman(predicted, measured) or 0.0, signal_to_noise(predicted, measured)
    error = log_error_std(predicted, measured)
    if log_error_quantile(predicted, measured) <= NEGLIGIBLE_ERROR:
        return True
    if error > USELESS_ERROR_STD or (rank < INACCURATE_RANK and snr < INACCURATE_SNR):
        return False
    return True if snr >= ACCURATE_SNR or (rank >= ACCURATE_RANK and snr >= INACCURATE_SNR) else None


def signal_to_noise(predicted: Array, measured: Array) -> float:
    """Variance of the log of the figures over that of the prediction error, means removed."""
    return float(np.log(measured).var()) / max(log_error_std(predicted, measured) ** 2, 1e-12)


def log_error_std(predicted: Array, measured: Array) -> float:
    """Standard deviation of the log of predicted over measured: a common factor is no error."""
    return float((np.log(predicted) - np.log(measured)).std())


def log_error_quantile(predicted: Array, measured: Array) -> float:
    """What `MOSTLY` of the predictions are off by at most, as a log, their median factor taken out."""
    off = np.log(predicted) - np.log(measured)
    return float(np.quantile(np.abs(off - np.median(off)), ERROR_QUANTILE))


def select_for_metering(
    count: int,
    exploration_count: int,
    mean_log_energy: Array,
    std: Array,
    best_log_energy: float,
    feature_rows: NDArray[np.float32],
) -> list[int]:
    """Which `count` kernels to meter: the most promising, and `curious` ones that would teach most.

    mean, spread: of the log of the energy expected of each kernel; best: the least log energy metered;
    rows: features. Promising is who may improve on the best. Most is learned where the model is
    unsure and nothing like it is being metered. Ties break by position, so the answer depends on
    nothing but its arguments.
    """
    # Before anything was metered that may win, nothing can be improved on.
    promise = (
        log_expected_improvement(mean_log_energy, std, best_log_energy)
        if np.isfinite(best_log_energy)
        else -mean_log_energy
    )
    order = np.argsort(-promise, kind="stable").tolist()
    chosen = order[: count - exploration_count]
    unit = feature_rows.std(axis=0)
    scaled = feature_rows / np.where(unit > 0, unit, 1.0)
    for _ in range(exploration_count):
        rest = [i for i in order if i not in chosen]
        near = np.array([_nearest_distance(scaled[i], scaled[chosen]) for i in rest])
        chosen.append(rest[int(np.argmax(near * std[rest]))])
    return sorted(chosen)


def _nearest_distance(row: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Distance to the nearest of the others; 1 where there is none."""
    return float(np.min(np.linalg.norm(others - row, axis=1))) if len(others) else 1.0


@dataclass(frozen=True)
class PredictionRecord:
    """One metered kernel. Energies in joules per call."""

    believed_j: float
    """What the run went by: the model, or under quarantine the line."""
    std: float
    """How unsure the run was of the log of that."""
    model_j: float
    """What the model said, believed or not; NaN while there was none."""
    line_j: float
    """What the line said."""
    constant_j: float
    """Latency x the median power so far."""
    latency_s: float
    measured_j: float


@dataclass(frozen=True)
class PredictionBatch:
    """Expectations of timed kernels. Arrays run over `candidates`."""

    candidates: Sequence[Candidate]
    mean: Array
    """Log joules per call."""
    std: Array
    model_mean: Array
    """`mean` by the model, believed or not; NaN while there is none."""
    line_mean: Array
    """`mean` by the line."""
    constant_power_w: float
    feature_rows: NDArray[np.float32]

    @classmethod
    def from_power_model(cls, candidates: Sequence[Candidate], power_model: PowerModel) -> PredictionBatch:
        """What `power` says of them now."""
        seconds = np.log([c.latency_s for c in candidates])
        mean, spread = power_model.predict_timed(candidates)
        model, line = (power_model.predict_timed(candidates, use_model=which)[0] for which in (True, False))
        model = model if power_model.is_ready else np.full(len(model), np.nan)
        rows = np.stack([c.features for c in candidates])
        return cls(
            candidates,
            mean + seconds,
            spread,
            model + seconds,
            line + seconds,
            power_model.median_power_w,
            rows,
        )

    def make_records(self, metered: Sequence[int]) -> list[PredictionRecord]:
        """The expectations of kernels that were metered since, beside the figures."""
        return [
            PredictionRecord(
                believed_j=float(np.exp(self.mean[i])),
                std=float(self.std[i]),
                model_j=float(np.exp(self.model_mean[i])),
                line_j=float(np.exp(self.line_mean[i])),
                constant_j=self.constant_power_w * self.candidates[i].latency_s,
                latency_s=self.candidates[i].latency_s,
                measured_j=self.candidates[i].energy_j,
            )
            for i in metered
        ]
