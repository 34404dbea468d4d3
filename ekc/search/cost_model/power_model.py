"""The power model: power by latency, what the prior adds to that, and a surrogate of the rest.

1. Energy = P0 x latency + E0: two numbers, fitted to the metered kernels. Beyond their latencies it errs one
   way and a power law of the latency the other way. The prediction is a weighted mean of both, by the errors
   of fits that leave one kernel out.
2. The analytic prior of power at the latency of each kernel: the same work in less time needs more power. The
   same law of the latency is fitted to the priors; what it leaves of them counts, times a slope. The slope
   starts from a prior value and falls to 0 where the prior explains nothing.
3. A surrogate (Gaussian process and XGBoost trees) of the error of that parametric part.

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
from ekc.search.cost_model.xgboost_model import compute_weights, spearman
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import POWER_MODEL, SURROGATE

Array = NDArray[np.float64]

_JITTER, _MIN_FREEDOM, _FITTED_NUMBERS = 1e-12, 1e-3, 3
"""Added to a diagonal before it is inverted; least part of a kernel that a fit leaves free; numbers that the
parametric part fits (two of latency, one slope), for the standard deviation of its error."""


@dataclass(frozen=True)
class TwoNumberFit:
    """Energy = `constant_w` x latency + `work_j`."""

    constant_w: float
    """P0: watts that a kernel needs however long it takes. At least 0."""
    work_j: float
    """E0: joules that a call needs however short it is. At least 0."""

    def predict_log_power(self, latency_s: Array) -> Array:
        """Log watts of kernels of these latencies."""
        return np.asarray(np.log(self.constant_w + self.work_j / latency_s))


def fit_two_numbers(latency_s: Array, watts: Array, weights: Array | None = None) -> TwoNumberFit:
    """Fit P0 and E0 to metered kernels by relative errors. One kernel, or equal latencies: E0 is 0."""
    return _fit_two_numbers(latency_s, watts, np.ones(len(watts)) if weights is None else weights)[0]


def _fit_two_numbers(latency_s: Array, watts: Array, weights: Array) -> tuple[TwoNumberFit, Array]:
    """(fit, relative error of each kernel by a fit to the others). `weights`: 1 in the mean."""
    scale_s, scale_w = (float(np.exp(np.average(np.log(x), weights=weights))) for x in (latency_s, watts))
    design = np.column_stack([np.ones_like(latency_s), scale_s / latency_s]) * (scale_w / watts)[:, None]
    numbers, error = _solve_two_numbers(design, weights, [0, 1])
    if numbers.min() < 0:
        numbers, error = _solve_two_numbers(design, weights, [int(np.argmax(numbers))])
    return TwoNumberFit(scale_w * float(numbers[0]), scale_w * scale_s * float(numbers[1])), error


def _solve_two_numbers(design: Array, weights: Array, columns: list[int]) -> tuple[Array, Array]:
    """(numbers, leave-one-out errors) of a least-squares fit to 1; numbers outside `columns` are 0."""
    used, numbers = design[:, columns], np.zeros(2)
    penalty = np.diag([_JITTER, POWER_MODEL.work_penalty])[np.ix_(columns, columns)]
    inverse = np.linalg.inv(used.T @ (weights[:, None] * used) + penalty)
    numbers[columns] = inverse @ (used.T @ weights)
    leverage = weights * np.einsum("ij,jk,ik->i", used, inverse, used)
    return numbers, (used @ numbers[columns] - 1) / np.maximum(1 - leverage, _MIN_FREEDOM)


@dataclass(frozen=True)
class LatencyLaw:
    """Power by latency alone: between the two-number fit and a power law, in logs."""

    two_numbers: TwoNumberFit
    two_number_share: float
    """Weight of the two-number fit, 0 to 1; the power law has the rest."""
    exponent: float
    """Exponent of the latency in the power law, -1 to 0."""
    log_factor: float
    """Log of the factor of the power law: log watts at one second."""

    def predict_log_power(self, latency_s: Array) -> Array:
        """Log watts of kernels of these latencies."""
        power_law = self.log_factor + self.exponent * np.log(latency_s)
        two_numbers = self.two_numbers.predict_log_power(latency_s)
        return np.asarray(power_law + self.two_number_share * (two_numbers - power_law))


def fit_latency_law(latency_s: Array, watts: Array, weights: Array) -> LatencyLaw:
    """Fit the law to watts of kernels. `weights`: 1 in the mean."""
    two_numbers, error = _fit_two_numbers(latency_s, watts, weights)
    log_s, log_w = np.log(latency_s), np.log(watts)
    center, level = np.average(log_s, weights=weights), np.average(log_w, weights=weights)
    distance = log_s - center
    total = weights @ distance**2 + len(watts) * POWER_MODEL.exponent_variance
    exponent = float(np.clip(weights @ (distance * log_w) / total, -1.0, 0.0))
    leverage = weights * (1 / len(watts) + distance**2 / total)
    law_error = (level + exponent * distance - log_w) / np.maximum(1 - leverage, _MIN_FREEDOM)
    difference, pull = error - law_error, POWER_MODEL.share_error**2
    share = (pull / 2 - weights @ (law_error * difference)) / (weights @ difference**2 + pull)
    return LatencyLaw(
        two_numbers, float(np.clip(share, 0.0, 1.0)), exponent, float(level - exponent * center)
    )


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


@dataclass
class LayeredPowerModel:
    """The parametric part and the surrogate of its error: log watts of kernels whose latency is known."""

    seed: int
    parametric: ParametricPower = field(default_factory=ParametricPower)
    surrogate: Surrogate = field(init=False)

    def __post_init__(self) -> None:
        self.surrogate = Surrogate(self.seed, POWER_MODEL.tree_share)

    def learn(self, rows: NDArray[np.float32], latency_s: Array, priors: Array, watts: Array) -> None:
        """Learn from metered kernels; earlier ones are forgotten. `rows`: features. `priors`: expected watts
        at these latencies; equal ones say nothing."""
        self.parametric = fit_parametric_power(latency_s, priors, watts)
        self.surrogate = Surrogate(self.seed, POWER_MODEL.tree_share)
        predicted = np.exp(self.parametric.predict_log_power(latency_s, priors))
        self.surrogate.learn(rows, predicted, watts, objective_values=watts * latency_s)

    def predict(
        self, rows: NDArray[np.float32], latency_s: Array, priors: Array, use_surrogate: bool = True
    ) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts, with the surrogate once it has enough kernels."""
        mean = self.parametric.predict_log_power(latency_s, priors)
        if use_surrogate and self.surrogate.is_ready:
            return self.surrogate.predict(rows, np.exp(mean))
        return mean, np.full(len(mean), self.parametric.std)


