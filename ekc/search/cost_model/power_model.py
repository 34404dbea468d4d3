"""The power model: a line over the prior, and a surrogate (trees and Gaussian process) of the line's error.

The line predicts log power = slope * log prior + intercept. The slope starts from a prior value. Where the
prior explains nothing, the slope falls to 0, and the prediction is constant power. The priors are scaled to
the latency of each kernel: the same work in less time needs more power.

A kernel that the power cap throttled while it was timed needs no model: its power is that of capped kernels.
Similar kernels would need at least as much. This information costs no metering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import POWER_CAP, Peaks
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.cost_model.xgboost_model import spearman
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import POWER_MODEL, SURROGATE

Array = NDArray[np.float64]


@dataclass
class PowerModel:
    """Predicts mean and standard deviation of log power in watts. Deterministic for given rows and seed."""

    seed: int
    peaks: Peaks
    is_constant: bool = False
    """Predict the median power only: the trivial predictor that a model must beat."""
    is_quarantined: bool = False
    """Predict by the line alone: the surrogate ranked kernels badly."""
    _metered: list[Candidate] = field(default_factory=list)
    _throttled: list[Candidate] = field(default_factory=list)
    """Timed kernels that the power cap throttled, metered or not."""

    def __post_init__(self) -> None:
        self._slope, self._intercept, self._residual_std = 1.0, 0.0, SURROGATE.prior_std
        self._capped_log_power, self._capped_std = np.log(self.peaks.board_power_w), POWER_MODEL.min_std
        self._surrogate = Surrogate(self.seed, POWER_MODEL.tree_share)

    @property
    def row_count(self) -> int:
        """Number of kernels that it has learned from."""
        return len(self._metered)

    @property
    def median_power_w(self) -> float:
        """Median power in watts of the metered kernels: the trivial predictor."""
        return float(np.median([c.power_w for c in self._metered])) if self._metered else float("nan")

    def learn(self, metered: Sequence[Candidate], timed: Sequence[Candidate] = ()) -> None:
        """Learn from newly metered kernels (low energy counts more) and the throttled among all `timed`."""
        self._metered += metered
        throttled = [c for c in timed if _is_capped(c)]
        if not self._metered or not (metered or len(throttled) != len(self._throttled)):
            return
        self._throttled = throttled
        capped = np.log([c.power_w for c in self._metered if _is_capped(c)])
        if len(capped):
            self._capped_log_power = float(np.median(capped))
            self._capped_std = max(float(capped.std()), POWER_MODEL.min_std / len(capped) ** 0.5)
        if self.is_constant:
            self._fit_line(self._metered)
            return
        uncapped = [c for c in self._metered if not _is_capped(c)]
        learned = uncapped if len(uncapped) >= POWER_MODEL.min_rows else self._metered
        self._fit_line(learned)
        at_cap = self._select_below_cap(throttled)
        if at_cap:
            self._fit_line(learned, at_cap)
        self._fit_surrogate(learned, at_cap)

    def _select_below_cap(self, throttled: Sequence[Candidate]) -> list[Candidate]:
        """The throttled kernels whose predicted power is below the cap. Without the cap they would need more,
        by an unknown amount; the others are predicted to need that already."""
        if not throttled:
            return []
        below = self._predict_line(self._make_inputs(throttled)[1]) < self._capped_log_power
        return [c for c, is_below in zip(throttled, below, strict=True) if is_below]

    def _fit_line(self, metered: Sequence[Candidate], at_cap: Sequence[Candidate] = ()) -> None:
        """Fit the line and its error to metered kernels, and to kernels at the power of the cap."""
        _, priors, watts, joules = self._make_training_data(metered, at_cap)
        sharpness = 0.0 if self.is_constant else POWER_MODEL.sharpness
        weights = (joules.min() / joules) ** sharpness
        self._slope = 0.0 if self.is_constant else _fit_slope(np.log(priors), np.log(watts), weights)
        rest = np.log(watts) - self._slope * np.log(priors)
        self._intercept = float(np.median(rest) if self.is_constant else np.average(rest, weights=weights))
        std = float(np.average((rest - self._intercept) ** 2, weights=weights)) ** 0.5
        self._residual_std = max(std, POWER_MODEL.min_std)

    def _fit_surrogate(self, metered: Sequence[Candidate], at_cap: Sequence[Candidate]) -> None:
        """Fit the surrogate of the line's error."""
        rows, priors, watts, joules = self._make_training_data(metered, at_cap)
        self._surrogate = Surrogate(self.seed, POWER_MODEL.tree_share)
        self._surrogate.learn(rows, np.exp(self._predict_line(priors)), watts, objective_values=joules)

    def _make_training_data(
        self, metered: Sequence[Candidate], at_cap: Sequence[Candidate]
    ) -> tuple[NDArray[np.float32], Array, Array, Array]:
        """(features, expected watts, watts, joules) of metered kernels and of kernels at the cap."""
        rows, priors = self._make_inputs([*metered, *at_cap])
        watts = np.array([c.power_w for c in metered] + [np.exp(self._capped_log_power)] * len(at_cap))
        return rows, priors, watts, watts * [c.latency_s for c in (*metered, *at_cap)]

    @property
    def is_ready(self) -> bool:
        """Whether the surrogate has learned from enough kernels."""
        return self._surrogate.is_ready

    def predict_timed(self, timed: Sequence[Candidate], use_model: bool | None = None) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts of timed kernels. `use_model`: predict by the surrogate, or
        by the line; None: by the surrogate unless it is in quarantine."""
        use_model = not self.is_quarantined if use_model is None else use_model
        mean, std = self._predict(*self._make_inputs(timed), use_model)
        capped = np.array([_is_capped(c) for c in timed]) & (not self.is_constant)
        return np.where(capped, self._capped_log_power, mean), np.where(capped, self._capped_std, std)

    def predict(
        self,
        rows: NDArray[np.float32],
        log_latency_residual: Array,
        priors: Array,
        standby_w: Array,
        needs_model: NDArray[np.bool_],
    ) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts of kernels that were not timed.

        `log_latency_residual`: log of predicted latency over its prior. `priors`: expected watts, of which
        `standby_w` stay if the work takes longer. Only the rows of `needs_model` are predicted by the
        surrogate, the others by the line.
        """
        rows, priors = _adjust_to_latency(rows, log_latency_residual, priors, standby_w)
        mean, std = self._predict(rows, priors, False)
        if self.is_ready and not self.is_quarantined:
            mean[needs_model], std[needs_model] = self._predict(rows[needs_model], priors[needs_model], True)
        return mean, std

    def _make_inputs(self, timed: Sequence[Candidate]) -> tuple[NDArray[np.float32], Array]:
        """(features, expected watts) of timed kernels at their latency."""
        residuals = np.log([c.latency_s / c.expected_latency_s for c in timed])
        priors, standby_w = np.array([(c.expected_power_w, c.standby_w) for c in timed]).T
        return _adjust_to_latency(np.stack([c.features for c in timed]), residuals, priors, standby_w)

    def _predict(self, rows: NDArray[np.float32], priors: Array, use_model: bool) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts, by the surrogate or by the line."""
        mean = self._predict_line(priors)
        if self.is_ready and use_model:
            mean, std = self._surrogate.predict(rows, np.exp(mean))
        else:
            has_rows = self.row_count >= POWER_MODEL.min_rows
            std = np.full(len(priors), self._residual_std if has_rows else SURROGATE.prior_std)
        # The power of a board is at most its cap.
        return np.minimum(mean, max(np.log(self.peaks.board_power_w), self._capped_log_power)), std

    def update_quarantine(self, model: Array, line: Array, measured: Array) -> None:
        """Set the quarantine from energies that the surrogate and the line predicted before they were
        measured: it begins where the surrogate ranks kernels badly and no better than the line."""
        rank = spearman(model, measured)
        if rank is not None and len(measured) >= POWER_MODEL.min_rows:
            line_rank = spearman(line, measured) or 0.0
            self.is_quarantined = rank < POWER_MODEL.quarantine_rank and rank <= line_rank

    def _predict_line(self, priors: Array) -> Array:
        """Log watts by the line."""
        return self._slope * np.log(priors) + self._intercept


def scale_power(power_w: Array, log_latency_residual: Array, standby_w: Array) -> Array:
    """Power of the same work in exp(`log_latency_residual`) times the latency; `standby_w` stays."""
    return np.asarray(standby_w + (power_w - standby_w) * np.exp(-log_latency_residual))


def _adjust_to_latency(
    rows: NDArray[np.float32], log_latency_residual: Array, priors: Array, standby_w: Array
) -> tuple[NDArray[np.float32], Array]:
    """(features and the log latency residual as one more column, expected watts at that latency)."""
    features = np.column_stack([rows, log_latency_residual]).astype(np.float32)
    return features, scale_power(priors, log_latency_residual, standby_w)


def _fit_slope(log_priors: Array, log_powers: Array, weights: Array) -> float:
    """Weighted least-squares slope of log power over log prior, shrunk towards `prior_slope`; 0 to 1."""
    centered = log_priors - np.average(log_priors, weights=weights)
    covariance = float(np.average(centered * log_powers, weights=weights))
    variance = float(np.average(centered**2, weights=weights))
    shrinkage = POWER_MODEL.prior_slope_variance
    slope = (covariance + POWER_MODEL.prior_slope * shrinkage) / (variance + shrinkage)
    return float(np.clip(slope, 0.0, 1.0))


def _is_capped(candidate: Candidate) -> bool:
    """Whether the power cap throttled a kernel in its last timing."""
    return POWER_CAP in candidate.timings[-1].conditions.throttle
