"""Means, medians and ratios of measurements with their 95 % intervals.

A rate over time comes from amounts that a sensor gave tick by tick, and the time spans of the ticks. The
scatter of the amounts about a straight line over time gives the interval of their mean; the line itself (a
board that warms up) adds no uncertainty to the mean of the window. Correlated errors of neighbours are
allowed for as in W. Newey and K. West, Econometrica 55 (1987), 703.

The median has an interval that assumes no distribution.

Two kernels are compared by measurements in turn (A B, then B A, and so on), so that slow drift affects both
alike: each pair gives one ratio. The error of a mean, of ratios or of figures, has two estimates: the
scatter, which contains all changes between measurements, and the intervals of the measurements, which contain
the noise within a window. A few measurements may agree by chance, so the larger estimate counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float


MIN_AMOUNTS = 4
"""Number of amounts below which there is no estimate."""
NORMAL_QUANTILE_95 = 1.959964
"""97.5 % quantile of the normal distribution."""


def estimate_mean_rate(amounts: Array, spans: Array) -> tuple[float, Interval]:
    """Sum of the amounts over the sum of the spans, with its interval. Needs at least `MIN_AMOUNTS` amounts.

    Where the amounts are steadier than the spans explain, the ticks were regular and were read late: then
    only the delays of the first and the last tick count.
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
    """Difference of each amount from a rate that changes linearly."""
    at = np.cumsum(spans) - spans / 2
    at -= np.average(at, weights=spans)
    slope = float(np.sum(at * (amounts - mean * spans)) / np.sum(spans * at**2))
    return np.asarray(amounts - spans * (mean + slope * at))


def _estimate_sum_variance(errors: Array) -> tuple[float, int]:
    """Variance of the sum of some errors, and its degrees of freedom."""
    number, lags = len(errors), _compute_bartlett_weights(len(errors))
    together = float(np.sum(errors**2))
    together += 2 * sum(w * float(np.sum(errors[k:] * errors[:-k])) for k, w in enumerate(lags, 1))
    # The fit of mean and slope removed this much from the sums above.
    removed = 2 + 2 * float(lags.sum())
    freedom = max(2, math.floor((number - 2) / (1 + 2 * float(np.sum(lags**2)))))
    return max(together, 0.0) * number / (number - removed), freedom


def _compute_bartlett_weights(amount_count: int) -> Array:
    """Bartlett weights of lags 1, 2, ...; none for the smallest number of amounts."""
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


_TAIL_PROBABILITY = 1 / 128
"""Probability that one check misses the median on either side, at most. `timing.sample_until_narrow` checks
again and again, and stops when the interval is narrow. With 2.5 % it could stop on an interval that misses in
14 of 100 cases; with this value, and checks after 8, 16, 32, ... samples, in 4 (a test adds them up)."""


def compute_median(samples: Sequence[float]) -> float:
    """Median of the samples."""
    return float(np.median(samples))


def compute_median_interval(samples: Sequence[float]) -> Interval:
    """Two of the samples between which the median is with at least 95 %, after any number of checks: the
    number of samples below the median is binomial.

    Fewer than eight samples give their range, which contains the median with 1 - 2**(1 - n): 97 % for six.
    """
    ranked = np.sort(np.asarray(samples, dtype=np.float64))
    rank = _find_interval_rank(len(ranked))
    return Interval(float(ranked[rank]), float(ranked[-1 - rank]))


def compute_relative_width(samples: Sequence[float]) -> float:
    """Width of the interval over the median."""
    found = compute_median_interval(samples)
    return (found.high - found.low) / compute_median(samples)


@lru_cache(maxsize=1024)
def _find_interval_rank(number: int) -> int:
    """The largest rank (from 0) that misses the median with at most `_TAIL_PROBABILITY` on either side."""
    below, rank = 0.0, 0
    for k in range(number // 2):
        below += math.comb(number, k) / 2.0**number
        if below > _TAIL_PROBABILITY:
            break
        rank = k
    return rank


@dataclass(frozen=True)
class MeasuredValue:
    """A figure (joules, seconds) with its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """Ratio of one kernel's figure to another's, from interleaved measurements."""

    ratio: float
    interval: Interval
    pair_count: int

    @property
    def is_significant(self) -> bool:
        """Whether the kernels differ: the interval does not contain 1. A single pair is never significant."""
        return self.pair_count > 1 and not self.interval.low <= 1.0 <= self.interval.high

    def __str__(self) -> str:
        """E.g. "-3.1 % (-3.9 to -2.3)"."""
        low, high = (100 * (edge - 1) for edge in (self.interval.low, self.interval.high))
        return f"{100 * (self.ratio - 1):+z.1f} % ({low:+z.1f} to {high:+z.1f})"


def compare_pairwise(first: Sequence[MeasuredValue], second: Sequence[MeasuredValue]) -> Difference:
    """Ratio of `first` to `second`, measurement by measurement in the order in which they were taken.

    A single pair shows nothing of the changes between measurements: its interval is that of the two windows
    alone, and it is not significant. Raises `InvalidInput` where the numbers of measurements differ, or are
    0.
    """
    if len(first) != len(second) or not first:
        raise InvalidInput(
            f"a difference needs pairs of measurements: there are {len(first)} and {len(second)}"
        )
    pairs = list(zip(first, second, strict=True))
    ratios = np.log([a.value / b.value for a, b in pairs])
    mean = float(np.mean(ratios))
    variance = sum(_compute_relative_error(a) ** 2 + _compute_relative_error(b) ** 2 for a, b in pairs)
    half = _compute_half_width(ratios, variance)
    return Difference(math.exp(mean), Interval(math.exp(mean - half), math.exp(mean + half)), len(ratios))


def estimate_mean_interval(measured: Sequence[MeasuredValue]) -> Interval | None:
    """95 % interval of the mean of independent measurements of one figure; None without measurements. For a
    single one it is the interval of its own window: changes between windows show only with two or more."""
    if not measured:
        return None
    mean = statistics.fmean(m.value for m in measured)
    shares = np.array([m.value / mean for m in measured])
    variance = sum((_compute_relative_error(m) * m.value / mean) ** 2 for m in measured)
    half = mean * _compute_half_width(shares, variance)
    centre = statistics.fmean((m.interval.low + m.interval.high) / 2 for m in measured)
    return Interval(centre - half, centre + half)


def _compute_half_width(values: NDArray[np.float64], within_variance: float) -> float:
    """Half the interval of the mean of some values; `within_variance` is the sum of their own variances."""
    number = len(values)
    half = NORMAL_QUANTILE_95 * math.sqrt(within_variance) / number
    if number > 1:
        half = max(half, student_t(number - 1) * float(np.std(values, ddof=1)) / math.sqrt(number))
    return half


def _compute_relative_error(measured: MeasuredValue) -> float:
    """Relative standard error of a figure."""
    return (measured.interval.high - measured.interval.low) / (2 * NORMAL_QUANTILE_95 * measured.value)
