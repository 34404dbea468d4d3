"""How alike signals are to themselves, so much later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.signal import Signals
from ekc.governor.samples import Values

FINE = 4
"""Points per lag, or averages per width."""
FEW = 0.5
"""Of the pairs that chance would leave: with fewer, nothing is said of a lag."""
FAINT = 1e-3
"""Of a signal's energy: to differ by less is no likeness (else a ramp would repeat)."""


@dataclass(frozen=True)
class Similarity:
    """Of one signal with itself, at each lag: 1 where it repeats exactly, 0 where it differs from itself as
    much as at the shorter lags on the average, less where more."""

    lag_s: Values
    likeness: Values

    def at(self, lag_s: Values) -> Values:
        """Between lags by a straight line."""
        return np.interp(lag_s, self.lag_s, self.likeness)


def similarities(signals: Signals, parts: Sequence[float]) -> list[list[Similarity]]:
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
        step = 1.0 / FINE if width == 1 else float(max(width // FINE, 1))
        at = np.arange(step, min(2.0 * max(parts) * width, longest + 1.0), step)
        unlike = _unlike(signals, width, at, step)
        for n, part in enumerate(parts):
            wanted = (at >= (part * width if width > 1 else 1.5)) & (at < 2.0 * part * width)
            lags[n].append(at[wanted])
            likeness[n].append(1.0 - unlike[:, wanted])
        width *= 2
    return [
        [Similarity(np.concatenate(lag) * signals.interval_s, row) for row in np.hstack(values)]
        for lag, values in zip(lags, likeness, strict=True)
    ]


def _unlike(signals: Signals, width: int, lags: Values, step: float) -> Values:
    """The mean square of what two points a lag apart differ by, over the same at the shorter lags."""
    hop, fine = max(1, round(step)), round(max(1.0, 1.0 / step))
    values, known = _averaged(signals, width, hop)
    at = np.rint(lags / step).astype(int)
    size = _fast(values.shape[1] + int(lags[-1] / hop) + 2 if len(lags) else 1)
    spectrum, mask, squares = (np.fft.rfft(rows, size) for rows in (values, known, values**2))
    product = np.fft.irfft(np.abs(spectrum) ** 2, size * fine)[:, at] * fine
    energies = np.fft.irfft(2.0 * (squares * mask.conj()).real, size)
    energy = np.stack([np.interp(lags / hop, np.arange(size), row) for row in energies])
    apart = 1.0 - 2.0 * product / np.maximum(energy, 1e-9 * energies[:, :1] + 1e-300)
    apart = _bridged(apart, lags, _few(np.fft.irfft(np.abs(mask) ** 2, size), known, lags / hop))
    mean = np.cumsum(apart, axis=1) / np.arange(1, len(lags) + 1)
    unlike: Values = (apart + FAINT) / (np.maximum(mean, 0.0) + FAINT)
    return unlike


def _few(pairs: Values, known: Values, at: Values) -> NDArray[np.bool_]:
    """Of which lags too few pairs of readings are known: what is missing has a pattern of its own there."""
    count, lag = known.shape[1], np.arange(pairs.shape[1])
    chance = known.sum(axis=1, keepdims=True) ** 2 / count * np.maximum(1.0 - lag / count, 0.0)
    few = np.asarray(pairs < FEW * chance, dtype=np.float64)
    return np.stack([np.interp(at, lag, row) for row in few]) > 0.0


def _bridged(rows: Values, at: Values, unknown: NDArray[np.bool_]) -> Values:
    """What is unknown, from what is known on both sides: no peak lies there then."""
    for row, gone in zip(rows, unknown, strict=True):
        if gone.any() and not gone.all():
            row[gone] = np.interp(at[gone], at[~gone], row[~gone])
    return rows


def _averaged(signals: Signals, width: int, hop: int) -> tuple[Values, Values]:
    """(means over `width` readings, every `hop`-th; where at least half of them are known)."""
    if width == 1:
        return signals.values, signals.known
    known = _moving(signals.known, width)[:, ::hop]
    total = _moving(signals.values, width)[:, ::hop]
    enough = np.asarray(known >= 0.5 * width, dtype=np.float64)
    return enough * total / np.maximum(known, 1.0), enough


def _moving(rows: Values, width: int) -> Values:
    total = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
    sums: Values = total[:, width:] - total[:, :-width]
    return sums


def _fast(least: int) -> int:
    """A length that the fast Fourier transform likes."""
    power = 1 << max(least - 1, 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= least)
