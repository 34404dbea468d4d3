"""How sure a mean over time is: the 95 % interval of a rate from amounts and the spans they fell in.

The amounts are what a sensor gave tick by tick. Their scatter about a straight line over time says how sure
their mean is; the line itself (a board that warms up) is no doubt about the mean of the window. Neighbours
that err alike, or one against the other, are allowed for as in W. Newey and K. West, Econometrica 55 (1987),
703.

The median and a 95 % interval of it that assumes no distribution.

How sure a mean of several measurements is, and when a difference between two kernels counts.

Measured in turn (A B, then B A, and so on), so that what drifts slowly falls on both alike: each pair gives
one ratio. Two things say how sure a mean is, of ratios or of figures: their scatter, which holds all that
changes between measurements, and the intervals of the measurements themselves, which hold what is left within
a window. A few may agree by luck, so the larger of the two counts.
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


_TAIL_PROBABILITY = 1 / 128
"""By so much at most one look misses the median on either side. `timing.enough` looks again and again, and
ends when it likes what it sees. With 2.5 % it could end on an interval that misses in 14 of 100 cases; with
this, and looks after 8, 16, 32, ... samples, in 4 (a test adds them up)."""


def compute_median(samples: Sequence[float]) -> float:
    """The middle of the samples."""
    return float(np.median(samples))


def compute_median_interval(samples: Sequence[float]) -> Interval:
    """Two of the samples that hold the median with at least 95 %, however often it was looked before: how
    many lie below it is binomial.

    Fewer than eight samples leave their range, which alone holds it with 1 - 2**(1 - n): 97 % of six.
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
    """The largest rank (from 0) whose sample lies above the median with no more than `_TAIL`."""
    below, rank = 0.0, 0
    for k in range(number // 2):
        below += math.comb(number, k) / 2.0**number
        if below > _TAIL_PROBABILITY:
            break
        rank = k
    return rank


@dataclass(frozen=True)
class MeasuredValue:
    """One figure (joules, seconds) and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """The ratio of one kernel's figure to another's, from interleaved measurements."""

    ratio: float
    interval: Interval
    pair_count: int

    @property
    def is_significant(self) -> bool:
        """Whether one is better: the interval does not hold 1. From a single pair nobody can say."""
        return self.pair_count > 1 and not self.interval.low <= 1.0 <= self.interval.high

    def __str__(self) -> str:
        """E.g. "-3.1 % (-3.9 to -2.3)"."""
        low, high = (100 * (edge - 1) for edge in (self.interval.low, self.interval.high))
        return f"{100 * (self.ratio - 1):+.1f} % ({low:+.1f} to {high:+.1f})"


def compare_pairwise(first: Sequence[MeasuredValue], second: Sequence[MeasuredValue]) -> Difference:
    """Of `one` to `other`, measurement by measurement in the order in which they were taken.

    With a single pair nothing is known of what changes between measurements: its interval is that of the two
    windows alone, and it does not count. Raises `InvalidInput` where there are not as many of both, or none.
    """
    if len(first) != len(second) or not first:
        raise InvalidInput(
            f"a difference needs pairs of measurements: there are {len(first)} and {len(second)}"
        )
    pairs = list(zip(first, second, strict=True))
    ratios = np.log([a.value / b.value for a, b in pairs])
    mean = float(np.mean(ratios))
    half = _compute_half_width(
        ratios, sum(_compute_relative_error(a) ** 2 + _compute_relative_error(b) ** 2 for a, b in pairs)
    )
    return Difference(math.exp(mean), Interval(math.exp(mean - half), math.exp(mean + half)), len(ratios))


def estimate_mean_interval(measured: Sequence[MeasuredValue]) -> Interval | None:
    """Where the mean of independent measurements of one figure lies, 95 %; None of none. Of a single one it
    is the interval of its own window: what changes between windows shows in no less than two."""
    if not measured:
        return None
    mean = statistics.fmean(m.value for m in measured)
    shares = np.array([m.value / mean for m in measured])
    half = mean * _compute_half_width(
        shares, sum((_compute_relative_error(m) * m.value / mean) ** 2 for m in measured)
    )
    centre = statistics.fmean((m.interval.low + m.interval.high) / 2 for m in measured)
    return Interval(centre - half, centre + half)


def _compute_half_width(values: NDArray[np.float64], within_variance: float) -> float:
    """Half the interval of the mean of some values, the sum of whose own variances is `within`."""
    number = len(values)
    half = NORMAL_QUANTILE_95 * math.sqrt(within_variance) / number
    if number > 1:
        half = max(half, student_t(number - 1) * float(np.std(values, ddof=1)) / math.sqrt(number))
    return half


def _compute_relative_error(measured: MeasuredValue) -> float:
    """Standard error of a figure, relative to it."""
    return (measured.interval.high - measured.interval.low) / (2 * NORMAL_QUANTILE_95 * measured.value)
