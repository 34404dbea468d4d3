"""Power by the latency of a kernel alone: two numbers, a power law, and a weighted mean of both.

Energy = P0 x latency + E0 has two numbers, fitted to the metered kernels. Beyond their latencies it errs one
way and a power law of the latency the other way. The prediction is a weighted mean of both, by the errors of
fits that leave one kernel out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.search.data.defaults import POWER_MODEL

Array = NDArray[np.float64]

_JITTER, _MIN_FREEDOM = 1e-12, 1e-3
"""Added to a diagonal before it is inverted; least part of a kernel that a fit leaves free."""


@dataclass(frozen=True)
class TwoNumberFit:
    """Energy = `constant_w` x latency + `work_j`."""

    constant_w: float
    """P0: watts that a kernel needs however long it takes. At least 0."""
    work_j: float
    """E0: joules that a call needs however short it is. At least 0."""

    def predict_log_power(self, latency_s: Array) -> Array:
        """Log watts of kernels of these latencies."""
        return np.asarray(np.log(self.constant_w + self.work_j / latency_s))


def fit_two_numbers(latency_s: Array, watts: Array, weights: Array | None = None) -> TwoNumberFit:
    """Fit P0 and E0 to metered kernels by relative errors. One kernel, or equal latencies: E0 is 0."""
    return _fit_two_numbers(latency_s, watts, np.ones(len(watts)) if weights is None else weights)[0]


def _fit_two_numbers(latency_s: Array, watts: Array, weights: Array) -> tuple[TwoNumberFit, Array]:
    """(fit, relative error of each kernel by a fit to the others). `weights`: 1 in the mean."""
    scale_s, scale_w = (float(np.exp(np.average(np.log(x), weights=weights))) for x in (latency_s, watts))
    design = np.column_stack([np.ones_like(latency_s), scale_s / latency_s]) * (scale_w / watts)[:, None]
    numbers, error = _solve_two_numbers(design, weights, [0, 1])
    if numbers.min() < 0:
        numbers, error = _solve_two_numbers(design, weights, [int(np.argmax(numbers))])
    return TwoNumberFit(scale_w * float(numbers[0]), scale_w * scale_s * float(numbers[1])), error


def _solve_two_numbers(design: Array, weights: Array, columns: list[int]) -> tuple[Array, Array]:
    """(numbers, leave-one-out errors) of a least-squares fit to 1; numbers outside `columns` are 0."""
    used, numbers = design[:, columns], np.zeros(2)
    penalty = np.diag([_JITTER, POWER_MODEL.work_penalty])[np.ix_(columns, columns)]
    inverse = np.linalg.inv(used.T @ (weights[:, None] * used) + penalty)
    numbers[columns] = inverse @ (used.T @ weights)
    leverage = weights * np.einsum("ij,jk,ik->i", used, inverse, used)
    return numbers, (used @ numbers[columns] - 1) / np.maximum(1 - leverage, _MIN_FREEDOM)


@dataclass(frozen=True)
class LatencyLaw:
    """Power by latency alone: between the two-number fit and a power law, in logs."""

    two_numbers: TwoNumberFit
    two_number_share: float
    """Weight of the two-number fit, 0 to 1; the power law has the rest."""
    exponent: float
    """Exponent of the latency in the power law, -1 to 0."""
    log_factor: float
    """Log of the factor of the power law: log watts at one second."""

    def predict_log_power(self, latency_s: Array) -> Array:
        """Log watts of kernels of these latencies."""
        power_law = self.log_factor + self.exponent * np.log(latency_s)
        two_numbers = self.two_numbers.predict_log_power(latency_s)
        return np.asarray(power_law + self.two_number_share * (two_numbers - power_law))


def fit_latency_law(latency_s: Array, watts: Array, weights: Array) -> LatencyLaw:
    """Fit the law to watts of kernels. `weights`: 1 in the mean."""
    two_numbers, error = _fit_two_numbers(latency_s, watts, weights)
    log_s, log_w = np.log(latency_s), np.log(watts)
    center, level = np.average(log_s, weights=weights), np.average(log_w, weights=weights)
    distance = log_s - center
    total = weights @ distance**2 + len(watts) * POWER_MODEL.exponent_variance
    exponent = float(np.clip(weights @ (distance * log_w) / total, -1.0, 0.0))
    leverage = weights * (1 / len(watts) + distance**2 / total)
    law_error = (level + exponent * distance - log_w) / np.maximum(1 - leverage, _MIN_FREEDOM)
    difference, pull = error - law_error, POWER_MODEL.share_error**2
    share = (pull / 2 - weights @ (law_error * difference)) / (weights @ difference**2 + pull)
    return LatencyLaw(
        two_numbers, float(np.clip(share, 0.0, 1.0)), exponent, float(level - exponent * center)
    )
