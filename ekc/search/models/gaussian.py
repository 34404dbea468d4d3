"""A Gaussian process over features: a mean and how sure it is, from few rows.

Matern 5/2 with one length per feature. Lengths, scale and noise are those that make the rows likeliest
(a few Adam steps on the log marginal likelihood, with weak log-normal priors), carried from fit to fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.models.selection import best_and_even
from ekc.search.models.threads import one_blas_thread, predictors

Array = NDArray[np.float64]

MOST_ROWS = 320
"""Rows kept: the cost of a fit grows with their cube. The best stay, and an even share of the rest."""
FIRST_STEPS, STEPS, RATE = 60, 8, 0.1
CHUNK = 1024
"""Rows predicted at once, for their covariances to stay in cache."""
BLOCK = 64
"""Columns of a triangular matrix that are multiplied at once, by the rows that any of them has."""
FAITH = 4.0
"""Rows whose spreads proved right, that a prediction counts beside those alike."""
_JITTER, _LEAST_APART = 1e-5, 1e-12
_LEAST, _MOST = (-2.0, -3.0, -9.0), (6.0, 3.0, 0.0)
"""Bounds of log length, log scale, log noise, in units of the spread of features and of targets."""
_NOISE, _NOISE_VARIANCE = -5.0, 4.0
"""Prior of the log noise: timings of one kernel differ little."""


@dataclass
class GaussianProcess:
    """Call `fit`, then `predict`. Deterministic: nothing in it is drawn."""

    _theta: Array = field(default_factory=lambda: np.zeros(0))
    """Log length per feature, log scale, log noise."""
    _rows: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def fit(self, rows: Array, targets: Array, surprises: Array | None = None) -> None:
        """Learn afresh from `rows[n, d]` and `targets[n]` (lower is better), n at least 2. `surprises[n]`:
        squared distance of each target from what was expected of it, in spreads; NaN where nothing was."""
        with one_blas_thread():
            self._fit(rows, targets, np.full(len(rows), np.nan) if surprises is None else surprises)

    def _fit(self, rows: Array, targets: Array, surprises: Array) -> None:
        kept = best_and_even(targets, MOST_ROWS)
        rows, targets = rows[kept], targets[kept]
        self._unit = _unit(rows)
        self._rows = rows / self._unit
        self._mean, self._spread = float(targets.mean()), float(targets.std()) or 1.0
        z = (targets - self._mean) / self._spread
        steps = STEPS
        if len(self._theta) != rows.shape[1] + 2:
            self._theta, steps = _start(rows.shape[1]), FIRST_STEPS
        self._theta = _likeliest(self._rows, z, self._theta, steps)
        covariance = _covariance(self._rows, self._rows, self._theta)[0]
        covariance[np.diag_indices(len(z))] += _noise(self._theta)
        whiten = np.tril(np.linalg.inv(np.linalg.cholesky(covariance)))
        self._known = self._prepared(whiten, z, surprises[kept])

    def _prepared(self, whiten: Array, z: Array, surprises: Array) -> _Known:
        middle = self._rows.mean(axis=0)
        near = (self._rows - middle) * np.exp(-self._theta[:-2])
        twice = np.ascontiguousarray(-2 * near.T, dtype=np.float32)
        squares = np.square(near).sum(axis=1).astype(np.float32)
        told = np.isfinite(surprises)
        beyond = np.stack([np.where(told, surprises - 1.0, 0.0), told], axis=1) / math.exp(self._theta[-2])
        return _Known(middle, twice, squares, whiten.T @ (whiten @ z), np.ascontiguousarray(whiten.T), beyond)

    def predict(self, rows: Array) -> tuple[Array, Array, Array]:
        """(mean, standard deviation, squared surprise) of the target at each row. The last is the mean of
        what the rows alike were, each by how alike it is, beside `FAITH` rows of 1."""
        mean, known = np.empty(len(rows)), np.empty(len(rows))
        surprise = np.empty(len(rows))

        def predict(start: int) -> None:
            chunk = slice(start, start + CHUNK)
            across = self._across(rows[chunk]).astype(np.float64)
            mean[chunk] = across @ self._known.weights
            known[chunk] = _explained(across, self._known.whiten)
            beyond, alike = (across @ self._known.surprises).T
            surprise[chunk] = 1.0 + beyond / (FAITH + alike)

        with one_blas_thread():
            list(predictors().map(predict, range(0, len(rows), CHUNK)))
        left = np.maximum(math.exp(self._theta[-2]) - known, 1e-9)
        return mean * self._spread + self._mean, np.sqrt(left) * self._spread, surprise

    @property
    def fitted(self) -> bool:
        """Whether anything was learned."""
        return len(self._rows) > 0

    def correlation(self, rows: Array) -> Array:
        """Of what measurements of the targets at each pair of rows will say and nobody knows yet, their noise
        included. Before the first fit lengths are the prior's, in units of the spread of these rows."""
        with one_blas_thread():
            theta = self._theta if self.fitted else _start(rows.shape[1])
            near = rows / (self._unit if self.fitted else _unit(rows))
            left = _covariance(near, near, theta)[0]
            if self.fitted:
                told = self._across(rows).astype(np.float64) @ self._known.whiten
                left -= told @ told.T
        at = np.diag_indices(len(rows))
        left[at] = np.maximum(left[at], 0.0) + _noise(theta)
        spread = np.sqrt(left[at])
        return np.asarray(left / np.outer(spread, spread))

    def _across(self, rows: Array) -> NDArray[np.float32]:
        """Covariance between rows and those learned from."""
        near = ((rows / self._unit - self._known.middle) * np.exp(-self._theta[:-2])).astype(np.float32)
        squared = near @ self._known.twice
        squared += np.square(near).sum(axis=1)[:, None]
        squared += self._known.squares
        return _matern(np.maximum(squared, np.float32(_LEAST_APART), out=squared), self._theta)


