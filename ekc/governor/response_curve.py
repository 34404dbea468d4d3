"""Slowdown and saving of a job over its SM clock or power cap, fitted to a few noisy readings.

Readings weigh by their errors, and a prior fills in where there are none: a `GaussianProcess`. The prior
comes from recorded jobs (`SM_CLOCK`, `POWER_CAP`). The fitted variable is the limit of the SM
clock or, where clocks cannot be set, the power cap.

A curve is a polynomial without constant, plus a random walk (a limit that begins to bind bends a curve where
no polynomial does), plus a deviation of each single setting. All readings are relative to one more unknown,
the error of the default, which is estimated along with the curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.gaussian_process import GaussianProcess
from ekc.governor.protocols import OfferedSettings, Settings
from ekc.governor.readings import MIN_ERROR, JobReading, PhaseReadings
from ekc.governor.samples import Values

MIN_CURVE_ERROR = 1e-4
"""Least standard error of a reading or of the default, so that matrices can be inverted."""
SAME_X = 1e-9
"""Difference of x below which two readings are of one setting."""
OUTLIER_SIGMAS = 1.5
"""Standard deviations from the curve beyond which a reading loses weight."""


@dataclass(frozen=True)
class CoefficientPrior:
    """Normal prior of a curve: the coefficients of x, x^2, ..., and its departures from a polynomial. There
    is no constant, since x = 0 is the default."""

    mean: tuple[float, ...]
    sigma: tuple[float, ...]
    """Standard deviation of each coefficient."""
    roughness: float = 0.0
    """Standard deviation of a random walk along x, at x = 1."""
    jitter: float = 0.0
    """Standard deviation of the departure of each single x > 0."""

    def compute_covariance(self, x: Values, other: Values) -> Values:
        """Prior covariance of the curve at `x` (rows) and at `other` (columns)."""
        count = len(self.mean)
        powers = _build_powers(x, count) * np.array(self.sigma) ** 2 @ _build_powers(other, count).T
        walk = self.roughness**2 * np.minimum.outer(x, other)
        same = (np.abs(x[:, None] - other[None, :]) < SAME_X) & (other > 0)
        return np.asarray(powers + walk + self.jitter**2 * same)

    def predict_mean(self, x: Values) -> Values:
        """Prior mean at each x."""
        return np.asarray(_build_powers(x, len(self.mean)) @ np.array(self.mean))


@dataclass(frozen=True)
class CurveFit:
    """A fitted curve at given x; arrays of one length."""

    mean: Values
    variance: Values
    zero_covariance: Values
    """Covariance with the error of the default."""
    zero_variance: float
    """Variance of the error of the default."""

    def predict_shift(self, error: float) -> Values:
        """Standard deviation by which one more reading at x, with standard error `error`, moves the mean."""
        covariance = self.variance + self.zero_covariance
        total = covariance + self.zero_covariance + self.zero_variance + error**2
        return np.asarray(np.abs(covariance) / np.sqrt(np.maximum(total, MIN_CURVE_ERROR**2)))

    def predict_shift_by_default(self, error: float) -> Values:
        """The same by one more reading of the default."""
        return np.asarray(np.abs(self.zero_covariance) / np.sqrt(self.zero_variance + error**2))


def _build_powers(x: Values, count: int) -> Values:
    return np.asarray(np.asarray(x, float)[:, None] ** np.arange(1, count + 1)[None, :])


def fit_curve(
    x: Values, y: Values, error: Values, at: Values, prior: CoefficientPrior, zero_error: float = 0.0
) -> CurveFit:
    """The curve at `at` after points (x, y) with standard errors `error`; arrays of one length, 0 or more.

    `zero_error`: standard error of the zero that all points share. It is estimated along with the curve.
    """
    zero = max(zero_error, MIN_CURVE_ERROR) ** 2
    noise = np.maximum(error, MIN_CURVE_ERROR) ** 2
    covariance = prior.compute_covariance(x, x) + zero + np.diag(noise)
    process = GaussianProcess(covariance, y - prior.predict_mean(x))
    cross, zero_cross = prior.compute_covariance(at, x), np.full((1, len(x)), zero)
    variance = np.diag(prior.compute_covariance(at, at)) - process.compute_explained_variance(cross)
    return CurveFit(
        prior.predict_mean(at) + process.predict_mean(cross),
        np.maximum(variance, 0.0),
        -process.compute_explained_covariance(cross, zero_cross)[:, 0],
        float(zero - process.compute_explained_variance(zero_cross)[0]),
    )


def fit_robust_curve(
    x: Values, y: Values, error: Values, at: Values, prior: CoefficientPrior, zero_error: float = 0.0
) -> CurveFit:
    """`fit_curve` in which outliers (an evaluation, a pause) have less weight."""
    if len(x) < 3:
        return fit_curve(x, y, error, at, prior, zero_error)
    weighted = error
    for _ in range(2):
        curve = fit_curve(x, y, weighted, x, prior, zero_error)
        sigma = np.sqrt(error**2 + zero_error**2 + curve.variance)
        weighted = error * np.maximum(1.0, np.abs(y - curve.mean) / sigma / OUTLIER_SIGMAS)
    return fit_curve(x, y, weighted, at, prior, zero_error)


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

    def select_values(self, offered: OfferedSettings) -> Values:
        """Values that can be set on a card, ascending."""
        return np.array(offered.sm_mhz if self.name == "sm" else offered.power_w, float)

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
SLOWDOWN_ROUGHNESS, POWER_ROUGHNESS = 0.04, 0.08
"""Random walks of slowdown and power about their polynomials, fitted to half of the recorded sweeps."""
SM_CLOCK = ControlVariable(
    "sm",
    CoefficientPrior((0.6, 0.3), (0.35, 0.6), SLOWDOWN_ROUGHNESS),
    CoefficientPrior((-1.3, 0.4, 0.0), (0.7, 1.5, 2.0), POWER_ROUGHNESS),
    True,
)
"""Prior from recorded kernels: 0.55 to 1 of the time follows the clock at the top, and more below."""
POWER_CAP = ControlVariable(
    "cap",
    CoefficientPrior((0.1, 0.3), (0.2, 0.4), SLOWDOWN_ROUGHNESS, 0.015),
    CoefficientPrior((-0.5, -0.5, 0.0), (0.4, 1.0, 1.5), POWER_ROUGHNESS, 0.02),
    False,
)
"""Slowdown grows faster than the cap is lowered: power follows about the cube of the clock. Fitted likewise;
recorded epochs depart from any curve by 1.5 % of time and 2 % of power."""


def choose_control(offered: OfferedSettings) -> ControlVariable:
    """The limit to search: the clock, or the cap where clocks cannot be set."""
    return SM_CLOCK if offered.sm_mhz or not offered.power_w else POWER_CAP


@dataclass(frozen=True)
class ResponseCurve:
    """Expected slowdown and saving at each value; arrays of one length."""

    values: Values
    """Values of the limit, ascending."""
    slowdown: Values
    """Additional time, as a share of the default's."""
    slowdown_std: Values
    saving: Values
    """Joules saved, as a share of the default's."""
    saving_std: Values
    time: CurveFit
    """Fit of the slowdown, before bounds."""
    power: CurveFit
    """Fit of the power's change, as a share of the default's."""
    time_error: float
    """Standard error of one more reading of the slowdown."""
    power_error: float


