"""Smooth curves through few noisy points: time and power of a job over its SM clock.

Bayesian least squares on polynomials: points weigh by their error, and what no point tells is left to a
prior, which is what recorded kernels do (`knob.py`) or what a model predicts.

What a search turns: the limit of the SM clock or, where clocks cannot be set, the power cap.

What is believed of every gear of a knob after some readings: slowdown, how sure, and joules saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor import objective
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, Settings
from ekc.governor.readings import PhaseReadings
from ekc.governor.samples import Values

MIN_ZERO_ERROR = 1e-4
"""No zero is known better."""


@dataclass(frozen=True)
class CoefficientPrior:
    """Normal beliefs about the coefficients of x, x^2, ...; at x = 0 stands the default, so no constant."""

    mean: tuple[float, ...]
    sigma: tuple[float, ...]


@dataclass(frozen=True)
class PolynomialFit:
    """A polynomial without constant, and how sure."""

    weights: Values
    covariance: Values

    def predict_mean(self, x: Values) -> Values:
        """Expected value."""
        return np.asarray(_build_powers(x, len(self.weights)) @ self.weights)

    def predict_std(self, x: Values) -> Values:
        """Standard deviation of that."""
        rows = _build_powers(x, len(self.weights))
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", rows, self.covariance, rows)))


def _build_powers(x: Values, count: int) -> Values:
    return np.asarray(np.asarray(x, float)[:, None] ** np.arange(1, count + 1)[None, :])


def fit_polynomial(
    x: Values, y: Values, error: Values, prior: CoefficientPrior, zero_error: float = MIN_ZERO_ERROR
) -> PolynomialFit:
    """The curve after points (x, y) with standard errors; arrays of one length, which may be 0.

    `shared`: standard error of the zero that all points are held against. It is found along with the curve,
    so that it makes all of them unsure together.
    """
    count = len(prior.mean)
    rows = np.column_stack([_build_powers(x, count), np.ones(len(x))]) / np.asarray(error)[:, None]
    sigma = np.array([*prior.sigma, max(zero_error, MIN_ZERO_ERROR)])
    covariance = np.linalg.inv(rows.T @ rows + np.diag(1 / sigma**2))
    told = rows.T @ (np.asarray(y) / np.asarray(error))
    weight = covariance @ (told + np.array([*prior.mean, 0.0]) / sigma**2)
    return PolynomialFit(np.asarray(weight[:count], float), np.asarray(covariance[:count, :count], float))


@dataclass(frozen=True)
class ControlVariable:
    """One limit, and what is believed of its effect before anything was read.

    Beliefs are over x = default / limit - 1 for time, and over y = 1 - limit / default for power, where the
    default is the clock at which the job runs, or the watts that its kernels draw, without the limit.
    """

    name: str
    time_prior: CoefficientPrior
    power_prior: CoefficientPrior
    is_bounded: bool
    """Whether kernels can be slowed by no more than the limit was lowered."""

    def select_gears(self, gears: Gears) -> Values:
        """Where it can be set, ascending."""
        return np.array(gears.sm_mhz if self.name == "sm" else gears.power_w, float)

    def get_default_value(self, readings: PhaseReadings) -> float:
        """Where the default stands on its scale."""
        return (
            readings.get_default_clock_mhz()
            if self.name == "sm"
            else CAP_MARGIN * readings.get_default_watts()
        )

    def get_value(self, settings: Settings) -> float | None:
        """Its value in settings."""
        return settings.sm_mhz if self.name == "sm" else settings.power_w

    def make_settings(self, value: float, memory_mhz: int | None = None) -> Settings:
        """Set so."""
        if self.name == "sm":
            return Settings(sm_mhz=int(value), memory_mhz=memory_mhz)
        return Settings(power_w=float(value), memory_mhz=memory_mhz)


CAP_MARGIN = 1.25
"""A cap is felt before the mean comes near it: some kernels draw more than the mean (estimate)."""
SM_CLOCK = ControlVariable(
    "sm", CoefficientPrior((0.6, 0.3), (0.35, 0.6)), CoefficientPrior((-1.3, 0.4, 0.0), (0.7, 1.5, 2.0)), True
)
"""Recorded kernels (`jobs/facts.py`): time follows 0.55 to 1 of the clock at its top, and more below."""
POWER_CAP = ControlVariable(
    "cap",
    CoefficientPrior((0.2, 0.5), (0.4, 0.8)),
    CoefficientPrior((-0.5, -0.5, 0.0), (0.4, 1.0, 1.5)),
    False,
)
"""A watt less costs little time at first, and more and more: power follows about the cube of the clock."""


def choose_control(gears: Gears) -> ControlVariable:
    """What there is to turn; clocks before caps."""
    return SM_CLOCK if gears.sm_mhz or not gears.power_w else POWER_CAP


OUTLIER_SIGMAS = 1.5
"""Standard deviations from the curve beyond which a reading loses weight."""

CONFIDENT_SIGMA = 0.007
"""Standard deviation of a slowdown up to which it counts as known."""
CAUTION_FACTOR = 0.5
"""Of what it is beyond that, added to the slowdown."""


@dataclass(frozen=True)
class ResponsePrior:
    """What is expected before any reading of a phase: by the knob, or by a model."""

    time: CoefficientPrior
    power: CoefficientPrior


@dataclass(frozen=True)
class ResponseCurve:
    """Arrays over the gears, ascending."""

    gears: Values
    slowdown: Values
    slowdown_std: Values
    saving: Values
    saving_std: Values

    def choose_index(self, policy: Policy) -> int:
        """Place of the best gear that is believed to keep its budget; the top one where none does.

        What is known well is taken at its word; where progress is hard to tell, a choice keeps its distance.
        """
        best = objective.find_best(
            policy, add_uncertainty_margin(self.slowdown, self.slowdown_std), self.saving
        )
        return len(self.gears) - 1 if best is None else best


def add_uncertainty_margin(slowdown: Values | float, sigma: Values | float) -> Values:
    """The slowdown that is reckoned with: what is not known well is taken for more."""
    return np.asarray(slowdown + CAUTION_FACTOR * np.maximum(0.0, np.asarray(sigma) - CONFIDENT_SIGMA))


def fit_response_curve(
    readings: PhaseReadings,
    control: ControlVariable,
    gears: Values,
    prior: ResponsePrior,
    default_limit: float,
    memory_mhz: int | None,
) -> ResponseCurve:
    """Beliefs and readings at one memory clock, joined; `base` is the default on the knob's scale."""
    points = [
        r
        for r in readings.other_readings
        if r.settings.memory_mhz == memory_mhz and control.get_value(r.settings)
    ]
    outcomes = [readings.compare_to_default(r) for r in points]
    at = np.array([control.get_value(r.settings) for r in points], float)
    told = np.array([np.isfinite(o.slowdown) for o in outcomes], bool)
    slowdown = np.array([o.slowdown for o in outcomes])[told]
    error = np.array([o.slowdown_error for o in outcomes])[told]
    shared = float(np.median([o.default_error for o in outcomes if np.isfinite(o.slowdown)] or [0.0]))
    time = _fit_robust(compute_lengthening(at[told], default_limit), slowdown, error, prior.time, shared)
    power_error = np.array([o.power_error for o in outcomes])
    power = _fit_robust(
        compute_reduction(at, default_limit),
        np.array([o.power_ratio for o in outcomes]) - 1,
        power_error,
        prior.power,
        0.0,
    )
    # Kernels can take no longer than all of them following the clock: a bound that no noise can break.
    x = compute_lengthening(gears, default_limit)
    bound = readings.get_default_sm_util() * x if control.is_bounded else 3 * x
    expected = (
        np.minimum(_make_monotonic(time.predict_mean(x)), bound) if told.any() or not len(told) else bound
    )
    sigma = np.minimum(time.predict_std(x), 0.5 * bound)
    watts = np.clip(1 + power.predict_mean(compute_reduction(gears, default_limit)), 0.05, 1.2)
    unsure = np.hypot(sigma, power.predict_std(compute_reduction(gears, default_limit)))
    return ResponseCurve(gears, expected, sigma, 1 - watts * (1 + expected), unsure)


