"""How alike a signal is to itself, so much later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.period.signal import Signal
from ekc.governor.samples import Values

PARTS = 16
"""Stretches are compared after averaging over at least one so-many-eth of the lag: iterations that are each a
little early or late still look alike, and the longer they are the less noise counts."""
FINE = 4
"""Lags per reading, where no averaging is done."""


@dataclass(frozen=True)
class Similarity:
    """Of a signal with itself, at each lag: 1 where it repeats exactly, 0 where nothing is common."""

    lag_s: Values
    likeness: Values


def similarity(signal: Signal) -> Similarity:
    """At lags from one and a half readings to half the signal."""
    longest = len(signal.values) // 2
    lags, likeness = [], []
    width, first, step = 1, 1.5, 1.0 / FINE
    while first <= longest:
        last = min(2.0 * PARTS * width, longest + step)
        at = np.arange(first, last, step)
        lags.append(at)
        likeness.append(_likeness(signal, width, at, FINE if width == 1 else 1))
        width, first, step = 2 * width, last, 1.0
    if not lags:
        return Similarity(np.zeros(0), np.zeros(0))
    return Similarity(np.concatenate(lags) * signal.interval_s, np.concatenate(likeness))


def _likeness(signal: Signal, width: int, lags: Values, fine: int) -> Values:
    """Twice the product of what is a lag apart, over the squares of both: summed where both are known."""
    values, known = _averaged(signal, width)
    size = 1 << (2 * len(values) - 1).bit_length()
    spectrum, mask, squares = (np.fft.rfft(row, size) for row in (values, known, values**2))
    product = np.fft.irfft(np.abs(spectrum) ** 2, size * fine) * fine
    energy = np.fft.irfft(2.0 * (squares * mask.conj()).real, size)
    at_product = product[np.rint(lags * fine).astype(int)]
    at_energy = np.interp(lags, np.arange(size), energy)
    floor = 1e-9 * max(float(energy[0]), 1e-300)
    return 2.0 * at_product / np.maximum(at_energy, floor)


def _averaged(signal: Signal, width: int) -> tuple[Values, Values]:
    """Means over `width` readings, where at least half of them are known."""
    if width == 1:
        return signal.values, signal.known
    ones = np.ones(width)
    known = np.convolve(signal.known, ones, mode="valid")
    total = np.convolve(signal.values, ones, mode="valid")
    enough = known >= 0.5 * width
    return np.where(enough, total / np.maximum(known, 1.0), 0.0), enough * 1.0
