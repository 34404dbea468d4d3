"""How alike a signal is to itself, so much later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.period.signal import Signal
from ekc.governor.samples import Values

PARTS = 16
"""Stretches are compared after averaging over about one so-many-eth of the lag: iterations that are each a
little early or late still look alike, and the longer they are the less noise counts."""
FINE = 4
"""Lags per reading, where no averaging is done."""


@dataclass(frozen=True)
class Similarity:
    """Of a signal with itself, at each lag: 1 where it repeats exactly, 0 where it differs from itself as much
    as at the shorter lags on the average, less where more."""

    lag_s: Values
    likeness: Values

    def at(self, lag_s: Values) -> Values:
        """Between lags by a straight line."""
        return np.interp(lag_s, self.lag_s, self.likeness)


def similarity(signal: Signal) -> Similarity:
    """At lags from one and a half readings to half the signal."""
    longest = len(signal.values) // 2
    lags, likeness = [np.zeros(0)], [np.zeros(0)]
    width, first = 1, 1.5
    while first <= longest:
        fine = FINE if width == 1 else 1
        last = min(2.0 * PARTS * width, longest + 1.0)
        all_lags = np.arange(1.0 / fine, last, 1.0 / fine)
        apart = _difference(signal, width, all_lags, fine)
        mean = np.cumsum(apart) / np.arange(1, len(apart) + 1)
        wanted = all_lags >= first
        lags.append(all_lags[wanted])
        likeness.append((1.0 - apart / np.maximum(mean, 1e-12))[wanted])
        width, first = 2 * width, last
    return Similarity(np.concatenate(lags) * signal.interval_s, np.concatenate(likeness))


def _difference(signal: Signal, width: int, lags: Values, fine: int) -> Values:
    """Mean square of what two points a lag apart differ by, over twice the mean square of both."""
    values, known = _averaged(signal, width)
    size = 1 << (2 * len(values) - 1).bit_length()
    spectrum, mask, squares = (np.fft.rfft(row, size) for row in (values, known, values**2))
    product = np.fft.irfft(np.abs(spectrum) ** 2, size * fine) * fine
    energy = np.fft.irfft(2.0 * (squares * mask.conj()).real, size)
    at_product = product[np.rint(lags * fine).astype(int)]
    at_energy = np.interp(lags, np.arange(size), energy)
    floor = 1e-9 * max(float(energy[0]), 1e-300)
    apart: Values = 1.0 - 2.0 * at_product / np.maximum(at_energy, floor)
    return apart


def _averaged(signal: Signal, width: int) -> tuple[Values, Values]:
    """Means over `width` readings, where at least half of them are known."""
    if width == 1:
        return signal.values, signal.known
    ones = np.ones(width)
    known = np.convolve(signal.known, ones, mode="valid")
    total = np.convolve(signal.values, ones, mode="valid")
    enough = np.asarray(known >= 0.5 * width, dtype=np.float64)
    return enough * total / np.maximum(known, 1.0), enough
