"""A Gaussian process over features: a mean and how sure it is, from few rows.

Matern 5/2 with one length per feature. Lengths, scale and noise are those that make the rows likeliest
(a few Adam steps on the log marginal likelihood, with weak log-normal priors), carried from fit to fit.

Two threads for what lets others run meanwhile: trees, and NumPy on large arrays. And one for BLAS.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from ekc.forks import hold_forks
from ekc.search.cost_model.xgboost_model import select_training_rows


@cache
def get_prediction_pool() -> ThreadPoolExecutor:
    """Started when first used, for each prediction is over in milliseconds. What they are given must not wait
    for them."""
    return ThreadPoolExecutor(2, "ekc-predict")


class _BlasLimit:
    """How many hold BLAS to one thread, and what lets go of it: None where BLAS has its threads."""

    def __init__(self) -> None:
        self.lock, self.user_count = Lock(), 0
        self.limiter: Any = None


_BLAS_LIMIT = _BlasLimit()


def _reset_after_fork() -> None:
    """A child has none of the threads, neither ours nor those that hold BLAS. What lets go of BLAS is kept:
    it knows how many threads BLAS had; the child finds one or, with OpenBLAS, as many as there are cores."""
    get_prediction_pool.cache_clear()
    _BLAS_LIMIT.user_count = 0


os.register_at_fork(after_in_child=_reset_after_fork)


@cache
def _get_blas_controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Matrices this small gain nothing from threads, which spin while they wait and cost a busy machine
    twenty times the work; and sums come out the same however many cores there are. The setting is that of the
    whole process, so the last of those that hold it at one time lets go."""
    with hold_forks(), _BLAS_LIMIT.lock:
        if not _BLAS_LIMIT.user_count:
            limiter = _get_blas_controller().limit(limits=1, user_api="blas")
            _BLAS_LIMIT.limiter = _BLAS_LIMIT.limiter or limiter
        _BLAS_LIMIT.user_count += 1
    try:
        yield
    finally:
        with hold_forks(), _BLAS_LIMIT.lock:
            _BLAS_LIMIT.user_count -= 1
            if not _BLAS_LIMIT.user_count:
                _BLAS_LIMIT.limiter.restore_original_limits()
                _BLAS_LIMIT.limiter = None


Array = NDArray[np.float64]

MAX_ROWS = 320
"""Rows kept: the cost of a fit grows with their cube. The best stay, and an even share of the rest."""
INITIAL_ADAM_STEPS, ADAM_STEPS, LEARNING_RATE = 60, 8, 0.1
CHUNK_ROWS = 1024
"""Rows predicted at once, for their covariances to stay in cache."""
BLOCK_COLUMNS = 64
"""Columns of a triangular matrix that are multiplied at once, by the rows that any of them has."""
CALIBRATION_SHRINKAGE = 4.0
"""Rows whose spreads proved right, that a prediction counts beside those alike."""
_JITTER, _MIN_SQUARED_DISTANCE = 1e-5, 1e-12
_LOWER_BOUNDS, _UPPER_BOUNDS = (-2.0, -3.0, -9.0), (6.0, 3.0, 0.0)
"""Bounds of log length, log scale, log noise, in units of the spread of features and of targets."""
_LOG_NOISE_MEAN, _LOG_NOISE_VARIANCE = -5.0, 4.0
"""Prior of the log noise: timings of one kernel differ little."""


