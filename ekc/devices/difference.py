"""How sure a mean of several measurements is, and when a difference between two kernels counts.

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

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Interval
from ekc.devices.interval import NORMAL_QUANTILE_95, student_t
from ekc.errors import InvalidInput


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
