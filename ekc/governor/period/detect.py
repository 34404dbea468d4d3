"""From signals to a period and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.period.candidates import Candidates, candidates, scores
from ekc.governor.period.nested import whole
from ekc.governor.period.refine import refined
from ekc.governor.period.signal import Signals, even, views
from ekc.governor.period.similarity import Similarity, similarities
from ekc.governor.period.verdict import Period, Verdict
from ekc.governor.samples import Samples, Values

CYCLES = 3.0
"""A period is told after so many of it."""
PARTS = (16.0, 6.0)
"""Likeness is looked at finely, and in a way that forgives iterations of uneven length."""
NEARLY = 0.8
"""Of the lags that are at least this share as good as the best, the shortest is taken: of a period and its
multiples, the period."""
ALIKE, ALIKE_SEEN = 0.20, 1.2
"""Least score of a period, and how much more is asked of one that was seen once: chance repeats, but rarely
often. Fitted on traces that the benchmark is not judged on (benchmarks/governor_period.py)."""
STRIKING = 0.9
"""Likeness at a lag too long to judge that is enough to ask for a longer trace."""
SLOW = 1.9
"""A view is not asked for periods shorter than so many of its updates."""


@dataclass(frozen=True)
class _Look:
    """At one view, in one way."""

    view: int
    way: int
    alike: Similarity
    found: Candidates


def detect_period(samples: Samples | Values, sampling_hz: float, sensor_s: float | None = None) -> Period:
    """The period of a job from its GPU's power and utilisation, up to a third of the time they show.

    `samples`: what a probe recorded, or an array of one signal, (n,), or several, (signals, n), read at
    `sampling_hz` with NaN where a reading is missing. `sensor_s`: over how many seconds each reading is a
    mean; by default what the samples say, 0.1 for an array. Raises `InvalidInput` for a rate or a shape that
    is none.
    """
    if sensor_s is None:
        sensor_s = samples.sensor_s if isinstance(samples, Samples) else 0.1
    signals = views(even(samples, sampling_hz), sampling_hz, sensor_s)
    if signals is None:
        return Period(float("nan"), 1.0, "too_short")
    return _seen(_told(signals, _looked_at(signals)), 2.0 * sensor_s)


def _looked_at(signals: Signals) -> list[_Look]:
    longest = signals.seconds / CYCLES
    shortest = SLOW * signals.update_s
    return [
        _Look(view, way, alike, candidates(alike, shortest[view], longest))
        for way, rows in enumerate(similarities(signals, PARTS))
        for view, alike in enumerate(rows)
    ]


def _told(signals: Signals, looks: list[_Look]) -> Period:
    seconds = signals.seconds
    best = max((float(look.found.score.max()) for look in looks if len(look.found.score)), default=0.0)
    if best <= 0.0:
        return _beyond(looks, seconds) or Period(float("nan"), 1.0, "aperiodic")
    period_s, look = _shortest(looks, NEARLY * best)
    period_s = refined(look.alike, period_s)
    sure = _sure(look, period_s, seconds)
    if longer := whole(signals, look.view, period_s, seconds / CYCLES):
        look = next(x for x in looks if (x.view, x.way) == (longer[1], look.way))
        period_s = refined(look.alike, longer[0])
    verdict: Verdict = "periodic" if sure else "aperiodic"
    if not sure and (beyond := _beyond(looks, seconds)):
        return beyond
    return Period(period_s, _error(float(look.alike.at(np.array(period_s)))), verdict)


def _sure(look: _Look, period_s: float, seconds: float) -> bool:
    score = float(scores(look.alike, np.array([period_s]))[0])
    return score >= ALIKE + ALIKE_SEEN * period_s / seconds


def _shortest(looks: list[_Look], least: float) -> tuple[float, _Look]:
    """The shortest lag with at least that score, and where it was seen."""
    firsts = [(look.found.lag_s[look.found.score >= least], look) for look in looks]
    return min(((float(lags[0]), look) for lags, look in firsts if len(lags)), key=lambda pair: pair[0])


def _beyond(looks: list[_Look], seconds: float) -> Period | None:
    """A striking likeness at a lag that was not seen often enough."""
    for look in looks:
        long = look.alike.lag_s > seconds / CYCLES
        if long.any() and look.alike.likeness[long].max() >= STRIKING:
            top = np.flatnonzero(long)[np.argmax(look.alike.likeness[long])]
            return Period(float(look.alike.lag_s[top]), _error(float(look.alike.likeness[top])), "too_short")
    return None


def _error(likeness: float) -> float:
    return min(max(1.0 - likeness, 0.0), 1.0)


def _seen(period: Period, least_s: float) -> Period:
    """What is too fast for the sensor is told as a multiple that is not."""
    if period.verdict != "periodic" or period.seconds >= least_s:
        return period
    return Period(period.seconds * float(np.ceil(least_s / period.seconds)), period.error, "multiple")
