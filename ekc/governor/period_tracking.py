"""Tracking of a known period under other clocks, to a fraction of a percent.

`detect_period` finds a period without prior knowledge. Another stretch of the same job is then searched only
near it, with a resolution much finer than a bin of an FFT: the search is for the harmonic series with most
of the signals' power, in a spectrum padded so far that all harmonics of a bin are bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ekc.governor.samples import SensorSamples, Values

MAX_HARMONICS = 8
MAX_HARMONIC_HZ = 4.5
"""Highest harmonic in hertz; sensors with ten readings a second show none above."""
MAX_BIN_WIDTH = 0.2
"""Largest width of a bin, in cycles of the highest harmonic over the stretch."""
GRID_STEP_S = 0.1
"""Interval in seconds to which readings are interpolated, for one FFT."""
MIN_READINGS = 32
BLOCK_COUNT = 5
"""Number of blocks whose phases give the variance of timing."""


@dataclass(frozen=True)
class TrackedPeriod:
    """A period found near the expected one."""

    seconds: float
    timing_variance_per_s: float
    """Variance of the period's timing in seconds squared per second; NaN where the stretch is too short."""
    clarity: float
    """Share of the signals' variance explained by the harmonic series, 0 to 1."""


def normalise_signals(samples: SensorSamples) -> Values:
    """Power, SM use and memory use with mean 0 and standard deviation 1, or 0 if constant: (signals, n)."""
    signals = np.stack([samples.power_w, samples.sm_util, samples.memory_util])
    is_measured = np.isfinite(signals).any(axis=1)
    rows = signals[is_measured]
    rows = rows - np.nanmean(rows, axis=1, keepdims=True)
    scale = np.nanstd(rows, axis=1, keepdims=True)
    # Deviations of use below 1 percent are rounding.
    rows = np.where(scale > np.array([[0.0], [1.0], [1.0]])[is_measured], rows / np.maximum(scale, 1e-9), 0.0)
    return np.nan_to_num(rows)


def find_period_near(
    samples: SensorSamples, expected_s: float, min_ratio: float, max_ratio: float
) -> TrackedPeriod | None:
    """The period between two multiples of `expected_s`; None where the samples are too short."""
    at = samples.time_s
    if len(at) < MIN_READINGS or at[-1] - at[0] < 1.8 * expected_s * min_ratio:
        return None
    rows = normalise_signals(samples)
    seconds, explained = _find_best_period(at, rows, expected_s, min_ratio, max_ratio)
    return TrackedPeriod(seconds, _estimate_timing_variance(at, rows, seconds), explained)


def _estimate_timing_variance(at: Values, rows: Values, seconds: float) -> float:
    """Variance of timing per second, from phase differences between consecutive blocks of whole periods."""
    periods = int((at[-1] - at[0]) / seconds)
    length = seconds * max(1, periods // BLOCK_COUNT)
    count = int((at[-1] - at[0]) / length)
    if count < 3:
        return float("nan")
    harmonics = np.arange(1, int(min(MAX_HARMONICS, max(1, MAX_HARMONIC_HZ * seconds))) + 1)
    power = [(np.abs(rows @ np.exp(-2j * np.pi * at * m / seconds)) ** 2).sum() for m in harmonics]
    turn = rows * np.exp(-2j * np.pi * at * harmonics[int(np.argmax(power))] / seconds)
    edges = np.searchsorted(at, at[0] + length * np.arange(count + 1))
    blocks = np.array([turn[:, a:b].sum(axis=1) for a, b in pairwise(edges)])
    phase_shift = np.angle((blocks[1:] * blocks[:-1].conj()).sum(axis=1))
    shift_s = phase_shift / (2 * np.pi * harmonics[int(np.argmax(power))]) * seconds
    return float(np.mean(shift_s**2) / length)


def _find_best_period(
    at: Values, rows: Values, expected_s: float, min_ratio: float, max_ratio: float
) -> tuple[float, float]:
    """(period whose harmonics explain most of the variance, share of variance)."""
    harmonics = int(min(MAX_HARMONICS, max(1, MAX_HARMONIC_HZ * expected_s)))
    bin_hz, power = _compute_spectrum(at, rows, harmonics)
    low = max(1, int(np.floor(1 / (expected_s * max_ratio) / bin_hz)))
    high = int(np.ceil(1 / (expected_s * min_ratio) / bin_hz))
    bins = np.arange(low, min(high, (len(power) - 1) // harmonics) + 1)
    if not len(bins):
        return expected_s, 0.0
    explained = power[bins[None, :] * np.arange(1, harmonics + 1)[:, None]].sum(axis=0)
    best = int(explained.argmax())
    shift = 0.0
    if 0 < best < len(bins) - 1:
        left, mid, right = explained[best - 1 : best + 2]
        shift = float(np.clip(0.5 * (left - right) / min(left - 2 * mid + right, -1e-12), -0.5, 0.5))
    return 1 / (bin_hz * (float(bins[best]) + shift)), float(explained[best])


def _compute_spectrum(at: Values, rows: Values, harmonics: int) -> tuple[float, Values]:
    """(width of a bin in hertz, share of variance in each bin); harmonics of a bin are bins."""
    even = np.arange(at[0], at[-1], GRID_STEP_S)
    values = np.array([np.interp(even, at, row) for row in rows])
    varying_count = max(1, int((values.std(axis=1) > 0).sum()))
    # The stretch is no whole number of periods; a taper keeps its ends from biasing the frequency.
    taper = np.sin(np.pi * (np.arange(len(even)) + 0.5) / len(even))
    values = values * taper / taper.mean()
    size = 1 << int(np.ceil(np.log2(len(even) * harmonics / MAX_BIN_WIDTH)))
    power = (np.abs(np.fft.rfft(values, size, axis=1)) ** 2).sum(axis=0)
    return 1 / (size * GRID_STEP_S), np.asarray(2 * power / (len(even) ** 2 * varying_count))
