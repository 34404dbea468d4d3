"""Slowdown and saving of a job over its SM clock or power cap, fitted to a few noisy readings.

Bayesian least squares on polynomials: readings weigh by their errors, and a prior fills in where there are
none. The prior comes from recorded kernels (`SM_CLOCK`, `POWER_CAP`) or from a model. The fitted variable is
the limit of the SM clock or, where clocks cannot be set, the power cap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor import objective
from ekc.governor.job_reading import JobReading
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, Settings
from ekc.governor.readings import PhaseReadings
from ekc.governor.samples import Values

MIN_ZERO_ERROR = 1e-4
"""Least standard error of the zero of a curve."""


@dataclass(frozen=True)
class CoefficientPrior:
    """Normal prior of the coefficients of x, x^2, ...; no constant, since x = 0 is the default."""

    mean: tuple[float, ...]
    sigma: tuple[float, ...]
    """Standard deviation of each coefficient."""


@dataclass(frozen=True)
class PolynomialFit:
    """A fitted polynomial without constant."""

    weights: Values
    """Coefficients of x, x^2, ..."""
    covariance: Values

    def predict_mean(self, x: Values) -> Values:
        """Expected value at each x."""
        return np.asarray(_build_powers(x, len(self.weights)) @ self.weights)

    def predict_std(self, x: Values) -> Values:
        """Standard deviation of the expected value at each x."""
        rows = _build_powers(x, len(self.weights))
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", rows, self.covariance, rows)))


def _build_powers(x: Values, count: int) -> Values:
    return np.asarray(np.asarray(x, float)[:, None] ** np.arange(1, count + 1)[None, :])


def fit_polynomial(
    x: Values, y: Values, error: Values, prior: CoefficientPrior, zero_error: float = MIN_ZERO_ERROR
) -> PolynomialFit:
    """The curve after points (x, y) with standard errors `error`; arrays of one length, which may be 0.

    `zero_error`: standard error of the zero that all points share. The zero is fitted along with the curve,
    so that its error is correlated over all points.
    """
    count = len(prior.mean)
    rows = np.column_stack([_build_powers(x, count), np.ones(len(x))]) / np.asarray(error)[:, None]
    sigma = np.array([*prior.sigma, max(zero_error, MIN_ZERO_ERROR)])
    covariance = np.linalg.inv(rows.T @ rows + np.diag(1 / sigma**2))
    data = rows.T @ (np.asarray(y) / np.asarray(error))
    weight = covariance @ (data + np.array([*prior.mean, 0.0]) / sigma**2)
    return PolynomialFit(np.asarray(weight[:count], float), np.asarray(covariance[:count, :count], float))


@dataclass(frozen=True)
class ControlVariable:
    """A limit that is searched, and the prior of its effect.

    Priors are over x = default / limit - 1 for time and over y = 1 - limit / default for power. The default
    is the clock at which the job runs, or the watts that its kernels draw, without the limit.
    """

    name: str
    time_prior: CoefficientPrior
    power_prior: CoefficientPrior
    is_bounded: bool
    """Whether the slowdown is at most x: true for a clock, false for a cap."""

    def select_gears(self, gears: Gears) -> Values:
        """Values that can be set on a card, ascending."""
        return np.array(gears.sm_mhz if self.name == "sm" else gears.power_w, float)

    def get_default_value(self, readings: PhaseReadings) -> float:
        """Value of the default on the scale of the limit."""
        if self.name == "sm":
            return readings.get_default_clock_mhz()
        return CAP_MARGIN * readings.get_default_watts()

    def get_value(self, settings: Settings) -> float | None:
        """Value of the limit in `settings`; None where it is not set."""
        return settings.sm_mhz if self.name == "sm" else settings.power_w

    def select_readings(self, readings: PhaseReadings, memory_mhz: int | None) -> list[JobReading]:
        """Readings under this limit at one memory clock."""
        same_memory = (r for r in readings.other_readings if r.settings.memory_mhz == memory_mhz)
        return [r for r in same_memory if self.get_value(r.settings)]

    def make_settings(self, value: float, memory_mhz: int | None = None) -> Settings:
        """Settings with this value."""
        if self.name == "sm":
            return Settings(sm_mhz=int(value), memory_mhz=memory_mhz)
        return Settings(power_w=float(value), memory_mhz=memory_mhz)


CAP_MARGIN = 1.25
"""Cap over mean power at which the cap begins to bind: some kernels draw more than the mean (estimate)."""
SM_CLOCK = ControlVariable(
    "sm", CoefficientPrior((0.6, 0.3), (0.35, 0.6)), CoefficientPrior((-1.3, 0.4, 0.0), (0.7, 1.5, 2.0)), True
)
"""Prior from recorded kernels: 0.55 to 1 of the time follows the clock at the top, and more below."""
POWER_CAP = ControlVariable(
    "cap",
    CoefficientPrior((0.2, 0.5), (0.4, 0.8)),
    CoefficientPrior((-0.5, -0.5, 0.0), (0.4, 1.0, 1.5)),
    False,
)
"""Slowdown grows faster than the cap is lowered: power follows about the cube of the clock."""


def choose_control(gears: Gears) -> ControlVariable:
    """The limit to search: the clock, or the cap where clocks cannot be set."""
    return SM_CLOCK if gears.sm_mhz or not gears.power_w else POWER_CAP


OUTLIER_SIGMAS = 1.5
"""Standard deviations from the curve beyond which a reading loses weight."""
CONFIDENT_SIGMA = 0.007
"""Standard deviation of a slowdown up to which the governor uses it without margin."""
CAUTION_FACTOR = 0.5
"""Margin added to a slowdown, as a multiple of its standard deviation beyond `CONFIDENT_SIGMA`."""


@dataclass(frozen=True)
class ResponsePrior:
    """Prior of slowdown and power over the limit, by the limit itself or by a model."""

    time: CoefficientPrior
    power: CoefficientPrior


@dataclass(frozen=True)
class ResponseCurve:
    """Expected slowdown and saving at each gear; arrays of one length."""

    gears: Values
    """Values of the limit, ascending."""
    slowdown: Values
    """Additional time, as a share of the default's."""
    slowdown_std: Values
    saving: Values
    """Joules saved, as a share of the default's."""
    saving_std: Values

    def choose_index(self, policy: Policy) -> int:
        """Place of the best gear whose slowdown, with a margin for its uncertainty, is within the budget; the
        top one where none is, or the lowest where power is above its cap."""
        if policy.max_power_share is not None:
            return objective.find_best(policy, self.slowdown, self.saving) or 0
        slowdown = add_uncertainty_margin(self.slowdown, self.slowdown_std)
        best = objective.find_best(policy, slowdown, self.saving)
        return len(self.gears) - 1 if best is None else best


