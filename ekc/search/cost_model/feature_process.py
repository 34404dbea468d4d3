"""A `GaussianProcess` over features: mean and standard deviation of a target, learned from few rows.

The kernel is Matern 5/2 with one length scale per feature. Length scales, variance and noise maximise the log
marginal likelihood with weak log-normal priors: a few steps of Adam, continued from fit to fit.

Rows may be of several groups, such as the layers of a model. The covariance of rows of two groups is a fixed
share of what it is within a group (intrinsic coregionalization: Alvarez et al., arXiv 1106.6251). Predictions
are of group 0.

Threads: predictions run in two threads, since NumPy on large arrays releases the interpreter lock.
BLAS runs in one thread: `one_blas_thread`.
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
from ekc.gaussian_process import Array, GaussianProcess
from ekc.search.cost_model.row_weights import select_training_rows
from ekc.search.data.defaults import GAUSSIAN_PROCESS


@cache
def _get_prediction_pool() -> ThreadPoolExecutor:
    """The two threads of predictions, started on first use."""
    return ThreadPoolExecutor(2, "ekc-predict")


class _BlasLimit:
    """Number of users that hold BLAS to one thread, and the object that ends this; None: BLAS has its
    threads."""

    def __init__(self) -> None:
        self.lock, self.user_count = Lock(), 0
        self.limiter: Any = None


_BLAS_LIMIT = _BlasLimit()


def _reset_after_fork() -> None:
    """In a child process: no thread of the parent exists. The limiter is kept: it has the number of threads
    that BLAS had. The child would find one thread, or with OpenBLAS as many as there are cores."""
    _get_prediction_pool.cache_clear()
    _BLAS_LIMIT.user_count = 0


os.register_at_fork(after_in_child=_reset_after_fork)


@cache
def _get_blas_controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS in one thread. Small matrices gain nothing from threads, which spin while they wait and cost a
    busy machine twenty times the work; and sums are the same for any number of cores. The setting belongs to
    the process: the last of several simultaneous users restores it."""
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


_JITTER, _MIN_SQUARED_DISTANCE = 1e-5, 1e-12
_LOWER_BOUNDS, _UPPER_BOUNDS = (-2.0, -3.0, -9.0), (6.0, 3.0, 0.0)
"""Bounds of log length scale, log variance and log noise, in units of the standard deviations of the features
and of the targets."""
_LOG_NOISE_MEAN, _LOG_NOISE_VARIANCE = -5.0, 4.0
"""Mean and variance of the prior of the log noise: repeated timings of a kernel differ little."""


@dataclass
class FeatureProcess:
    """Call `fit`, then `predict`. Deterministic: it uses no random numbers."""

    _theta: Array = field(default_factory=lambda: np.zeros(0))
    """Log length scale per feature, log variance, log noise."""
    _rows: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """[rows, features]: the rows learned from, over the standard deviations of the features."""

    @one_blas_thread()
    def fit(self, rows: Array, targets: Array, groups: NDArray[np.int64] | None = None) -> None:
        """Learn from `rows[n, d]` and `targets[n]` (lower is better), n at least 2, of `groups[n]` (by
        default all of group 0). Earlier rows are forgotten."""
        groups = np.zeros(len(rows), np.int64) if groups is None else groups
        own = np.flatnonzero(groups == 0)
        own = own[select_training_rows(targets[own], GAUSSIAN_PROCESS.max_rows)]
        kept = np.concatenate([own, np.flatnonzero(groups)])
        rows, targets, groups = rows[kept], targets[kept], groups[kept]
        self._group_factors = np.where(groups == 0, 1.0, GAUSSIAN_PROCESS.group_covariance)
        factors = np.where(groups[:, None] == groups, 1.0, GAUSSIAN_PROCESS.group_covariance)
        self._feature_std = _compute_feature_std(rows)
        self._rows = rows / self._feature_std
        self._target_mean, self._target_std = float(targets.mean()), float(targets.std()) or 1.0
        z = (targets - self._target_mean) / self._target_std
        steps = GAUSSIAN_PROCESS.adam_steps
        if len(self._theta) != rows.shape[1] + 2:
            self._theta = _make_initial_theta(rows.shape[1])
            steps = GAUSSIAN_PROCESS.initial_adam_steps
        self._theta = _maximize_posterior(self._rows, z, factors, self._theta, steps)
        covariance = factors * _compute_covariance(self._rows, self._rows, self._theta)[0]
        covariance[np.diag_indices(len(z))] += _noise_variance(self._theta)
        self._process = GaussianProcess(covariance, z)
        self._center = self._rows.mean(axis=0)
        scaled = (self._rows - self._center) * np.exp(-self._theta[:-2])
        self._negated_twice_rows = np.ascontiguousarray(-2 * scaled.T, dtype=np.float32)
        """[d, n]: minus twice the rows, in length scales."""
        self._squared_norms = np.square(scaled).sum(axis=1).astype(np.float32)

    @one_blas_thread()
    def predict(self, rows: Array) -> tuple[Array, Array]:
        """(mean, standard deviation) of the target at each row."""
        mean, explained = np.empty(len(rows)), np.empty(len(rows))
        chunk_rows = GAUSSIAN_PROCESS.chunk_rows

        def predict_chunk(start: int) -> None:
            chunk = slice(start, start + chunk_rows)
            across = self._compute_cross_covariance(rows[chunk]).astype(np.float64)
            mean[chunk] = self._process.predict_mean(across)
            explained[chunk] = self._process.compute_explained_variance(across)

        list(_get_prediction_pool().map(predict_chunk, range(0, len(rows), chunk_rows)))
        variance = np.maximum(math.exp(self._theta[-2]) - explained, 1e-9)
        return mean * self._target_std + self._target_mean, np.sqrt(variance) * self._target_std

    @property
    def is_fitted(self) -> bool:
        """Whether it has learned from any rows."""
        return len(self._rows) > 0

    @one_blas_thread()
    def predict_correlation(self, rows: Array) -> Array:
        """[rows, rows]: correlation of future measurements at each pair of rows, given the learned rows,
        noise included. Before the first fit: with the length scales of the prior, in standard deviations of
        these rows."""
        theta = self._theta if self.is_fitted else _make_initial_theta(rows.shape[1])
        scaled = rows / (self._feature_std if self.is_fitted else _compute_feature_std(rows))
        covariance = _compute_covariance(scaled, scaled, theta)[0]
        if self.is_fitted:
            across = self._compute_cross_covariance(rows).astype(np.float64)
            covariance -= self._process.compute_explained_covariance(across, across)
        diagonal = np.diag_indices(len(rows))
        covariance[diagonal] = np.maximum(covariance[diagonal], 0.0) + _noise_variance(theta)
        std = np.sqrt(covariance[diagonal])
        return np.asarray(covariance / np.outer(std, std))

    def _compute_cross_covariance(self, rows: Array) -> NDArray[np.float32]:
        """[rows, learned rows]: covariance between rows of group 0 and these.

        Distances are computed around the centre of the rows and in single precision, because populations are
        large. Solutions of linear systems, which amplify errors, are in double precision.
        """
        scales = np.exp(-self._theta[:-2])
        scaled = ((rows / self._feature_std - self._center) * scales).astype(np.float32)
        squared = scaled @ self._negated_twice_rows
        squared += np.square(scaled).sum(axis=1)[:, None]
        squared += self._squared_norms
        squared = np.maximum(squared, np.float32(_MIN_SQUARED_DISTANCE), out=squared)
        covariance = _apply_matern(squared, self._theta)
        covariance *= self._group_factors.astype(np.float32)
        return covariance


