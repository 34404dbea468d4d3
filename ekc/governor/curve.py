"""Smooth curves through few noisy points: time and power of a job over its SM clock.

Bayesian least squares on polynomials: points weigh by their error, and what no point tells is left to a
prior, which is what recorded kernels do (`knob.py`) or what a model predicts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.samples import Values


@dataclass(frozen=True)
class Prior:
    """Normal beliefs about the coefficients of x, x^2, ...; at x = 0 stands the default, so no constant."""

    mean: tuple[float, ...]
    sigma: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """A polynomial without constant, and how sure."""

    weight: Values
    covariance: Values

    def at(self, x: Values) -> Values:
        """Expected value."""
        return np.asarray(_powers(x, len(self.weight)) @ self.weight)

    def sigma(self, x: Values) -> Values:
        """Standard deviation of that."""
        rows = _powers(x, len(self.weight))
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", rows, self.covariance, rows)))


def _powers(x: Values, count: int) -> Values:
    return np.asarray(np.asarray(x, float)[:, None] ** np.arange(1, count + 1)[None, :])


def fitted(x: Values, y: Values, error: Values, prior: Prior) -> Curve:
    """The curve after points (x, y) with standard errors; arrays of one length, which may be 0."""
    rows = _powers(x, len(prior.mean)) / np.asarray(error)[:, None]
    precision = rows.T @ rows + np.diag(1 / np.square(prior.sigma))
    covariance = np.linalg.inv(precision)
    told = rows.T @ (np.asarray(y) / np.asarray(error))
    weight = covariance @ (told + np.array(prior.mean) / np.square(prior.sigma))
    return Curve(np.asarray(weight, float), np.asarray(covariance, float))