def add_uncertainty_margin(slowdown: Values | float, sigma: Values | float) -> Values:
    """Slowdown plus a margin for its standard deviation beyond `CONFIDENT_SIGMA`."""
    return np.asarray(slowdown + CAUTION_FACTOR * np.maximum(0.0, np.asarray(sigma) - CONFIDENT_SIGMA))


def fit_response_curve(
    readings: PhaseReadings,
    control: ControlVariable,
    gears: Values,
    prior: ResponsePrior,
    default_limit: float,
    memory_mhz: int | None,
) -> ResponseCurve:
    """Fit prior and readings at one memory clock; `default_limit`: the default's value of the limit."""
    points = control.select_readings(readings, memory_mhz)
    outcomes = [readings.compare_to_default(r) for r in points]
    limit = np.array([control.get_value(r.settings) for r in points], float)
    has_slowdown = np.array([np.isfinite(o.slowdown) for o in outcomes], bool)
    slowdown = np.array([o.slowdown for o in outcomes])[has_slowdown]
    error = np.array([o.slowdown_error for o in outcomes])[has_slowdown]
    shared = float(np.median([o.default_error for o in outcomes if np.isfinite(o.slowdown)] or [0.0]))
    lengthening = compute_lengthening(limit[has_slowdown], default_limit)
    time = _fit_robust(lengthening, slowdown, error, prior.time, shared)
    power_error = np.array([o.power_error for o in outcomes])
    power_change = np.array([o.power_ratio for o in outcomes]) - 1
    reduction = compute_reduction(limit, default_limit)
    power = _fit_robust(reduction, power_change, power_error, prior.power, zero_error=0.0)
    # Upper bound: all kernels follow the clock. It limits the effect of noise. A lower memory clock may slow
    # them further.
    x = compute_lengthening(gears, default_limit)
    is_bounded = control.is_bounded and memory_mhz is None
    bound = readings.get_default_sm_util() * x if is_bounded else 3 * x
    is_measured = has_slowdown.any() or not len(has_slowdown)
    expected = np.minimum(_make_monotonic(time.predict_mean(x)), bound) if is_measured else bound
    sigma = np.minimum(time.predict_std(x), 0.5 * bound)
    watts = np.clip(1 + power.predict_mean(compute_reduction(gears, default_limit)), 0.05, 1.2)
    saving_std = np.hypot(sigma, power.predict_std(compute_reduction(gears, default_limit)))
    return ResponseCurve(gears, expected, sigma, 1 - watts * (1 + expected), saving_std)


def _make_monotonic(over_falling_clock: Values) -> Values:
    """Slowdowns that never fall as the clock falls; gears ascend."""
    return np.asarray(np.maximum.accumulate(np.maximum(0.0, over_falling_clock[::-1]))[::-1])


def _fit_robust(
    x: Values, y: Values, error: Values, prior: CoefficientPrior, zero_error: float
) -> PolynomialFit:
    """A fit in which outliers (an evaluation, a pause) have less weight."""
    curve = fit_polynomial(x, y, error, prior, zero_error)
    if len(x) < 3:
        return curve
    for _ in range(2):
        sigma = np.sqrt(error**2 + zero_error**2 + curve.predict_std(x) ** 2)
        distance = np.abs(y - curve.predict_mean(x)) / sigma
        curve = fit_polynomial(x, y, error * np.maximum(1.0, distance / OUTLIER_SIGMAS), prior, zero_error)
    return curve


def compute_lengthening(limit: Values, default_limit: float) -> Values:
    """default / limit - 1, the relative lengthening of a clock cycle; 0 where the limit does not bind."""
    return np.asarray(np.maximum(0.0, default_limit / np.asarray(limit, float) - 1))


def compute_reduction(limit: Values, default_limit: float) -> Values:
    """1 - limit / default; 0 where the limit does not bind."""
    return np.asarray(np.maximum(0.0, 1 - np.asarray(limit, float) / default_limit))
