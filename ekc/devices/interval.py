"""How sure a mean over time is: the 95 % interval of a rate from amounts and the spans they fell in.

The amounts are what a sensor gave tick by tick. Their scatter about a straight line over time says how sure
their mean is; the line itself (a board that warms up) is no doubt about the mean of the window. Neighbours
that err alike, or one against the other, are allowed for as in W. Newey and K. West, Econometrica 55 (1987),
703.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Interval

Array = NDArray[np.float64]

MIN_AMOUNTS = 4
"""Amounts, below which nothing can be said."""
NORMAL_QUANTILE_95 = 1.959964
"""97.5 % quantile of the normal distribution."""


def estimate_mean_rate(amounts: Array, spans: Array) -> tuple[float, Interval]:
    """Sum of the amounts over the sum of the spans, and its interval. At least `FEWEST` of them.

    Where the amounts are steadier than the spans explain, the ticks came regularly and were seen late: then
    only the lateness of the first and the last counts.
    """
    total = float(spans.sum())
    mean = float(amounts.sum()) / total
    errors, late = _compute_detrended_errors(amounts, spans, mean), 0.0
    regular = _compute_detrended_errors(amounts, np.full(len(spans), total / len(spans)), mean)
    if float(np.sum(regular**2)) < float(np.sum(errors**2)):
        errors, late = regular, mean**2 * float(np.var(spans, ddof=1))
    variance, freedom = _estimate_sum_variance(errors)
    half = student_t(freedom) * math.sqrt(variance + late) / total
    return mean, Interval(mean - half, mean + half)


def _compute_detrended_errors(amounts: Array, spans: Array, mean: float) -> Array:
    """What each amount differs from a rate that changes steadily."""
    at = np.cumsum(spans) - spans / 2
    at -= np.average(at, weights=spans)
    slope = float(np.sum(at * (amounts - mean * spans)) / np.sum(spans * at**2))
    return np.asarray(amounts - spans * (mean + slope * at))


def _estimate_sum_variance(errors: Array) -> tuple[float, int]:
    """Variance of the sum of some errors, and the degrees of freedom that it is known with."""
    number, lags = len(errors), _compute_bartlett_weights(len(errors))
    together = float(np.sum(errors**2))
    together += 2 * sum(w * float(np.sum(errors[k:] * errors[:-k])) for k, w in enumerate(lags, 1))
    # What the fit of mean and slope took out of the sums above.
    taken = 2 + 2 * float(lags.sum())
    freedom = max(2, math.floor((number - 2) / (1 + 2 * float(np.sum(lags**2)))))
    return max(together, 0.0) * number / (number - taken), freedom


def _compute_bartlett_weights(amount_count: int) -> Array:
    """Bartlett's, of lags 1, 2, ...; none for the fewest amounts."""
    lags = min(round(amount_count ** (1 / 3)), amount_count // 4) if amount_count >= 2 * MIN_AMOUNTS else 0
    return 1.0 - np.arange(1, lags + 1) / (lags + 1.0)


def student_t(degrees_of_freedom: int) -> float:
    """97.5 % quantile of Student's t: exact for 1 and 2 degrees of freedom, else the Cornish-Fisher series
    about the normal one (Abramowitz and Stegun 26.7.5): 0.12 % low at 3, within 0.03 % from 4 on."""
    if degrees_of_freedom <= 2:
        return (12.7062, 4.30265)[degrees_of_freedom - 1]
    z = NORMAL_QUANTILE_95
    return (
        z
        + (z**3 + z) / (4 * degrees_of_freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees_of_freedom**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * degrees_of_freedom**4)
    )