@dataclass
class PowerModel:
    """Predicts mean and standard deviation of log power in watts. Deterministic for given rows and seed."""

    seed: int
    peaks: Peaks
    is_constant: bool = False
    """Predict the median power only: the trivial predictor that a model must beat."""
    is_quarantined: bool = False
    """Predict by the parametric part alone: the surrogate ranked kernels badly."""
    _metered: list[Candidate] = field(default_factory=list)
    _throttled: list[Candidate] = field(default_factory=list)
    """Timed kernels that the power cap throttled, metered or not."""

    def __post_init__(self) -> None:
        self._layers, self._two_numbers = LayeredPowerModel(self.seed), TwoNumberFit(float("nan"), 0.0)
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
            self._layers.parametric = _make_constant_power(_get_measured(self._metered)[1])
            return
        uncapped = [c for c in self._metered if not _is_capped(c)]
        learned = uncapped if len(uncapped) >= POWER_MODEL.min_rows else self._metered
        self._layers.parametric = fit_parametric_power(*self._make_training_data(learned)[1:])
        self._layers.learn(*self._make_training_data(learned, self._select_below_cap(throttled)))

    def _select_below_cap(self, throttled: Sequence[Candidate]) -> list[Candidate]:
        """The throttled kernels whose predicted power is below the cap. Without the cap they would need more,
        by an unknown amount; the others are predicted to need that already."""
        if not throttled:
            return []
        inputs = self._make_inputs(throttled)[1:]
        below = self._layers.parametric.predict_log_power(*inputs) < self._capped_log_power
        return [c for c, is_below in zip(throttled, below, strict=True) if is_below]

    def _make_training_data(
        self, metered: Sequence[Candidate], at_cap: Sequence[Candidate] = ()
    ) -> tuple[NDArray[np.float32], Array, Array, Array]:
        """(features, latencies in seconds, expected watts, watts) of metered kernels and of kernels at the
        cap."""
        watts = [c.power_w for c in metered] + [np.exp(self._capped_log_power)] * len(at_cap)
        return *self._make_inputs([*metered, *at_cap]), np.array(watts)

    @property
    def is_ready(self) -> bool:
        """Whether the surrogate has learned from enough kernels."""
        return self._layers.surrogate.is_ready

    def predict_timed(self, timed: Sequence[Candidate], use_model: bool | None = None) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts of timed kernels. `use_model`: predict by the surrogate, or
        by the parametric part; None: by the surrogate unless it is in quarantine."""
        use_model = not self.is_quarantined if use_model is None else use_model
        mean, std = self._predict(*self._make_inputs(timed), use_model)
        capped = np.array([_is_capped(c) for c in timed]) & (not self.is_constant)
        return np.where(capped, self._capped_log_power, mean), np.where(capped, self._capped_std, std)

    def predict(
        self,
        rows: NDArray[np.float32],
        log_latency_s: Array,
        expected_latency_s: Array,
        priors: Array,
        standby_w: Array,
        needs_model: NDArray[np.bool_],
    ) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts of kernels that were not timed.

        `log_latency_s`: log of predicted latency. `expected_latency_s`: latency by the prior. `priors`:
        expected watts at that latency, of which `standby_w` stay if the work takes longer. Only the rows of
        `needs_model` are predicted by the surrogate, the others by the parametric part.
        """
        inputs = _adjust_to_latency(rows, log_latency_s, expected_latency_s, priors, standby_w)
        mean, std = self._predict(*inputs, False)
        if self.is_ready and not self.is_quarantined:
            rows, latency_s, priors = inputs
            chosen = rows[needs_model], latency_s[needs_model], priors[needs_model]
            mean[needs_model], std[needs_model] = self._predict(*chosen, True)
        return mean, std

    def _make_inputs(self, timed: Sequence[Candidate]) -> tuple[NDArray[np.float32], Array, Array]:
        """(features, latencies in seconds, expected watts) of timed kernels at their latency."""
        latency, expected, priors, standby_w = np.array(
            [(c.latency_s, c.expected_latency_s, c.expected_power_w, c.standby_w) for c in timed]
        ).T
        features = np.stack([c.features for c in timed])
        return _adjust_to_latency(features, np.log(latency), expected, priors, standby_w)

    def _predict(
        self, rows: NDArray[np.float32], latency_s: Array, priors: Array, use_model: bool
    ) -> tuple[Array, Array]:
        """(mean, standard deviation) of log watts, by the surrogate or by the parametric part."""
        mean, std = self._layers.predict(rows, latency_s, priors, use_model)
        if self.row_count < POWER_MODEL.min_rows:
            std = np.full(len(priors), SURROGATE.prior_std)
        # The power of a board is at most its cap.
        return np.minimum(mean, max(np.log(self.peaks.board_power_w), self._capped_log_power)), std

    def update_quarantine(self, model: Array, parametric: Array, measured: Array) -> None:
        """Set the quarantine from energies that the surrogate and the parametric part predicted before they
        were measured: it begins where the surrogate ranks kernels badly and no better than the other."""
        rank = spearman(model, measured)
        if rank is not None and len(measured) >= POWER_MODEL.min_rows:
            parametric_rank = spearman(parametric, measured) or 0.0
            self.is_quarantined = rank < POWER_MODEL.quarantine_rank and rank <= parametric_rank


def scale_power(power_w: Array, log_latency_residual: Array, standby_w: Array) -> Array:
    """Power of the same work in exp(`log_latency_residual`) times the latency; `standby_w` stays."""
    return np.asarray(standby_w + (power_w - standby_w) * np.exp(-log_latency_residual))


def _adjust_to_latency(
    rows: NDArray[np.float32],
    log_latency_s: Array,
    expected_latency_s: Array,
    priors: Array,
    standby_w: Array,
) -> tuple[NDArray[np.float32], Array, Array]:
    """(features and log of latency over expected latency as one more column, latencies in seconds, expected
    watts at that latency)."""
    residuals = log_latency_s - np.log(expected_latency_s)
    features = np.column_stack([rows, residuals]).astype(np.float32)
    return features, np.exp(log_latency_s), scale_power(priors, residuals, standby_w)


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
