"""Even signals out of uneven readings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.errors import InvalidInput
from ekc.governor.samples import Samples, Values

GAP = 3.1
"""Readings further apart than so many intervals leave a gap, that is not bridged."""
FASTEST_HZ = 5.0
"""Nothing faster is looked at: most cards show a new value ten times a second."""
FEW = 0.25
"""A sensor that told less than this share of the readings is not asked."""


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


def rows(samples: Samples | Values, sampling_hz: float) -> Values:
    """Power, SM and memory utilisation in percent, at an even rate, (signals, n); NaN where unknown.

    An array holds one signal, (n,), or several, (signals, n), already read at that rate. Raises `InvalidInput`
    for a rate that is not positive, and for an array of another shape.
    """
    if not (np.isfinite(sampling_hz) and sampling_hz > 0):
        raise InvalidInput(f"sampling_hz is {sampling_hz}; it must be a positive number, e.g. 10")
    if isinstance(samples, Samples):
        return _even(samples, sampling_hz)
    array = np.atleast_2d(np.asarray(samples, dtype=np.float64))
    if array.ndim != 2:
        raise InvalidInput(f"samples have {array.ndim} axes; give one signal, (n,), or several, (signals, n)")
    return array


def views(told: Values, sampling_hz: float, sensor_s: float) -> list[Signal]:
    """What to look at: the sum of all signals, and each alone.

    The sum has the signs that make it vary most, so that signals in opposite phase do not cancel (GPOEO's
    composite). Each alone, because a utilisation that is updated once a second spoils the sum for an iteration
    of a few seconds. Changes that a sensor of that window cannot have seen are filtered out.
    """
    several = [row for row in told if np.isfinite(row).sum() > FEW * len(row)]
    if len(several) > 1:
        several.insert(0, _sum(several))
    cut_hz = min(FASTEST_HZ, 1.0 / sensor_s)
    return [_signal(row, sampling_hz, cut_hz) for row in several]


def _even(samples: Samples, sampling_hz: float) -> Values:
    if len(samples) < 2:
        return np.zeros((3, 0))
    signals = (samples.power_w / _percent(samples), samples.sm_util, samples.memory_util)
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
    """A signal between readings that are no further apart than `gap_s`; NaN elsewhere."""
    ok = np.isfinite(values)
    if ok.sum() < 2:
        return np.full(len(grid), np.nan)
    times, readings = time_s[ok], values[ok]
    after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    apart = times[after] - times[after - 1]
    return np.where(apart <= gap_s, np.interp(grid, times, readings), np.nan)


def _sum(several: list[Values]) -> Values:
    total = several[0]
    for row in several[1:]:
        total = max(total + row, total - row, key=_deviation)
    return total / len(several)


def _deviation(row: Values) -> float:
    seen = row[np.isfinite(row)]
    return float(seen.std()) if seen.size else 0.0


def _signal(row: Values, sampling_hz: float, cut_hz: float) -> Signal:
    known = np.isfinite(row)
    at = np.arange(len(row))
    filled = np.interp(at, at[known], row[known]) if known.any() else np.zeros(len(row))
    spectrum = np.fft.rfft(filled - filled.mean())
    spectrum[np.fft.rfftfreq(len(row), 1.0 / sampling_hz) > cut_hz] = 0.0
    return Signal(np.fft.irfft(spectrum, len(row)) * known, known * 1.0, 1.0 / sampling_hz)
