"""How fast a job goes, by how its known period has stretched: precise to a fraction of a percent.

`detect_period` finds a period from nothing. Once it is known, another stretch of the same job under another clock
need only be searched near it, and frequencies can be told much finer than one bin: the harmonic series that carries
most of the signals' power is sought directly on the readings' own times, late and missing ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ekc.governor.samples import Samples, Values

HARMONICS = 8
FASTEST_HZ = 4.5
"""Harmonics above are lost at ten readings a second."""
GRID = 0.15
"""Step of the search, in cycles of the highest harmonic over the whole stretch."""
FEWEST = 32
BLOCKS = 5


@dataclass(frozen=True)
class Tempo:
    """A period near the expected one."""

    seconds: float
    wander: float
    """How the beat strays: variance of its timing (seconds squared) gained per second; NaN where untold."""
    clarity: float
    """Share of the signals' variance that the harmonic series explains, 0 to 1."""


def signals(samples: Samples) -> Values:
    """Power and utilisations, each with mean 0 and deviation 1 (0 where flat): (signals, n)."""
    rows = np.stack([samples.power_w, samples.sm_util, samples.memory_util])
    rows = rows - np.nanmean(rows, axis=1, keepdims=True)
    scale = np.nanstd(rows, axis=1, keepdims=True)
    # A percent is the finest step of utilisation: below it there is only rounding.
    rows = np.where(scale > np.array([[0.0], [1.0], [1.0]]), rows / np.maximum(scale, 1e-9), 0.0)
    return np.nan_to_num(rows)


def tempo(samples: Samples, near_s: float, least: float, most: float) -> Tempo | None:
    """The period between `least` and `most` times `near_s`; None where the stretch is too short to tell."""
    at = samples.time_s
    if len(at) < FEWEST or at[-1] - at[0] < 1.8 * near_s * least:
        return None
    rows = signals(samples)
    seconds, explained = _best(at, rows, near_s, least, most)
    return Tempo(seconds, _wander(at, rows, seconds), explained)


def _wander(at: Values, rows: Values, seconds: float) -> float:
    """From the phases of blocks of whole periods: what they stray from one block to the next."""
    periods = int((at[-1] - at[0]) / seconds)
    length = seconds * max(1, periods // BLOCKS)
    count = int((at[-1] - at[0]) / length)
    if count < 3:
        return float("nan")
    harmonics = np.arange(1, int(min(HARMONICS, max(1, FASTEST_HZ * seconds))) + 1)
    power = [(np.abs(rows @ np.exp(-2j * np.pi * at * m / seconds)) ** 2).sum() for m in harmonics]
    turn = rows * np.exp(-2j * np.pi * at * harmonics[int(np.argmax(power))] / seconds)
    edges = np.searchsorted(at, at[0] + length * np.arange(count + 1))
    blocks = np.array([turn[:, a:b].sum(axis=1) for a, b in pairwise(edges)])
    strayed = np.angle((blocks[1:] * blocks[:-1].conj()).sum(axis=1))
    late = strayed / (2 * np.pi * harmonics[int(np.argmax(power))]) * seconds
    return float(np.mean(late**2) / length)


def _best(at: Values, rows: Values, near_s: float, least: float, most: float) -> tuple[float, float]:
    span = at[-1] - at[0]
    count = int(min(HARMONICS, max(1, FASTEST_HZ * near_s)))
    fine = GRID / (span * count)
    highest, lowest = 1 / (near_s * least), 1 / (near_s * most)
    hertz = np.arange(lowest, highest + fine, fine)
    power = _explained(at - at.mean(), rows, hertz, count)
    best = int(power.argmax())
    if 0 < best < len(power) - 1:
        left, mid, right = power[best - 1 : best + 2]
        shift = 0.5 * (left - right) / min(left - 2 * mid + right, -1e-12)
        return 1 / (hertz[best] + fine * float(np.clip(shift, -0.5, 0.5))), float(power[best])
    return 1 / float(hertz[best]), float(power[best])


def _explained(at: Values, rows: Values, hertz: Values, count: int) -> Values:
    """Share of variance in the harmonics of each frequency."""
    first = np.exp(-2j * np.pi * at[:, None] * hertz[None, :])
    turn = np.ones_like(first)
    power = np.zeros(len(hertz))
    for _ in range(count):
        turn = turn * first
        power += (np.abs(rows @ turn) ** 2).sum(axis=0)
    live = max(1, int((rows.std(axis=1) > 0).sum()))
    return np.asarray(2 * power / (len(at) ** 2 * live))
