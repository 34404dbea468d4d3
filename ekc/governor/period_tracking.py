"""Tracking of a known period under other clocks, to a fraction of a percent.

`detect_period` finds a period without prior knowledge. Another stretch of the same job is then searched only
near it: for the harmonic series with most of the signals' power, in a spectrum padded so far that all
harmonics of a bin are bins. Iterations differ in length, so that no single frequency is their mean rate.
The phase of the strongest harmonic is therefore followed through the stretch, and the rate is the number of
turns between its ends over the time between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.samples import SensorSamples, Values

MAX_HARMONICS = 8
MAX_HARMONIC_HZ = 4.5
"""Highest harmonic in hertz; sensors with ten readings a second show none above."""
MAX_BIN_WIDTH = 0.2
"""Largest width of a bin, in cycles of the highest harmonic over the stretch."""
GRID_STEP_S = 0.1
"""Interval in seconds to which readings are interpolated, for one FFT."""
MIN_READINGS = 32
MAX_PHASE_STEP = 0.05
"""Standard deviation of the change of a harmonic's phase over a period, in turns, of a steady one."""


@dataclass(frozen=True)
class TrackedPeriod:
    """A period found near the expected one."""

    seconds: float
    """Mean period over the stretch."""
    timing_variance_per_s: float
    """Variance of the period's timing in seconds squared per second, from thirds of the stretch; NaN where
    they are shorter than a period."""
    fast_variance_per_s: float
    """The same from sixths of the stretch: smaller where the length of iterations wanders slowly."""
    clarity: float
    """Share of the signals' variance explained by the harmonic series along its phase, 0 to 1."""


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
    even, rows = _interpolate_evenly(at, normalise_signals(samples))
    first_s, _ = _find_best_period(rows, expected_s, min_ratio, max_ratio)
    turns, half = _follow_phase(even, rows, first_s)
    inside = turns[half : len(turns) - half]
    seconds = GRID_STEP_S * (len(inside) - 1) / float(inside[-1] - inside[0])
    slow, fast = (_estimate_timing_variance(inside, seconds, parts) for parts in (3, 6))
    return TrackedPeriod(seconds, slow, fast, _compute_clarity(turns, rows, seconds))


def _interpolate_evenly(at: Values, rows: Values) -> tuple[Values, Values]:
    """(even times, rows at them)."""
    even = np.arange(at[0], at[-1], GRID_STEP_S)
    return even, np.array([np.interp(even, at, row) for row in rows])


def _follow_phase(even: Values, rows: Values, period_s: float) -> tuple[Values, int]:
    """(turns of the period at each time, readings at each end without a whole period around them).

    Of the harmonics whose phase is steady the one is taken that shows time best, by power times frequency
    squared; the strongest one where none is steady.
    """
    width = min(max(1, int(period_s / GRID_STEP_S)), len(even) // 2)
    best, turns = (False, -1.0), np.zeros(len(even))
    for harmonic in range(1, _count_harmonics(period_s) + 1):
        turning = rows * np.exp(-2j * np.pi * harmonic * even / period_s)
        averaged = _average_around(turning, period_s / GRID_STEP_S)
        phase, power = _unwrap_phase(averaged), float((np.abs(averaged) ** 2).sum())
        is_steady = float(np.std(phase[width:] - phase[:-width])) < MAX_PHASE_STEP
        merit = (is_steady, power * harmonic**2 if is_steady else power)
        if merit > best:
            best, turns = merit, phase / harmonic
    return even / period_s + turns, int(period_s / GRID_STEP_S / 2)


def _average_around(rows: NDArray[np.complex128], width: float) -> NDArray[np.complex128]:
    """Means over `width` points around each point, with parts of the outer ones; of fewer at the ends."""
    count = rows.shape[1]
    total = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    middle, edges = np.arange(count) + 0.5, np.arange(count + 1)
    first, last = (middle - width / 2).clip(0, count), (middle + width / 2).clip(0, count)
    sums = [np.interp(last, edges, row) - np.interp(first, edges, row) for row in total]
    means: NDArray[np.complex128] = np.array(sums) / (last - first)
    return means


def _unwrap_phase(rows: NDArray[np.complex128]) -> Values:
    """Phase of the strongest common part of complex rows, in turns, without jumps."""
    _, directions = np.linalg.eigh(rows @ rows.conj().T)
    phase: Values = np.unwrap(np.angle(directions[:, -1].conj() @ rows)) / (2 * np.pi)
    return phase


def _estimate_timing_variance(turns: Values, seconds: float, parts: int) -> float:
    """Variance of timing per second, from differences of the periods of consecutive parts; NaN where a part
    holds less than a period."""
    width = (len(turns) - 1) // parts
    if width * GRID_STEP_S < seconds:
        return float("nan")
    shift_s = seconds * (turns[2 * width :] - 2.0 * turns[width:-width] + turns[: -2 * width])
    return float(np.mean(shift_s**2) / (2.0 * width * GRID_STEP_S))


def _compute_clarity(turns: Values, rows: Values, period_s: float) -> float:
    """Share of the variance of rows that harmonics of the phase explain."""
    harmonics = np.arange(1, _count_harmonics(period_s) + 1)
    waves = np.exp(-2j * np.pi * harmonics[:, None] * turns)
    varying_count = max(1, int((rows.std(axis=1) > 0).sum()))
    return min(1.0, float(2.0 * (np.abs(rows @ waves.T / rows.shape[1]) ** 2).sum() / varying_count))


def _count_harmonics(period_s: float) -> int:
    return int(min(MAX_HARMONICS, max(1, MAX_HARMONIC_HZ * period_s)))


def _find_best_period(
    rows: Values, expected_s: float, min_ratio: float, max_ratio: float
) -> tuple[float, float]:
    """(period whose harmonics explain most of the variance, share of variance)."""
    harmonics = _count_harmonics(expected_s)
    bin_hz, power = _compute_spectrum(rows, harmonics)
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


def _compute_spectrum(values: Values, harmonics: int) -> tuple[float, Values]:
    """(width of a bin in hertz, share of variance in each bin); harmonics of a bin are bins."""
    count = values.shape[1]
    varying_count = max(1, int((values.std(axis=1) > 0).sum()))
    # The stretch is no whole number of periods; a taper keeps its ends from biasing the frequency.
    taper = np.sin(np.pi * (np.arange(count) + 0.5) / count)
    values = values * taper / taper.mean()
    size = 1 << int(np.ceil(np.log2(count * harmonics / MAX_BIN_WIDTH)))
    power = (np.abs(np.fft.rfft(values, size, axis=1)) ** 2).sum(axis=0)
    return 1 / (size * GRID_STEP_S), np.asarray(2 * power / (count**2 * varying_count))
