"""How fast a job goes, by how its known period has stretched: precise to a fraction of a percent.

`detect_period` finds a period from nothing. Once it is known, another stretch of the same job under another
clock need only be searched near it, and its frequency can be told much finer than one bin of an FFT: the
harmonic series that carries most of the signals' power is sought in a spectrum padded so far that all
harmonics of a bin are bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ekc.governor.samples import SensorSamples, Values

MAX_HARMONICS = 8
MAX_HARMONIC_HZ = 4.5
"""Harmonics above are lost at ten readings a second."""
MAX_BIN_WIDTH = 0.2
"""Width of a bin at most, in cycles of the highest harmonic over the whole stretch."""
GRID_STEP_S = 0.1
"""Readings are put on even times: the spectrum is then one FFT."""
MIN_READINGS = 32
BLOCK_COUNT = 5


@dataclass(frozen=True)
class TrackedPeriod:
    """A period near the expected one."""

    seconds: float
    timing_variance_per_s: float
    """How the beat strays: variance of its timing (seconds squared) gained per second; NaN where untold."""
    clarity: float
    """Share of the signals' variance that the harmonic series explains, 0 to 1."""


def normalise_signals(samples: SensorSamples) -> Values:
    """Power and utilisations, each with mean 0 and deviation 1 (0 where flat): (signals, n)."""
    every = np.stack([samples.power_w, samples.sm_util, samples.memory_util])
    told = np.isfinite(every).any(axis=1)
    rows = every[told]
    rows = rows - np.nanmean(rows, axis=1, keepdims=True)
    scale = np.nanstd(rows, axis=1, keepdims=True)
    # A percent is the finest step of utilisation: below it there is only rounding.
    rows = np.where(scale > np.array([[0.0], [1.0], [1.0]])[told], rows / np.maximum(scale, 1e-9), 0.0)
    return np.nan_to_num(rows)


def find_period_near(
    samples: SensorSamples, expected_s: float, min_ratio: float, max_ratio: float
) -> TrackedPeriod | None:
    """The period between `least` and `most` times `near_s`; None where the stretch is too short to tell."""
    at = samples.time_s
    if len(at) < MIN_READINGS or at[-1] - at[0] < 1.8 * expected_s * min_ratio:
        return None
    rows = normalise_signals(samples)
    seconds, explained = _find_best_period(at, rows, expected_s, min_ratio, max_ratio)
    return TrackedPeriod(seconds, _estimate_timing_variance(at, rows, seconds), explained)


def _estimate_timing_variance(at: Values, rows: Values, seconds: float) -> float:
    """From the phases of blocks of whole periods: what they stray from one block to the next."""
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
    strayed = np.angle((blocks[1:] * blocks[:-1].conj()).sum(axis=1))
    late = strayed / (2 * np.pi * harmonics[int(np.argmax(power))]) * seconds
    return float(np.mean(late**2) / length)


def _find_best_period(
    at: Values, rows: Values, expected_s: float, min_ratio: float, max_ratio: float
) -> tuple[float, float]:
    """The period whose harmonics hold most of the variance, and how much that is."""
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
    """Width of a bin, and the share of variance in each, so fine that a bin's harmonics are bins too."""
    even = np.arange(at[0], at[-1], GRID_STEP_S)
    values = np.array([np.interp(even, at, row) for row in rows])
    live = max(1, int((values.std(axis=1) > 0).sum()))
    # A stretch is no whole number of periods: tapered, its ends do not lean on the frequency.
    taper = np.sin(np.pi * (np.arange(len(even)) + 0.5) / len(even))
    values = values * taper / taper.mean()
    size = 1 << int(np.ceil(np.log2(len(even) * harmonics / MAX_BIN_WIDTH)))
    power = (np.abs(np.fft.rfft(values, size, axis=1)) ** 2).sum(axis=0)
    return 1 / (size * GRID_STEP_S), np.asarray(2 * power / (len(even) ** 2 * live))
