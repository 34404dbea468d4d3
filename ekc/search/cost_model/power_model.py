"""What is believed of a kernel's power: a line over the prior, and trees and a process on what that misses.

How much of the prior's differences shows is learned, from a half on: where it explains nothing the line turns
flat, and the belief is that of constant power. The model sees how much faster or slower than its prior a
kernel is: the same work in less time draws more. A kernel that was throttled by the power cap while it was
timed needs no model: it draws what capped kernels draw. Of others like it that says that they would draw as
much at least, and it costs no metering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import POWER_CAP, Peaks
from ekc.search.cost_model import analytic
from ekc.search.cost_model.features import BALANCE_COLUMN
from ekc.search.cost_model.surrogate import PRIOR_STD, Surrogate
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.data.candidate import Candidate

Array = NDArray[np.float64]

SHARPNESS = 2.0
"""A kernel of twice the least energy weighs 2**-sharpness in the line, as in the trees."""
PRIOR_SLOPE, PRIOR_SLOPE_VARIANCE = 0.5, 0.003
"""What the slope of the line is drawn to, and the variance of the log prior that weighs as much. Recorded
kernels have 0.75 (`benchmarks/cost_model/analytic.py`); drawn to 0.7 a run where power is constant takes three
times as many meterings to notice, and ranks hardly better elsewhere."""
TREE_SHARE = 0.25
"""Few kernels are metered, and trees want many."""
MIN_JUDGED = 4
QUARANTINE_RANK = 0.5
"""Rank correlation below which a model that ranks no better than the line is not believed."""
MIN_STD = 0.02
"""Of the log of watts: two kernels that look alike draw about as different."""


@dataclass
class PowerModel:
    """Log watts of kernels, and how sure. Deterministic for given rows and seed."""

    seed: int
    peaks: Peaks
    is_constant: bool = False
    """Believe in nothing but the median: the trivial predictor that a model must beat."""
    is_quarantined: bool = False
    """The line rules alone."""
    _metered: list[Candidate] = field(default_factory=list)
    _throttled: list[Candidate] = field(default_factory=list)
    """Timed and, metered or not, held at the power cap."""

    def __post_init__(self) -> None:
        self._slope, self._intercept, self._residual_std = 1.0, 0.0, PRIOR_STD
        self._capped_log_power, self._capped_std = np.log(self.peaks.board_power_w), MIN_STD
        self._surrogate = Surrogate(self.seed, TREE_SHARE)

    @property
    def row_count(self) -> int:
        """How many kernels it has learned from."""
        return len(self._metered)

    @property
    def median_power_w(self) -> float:
        """The median of the watts seen: the trivial predictor."""
        return float(np.median([c.power_w for c in self._metered])) if self._metered else float("nan")

    def learn(self, metered: Sequence[Candidate], timed: Sequence[Candidate] = ()) -> None:
        """Learn from kernels just metered, those of little energy most, and from which of all `timed` were
        throttled."""
        self._metered += metered
        throttled = [c for c in timed if _is_capped(c)]
        if not self._metered or not (metered or len(throttled) != len(self._throttled)):
            return
        self._throttled = throttled
        capped = np.log([c.power_w for c in self._metered if _is_capped(c)])
        if len(capped):
            self._capped_log_power = float(np.median(capped))
            self._capped_std = max(float(capped.std()), MIN_STD / len(capped) ** 0.5)
        if self.is_constant:
            self._fit_line(self._metered)
            return
        free = [c for c in self._metered if not _is_capped(c)]
        known = free if len(free) >= MIN_JUDGED else self._metered
        self._fit_line(known)
        at_cap = self._select_below_cap(throttled)
        if at_cap:
            self._fit_line(known, at_cap)
        self._fit_surrogate(known, at_cap)

    def _select_below_cap(self, throttled: Sequence[Candidate]) -> list[Candidate]:
        """Those of which less is believed. What the cap holds back would draw more, nobody knows how much: it
        says nothing where that is believed already."""
        if not throttled:
            return []
        below = self._predict_line(self._make_inputs(throttled)[1]) < self._capped_log_power
        return [c for c, is_below in zip(throttled, below, strict=True) if is_below]

    def _fit_line(self, metered: Sequence[Candidate], at_cap: Sequence[Candidate] = ()) -> None:
        """The line and what it misses, of kernels metered and of others that draw what the cap allows."""
        _, priors, watts, joules = self._make_training_data(metered, at_cap)
        weights = np.ones(len(watts)) if self.is_constant else (joules.min() / joules) ** SHARPNESS
        self._slope = 0.0 if self.is_constant else _fit_slope(np.log(priors), np.log(watts), weights)
        left = np.log(watts) - self._slope * np.log(priors)
        self._intercept = float(np.median(left) if self.is_constant else np.average(left, weights=weights))
        self._residual_std = max(
            float(np.average((left - self._intercept) ** 2, weights=weights)) ** 0.5, MIN_STD
        )

    def _fit_surrogate(self, metered: Sequence[Candidate], at_cap: Sequence[Candidate]) -> None:
        """Trees and process on what the line misses."""
        rows, priors, watts, joules = self._make_training_data(metered, at_cap)
        self._surrogate = Surrogate(self.seed, TREE_SHARE)
        self._surrogate.learn(rows, np.exp(self._predict_line(priors)), watts, objective_values=joules)

    def _make_training_data(
        self, metered: Sequence[Candidate], at_cap: Sequence[Candidate]
    ) -> tuple[NDArray[np.float32], Array, Array, Array]:
        """(features, priors, watts, joules) of kernels metered and of others at the cap."""
        rows, priors = self._make_inputs([*metered, *at_cap])
        watts = np.array([c.power_w for c in metered] + [np.exp(self._capped_log_power)] * len(at_cap))
        return rows, priors, watts, watts * [c.latency_s for c in (*metered, *at_cap)]

    @property
    def is_ready(self) -> bool:
        """Whether there is a model beside the line."""
        return self._surrogate.is_ready

    def predict_timed(self, timed: Sequence[Candidate], use_model: bool | None = None) -> tuple[Array, Array]:
        """(mean, spread) of the log watts of kernels whose latency is known; what the model says, or the
        line, instead of what rules."""
        mean, spread = self._predict(
            *self._make_inputs(timed), not self.is_quarantined if use_model is None else use_model
        )
        capped = np.array([_is_capped(c) for c in timed]) & (not self.is_constant)
        return np.where(capped, self._capped_log_power, mean), np.where(capped, self._capped_std, spread)

    def predict(
        self,
        rows: NDArray[np.float32],
        log_latency_residual: Array,
        priors: Array,
        needs_model: NDArray[np.bool_],
    ) -> tuple[Array, Array]:
        """The same of kernels nobody timed; `pace`: log of the expected latency over its prior. Of those that
        do not `matter` by the line."""
        rows, priors = self._adjust_to_latency(rows, log_latency_residual, priors)
        mean, spread = self._predict(rows, priors, False)
        if self.is_ready and not self.is_quarantined:
            mean[needs_model], spread[needs_model] = self._predict(
                rows[needs_model], priors[needs_model], True
            )
        return mean, spread

    def _make_inputs(self, timed: Sequence[Candidate]) -> tuple[NDArray[np.float32], Array]:
        pace = np.log([c.latency_s / c.expected_latency_s for c in timed])
        rows, priors = np.stack([c.features for c in timed]), np.array([c.expected_power_w for c in timed])
        return self._adjust_to_latency(rows, pace, priors)

    def _adjust_to_latency(
        self, rows: NDArray[np.float32], log_latency_residual: Array, priors: Array
    ) -> tuple[NDArray[np.float32], Array]:
        """Features with the pace, and watts expected at that pace."""
        standby = analytic.predict_standby_w(rows[:, BALANCE_COLUMN], self.peaks)
        return np.column_stack([rows, log_latency_residual]).astype(np.float32), analytic.scale_power(
            priors, log_latency_residual, standby
        )

    def _predict(self, rows: NDArray[np.float32], priors: Array, use_model: bool) -> tuple[Array, Array]:
        line = self._predict_line(priors)
        if self.is_ready and use_model:
            mean, spread = self._surrogate.predict(rows, np.exp(line))
        else:
            mean = line
            spread = np.full(len(priors), self._residual_std if self.row_count >= MIN_JUDGED else PRIOR_STD)
        # No board draws more than its cap.
        return np.minimum(mean, max(np.log(self.peaks.board_power_w), self._capped_log_power)), spread

    def update_quarantine(self, model: Array, line: Array, measured: Array) -> None:
        """Energies predicted by the model and by the line before they were measured: they set the
        quarantine, for a model that ranks badly and no better than the line."""
        rank = spearman(model, measured)
        if rank is not None and len(measured) >= MIN_JUDGED:
            self.is_quarantined = rank < QUARANTINE_RANK and rank <= (spearman(line, measured) or 0.0)

    def _predict_line(self, priors: Array) -> Array:
        return self._slope * np.log(priors) + self._intercept


def _fit_slope(log_priors: Array, log_powers: Array, weights: Array) -> float:
    """How much of the prior's differences shows in the figures: 0 to 1."""
    apart = log_priors - np.average(log_priors, weights=weights)
    together = float(np.average(apart * log_powers, weights=weights))
    spread = float(np.average(apart**2, weights=weights))
    return float(
        np.clip((together + PRIOR_SLOPE * PRIOR_SLOPE_VARIANCE) / (spread + PRIOR_SLOPE_VARIANCE), 0.0, 1.0)
    )


def _is_capped(candidate: Candidate) -> bool:
    return POWER_CAP in candidate.timings[-1].conditions.throttle
