"""The power model: power by latency, what the prior adds to that, and trees on what both leave.

1. A law of the latency (`latency_law.py`): Energy = P0 x latency + E0, and a power law.
2. The analytic prior of power at the latency of each kernel: the same work in less time needs more power. The
   same law of the latency is fitted to the priors; what it leaves of them counts, times a slope. The slope
   starts from a prior value and falls to 0 where the prior explains nothing. The boosted model corrects the
   prior before (`boosted_prior.py`), as long as the metered kernels do not say that it should not.
3. Boosted trees on the rest, from eight metered kernels on and while they help (`metered_trees.py`).

A kernel that the power cap throttled while it was timed needs no model: its power is that of capped kernels.
Similar kernels would need at least as much. This information costs no metering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.boosted_trees import predict_values
from ekc.devices.device import POWER_CAP, Peaks
from ekc.search.cost_model.boosted_prior import BoostedPrior
from ekc.search.cost_model.features import ModelInputs, collect_inputs
from ekc.search.cost_model.latency_law import LatencyLaw, TwoNumberFit, fit_latency_law, fit_two_numbers
from ekc.search.cost_model.metered_trees import is_clearly_more, train_metered_trees
from ekc.search.cost_model.row_weights import compute_weights
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import POWER_MODEL, SURROGATE

Array = NDArray[np.float64]

_FITTED_NUMBERS = 3
"""Numbers that the parametric part fits (two of latency, one slope): for the deviation of its error."""


@dataclass(frozen=True)
class ParametricPower:
    """Power by latency and prior. Without metered kernels: the prior."""

    law: LatencyLaw | None = None
    """Power by latency alone."""
    prior_law: LatencyLaw | None = None
    """The law of the latency that the priors of the same kernels follow."""
    slope: float = 1.0
    """Part of the log prior beyond its own law that counts, 0 to 1."""
    intercept: float = 0.0
    """Added to the log watts."""
    std: float = SURROGATE.prior_std
    """Standard deviation of the error of log watts."""

    def predict_log_power(self, latency_s: Array, priors: Array) -> Array:
        """Log watts. `priors`: expected watts of the kernels at these latencies."""
        explained = self.prior_law.predict_log_power(latency_s) if self.prior_law else 0.0
        by_latency = self.law.predict_log_power(latency_s) if self.law else 0.0
        return np.asarray(by_latency + self.slope * (np.log(priors) - explained) + self.intercept)


def fit_parametric_power(latency_s: Array, priors: Array, watts: Array) -> ParametricPower:
    """Fit the parametric part to metered kernels. Kernels of little energy have most weight."""
    weights = compute_weights(watts * latency_s, POWER_MODEL.sharpness)
    weights = weights / weights.mean()
    law, prior_law = (fit_latency_law(latency_s, x, weights) for x in (watts, priors))
    left = np.log(priors) - prior_law.predict_log_power(latency_s)
    target = np.log(watts) - law.predict_log_power(latency_s)
    slope = _fit_slope(left, target, weights)
    rest = target - slope * left
    intercept = float(np.average(rest, weights=weights))
    freedom = max(len(watts) - _FITTED_NUMBERS, 1)
    std = float((weights @ (rest - intercept) ** 2 / freedom) ** 0.5)
    return ParametricPower(law, prior_law, slope, intercept, max(std, POWER_MODEL.min_std))


def _fit_slope(log_priors: Array, log_powers: Array, weights: Array) -> float:
    """Weighted least-squares slope of log power over log prior, shrunk towards `prior_slope`; 0 to 1."""
    centered = log_priors - np.average(log_priors, weights=weights)
    covariance = float(np.average(centered * log_powers, weights=weights))
    variance = float(np.average(centered**2, weights=weights))
    shrinkage = POWER_MODEL.prior_slope_variance
    slope = (covariance + POWER_MODEL.prior_slope * shrinkage) / (variance + shrinkage)
    return float(np.clip(slope, 0.0, 1.0))


def compute_left_out_errors(latency_s: Array, priors: Array, watts: Array) -> Array:
    """Absolute errors of the log watts of each kernel, by the parametric part fitted to the others."""
    others = ~np.eye(len(watts), dtype=bool)
    fits = (fit_parametric_power(latency_s[kept], priors[kept], watts[kept]) for kept in others)
    predicted = [f.predict_log_power(latency_s[[i]], priors[[i]])[0] for i, f in enumerate(fits)]
    return np.asarray(np.abs(predicted - np.log(watts)))


@dataclass
class PowerModel:
    """Predicts mean and standard deviation of log power in watts. Deterministic for given kernels."""

    peaks: Peaks
    booster: BoostedPrior | None = None
    is_constant: bool = False
    """Predict the median power only: the trivial predictor that a model must beat."""
    is_corrected: bool = True
    """Whether the boosted model corrects the prior of power: as long as the parametric part, fitted to all
    metered kernels but one, predicts that one not clearly worse with the correction than without it."""
    _metered: list[Candidate] = field(default_factory=list)
    _throttled: list[Candidate] = field(default_factory=list)
    """Timed kernels that the power cap throttled, metered or not."""

    def __post_init__(self) -> None:
        self._parametric, self._two_numbers = ParametricPower(), TwoNumberFit(float("nan"), 0.0)
        self._trees: Any = None
        self._capped_log_power, self._capped_std = np.log(self.peaks.board_power_w), POWER_MODEL.min_std

    @property
    def row_count(self) -> int:
        """Number of kernels that it has learned from."""
        return len(self._metered)

    @property
    def median_power_w(self) -> float:
        """Median power in watts of the metered kernels: the trivial predictor."""
        return float(np.median([c.power_w for c in self._metered])) if self._metered else float("nan")

    def predict_two_number_w(self, latency_s: Array) -> Array:
        """Predict watts by P0 + E0 / latency, fitted to the metered kernels: the second trivial predictor."""
        return np.exp(self._two_numbers.predict_log_power(latency_s))

    def learn(self, metered: Sequence[Candidate], timed: Sequence[Candidate] = ()) -> None:
        """Learn from newly metered kernels (low energy counts more) and the throttled among all `timed`."""
        self._metered += metered
        throttled = [c for c in timed if _is_capped(c)]
        if not self._metered or not (metered or len(throttled) != len(self._throttled)):
            return
        self._throttled = throttled
        self._two_numbers = fit_two_numbers(*_get_measured(self._metered))
        capped = np.log([c.power_w for c in self._metered if _is_capped(c)])
        if len(capped):
            self._capped_log_power = float(np.median(capped))
            self._capped_std = max(float(capped.std()), POWER_MODEL.min_std / len(capped) ** 0.5)
        if self.is_constant:
            self._parametric = _make_constant_power(_get_measured(self._metered)[1])
            return
        uncapped = [c for c in self._metered if not _is_capped(c)]
        learned = uncapped if len(uncapped) >= POWER_MODEL.min_rows else self._metered
        self.is_corrected = self._pays_to_correct(learned)
        self._fit(learned)
        at_cap = self._select_below_cap(throttled)
        if at_cap:
            self._fit(learned, at_cap)

    def _fit(self, metered: Sequence[Candidate], at_cap: Sequence[Candidate] = ()) -> None:
        """Fit both parts to metered kernels and to kernels at the cap."""
        watts = np.array([c.power_w for c in metered] + [np.exp(self._capped_log_power)] * len(at_cap))
        inputs = collect_inputs([*metered, *at_cap], self.booster)
        latency_s = np.array([c.latency_s for c in (*metered, *at_cap)])
        priors = inputs.expect_power_w(np.log(latency_s), self.is_corrected)
        self._parametric = fit_parametric_power(latency_s, priors, watts)
        rest = np.log(watts) - self._parametric.predict_log_power(latency_s, priors)
        rows = _make_tree_rows(inputs, np.log(latency_s))
        self._trees = train_metered_trees(rows, rest, watts * latency_s)

    def _pays_to_correct(self, metered: Sequence[Candidate]) -> bool:
        """Whether the parametric part, fitted to all kernels but one, predicts that one not clearly worse
        from priors that the boosted model corrected. Before enough kernels are metered, and without a
        booster: yes."""
        if self.booster is None or len(metered) < POWER_MODEL.min_rows:
            return True
        latency_s, watts = _get_measured(metered)
        inputs = collect_inputs(metered, self.booster)
        corrected, plain = (
            compute_left_out_errors(latency_s, inputs.expect_power_w(np.log(latency_s), use), watts)
            for use in (True, False)
        )
        return not is_clearly_more(corrected, plain, POWER_MODEL.doubt_standard_errors)

    def _select_below_cap(self, throttled: Sequence[Candidate]) -> list[Candidate]:
        """The throttled kernels whose predicted power is below the cap. Without the cap they would need more,
        by an unknown amount; the others are predicted to need that already."""
        if not throttled:
            return []
        latency_s = np.array([c.latency_s for c in throttled])
        inputs = collect_inputs(throttled, self.booster)
        priors = inputs.expect_power_w(np.log(latency_s), self.is_corrected)
        below = self._parametric.predict_log_power(latency_s, priors) < self._capped_log_power
        return [c for c, is_below in zip(throttled, below, strict=True) if is_below]

    def predict_timed(self, timed: Sequence[Candidate]) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts of timed kernels."""
        log_latency_s = np.log([c.latency_s for c in timed])
        mean, std = self.predict(log_latency_s, collect_inputs(timed, self.booster))
        capped = np.array([_is_capped(c) for c in timed]) & (not self.is_constant)
        return np.where(capped, self._capped_log_power, mean), np.where(capped, self._capped_std, std)

    def predict(self, log_latency_s: Array, inputs: ModelInputs) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts of kernels at measured or predicted latencies."""
        priors = inputs.expect_power_w(log_latency_s, self.is_corrected)
        mean = self._parametric.predict_log_power(np.exp(log_latency_s), priors)
        if self._trees is not None:
            mean = mean + predict_values(self._trees, _make_tree_rows(inputs, log_latency_s))
        few = self.row_count < POWER_MODEL.min_rows
        std = np.full(len(mean), SURROGATE.prior_std if few else self._parametric.std)
        # The power of a board is at most its cap.
        return np.minimum(mean, max(np.log(self.peaks.board_power_w), self._capped_log_power)), std


def _make_tree_rows(inputs: ModelInputs, log_latency_s: Array) -> NDArray[np.float32]:
    """[rows, features + 1]: the features, and the log of latency over its prior."""
    residual = log_latency_s - np.log(inputs.expected_latency_s)
    return np.column_stack([inputs.features, residual]).astype(np.float32)


def _make_constant_power(watts: Array) -> ParametricPower:
    """Predict the median power: the trivial predictor."""
    rest = np.log(watts) - np.log(np.median(watts))
    std = max(float(np.mean(rest**2)) ** 0.5, POWER_MODEL.min_std)
    return ParametricPower(slope=0.0, intercept=float(np.log(np.median(watts))), std=std)


def _get_measured(metered: Sequence[Candidate]) -> tuple[Array, Array]:
    """(latencies in seconds, watts) of metered kernels."""
    return np.array([c.latency_s for c in metered]), np.array([c.power_w for c in metered])


def _is_capped(candidate: Candidate) -> bool:
    """Whether the power cap throttles a kernel: in its last metering window, which is long enough for it to
    act; where it was not metered, in its last timing."""
    measured = candidate.meterings or candidate.timings
    return POWER_CAP in measured[-1].conditions.throttle