def _make_monotonic(over_falling_clock: Values) -> Values:
    """A lower clock is never faster; gears ascend."""
    return np.asarray(np.maximum.accumulate(np.maximum(0.0, over_falling_clock[::-1]))[::-1])


def _fit_robust(
    x: Values, y: Values, error: Values, prior: CoefficientPrior, zero_error: float
) -> PolynomialFit:
    """A curve that a stray reading (an evaluation, a pause) moves little: what lies far off counts for
    less."""
    curve = fit_polynomial(x, y, error, prior, zero_error)
    if len(x) < 3:
        return curve
    for _ in range(2):
        far = np.abs(y - curve.predict_mean(x)) / np.sqrt(
            error**2 + zero_error**2 + curve.predict_std(x) ** 2
        )
        curve = fit_polynomial(x, y, error * np.maximum(1.0, far / OUTLIER_SIGMAS), prior, zero_error)
    return curve


def compute_lengthening(limit: Values, default_limit: float) -> Values:
    """Default over limit, less 1: how much longer a cycle takes; 0 where the limit does not bind."""
    return np.asarray(np.maximum(0.0, default_limit / np.asarray(limit, float) - 1))


def compute_reduction(limit: Values, default_limit: float) -> Values:
    """By what share a limit is below the default; 0 where it does not bind."""
    return np.asarray(np.maximum(0.0, 1 - np.asarray(limit, float) / default_limit))
