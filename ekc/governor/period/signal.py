"""One even signal out of several uneven ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.governor.samples import Samples, Values

GAP = 1.6
"""Readings further apart than so many intervals leave a gap, that is not bridged."""


@dataclass(frozen=True)
class Signal:
    """Readings on an even grid, of mean 0."""

    values: Values
    """0 where nothing is known."""
    known: Values
    """1 where something is known, else 0."""
    interval_s: float
    """Between two readings."""

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.values) * self.interval_s


def composite(samples: Samples | Values, sampling_hz: float) -> Signal:
    """The sum of power, SM and memory utilisation, each in percent, with the signs that make it vary most.

    An array holds one signal, (n,), or several, (signals, n), read at `sampling_hz`; NaN is a missing reading.
    Raises `InvalidInput` for a rate that is not positive, and for an array of another shape.
    """
    if not (np.isfinite(sampling_hz) and sampling_hz > 0):
        raise InvalidInput(f"sampling_hz is {sampling_hz}; it must be a positive number, e.g. 10")
    rows = _even(samples, sampling_hz) if isinstance(samples, Samples) else _rows(samples)
    return _sum(rows, 1.0 / sampling_hz)


def _rows(values: Values) -> Values:
    array = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if array.ndim != 2:
        raise InvalidInput(f"samples have {array.ndim} axes; give one signal, (n,), or several, (signals, n)")
    return array


def _even(samples: Samples, sampling_hz: float) -> Values:
    """The three signals on an even grid, (3, n); NaN in gaps."""
    watts = samples.power_w / _percent(samples)
    signals = (watts, samples.sm_util, samples.memory_util)
    if len(samples) < 2:
        return np.zeros((3, 0))
    span = samples.time_s[-1] - samples.time_s[0]
    grid = samples.time_s[0] + np.arange(int(span * sampling_hz) + 1) / sampling_hz
    return np.stack([_bridged(grid, samples.time_s, signal, GAP / sampling_hz) for signal in signals])


def _percent(samples: Samples) -> float:
    """Watts of one percent of the board's cap; of the most ever drawn, where no cap is known."""
    if np.isfinite(samples.power_limit_w):
        return samples.power_limit_w / 100.0
    drawn = samples.power_w[np.isfinite(samples.power_w)]
    return float(drawn.max()) / 100.0 if drawn.size and drawn.max() > 0 else 1.0


def _bridged(grid: Values, time_s: Values, values: Values, gap_s: float) -> Values:
    """A signal read between readings that are no further apart than `gap_s`; NaN elsewhere."""
    ok = np.isfinite(values)
    if ok.sum() < 2:
        return np.full(len(grid), np.nan)
    times, readings = time_s[ok], values[ok]
    after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    apart = times[after] - times[after - 1]
    return np.where(apart <= gap_s, np.interp(grid, times, readings), np.nan)


def _sum(rows: Values, interval_s: float) -> Signal:
    known = np.isfinite(rows)
    told = rows[known.sum(axis=1) > known.shape[1] // 2]
    if not len(told):
        empty = np.zeros(rows.shape[1])
        return Signal(empty, empty, interval_s)
    all_known: NDArray[np.bool_] = np.isfinite(told).all(axis=0)
    total = told[0]
    for row in told[1:]:
        total = max((total + row, total - row), key=lambda s: float(np.std(s[all_known])) if s.size else 0.0)
    values = np.where(all_known, total / len(told), 0.0)
    count = max(int(all_known.sum()), 1)
    return Signal(np.where(all_known, values - values.sum() / count, 0.0), all_known * 1.0, interval_s)
