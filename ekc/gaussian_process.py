"""Gaussian process regression: a function from noisy values at some points, with standard deviations.

One class for all of ekc. Its users differ in covariance, mean and noise, which they compute themselves:

| of what | prior covariance | prior mean | noise |
|---|---|---|---|
| figures of kernels (`feature_process`) | Matern 5/2 over features | 0 | one, learned |
| kernels over clocks (`clock_model`) | of the log clock, shared and of each kernel | 0 | of each reading |
| a job over a limit (`response_curve`) | polynomial, random walk | polynomial | likewise, and the default's |

Arrays: n observed points, m points that are asked for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK_COLUMNS = 64
"""Columns of the triangular matrix that are multiplied at once."""
_TAIL_Z_SCORE = -6.0
"""Z-score below which the exact formula of the expected improvement loses its digits."""
_ERFC = np.frompyfunc(math.erfc, 1, 1)
_TAIL_PROBABILITY = 0.5 * math.erfc(-_TAIL_Z_SCORE / math.sqrt(2))


class GaussianProcess:
    """A Gaussian process after its observations. A query is the prior covariance of its m points with the n
    observed ones, `cross[m, n]`; a point may be any linear function of the process.

    `covariance[n, n]`: prior covariance of the observed values, noise included. Raises
    `numpy.linalg.LinAlgError` where it is not positive definite. `values[n]`: the observed values, less their
    prior mean. Either may be empty.
    """

    def __init__(self, covariance: Array, values: Array) -> None:
        inverse_root = np.tril(np.linalg.inv(np.linalg.cholesky(covariance)))
        self._weights = inverse_root.T @ (inverse_root @ values)
        self._whitening = np.ascontiguousarray(inverse_root.T)
        """[n, n]: inverse Cholesky factor of the covariance, upper triangular."""

    def predict_mean(self, cross: Array) -> Array:
        """[m]: posterior mean, less the prior mean."""
        return np.asarray(cross @ self._weights)

    def compute_explained_variance(self, cross: Array) -> Array:
        """[m]: variance that the observations take from the prior variance of each point."""
        # Sums of squares of `cross @ whitening`, without the products that are 0.
        total = np.zeros(len(cross))
        for low in range(0, len(self._whitening), BLOCK_COLUMNS):
            high = min(low + BLOCK_COLUMNS, len(self._whitening))
            part = cross[:, :high] @ self._whitening[:high, low:high]
            total += np.einsum("ij,ij->i", part, part)
        return total

    def compute_explained_covariance(self, cross: Array, other_cross: Array) -> Array:
        """[m, k]: what the observations take from the prior covariance of m points and k others."""
        return np.asarray((cross @ self._whitening) @ (other_cross @ self._whitening).T)

    def move_draws(self, draws: Array, missed: Array, cross: Array) -> Array:
        """Draws of the posterior from `draws[d, m]` of the prior (Matheron's rule). `missed[d, n]`: observed
        values less the values, with noise, of the same draws at the observed points."""
        return np.asarray(draws + self.compute_explained_covariance(missed, cross))


def normal_cdf(z: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution."""
    return 0.5 * np.asarray(_ERFC(-z / math.sqrt(2)), dtype=np.float64)


def log_expected_improvement(mean: Array, std: Array, best: Array | float) -> Array:
    """Log of the expected improvement E[max(best - x, 0)], x normal with this mean and standard deviation.

    `mean` and `best` are of figures, or of their logs, of which lower is better; of the result, higher is.
    """
    z = (best - mean) / std
    near = np.maximum(z, _TAIL_Z_SCORE)
    probability = np.full(z.shape, _TAIL_PROBABILITY)
    at = z > _TAIL_Z_SCORE
    probability[at] = normal_cdf(z[at])
    gain = near * probability + np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    # In the tail, two terms of the series: density / z^2 * (1 - 3 / z^2).
    far = np.minimum(z, _TAIL_Z_SCORE)
    tail = -z * z / 2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(-far) + np.log1p(-3 / far**2)
    return np.asarray(np.log(std) + np.where(at, np.log(gain), tail))