@dataclass(frozen=True, eq=False)
class _Known:
    """What a prediction needs of the rows learned from. Distances are taken about their middle and in single
    precision, for populations are large; what is solved with is not, for it amplifies."""

    middle: Array
    twice: NDArray[np.float32]
    """[d, n]: minus twice the rows, in lengths."""
    squares: NDArray[np.float32]
    weights: Array
    whiten: Array
    """[n, n], upper triangular."""
    surprises: Array
    """[n, 2]: by how much each squared surprise is above 1, and whether there was one; over the scale."""


def _explained(across: Array, whiten: Array) -> Array:
    """The sum of squares of each row of `across @ whiten`, without the products below the diagonal."""
    total = np.zeros(len(across))
    for low in range(0, len(whiten), BLOCK):
        high = min(low + BLOCK, len(whiten))
        part = across[:, :high] @ whiten[:high, low:high]
        total += np.einsum("ij,ij->i", part, part)
    return total


def _matern(squared: NDArray[np.float32], theta: Array) -> NDArray[np.float32]:
    """Matern 5/2 of squared distances, which it uses up: one pass after the other, in place."""
    squared *= 5
    r = np.sqrt(squared, out=squared)
    falling = np.exp(-r)
    falling *= np.float32(math.exp(theta[-2]))
    factor = r / 3
    factor += 1
    factor *= r
    factor += 1
    falling *= factor
    return falling


def _unit(rows: Array) -> Array:
    """The spread of each feature, which distances are counted in."""
    spread = rows.std(axis=0)
    return np.where(spread > 0, spread, 1.0)


def _start(width: int) -> Array:
    return np.concatenate([np.full(width, _length(width)), [0.0, _NOISE + 0.4]])


def _length(width: int) -> float:
    """Prior of the log length: the more features, the longer, so that distances stay alike."""
    return 0.7 + 0.5 * math.log(max(width, 10) / 10)


def _noise(theta: Array) -> float:
    return math.exp(theta[-1]) + _JITTER


def _covariance(a: Array, b: Array, theta: Array) -> tuple[Array, Array]:
    """Matern 5/2 between rows, and its derivative by the squared distance."""
    inverse, scale = np.exp(-theta[:-2]), math.exp(theta[-2])
    x, y = a * inverse, b * inverse
    squared = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1)[None, :] - 2 * (x @ y.T)
    r = np.sqrt(5 * np.maximum(squared, _LEAST_APART))
    falling = scale * np.exp(-r)
    return (1 + r + r * r / 3) * falling, -(5 / 6) * (1 + r) * falling


def _likeliest(rows: Array, z: Array, theta: Array, steps: int) -> Array:
    """Adam on the negative log posterior of the parameters."""
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    width = len(theta) - 2
    least = np.concatenate([np.full(width, _LEAST[0]), _LEAST[1:]])
    most = np.concatenate([np.full(width, _MOST[0]), _MOST[1:]])
    for step in range(1, steps + 1):
        slope = _slope(rows, z, theta)
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope * slope
        move = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-9)
        theta = np.clip(theta - RATE * move, least, most)
    return theta


def _slope(rows: Array, z: Array, theta: Array) -> Array:
    covariance, by_distance = _covariance(rows, rows, theta)
    noisy = covariance + _noise(theta) * np.eye(len(z))
    inverse = np.linalg.inv(noisy)
    weights = inverse @ z
    by_covariance = 0.5 * (inverse - np.outer(weights, weights))
    pull = by_covariance * by_distance
    # Sum over pairs of pull x (difference in one feature) squared, without a pairs x features array.
    apart = 2 * (np.square(rows).T @ pull.sum(axis=1) - (rows * (pull @ rows)).sum(axis=0))
    lengths = -2 * np.exp(-2 * theta[:-2]) * apart + (theta[:-2] - _length(rows.shape[1]))
    scale = (by_covariance * covariance).sum() + theta[-2]
    noise = np.trace(by_covariance) * math.exp(theta[-1]) + (theta[-1] - _NOISE) / _NOISE_VARIANCE
    return np.concatenate([lengths, [scale, noise]])
