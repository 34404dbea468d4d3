"""How alike signals are to themselves, so much later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.signals import SignalViews
from ekc.governor.samples import Values

POINTS_PER_LAG = 4
"""Points per lag, or averages per width."""
MIN_PAIR_SHARE = 0.5
"""Of the pairs that chance would leave: with fewer, nothing is said of a lag."""
MIN_ENERGY_SHARE = 1e-3
"""Of a signal's energy: to differ by less is no likeness (else a ramp would repeat)."""


@dataclass(frozen=True)
class SelfSimilarity:
    """Of one signal with itself, at each lag: 1 where it repeats exactly, 0 where it differs from itself as
    much as at the shorter lags on the average, less where more."""

    lag_s: Values
    likeness: Values

    def interpolate(self, lag_s: Values) -> Values:
        """Between lags by a straight line."""
        return np.interp(lag_s, self.lag_s, self.likeness)


def compute_similarities(signals: SignalViews, parts: Sequence[float]) -> list[list[SelfSimilarity]]:
    """For each of `parts`, for each signal, at lags from one and a half readings to half the signal.

    Stretches are compared after averaging over at least half and at most all of one `parts`-th of the lag:
    iterations that are each a little early or late still look alike, and the longer they are the less noise
    counts. Few parts forgive more, many parts tell more apart.
    """
    longest = signals.values.shape[1] // 2
    lags: list[list[Values]] = [[np.zeros(0)] for _ in parts]
    likeness: list[list[Values]] = [[np.zeros((len(signals.values), 0))] for _ in parts]
    width = 1
    while width == 1 or width * min(parts) <= longest:
        step = 1.0 / POINTS_PER_LAG if width == 1 else float(max(width // POINTS_PER_LAG, 1))
        at = np.arange(step, min(2.0 * max(parts) * width, longest + 1.0), step)
        unlike = _compute_difference(signals, width, at, step)
        for n, part in enumerate(parts):
            wanted = (at >= (part * width if width > 1 else 1.5)) & (at < 2.0 * part * width)
            lags[n].append(at[wanted])
            likeness[n].append(1.0 - unlike[:, wanted])
        width *= 2
    return [
        [SelfSimilarity(np.concatenate(lag) * signals.interval_s, row) for row in np.hstack(values)]
        for lag, values in zip(lags, likeness, strict=True)
    ]


def _compute_difference(signals: SignalViews, width: int, lags: Values, step: float) -> Values:
    """The mean square of what two points a lag apart differ by, over the same at the shorter lags."""
    hop, fine = max(1, round(step)), round(max(1.0, 1.0 / step))
    values, known = _average_signals(signals, width, hop)
    at = np.rint(lags / step).astype(int)
    size = _choose_fft_length(values.shape[1] + int(lags[-1] / hop) + 2 if len(lags) else 1)
    spectrum, mask, squares = (np.fft.rfft(rows, size) for rows in (values, known, values**2))
    product = np.fft.irfft(np.abs(spectrum) ** 2, size * fine)[:, at] * fine
    energies = np.fft.irfft(2.0 * (squares * mask.conj()).real, size)
    energy = np.stack([np.interp(lags / hop, np.arange(size), row) for row in energies])
    apart = 1.0 - 2.0 * product / np.maximum(energy, 1e-9 * energies[:, :1] + 1e-300)
    apart = _fill_unknown(
        apart, lags, _find_sparse_lags(np.fft.irfft(np.abs(mask) ** 2, size), known, lags / hop)
    )
    mean = np.cumsum(apart, axis=1) / np.arange(1, len(lags) + 1)
    unlike: Values = (apart + MIN_ENERGY_SHARE) / (np.maximum(mean, 0.0) + MIN_ENERGY_SHARE)
    return unlike


def _find_sparse_lags(pairs: Values, valid_mask: Values, at: Values) -> NDArray[np.bool_]:
    """Of which lags too few pairs of readings are known: what is missing has a pattern of its own there."""
    count, lag = valid_mask.shape[1], np.arange(pairs.shape[1])
    chance = valid_mask.sum(axis=1, keepdims=True) ** 2 / count * np.maximum(1.0 - lag / count, 0.0)
    few = np.asarray(pairs < MIN_PAIR_SHARE * chance, dtype=np.float64)
    return np.stack([np.interp(at, lag, row) for row in few]) > 0.0


def _fill_unknown(rows: Values, at: Values, is_unknown: NDArray[np.bool_]) -> Values:
    """What is unknown, from what is known on both sides: no peak lies there then."""
    for row, gone in zip(rows, is_unknown, strict=True):
        if gone.any() and not gone.all():
            row[gone] = np.interp(at[gone], at[~gone], row[~gone])
    return rows


def _average_signals(signals: SignalViews, width: int, hop: int) -> tuple[Values, Values]:
    """(means over `width` readings, every `hop`-th; where at least half of them are known)."""
    if width == 1:
        return signals.values, signals.valid_mask
    known = _sum_moving(signals.valid_mask, width)[:, ::hop]
    total = _sum_moving(signals.values, width)[:, ::hop]
    enough = np.asarray(known >= 0.5 * width, dtype=np.float64)
    return enough * total / np.maximum(known, 1.0), enough


def _sum_moving(rows: Values, width: int) -> Values:
    total = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
    sums: Values = total[:, width:] - total[:, :-width]
    return sums


def _choose_fft_length(min_size: int) -> int:
    """A length that the fast Fourier transform likes."""
    power = 1 << max(min_size - 1, 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= min_size)
