"""When a difference between two kernels counts.

Measured in turn (A B, then B A, and so on), so that what drifts slowly falls on both alike: each pair gives
one ratio. Two things say how sure their mean is: the scatter of the ratios, which holds all that changes
between measurements, and the intervals of the measurements themselves, which hold what is left within a
window. A few ratios may agree by luck, so the larger of the two counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekc.devices.base import Interval
from ekc.devices.interval import NORMAL_95, student_t
from ekc.errors import InvalidInput


@dataclass(frozen=True)
class Measured:
    """One figure (joules, seconds) and its 95 % interval."""

    value: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """The ratio of one kernel's figure to another's, from interleaved measurements."""

    ratio: float
    interval: Interval
    pairs: int

    @property
    def counts(self) -> bool:
        """Whether one is better: the interval does not hold 1. From a single pair nobody can say."""
        return self.pairs > 1 and not self.interval.low <= 1.0 <= self.interval.high

    def __str__(self) -> str:
        """E.g. "-3.1 % (-3.9 to -2.3)"."""
        low, high = (100 * (edge - 1) for edge in (self.interval.low, self.interval.high))
        return f"{100 * (self.ratio - 1):+.1f} % ({low:+.1f} to {high:+.1f})"


def difference(one: Sequence[Measured], other: Sequence[Measured]) -> Difference:
    """Of `one` to `other`, measurement by measurement in the order in which they were taken.

    With a single pair nothing is known of what changes between measurements: its interval is that of the two
    windows alone, and it does not count. Raises `InvalidInput` where there are not as many of both, or none.
    """
    if len(one) != len(other) or not one:
        raise InvalidInput(f"a difference needs pairs of measurements: there are {len(one)} and {len(other)}")
    ratios = np.log([a.value / b.value for a, b in zip(one, other, strict=True)])
    within = sum(_relative(a) ** 2 + _relative(b) ** 2 for a, b in zip(one, other, strict=True))
    half = NORMAL_95 * math.sqrt(within) / len(ratios)
    if len(ratios) > 1:
        scatter = float(np.std(ratios, ddof=1)) / math.sqrt(len(ratios))
        half = max(half, student_t(len(ratios) - 1) * scatter)
    mean = float(np.mean(ratios))
    return Difference(math.exp(mean), Interval(math.exp(mean - half), math.exp(mean + half)), len(ratios))


def _relative(measured: Measured) -> float:
    """Standard error of a figure, relative to it."""
    return (measured.interval.high - measured.interval.low) / (2 * NORMAL_95 * measured.value)
