"""From signals to a period and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.errors import InvalidInput
from ekc.governor.period.candidates import Candidates, candidates, scores
from ekc.governor.period.nested import whole
from ekc.governor.period.refine import refined
from ekc.governor.period.signal import Signals, even, views
from ekc.governor.period.similarity import Similarity, similarities
from ekc.governor.period.verdict import Period, Verdict
from ekc.governor.samples import Samples, Values
from ekc.ir.arguments import is_number, show

CYCLES = 3.0
"""A period is told after so many of it."""
PARTS = (16.0, 6.0)
"""Likeness is looked at finely, and in a way that forgives iterations of uneven length."""
NEARLY, NEARLY_UPDATE = 0.85, 0.5
"""Of the lags that are at least this share as good as the best, the shortest is taken: of a period and its
multiples, the period. Less by so much of update over lag: what lasts few updates falls between two."""
ALIKE, ALIKE_SEEN = 0.20, 1.2
"""Least score of a period, and how much more is asked of one that was seen once: chance repeats, but rarely
often. Fitted on traces that the benchmark is not judged on (benchmarks/governor_period.py)."""
STRIKING = 0.9
"""Likeness at a lag too long to judge that is enough to ask for a longer trace."""
SLOW, BEATS = 1.9, 4.0
"""A view is asked for no period shorter than so many of its updates; and for none at all where the views that
are updated most often show one that is shorter than so many: it beats with that."""
OFTEN = 1.2
"""Times the shortest update, up to which a view is one of those."""
CLEAR = 0.5
"""What those show must be at least this share as good as what any view shows."""


@dataclass(frozen=True)
class _Look:
    """At one view, in one way."""

    view: int
    way: int
    update_s: float
    """Of the view."""
    alike: Similarity
    found: Candidates


def detect_period(samples: Samples | Values, sampling_hz: float, sensor_s: float | None = None) -> Period:
    """The period of a job from its GPU's power and utilisation, up to a third of the time they show.

    `samples`: what a probe recorded, or an array of one signal, (n,), or several, (signals, n), read at
    `sampling_hz` with NaN where a reading is missing. `sensor_s`: over how many seconds each reading is a
    mean; by default what the samples say, 0.1 for an array. Raises `InvalidInput` for a rate, a window or a
    shape that is none, and for what is no number.
    """
    if sensor_s is None:
        sensor_s = samples.sensor_s if isinstance(samples, Samples) else 0.1
    if not is_number(sensor_s) or not 0 < sensor_s < np.inf:
        raise InvalidInput(f"sensor_s is {show(sensor_s)}; it must be a positive number of seconds, e.g. 0.1")
    signals = views(even(samples, sampling_hz), sampling_hz, sensor_s)
    if signals is None:
        return Period(float("nan"), 1.0, "too_short")
    return _seen(_told(signals, _looked_at(signals)), 2.0 * sensor_s)


def _looked_at(signals: Signals) -> list[_Look]:
    longest = signals.seconds / CYCLES
    shortest = SLOW * signals.update_s
    return [
        _Look(view, way, float(signals.update_s[view]), alike, candidates(alike, shortest[view], longest))
        for way, rows in enumerate(similarities(signals, PARTS))
        for view, alike in enumerate(rows)
    ]


def _told(signals: Signals, looks: list[_Look]) -> Period:
    seconds = signals.seconds
    looks = _quick_enough(looks, seconds)
    best = _best(looks)
    if best <= 0.0:
        return _beyond(looks, seconds) or Period(float("nan"), 1.0, "aperiodic")
    period_s, look = _shortest(looks, NEARLY * best)
    period_s = refined(look.alike, period_s)
    sure = _sure(look, period_s, seconds)
    if longer := whole(signals, period_s, seconds / CYCLES):
        look = next(x for x in looks if (x.view, x.way) == (longer[1], look.way))
        period_s = refined(look.alike, longer[0])
    verdict: Verdict = "periodic" if sure else "aperiodic"
    if not sure and (beyond := _beyond(looks, seconds)):
        return beyond
    return Period(period_s, _error(float(look.alike.at(np.array(period_s)))), verdict)


def _best(looks: list[_Look]) -> float:
    return max((float(look.found.score.max()) for look in looks if len(look.found.score)), default=0.0)


def _quick_enough(looks: list[_Look], seconds: float) -> list[_Look]:
    """Without the views that are updated too seldom for the period that others show."""
    often_s = OFTEN * min(look.update_s for look in looks)
    often = [look for look in looks if look.update_s <= often_s]
    best = _best(often)
    if best <= 0.0 or best < CLEAR * _best(looks):
        return looks
    period_s, look = _shortest(often, NEARLY * best)
    if not _sure(look, period_s, seconds):
        return looks
    return [look for look in looks if look.update_s <= often_s or BEATS * look.update_s <= period_s]


def _sure(look: _Look, period_s: float, seconds: float) -> bool:
    score = float(scores(look.alike, np.array([period_s]))[0])
    return score >= ALIKE + ALIKE_SEEN * period_s / seconds


def _shortest(looks: list[_Look], least: float) -> tuple[float, _Look]:
    """The shortest lag with about that score, and where it was seen."""
    firsts = []
    for look in looks:
        lags = look.found.lag_s
        good = lags[look.found.score >= least * (1.0 - NEARLY_UPDATE * look.update_s / lags)]
        firsts += [(float(lag), look) for lag in good[:1]]
    return min(firsts, key=lambda pair: pair[0])


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
