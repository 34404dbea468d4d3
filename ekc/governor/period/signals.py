"""Signals on an even time grid from uneven readings, and the views in which a period is sought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.samples import SensorSamples, Values

MAX_GAP_INTERVALS = 3.1
"""Longest gap between two readings that is interpolated, in intervals."""
MAX_SIGNAL_HZ = 5.0
"""Highest frequency that is used: most cards show a new value ten times a second."""
CHANGES_PER_WINDOW = 2.0
"""Highest frequency that is used, times the averaging window of the sensor."""
MIN_READINGS = 16
"""Least readings of a signal that is used."""
MIN_READ_SHARE = 0.25
"""Least share of valid readings of a signal that is used, 0 to 1."""


@dataclass(frozen=True)
class SignalViews:
    """Views of a job on one even time grid, each with mean 0."""

    values: Values
    """(views, n); 0 where readings are missing."""
    valid_mask: Values
    """(views, n); 0 where readings are missing, else 1."""
    interval_s: float
    """Seconds between two points of the grid."""
    update_s: Values
    """(views,); seconds between two updates of the sensor."""

    @property
    def seconds(self) -> float:
        """Length of the views."""
        return float(self.values.shape[1] * self.interval_s)


@dataclass(frozen=True)
class EvenSignal:
    """One signal on an even time grid; NaN where readings are missing."""

    values: Values
    update_s: float
    """Seconds between two updates of the sensor."""


def resample_signals(samples: SensorSamples | Values, sampling_hz: float) -> list[EvenSignal]:
    """Power, SM use and memory use in percent, on an even time grid.

    An array holds one signal, (n,), or several, (signals, n), read at that rate. Raises
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
    return [_resample_signal(time_s, time_s, row, sampling_hz) for row in array]


def build_views(signals: list[EvenSignal], sampling_hz: float, sensor_s: float) -> SignalViews | None:
    """The views in which a period is sought: the sum of all signals, and each signal alone.

    The sum has the signs with the largest variance, so that signals in opposite phase do not cancel (GPOEO's
    composite). Each alone, because a utilisation that is updated once a second disturbs the sum for an
    iteration of a few seconds. Changes faster than a sensor of window `sensor_s` can show are filtered out.
    None where there are too few readings.
    """
    least = [max(MIN_READ_SHARE * len(row.values), MIN_READINGS) for row in signals]
    usable = [row for row, n in zip(signals, least, strict=True) if np.isfinite(row.values).sum() > n]
    if not usable:
        return None
    if len(usable) > 1:
        usable.insert(0, _combine_signals(usable))
    cut_hz = min(MAX_SIGNAL_HZ, CHANGES_PER_WINDOW / sensor_s)
    values, masks = zip(*(_filter_signal(row, sampling_hz, cut_hz) for row in usable), strict=True)
    update_s = np.array([row.update_s for row in usable])
    return SignalViews(np.stack(values), np.stack(masks), 1.0 / sampling_hz, update_s)


def _extract_signals(samples: SensorSamples, sampling_hz: float) -> list[EvenSignal]:
    if len(samples) < 2:
        return []
    signals = (samples.power_w / _compute_watts_per_percent(samples), samples.sm_util, samples.memory_util)
    span = samples.time_s[-1] - samples.time_s[0]
    grid = samples.time_s[0] + np.arange(int(span * sampling_hz) + 1) / sampling_hz
    return [_resample_signal(grid, samples.time_s, signal, sampling_hz) for signal in signals]


def _resample_signal(grid: Values, time_s: Values, readings: Values, sampling_hz: float) -> EvenSignal:
    values = _interpolate_gaps(grid, time_s, readings, MAX_GAP_INTERVALS / sampling_hz)
    return EvenSignal(values, _estimate_update_s(readings, time_s))


def _estimate_update_s(readings: Values, time_s: Values) -> float:
    """Seconds between a sensor's updates: mean of the shortest times between changes of its reading. Where a
    pause was cut out, two readings have the same time: that is no interval."""
    is_valid = np.isfinite(readings)
    gaps_s = np.diff(time_s[is_valid][1:][np.diff(readings[is_valid]) != 0])
    gaps_s = gaps_s[gaps_s > 0]
    return float(gaps_s[gaps_s <= 2.0 * np.quantile(gaps_s, 0.1)].mean()) if len(gaps_s) else float("inf")


def _compute_watts_per_percent(samples: SensorSamples) -> float:
    """Watts of one percent of the board's power cap, or of the largest reading where the cap is unknown."""
    if 0.0 < samples.power_limit_w < float("inf"):
        return samples.power_limit_w / 100.0
    watts = samples.power_w[np.isfinite(samples.power_w)]
    return float(watts.max()) / 100.0 if watts.size and watts.max() > 0 else 1.0


def _interpolate_gaps(grid: Values, time_s: Values, values: Values, gap_s: float) -> Values:
    """A signal interpolated between readings at most `gap_s` from each other; NaN elsewhere."""
    is_valid = np.isfinite(values)
    if is_valid.sum() < 2:
        return np.full(len(grid), np.nan)
    times, readings = time_s[is_valid], values[is_valid]
    after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    distance_s = times[after] - times[after - 1]
    return np.where(distance_s <= gap_s, np.interp(grid, times, readings), np.nan)


def _combine_signals(signals: list[EvenSignal]) -> EvenSignal:
    total = signals[0].values
    for row in signals[1:]:
        total = max(total + row.values, total - row.values, key=_compute_deviation)
    return EvenSignal(total / len(signals), max(row.update_s for row in signals))


def _compute_deviation(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.std()) if finite.size else 0.0


def _filter_signal(signal: EvenSignal, sampling_hz: float, cut_hz: float) -> tuple[Values, Values]:
    """(values without mean and frequencies above `cut_hz`, mask of valid readings)."""
    is_valid, at = np.isfinite(signal.values), np.arange(len(signal.values))
    filled = np.interp(at, at[is_valid], signal.values[is_valid])
    spectrum = np.fft.rfft(filled - filled.mean())
    spectrum[np.fft.rfftfreq(len(at), 1.0 / sampling_hz) > cut_hz] = 0.0
    return np.fft.irfft(spectrum, len(at)) * is_valid, is_valid * 1.0