@dataclass
class GaussianProcess:
    """Call `fit`, then `predict`. Deterministic: nothing in it is drawn."""

    _theta: Array = field(default_factory=lambda: np.zeros(0))
    """Log length per feature, log scale, log noise."""
    _rows: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def fit(self, rows: Array, targets: Array, squared_z_scores: Array | None = None) -> None:
        """Learn afresh from `rows[n, d]` and `targets[n]` (lower is better), n at least 2. `surprises[n]`:
        squared distance of each target from what was expected of it, in spreads; NaN where nothing was."""
        with one_blas_thread():
            self._fit(
                rows, targets, np.full(len(rows), np.nan) if squared_z_scores is None else squared_z_scores
            )

    def _fit(self, rows: Array, targets: Array, squared_z_scores: Array) -> None:
        kept = select_training_rows(targets, MAX_ROWS)
        rows, targets = rows[kept], targets[kept]
        self._feature_std = _compute_feature_std(rows)
        self._rows = rows / self._feature_std
        self._target_mean, self._target_std = float(targets.mean()), float(targets.std()) or 1.0
        z = (targets - self._target_mean) / self._target_std
        steps = ADAM_STEPS
        if len(self._theta) != rows.shape[1] + 2:
            self._theta, steps = _make_initial_theta(rows.shape[1]), INITIAL_ADAM_STEPS
        self._theta = _maximize_posterior(self._rows, z, self._theta, steps)
        covariance = _compute_covariance(self._rows, self._rows, self._theta)[0]
        covariance[np.diag_indices(len(z))] += _noise_variance(self._theta)
        whiten = np.tril(np.linalg.inv(np.linalg.cholesky(covariance)))
        self._posterior = self._make_posterior(whiten, z, squared_z_scores[kept])

    def _make_posterior(self, whitening: Array, z: Array, squared_z_scores: Array) -> _Posterior:
        middle = self._rows.mean(axis=0)
        near = (self._rows - middle) * np.exp(-self._theta[:-2])
        twice = np.ascontiguousarray(-2 * near.T, dtype=np.float32)
        squares = np.square(near).sum(axis=1).astype(np.float32)
        told = np.isfinite(squared_z_scores)
        beyond = np.stack([np.where(told, squared_z_scores - 1.0, 0.0), told], axis=1) / math.exp(
            self._theta[-2]
        )
        return _Posterior(
            middle, twice, squares, whitening.T @ (whitening @ z), np.ascontiguousarray(whitening.T), beyond
        )

    def predict(self, rows: Array) -> tuple[Array, Array, Array]:
        """(mean, standard deviation, squared surprise) of the target at each row. The last is the mean of
        what the rows alike were, each by how alike it is, beside `FAITH` rows of 1."""
        mean, known = np.empty(len(rows)), np.empty(len(rows))
        surprise = np.empty(len(rows))

        def predict(start: int) -> None:
            chunk = slice(start, start + CHUNK_ROWS)
            across = self._compute_cross_covariance(rows[chunk]).astype(np.float64)
            mean[chunk] = across @ self._posterior.weights
            known[chunk] = _compute_explained_variance(across, self._posterior.whitening)
            beyond, alike = (across @ self._posterior.calibration_terms).T
            surprise[chunk] = 1.0 + beyond / (CALIBRATION_SHRINKAGE + alike)

        with one_blas_thread():
            list(get_prediction_pool().map(predict, range(0, len(rows), CHUNK_ROWS)))
        left = np.maximum(math.exp(self._theta[-2]) - known, 1e-9)
        return mean * self._target_std + self._target_mean, np.sqrt(left) * self._target_std, surprise

    @property
    def is_fitted(self) -> bool:
        """Whether anything was learned."""
        return len(self._rows) > 0

    def predict_correlation(self, rows: Array) -> Array:
        """Of what measurements of the targets at each pair of rows will say and nobody knows yet, their noise
        included. Before the first fit lengths are the prior's, in units of the spread of these rows."""
        with one_blas_thread():
            theta = self._theta if self.is_fitted else _make_initial_theta(rows.shape[1])
            near = rows / (self._feature_std if self.is_fitted else _compute_feature_std(rows))
            left = _compute_covariance(near, near, theta)[0]
            if self.is_fitted:
                told = self._compute_cross_covariance(rows).astype(np.float64) @ self._posterior.whitening
                left -= told @ told.T
        at = np.diag_indices(len(rows))
        left[at] = np.maximum(left[at], 0.0) + _noise_variance(theta)
        spread = np.sqrt(left[at])
        return np.asarray(left / np.outer(spread, spread))

    def _compute_cross_covariance(self, rows: Array) -> NDArray[np.float32]:
        """Covariance between rows and those learned from."""
        near = ((rows / self._feature_std - self._posterior.center) * np.exp(-self._theta[:-2])).astype(
            np.float32
        )
        squared = near @ self._posterior.negated_twice_rows
        squared += np.square(near).sum(axis=1)[:, None]
        squared += self._posterior.squared_norms
        return _apply_matern(np.maximum(squared, np.float32(_MIN_SQUARED_DISTANCE), out=squared), self._theta)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """What a prediction needs of the rows learned from. Distances are taken about their middle and in single
    precision, for populations are large; what is solved with is not, for it amplifies."""

    center: Array
    negated_twice_rows: NDArray[np.float32]
    """[d, n]: minus twice the rows, in lengths."""
    squared_norms: NDArray[np.float32]
    weights: Array
    whitening: Array
    """[n, n], upper triangular."""
    calibration_terms: Array
    """[n, 2]: by how much each squared surprise is above 1, and whether there was one; over the scale."""


