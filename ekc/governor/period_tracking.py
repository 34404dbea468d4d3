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

from ekc.governor.samples import SensorSamples, Values, detect_pauses, drop_stretches, shift_times

MAX_HARMONICS = 8
MAX_HARMONIC_HZ = 4.5
"""Highest harmonic in hertz; sensors with ten readings a second show none above."""
MAX_BIN_WIDTH = 0.2
"""Largest width of a bin, in cycles of the highest harmonic over the stretch."""
GRID_STEP_S = 0.1
"""Interval in seconds to which readings are interpolated, for one FFT."""
MIN_PERIODS = 1.8
"""Periods that a stretch must hold."""
MIN_READINGS = 32
MIN_WINDOW_S = 0.4
"""Least seconds over which a phase is averaged: several periods where they are shorter."""
MAX_PHASE_STEP = 0.05
"""Standard deviation of the change of a harmonic's phase over a period, in turns, of a steady one."""
MAX_OUTSIDE = 0.05
"""Share by which the mean period may lie outside the range in which the strongest frequency is searched."""
FAINT_SHARE = 0.2
"""Amplitude of a harmonic, as a share of its median, below which its phase may gain or lose a turn unseen."""


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
    count_error: float
    """Standard deviation of the number of periods in the stretch, from moments at which the pattern was
    faint, over that number."""
    clarity: float
    """Share of the signals' variance explained by the harmonic series of one frequency, 0 to 1. A phase that
    is followed fits noise as well, so it does not show whether there is a period."""


def interpolate_signals(samples: SensorSamples) -> tuple[Values, Values]:
    """(even times, power, SM use and memory use at them, as `_normalise_signals` returns them)."""
    even = np.arange(samples.time_s[0], samples.time_s[-1], GRID_STEP_S)
    return even, np.array([np.interp(even, samples.time_s, row) for row in _normalise_signals(samples)])


def _normalise_signals(samples: SensorSamples) -> Values:
    """Power, SM use and memory use with mean 0 and standard deviation 1, or 0 if constant: (signals, n)."""
    signals = np.stack([samples.power_w, samples.sm_util, samples.memory_util])
    is_measured = np.isfinite(signals).any(axis=1)
    rows = signals[is_measured]
    rows = rows - np.nanmean(rows, axis=1, keepdims=True)
    scale = np.nanstd(rows, axis=1, keepdims=True)
    # Deviations of use below 1 percent are rounding.
    rows = np.where(scale > np.array([[0.0], [1.0], [1.0]])[is_measured], rows / np.maximum(scale, 1e-9), 0.0)
    return np.nan_to_num(rows)


def track_period_near(
    samples: SensorSamples, expected_s: float, min_ratio: float, max_ratio: float
) -> TrackedPeriod | None:
    """The period between two multiples of `expected_s`; None where the samples are too short."""
    pauses = detect_pauses(samples, expected_s)
    samples = drop_stretches(samples, pauses) if len(pauses) else samples
    if len(samples) < MIN_READINGS:
        return None
    # A period of more than this part of the stretch cannot be followed.
    longest = (samples.time_s[-1] - samples.time_s[0]) / (MIN_PERIODS * expected_s)
    if longest < min_ratio:
        return None
    max_ratio = min(max_ratio, longest)
    even, rows = interpolate_signals(samples)
    first_s, clarity = measure_strongest_period(rows, expected_s, min_ratio, max_ratio)
    window_s = first_s * np.ceil(MIN_WINDOW_S / first_s)
    # Near a cut, and at both ends, means over a window are of less than one.
    half = int(window_s / GRID_STEP_S / 2)
    margin_s = max(0.5 * window_s, samples.sensor_s)
    is_cut = (np.abs(even[:, None] - shift_times(pauses[:, 0], pauses)[None, :]) < margin_s).any(axis=1)
    followed = _follow_phase(even, rows, first_s, window_s, is_cut)
    is_cut[:half] = is_cut[len(even) - half :] = True
    inside, amplitude = _join_turns(followed, is_cut)
    if len(pauses) and len(inside) * GRID_STEP_S < MIN_PERIODS * first_s:
        return None
    turned = float(inside[-1] - inside[0])
    seconds = GRID_STEP_S * (len(inside) - 1) / turned if turned > 0 else float("inf")
    if not min_ratio * (1 - MAX_OUTSIDE) <= seconds / expected_s <= max_ratio * (1 + MAX_OUTSIDE):
        # Where the period is not in the signals, the phase follows another pattern or noise.
        return TrackedPeriod(first_s, float("nan"), float("nan"), float("nan"), 0.0)
    slow, fast = (_estimate_timing_variance(inside, seconds, window_s, parts) for parts in (3, 6))
    count_error = _estimate_count_error(amplitude) / followed.harmonic
    return TrackedPeriod(seconds, slow, fast, count_error / turned, clarity)


@dataclass(frozen=True)
class _FollowedPhase:
    """Phase of a period through a stretch; arrays of (n,)."""

    turns: Values
    """Turns of the period at each time."""
    harmonic: int
    """Number of the harmonic whose phase was followed."""
    amplitude: Values
    """Amplitude of that harmonic around each time."""


def _join_turns(followed: _FollowedPhase, is_cut: NDArray[np.bool_]) -> tuple[Values, Values]:
    """(turns, amplitudes) at the times that are not near a cut, as if these followed each other."""
    is_kept = ~is_cut
    steps = np.diff(followed.turns)[is_kept[1:] & is_kept[:-1]]
    turns: Values = np.concatenate([[0.0], np.cumsum(steps)])
    return turns, followed.amplitude[is_kept]


