"""Even signals out of uneven readings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.arguments import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.samples import SensorSamples, Values

MAX_GAP_INTERVALS = 3.1
"""Readings further apart than so many intervals leave a gap, that is not bridged."""
MAX_SIGNAL_HZ = 5.0
CHANGES_PER_WINDOW = 2.0
"""Changes faster than so many per window of a sensor are blurred beyond use."""
"""Nothing faster is looked at: most cards show a new value ten times a second."""
MIN_READINGS = 16
"""Readings below which nothing can be told."""
MIN_READ_SHARE = 0.25
"""A sensor that told less than this share of the readings is not asked."""


@dataclass(frozen=True)
class SignalViews:
    """Views of a job on one even grid, each of mean 0."""

    values: Values
    """(views, n); 0 where nothing is known."""
    valid_mask: Values
    """(views, n); 1 where something is known, else 0."""
    interval_s: float
    """Between two readings."""
    update_s: Values
    """(views,); between two readings that differ, where that is shortest."""

    @property
    def seconds(self) -> float:
        """How long they are."""
        return float(self.values.shape[1] * self.interval_s)


@dataclass(frozen=True)
class EvenSignal:
    """Readings at an even rate; NaN where unknown."""

    values: Values
    update_s: float
    """Between two readings that differ, where that is shortest."""


def resample_signals(samples: SensorSamples | Values, sampling_hz: float) -> list[EvenSignal]:
    """Power, SM and memory utilisation in percent, at an even rate.

    An array holds one signal, (n,), or several, (signals, n), already read at that rate. Raises
    `InvalidInput` for a rate that is not positive, and for an array of another shape.
    """
    if not is_number(sampling_hz) or not 0 < sampling_hz < np.inf:
        raise InvalidInput(
            f"sampling_hz is {format_value(sampling_hz)}; it must be a positive number, e.g. 10"
        )
    if isinstance(samples, SensorSamples):
        return _extract_signals(samples, sampling_hz)
    try:
        array = np.atleast_2d(np.asarray(samples, dtype=np.float64))
    except (TypeError, ValueError, OverflowError) as problem:
        raise InvalidInput(f"samples are not numbers in rows of one length ({problem})") from problem
    if array.ndim != 2:
        raise InvalidInput(f"samples have {array.ndim} axes; give one signal, (n,), or several, (signals, n)")
    time_s = np.arange(array.shape[1]) / sampling_hz
    return [
        EvenSignal(
            _interpolate_gaps(time_s, time_s, row, MAX_GAP_INTERVALS / sampling_hz),
            _estimate_update_s(row, time_s),
        )
        for row in array
    ]


def build_views(signals: list[EvenSignal], sampling_hz: float, sensor_s: float) -> SignalViews | None:
    """What to look at: the sum of all signals, and each alone.

    The sum has the signs that make it vary most, so that signals in opposite phase do not cancel (GPOEO's
    composite). Each alone, because a utilisation that is updated once a second spoils the sum for an
    iteration of a few seconds. Changes that a sensor of that window cannot have seen are filtered out. None
    where too little was read.
    """
    several = [
        row
        for row in signals
        if np.isfinite(row.values).sum() > max(MIN_READ_SHARE * len(row.values), MIN_READINGS)
    ]
    if not several:
        return None
    if len(several) > 1:
        several.insert(0, _combine_signals(several))
    cut_hz = min(MAX_SIGNAL_HZ, CHANGES_PER_WINDOW / sensor_s)
    values, known = zip(*(_filter_signal(row, sampling_hz, cut_hz) for row in several), strict=True)
    update_s = np.array([row.update_s for row in several])
    return SignalViews(np.stack(values), np.stack(known), 1.0 / sampling_hz, update_s)


def _extract_signals(samples: SensorSamples, sampling_hz: float) -> list[EvenSignal]:
    if len(samples) < 2:
        return []
    signals = (samples.power_w / _compute_watts_per_percent(samples), samples.sm_util, samples.memory_util)
    span = samples.time_s[-1] - samples.time_s[0]
    grid = samples.time_s[0] + np.arange(int(span * sampling_hz) + 1) / sampling_hz
    return [
        EvenSignal(
            _interpolate_gaps(grid, samples.time_s, signal, MAX_GAP_INTERVALS / sampling_hz),
            _estimate_update_s(signal, samples.time_s),
        )
        for signal in signals
    ]


def _estimate_update_s(readings: Values, time_s: Values) -> float:
    """How long a reading stays what it is, where it does not stay long: how often the sensor is updated."""
    ok = np.isfinite(readings)
    held = np.diff(time_s[ok][1:][np.diff(readings[ok]) != 0])
    return float(held[held <= 2.0 * np.quantile(held, 0.1)].mean()) if len(held) else float("inf")


def _compute_watts_per_percent(samples: SensorSamples) -> float:
    """Watts of one percent of the board's cap; of the most ever drawn, where no cap is known."""
    if 0.0 < samples.power_limit_w < float("inf"):
        return samples.power_limit_w / 100.0
    drawn = samples.power_w[np.isfinite(samples.power_w)]
    return float(drawn.max()) / 100.0 if drawn.size and drawn.max() > 0 else 1.0


def _interpolate_gaps(grid: Values, time_s: Values, values: Values, gap_s: float) -> Values:
    """A signal between readings that are no further apart than `gap_s`; NaN elsewhere."""
    ok = np.isfinite(values)
    if ok.sum() < 2:
        return np.full(len(grid), np.nan)
    times, readings = time_s[ok], values[ok]
    after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    apart = times[after] - times[after - 1]
    return np.where(apart <= gap_s, np.interp(grid, times, readings), np.nan)


def _combine_signals(signals: list[EvenSignal]) -> EvenSignal:
    total = signals[0].values
    for row in signals[1:]:
        total = max(total + row.values, total - row.values, key=_compute_deviation)
    return EvenSignal(total / len(signals), max(row.update_s for row in signals))


def _compute_deviation(values: Values) -> float:
    seen = values[np.isfinite(values)]
    return float(seen.std()) if seen.size else 0.0


def _filter_signal(signal: EvenSignal, sampling_hz: float, cut_hz: float) -> tuple[Values, Values]:
    """(the row without its mean and what is faster than that, where it is known)."""
    known, at = np.isfinite(signal.values), np.arange(len(signal.values))
    filled = np.interp(at, at[known], signal.values[known])
    spectrum = np.fft.rfft(filled - filled.mean())
    spectrum[np.fft.rfftfreq(len(at), 1.0 / sampling_hz) > cut_hz] = 0.0
    return np.fft.irfft(spectrum, len(at)) * known, known * 1.0