def _apply_matern(squared_distance: NDArray[np.float32], theta: Array) -> NDArray[np.float32]:
    """Matern 5/2 of squared distances. The argument is overwritten."""
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
    """Standard deviation of each feature; 1 for constant features."""
    spread = rows.std(axis=0)
    return np.where(spread > 0, spread, 1.0)


def _make_initial_theta(feature_count: int) -> Array:
    """Parameters before the first fit."""
    return np.concatenate(
        [np.full(feature_count, _prior_log_length(feature_count)), [0.0, _LOG_NOISE_MEAN + 0.4]]
    )


def _prior_log_length(feature_count: int) -> float:
    """Mean of the prior of the log length scale. It grows with the number of features, as distances do."""
    return 0.7 + 0.5 * math.log(max(feature_count, 10) / 10)


def _noise_variance(theta: Array) -> float:
    """Variance of the noise."""
    return math.exp(theta[-1]) + _JITTER


def _compute_covariance(a: Array, b: Array, theta: Array) -> tuple[Array, Array]:
    """(Matern 5/2 between rows, its derivative with respect to the squared distance)."""
    inverse, scale = np.exp(-theta[:-2]), math.exp(theta[-2])
    x, y = a * inverse, b * inverse
    squared = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1)[None, :] - 2 * (x @ y.T)
    r = np.sqrt(5 * np.maximum(squared, _MIN_SQUARED_DISTANCE))
    falling = scale * np.exp(-r)
    return (1 + r + r * r / 3) * falling, -(5 / 6) * (1 + r) * falling


def _maximize_posterior(rows: Array, z: Array, factors: Array, theta: Array, steps: int) -> Array:
    """Parameters after some steps of Adam on the negative log posterior. `factors[n, n]`: factors of the
    covariances."""
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    width = len(theta) - 2
    lowest = np.concatenate([np.full(width, _LOWER_BOUNDS[0]), _LOWER_BOUNDS[1:]])
    highest = np.concatenate([np.full(width, _UPPER_BOUNDS[0]), _UPPER_BOUNDS[1:]])
    for step in range(1, steps + 1):
        gradient = _compute_gradient(rows, z, factors, theta)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient * gradient
        move = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-9)
        theta = np.clip(theta - GAUSSIAN_PROCESS.learning_rate * move, lowest, highest)
    return theta


def _compute_gradient(rows: Array, z: Array, factors: Array, theta: Array) -> Array:
    """Gradient of the negative log posterior."""
    covariance, by_distance = _compute_covariance(rows, rows, theta)
    covariance, by_distance = covariance * factors, by_distance * factors
    noisy = covariance + _noise_variance(theta) * np.eye(len(z))
    inverse = np.linalg.inv(noisy)
    weights = inverse @ z
    by_covariance = 0.5 * (inverse - np.outer(weights, weights))
    by_pair = by_covariance * by_distance
    # Sum over pairs of by_pair * (difference in one feature)^2, without an array of pairs x features.
    by_feature = 2 * (np.square(rows).T @ by_pair.sum(axis=1) - (rows * (by_pair @ rows)).sum(axis=0))
    lengths = -2 * np.exp(-2 * theta[:-2]) * by_feature + (theta[:-2] - _prior_log_length(rows.shape[1]))
    scale = (by_covariance * covariance).sum() + theta[-2]
    noise = (
        np.trace(by_covariance) * math.exp(theta[-1]) + (theta[-1] - _LOG_NOISE_MEAN) / _LOG_NOISE_VARIANCE
    )
    return np.concatenate([lengths, [scale, noise]])
