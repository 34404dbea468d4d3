"""From signals to a period and a verdict."""

from __future__ import annotations

import numpy as np

from ekc.governor.period.refine import refined
from ekc.governor.period.signal import Signal, rows, views
from ekc.governor.period.similarity import Similarity, similarity
from ekc.governor.period.verdict import Period, Verdict
from ekc.governor.samples import Samples, Values

CYCLES = 2.8
"""A period is told after at least so many of it (as in GPOEO)."""
ALIKE = 0.5
"""Least likeness of adjacent periods."""
NEARLY = 0.85
"""The shortest lag wins whose likeness is at least this share of the best one's: of a period and its
multiples, the period."""
REPEATS = 4
FEWEST = 16
"""Readings below which nothing can be told."""


def detect_period(samples: Samples | Values, sampling_hz: float, sensor_s: float | None = None) -> Period:
    """The period of a job from its GPU's power and utilisation.

    `samples`: what a probe recorded, or an array of one signal, (n,), or several, (signals, n), read at
    `sampling_hz` with NaN where a reading is missing. `sensor_s`: over how many seconds each reading is a
    mean; by default what the samples say, 0.1 for an array. Raises `InvalidInput` for a rate or a shape that
    is none.
    """
    if sensor_s is None:
        sensor_s = samples.sensor_s if isinstance(samples, Samples) else 0.1
    signals = [s for s in views(rows(samples, sampling_hz), sampling_hz, sensor_s) if s.known.sum() >= FEWEST]
    if not signals:
        return Period(float("nan"), 1.0, "too_short")
    return _seen(_told(signals), 2.0 * sensor_s)


def _told(signals: list[Signal]) -> Period:
    alike = [similarity(signal) for signal in signals]
    found = [_first(one) for one in alike]
    best = int(np.argmax([score for _, score in found]))
    first, _ = found[best]
    if np.isnan(first):
        return Period(first, 1.0, "aperiodic")
    seconds = refined(alike[best], first)
    likeness = float(alike[best].at(np.array(seconds)))
    verdict: Verdict = "periodic" if likeness >= ALIKE else "aperiodic"
    if verdict == "periodic" and signals[best].seconds < CYCLES * seconds:
        verdict = "too_short"
    return Period(seconds, min(max(1.0 - likeness, 0.0), 1.0), verdict)


def _first(alike: Similarity) -> tuple[float, float]:
    """(the shortest lag that is nearly as good as the best, the score of the best)."""
    at = alike.likeness
    inner = np.flatnonzero((at[1:-1] >= at[:-2]) & (at[1:-1] > at[2:])) + 1
    inner = inner[at[inner] > 0.0]
    if not len(inner):
        return float("nan"), 0.0
    lags = alike.lag_s[inner]
    comb = lags * np.arange(1, REPEATS + 1)[:, None]
    within = comb <= alike.lag_s[-1]
    score = ((alike.at(comb) * within).sum(axis=0) + PRIOR * WEIGHT) / (within.sum(axis=0) + WEIGHT)
    best = score.max()
    return float(lags[score >= min(NEARLY * best, best)][0]), float(best)


PRIOR, WEIGHT = 0.3, 0.5


def _seen(period: Period, least_s: float) -> Period:
    """What is too fast for the sensor is told as a multiple that is not."""
    if period.verdict != "periodic" or period.seconds >= least_s:
        return period
    return Period(period.seconds * np.ceil(least_s / period.seconds), period.error, "multiple")