def fit_response_curve(
    readings: PhaseReadings,
    control: ControlVariable,
    values: Values,
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
    x, reduction = compute_lengthening(values, default_limit), compute_reduction(values, default_limit)
    time = fit_robust_curve(
        compute_lengthening(limit[has_slowdown], default_limit),
        slowdown,
        error,
        x,
        control.time_prior,
        shared,
    )
    power_error = np.array([o.power_error for o in outcomes])
    power_change = np.array([o.power_ratio for o in outcomes]) - 1
    power = fit_robust_curve(
        compute_reduction(limit, default_limit), power_change, power_error, reduction, control.power_prior
    )
    # Upper bound: all kernels follow the clock. It limits the effect of noise. A lower memory clock may slow
    # them further.
    is_bounded = control.is_bounded and memory_mhz is None
    bound = readings.get_default_sm_util() * x if is_bounded else 3 * x
    is_measured = has_slowdown.any() or not len(has_slowdown)
    expected = np.minimum(_make_monotonic(time.mean), bound) if is_measured else bound
    sigma = np.minimum(np.sqrt(time.variance), 0.5 * bound)
    # A tighter limit draws no more power.
    watts = np.clip(np.minimum.accumulate(1 + power.mean[::-1])[::-1], 0.05, 1.0)
    saving_std = np.hypot(sigma, np.sqrt(power.variance))
    errors = [float(np.median(e)) if len(e) else MIN_ERROR for e in (error, power_error)]
    return ResponseCurve(
        values, expected, sigma, 1 - watts * (1 + expected), saving_std, time, power, *errors
    )


def _make_monotonic(over_falling_clock: Values) -> Values:
    """Slowdowns that never fall as the clock falls; values ascend."""
    return np.asarray(np.maximum.accumulate(np.maximum(0.0, over_falling_clock[::-1]))[::-1])


def compute_lengthening(limit: Values, default_limit: float) -> Values:
    """default / limit - 1, the relative lengthening of a clock cycle; 0 where the limit does not bind."""
    return np.asarray(np.maximum(0.0, default_limit / np.asarray(limit, float) - 1))


def compute_reduction(limit: Values, default_limit: float) -> Values:
    """1 - limit / default; 0 where the limit does not bind."""
    return np.asarray(np.maximum(0.0, 1 - np.asarray(limit, float) / default_limit))