def _follow_phase(
    even: Values, rows: Values, period_s: float, window_s: float, is_cut: NDArray[np.bool_]
) -> _FollowedPhase:
    """Follow the phase of one harmonic of a period, averaged over `window_s`, whole periods.

    Of the harmonics whose phase is steady the one is taken that shows time best, by power times frequency
    squared; the strongest one where none is steady.
    """
    width = min(max(1, int(window_s / GRID_STEP_S)), len(even) // 2)
    cuts_before = np.cumsum(is_cut)
    is_unbroken = cuts_before[width:] == cuts_before[:-width]
    best, found = (False, -1.0), None
    for harmonic in range(1, _count_harmonics(period_s) + 1):
        turning = rows * np.exp(-2j * np.pi * harmonic * even / period_s)
        wave = _combine_rows(_average_around(turning, window_s / GRID_STEP_S))
        phase: Values = np.unwrap(np.angle(wave)) / (2 * np.pi)
        amplitude: Values = np.abs(wave)
        power = float(amplitude @ amplitude)
        changes = (phase[width:] - phase[:-width])[is_unbroken]
        is_steady = len(changes) > 0 and float(np.std(changes)) < MAX_PHASE_STEP
        merit = (is_steady, power * harmonic**2 if is_steady else power)
        if found is None or merit > best:
            turns = even / period_s + phase / harmonic
            best, found = merit, _FollowedPhase(turns, harmonic, amplitude)
    assert found is not None
    return found


def _average_around(rows: NDArray[np.complex128], width: float) -> NDArray[np.complex128]:
    """Means over `width` points around each point, with parts of the outer ones; of fewer at the ends."""
    count = rows.shape[1]
    total = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    middle, edges = np.arange(count) + 0.5, np.arange(count + 1)
    first, last = (middle - width / 2).clip(0, count), (middle + width / 2).clip(0, count)
    sums = [np.interp(last, edges, row) - np.interp(first, edges, row) for row in total]
    means: NDArray[np.complex128] = np.array(sums) / (last - first)
    return means


def _combine_rows(rows: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """The strongest common part of complex rows."""
    _, directions = np.linalg.eigh(rows @ rows.conj().T)
    combined: NDArray[np.complex128] = directions[:, -1].conj() @ rows
    return combined


def _estimate_count_error(amplitude: Values) -> float:
    """Standard deviation of the number of turns: about one for each time at which the amplitude was faint."""
    is_faint = amplitude < FAINT_SHARE * np.median(amplitude)
    return float(np.sqrt(np.count_nonzero(np.diff(is_faint, prepend=False) & is_faint)))


def _estimate_timing_variance(turns: Values, seconds: float, window_s: float, parts: int) -> float:
    """Variance of timing per second, from differences of the periods of consecutive parts; NaN where a part
    is shorter than a window."""
    width = (len(turns) - 1) // parts
    width_s = width * GRID_STEP_S
    if width_s < window_s:
        return float("nan")
    shift_s = seconds * (turns[2 * width :] - 2.0 * turns[width:-width] + turns[: -2 * width])
    # Turns are means over a window around each time, which leaves this much of a random walk's differences.
    return float(np.mean(shift_s**2) / (2.0 * width_s - window_s))


def _count_harmonics(period_s: float) -> int:
    return int(min(MAX_HARMONICS, max(1, MAX_HARMONIC_HZ * period_s)))


def measure_strongest_period(
    rows: Values, expected_s: float, min_ratio: float, max_ratio: float
) -> tuple[float, float]:
    """(period whose harmonics have most power together, share of the variance that they explain)."""
    harmonics = _count_harmonics(expected_s)
    bin_hz, power = _compute_spectrum(rows, harmonics)
    low = max(1, int(np.floor(1 / (expected_s * max_ratio) / bin_hz)))
    high = int(np.ceil(1 / (expected_s * min_ratio) / bin_hz))
    bins = np.arange(low, min(high, (len(power) - 1) // harmonics) + 1)
    if not len(bins):
        return expected_s, 0.0
    total = power[bins[None, :] * np.arange(1, harmonics + 1)[:, None]].sum(axis=0)
    best = int(total.argmax())
    shift = 0.0
    if 0 < best < len(bins) - 1:
        left, mid, right = total[best - 1 : best + 2]
        shift = float(np.clip(0.5 * (left - right) / min(left - 2 * mid + right, -1e-12), -0.5, 0.5))
    return 1 / (bin_hz * (float(bins[best]) + shift)), min(1.0, float(total[best]))


def _compute_spectrum(values: Values, harmonics: int) -> tuple[float, Values]:
    """(width of a bin in hertz, share of the variance in each bin); harmonics of a bin are bins."""
    count = values.shape[1]
    # The stretch is no whole number of periods; a taper keeps its ends from biasing the frequency.
    taper = np.sin(np.pi * (np.arange(count) + 0.5) / count)
    size = 1 << int(np.ceil(np.log2(count * harmonics / MAX_BIN_WIDTH)))
    power: Values = (np.abs(np.fft.rfft(values * taper / taper.mean(), size, axis=1)) ** 2).sum(axis=0)
    varying_count = max(1, int((values.std(axis=1) > 0).sum()))
    return 1 / (size * GRID_STEP_S), 2 * power / (count**2 * varying_count)
