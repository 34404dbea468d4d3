"""Smooth curves through few noisy points: time and power of a job over its SM clock.

Bayesian least squares on polynomials: points weigh by their error, and what no point tells is left to a
prior, which is what recorded kernels do (`knob.py`) or what a model predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
