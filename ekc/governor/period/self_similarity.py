"""Self-similarity of signals: likeness of a signal with itself at each lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.signals import SignalViews
from ekc.governor.samples import Values

POINTS_PER_LAG = 4
"""Points per reading at short lags, averages per averaging width at long ones."""
MIN_PAIR_SHARE = 0.5
"""Least number of valid pairs of readings at a lag, as a share of the number expected by chance."""
MIN_ENERGY_SHARE = 1e-3
"""Least difference that counts, as a share of a signal's energy; otherwise a ramp would seem to repeat."""


@dataclass(frozen=True)
class SelfSimilarity:
    """Likeness of one signal with itself at each lag."""

    lag_s: Values
    """Lags in seconds, ascending."""
    likeness: Values
    """1 where the signal repeats exactly, 0 where it differs as much as at shorter lags; may be negative."""

    def interpolate(self, lag_s: Values) -> Values:
        """Likeness at any lags, by linear interpolation."""
        return np.interp(lag_s, self.lag_s, self.likeness)


def compute_similarities(signals: SignalViews, parts: Sequence[float]) -> list[list[SelfSimilarity]]:
    """Self-similarities for each of `parts` and each signal, at lags from 1.5 readings to half the signal.

    Signals are compared after averaging over at least half and at most all of one `parts`-th of the lag.
    Iterations of slightly different length then still look alike, and noise has less influence at longer
    lags. Few parts tolerate more, many parts distinguish more.
    """
    longest = signals.values.shape[1] // 2
    lags: list[list[Values]] = [[np.zeros(0)] for _ in parts]
    likeness: list[list[Values]] = [[np.zeros((len(signals.values), 0))] for _ in parts]
    width = 1
    while width == 1 or width * min(parts) <= longest:
        step = 1.0 / POINTS_PER_LAG if width == 1 else float(max(width // POINTS_PER_LAG, 1))
        at = np.arange(step, min(2.0 * max(parts) * width, longest + 1.0), step)
        difference = _compute_difference(signals, width, at, step)
        for n, part in enumerate(parts):
            in_range = (at >= (part * width if width > 1 else 1.5)) & (at < 2.0 * part * width)
            lags[n].append(at[in_range])
            likeness[n].append(1.0 - difference[:, in_range])
        width *= 2
    pairs = zip((np.concatenate(lag) * signals.interval_s for lag in lags), likeness, strict=True)
    return [[SelfSimilarity(lag_s, row) for row in np.hstack(values)] for lag_s, values in pairs]


def _compute_difference(signals: SignalViews, width: int, lags: Values, step: float) -> Values:
    """Mean square difference of two points one lag from each other, over its mean at the shorter lags."""
    hop, fine = max(1, round(step)), round(max(1.0, 1.0 / step))
    values, valid = _average_signals(signals, width, hop)
    at = np.rint(lags / step).astype(int)
    size = _choose_fft_length(values.shape[1] + int(lags[-1] / hop) + 2 if len(lags) else 1)
    spectrum, mask, squares = (np.fft.rfft(rows, size) for rows in (values, valid, values**2))
    product = np.fft.irfft(np.abs(spectrum) ** 2, size * fine)[:, at] * fine
    energies = np.fft.irfft(2.0 * (squares * mask.conj()).real, size)
    energy = np.stack([np.interp(lags / hop, np.arange(size), row) for row in energies])
    square = 1.0 - 2.0 * product / np.maximum(energy, 1e-9 * energies[:, :1] + 1e-300)
    sparse = _find_sparse_lags(np.fft.irfft(np.abs(mask) ** 2, size), valid, lags / hop)
    square = _fill_unknown(square, lags, sparse)
    mean = np.cumsum(square, axis=1) / np.arange(1, len(lags) + 1)
    difference: Values = (square + MIN_ENERGY_SHARE) / (np.maximum(mean, 0.0) + MIN_ENERGY_SHARE)
    return difference


def _find_sparse_lags(pairs: Values, valid_mask: Values, at: Values) -> NDArray[np.bool_]:
    """Mask of lags with too few valid pairs, where the pattern of missing readings would dominate."""
    count, lag = valid_mask.shape[1], np.arange(pairs.shape[1])
    chance = valid_mask.sum(axis=1, keepdims=True) ** 2 / count * np.maximum(1.0 - lag / count, 0.0)
    few = np.asarray(pairs < MIN_PAIR_SHARE * chance, dtype=np.float64)
    return np.stack([np.interp(at, lag, row) for row in few]) > 0.0


def _fill_unknown(rows: Values, at: Values, is_unknown: NDArray[np.bool_]) -> Values:
    """Interpolate unknown values from both sides, so that they make no peak."""
    for row, mask in zip(rows, is_unknown, strict=True):
        if mask.any() and not mask.all():
            row[mask] = np.interp(at[mask], at[~mask], row[~mask])
    return rows


def _average_signals(signals: SignalViews, width: int, hop: int) -> tuple[Values, Values]:
    """(means over `width` readings, every `hop`-th; mask of those with at least half of the readings)."""
    if width == 1:
        return signals.values, signals.valid_mask
    valid_count = _sum_moving(signals.valid_mask, width)[:, ::hop]
    total = _sum_moving(signals.values, width)[:, ::hop]
    enough = np.asarray(valid_count >= 0.5 * width, dtype=np.float64)
    return enough * total / np.maximum(valid_count, 1.0), enough


def _sum_moving(rows: Values, width: int) -> Values:
    total = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
    sums: Values = total[:, width:] - total[:, :-width]
    return sums


def _choose_fft_length(min_size: int) -> int:
    """Smallest length of at least `min_size` that is fast to transform: 5, 6 or 8 times a power of 2."""
    power = 1 << max(min_size - 1, 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= min_size)
