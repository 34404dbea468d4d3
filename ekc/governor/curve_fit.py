"""A curve through a few noisy readings: Gaussian process regression over one variable.

The curve is a polynomial without constant, plus a random walk (a limit that begins to bind bends a curve
where no polynomial does), plus a deviation of each single setting. All readings are relative to one more
unknown, the error of the default, which is estimated along with the curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.samples import Values

MIN_ERROR = 1e-4
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
        return np.asarray(np.abs(covariance) / np.sqrt(np.maximum(total, MIN_ERROR**2)))

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
    zero = max(zero_error, MIN_ERROR) ** 2
    noise = np.maximum(error, MIN_ERROR) ** 2
    total = prior.compute_covariance(x, x) + zero + np.diag(noise)
    cross = prior.compute_covariance(at, x)
    solved = np.linalg.solve(total, np.column_stack([y - prior.predict_mean(x), np.ones(len(x)), cross.T]))
    variance = np.diag(prior.compute_covariance(at, at)) - np.einsum("ij,ji->i", cross, solved[:, 2:])
    return CurveFit(
        prior.predict_mean(at) + cross @ solved[:, 0],
        np.maximum(variance, 0.0),
        -zero * (cross @ solved[:, 1]),
        float(zero - zero**2 * solved[:, 1].sum()),
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