def _compute_explained_variance(cross_covariance: Array, whitening: Array) -> Array:
    """The sum of squares of each row of `across @ whiten`, without the products below the diagonal."""
    total = np.zeros(len(cross_covariance))
    for low in range(0, len(whitening), BLOCK_COLUMNS):
        high = min(low + BLOCK_COLUMNS, len(whitening))
        part = cross_covariance[:, :high] @ whitening[:high, low:high]
        total += np.einsum("ij,ij->i", part, part)
    return total


def _apply_matern(squared_distance: NDArray[np.float32], theta: Array) -> NDArray[np.float32]:
    """Matern 5/2 of squared distances, which it uses up: one pass after the other, in place."""
    squared_distance *= 5
    r = np.sqrt(squared_distance, out=squared_distance)
    falling = np.exp(-r)
    falling *= np.float32(math.exp(theta[-2]))
    factor = r / 3
    factor += 1
    factor *= r
    factor += 1
    falling *= factor
    return falling


def _compute_feature_std(rows: Array) -> Array:
    """The spread of each feature, which distances are counted in."""
    spread = rows.std(axis=0)
    return np.where(spread > 0, spread, 1.0)


def _make_initial_theta(feature_count: int) -> Array:
    return np.concatenate(
        [np.full(feature_count, _prior_log_length(feature_count)), [0.0, _LOG_NOISE_MEAN + 0.4]]
    )


def _prior_log_length(feature_count: int) -> float:
    """Prior of the log length: the more features, the longer, so that distances stay alike."""
    return 0.7 + 0.5 * math.log(max(feature_count, 10) / 10)


def _noise_variance(theta: Array) -> float:
    return math.exp(theta[-1]) + _JITTER


def _compute_covariance(a: Array, b: Array, theta: Array) -> tuple[Array, Array]:
    """Matern 5/2 between rows, and its derivative by the squared distance."""
    inverse, scale = np.exp(-theta[:-2]), math.exp(theta[-2])
    x, y = a * inverse, b * inverse
    squared = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1)[None, :] - 2 * (x @ y.T)
    r = np.sqrt(5 * np.maximum(squared, _MIN_SQUARED_DISTANCE))
    falling = scale * np.exp(-r)
    return (1 + r + r * r / 3) * falling, -(5 / 6) * (1 + r) * falling


def _maximize_posterior(rows: Array, z: Array, theta: Array, steps: int) -> Array:
    """Adam on the negative log posterior of the parameters."""
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    width = len(theta) - 2
    least = np.concatenate([np.full(width, _LOWER_BOUNDS[0]), _LOWER_BOUNDS[1:]])
    most = np.concatenate([np.full(width, _UPPER_BOUNDS[0]), _UPPER_BOUNDS[1:]])
    for step in range(1, steps + 1):
        slope = _compute_gradient(rows, z, theta)
        first = 0.9 * first + 0.1 * slope
        second = 0.99 * second + 0.01 * slope * slope
        move = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-9)
        theta = np.clip(theta - LEARNING_RATE * move, least, most)
    return theta


def _compute_gradient(rows: Array, z: Array, theta: Array) -> Array:
    covariance, by_distance = _compute_covariance(rows, rows, theta)
    noisy = covariance + _noise_variance(theta) * np.eye(len(z))
    inverse = np.linalg.inv(noisy)
    weights = inverse @ z
    by_covariance = 0.5 * (inverse - np.outer(weights, weights))
    pull = by_covariance * by_distance
    # Sum over pairs of pull x (difference in one feature) squared, without a pairs x features array.
    apart = 2 * (np.square(rows).T @ pull.sum(axis=1) - (rows * (pull @ rows)).sum(axis=0))
    lengths = -2 * np.exp(-2 * theta[:-2]) * apart + (theta[:-2] - _prior_log_length(rows.shape[1]))
    scale = (by_covariance * covariance).sum() + theta[-2]
    noise = (
        np.trace(by_covariance) * math.exp(theta[-1]) + (theta[-1] - _LOG_NOISE_MEAN) / _LOG_NOISE_VARIANCE
    )
    return np.concatenate([lengths, [scale, noise]])
