"""From signals to a period and a verdict.

What is said of a period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ekc.arguments import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.period.candidates import (
    PeriodCandidates,
    find_candidates,
    find_longer_period,
    refine_period,
    score_lags,
)
from ekc.governor.period.self_similarity import SelfSimilarity, compute_similarities
from ekc.governor.period.signals import SignalViews, build_views, resample_signals
from ekc.governor.samples import SensorSamples, Values

Verdict = Literal["periodic", "multiple", "aperiodic", "too_short"]


@dataclass(frozen=True)
class Period:
    """The period of a signal, or why none is told."""

    seconds: float
    """Mean period. With another verdict than `periodic` the best guess, good as the length of a window;
    NaN where there is none."""
    error: float
    """How unlike adjacent periods are: 0 where one repeats the other, 1 where they have nothing in common."""
    verdict: Verdict
    """`periodic`: an iteration takes `seconds`. `multiple`: a whole number of iterations does, of which the
    sensor is too slow to show one. `aperiodic`: nothing repeats. `too_short`: not enough was seen to tell."""


MIN_CYCLES = 3.0
"""A period is told after so many of it."""
SIMILARITY_PARTS = (16.0, 6.0)
"""Likeness is looked at finely, and in a way that forgives iterations of uneven length."""
NEAR_BEST_SHARE, NEAR_BEST_UPDATE_DISCOUNT = 0.85, 0.5
"""Of the lags that are at least this share as good as the best, the shortest is taken: of a period and its
multiples, the period. Less by so much of update over lag: what lasts few updates falls between two."""
MIN_SCORE, SINGLE_REPEAT_PENALTY = 0.20, 1.2
"""Least score of a period, and how much more is asked of one that was seen once: chance repeats, but rarely
often. Fitted on traces that the benchmark is not judged on (benchmarks/governor_period.py)."""
STRONG_LIKENESS = 0.9
"""Likeness at a lag too long to judge that is enough to ask for a longer trace."""
MIN_UPDATES_PER_PERIOD, MIN_UPDATES_BETWEEN_ALIASES = 1.9, 4.0
"""A view is asked for no period shorter than so many of its updates; and for none at all where the views that
are updated most often show one that is shorter than so many: it beats with that."""
FAST_UPDATE_FACTOR = 1.2
"""Times the shortest update, up to which a view is one of those."""
MIN_FAST_SCORE_SHARE = 0.5
"""What those show must be at least this share as good as what any view shows."""


@dataclass(frozen=True)
class _ViewAnalysis:
    """At one view, in one way."""

    view: int
    parts_index: int
    update_s: float
    """Of the view."""
    similarity: SelfSimilarity
    candidates: PeriodCandidates


def detect_period(
    samples: SensorSamples | Values, sampling_hz: float, sensor_s: float | None = None
) -> Period:
    """The period of a job from its GPU's power and utilisation, up to a third of the time they show.

    `samples`: what a probe recorded, or an array of one signal, (n,), or several, (signals, n), read at
    `sampling_hz` with NaN where a reading is missing. `sensor_s`: over how many seconds each reading is a
    mean; by default what the samples say, 0.1 for an array. Raises `InvalidInput` for a rate, a window or a
    shape that is none, and for what is no number.
    """
    if sensor_s is None:
        sensor_s = samples.sensor_s if isinstance(samples, SensorSamples) else 0.1
    if not is_number(sensor_s) or not 0 < sensor_s < np.inf:
        raise InvalidInput(
            f"sensor_s is {format_value(sensor_s)}; it must be a positive number of seconds, e.g. 0.1"
        )
    signals = build_views(resample_signals(samples, sampling_hz), sampling_hz, sensor_s)
    if signals is None:
        return Period(float("nan"), 1.0, "too_short")
    return _stretch_to_resolution(_decide_period(signals, _analyse_views(signals)), 2.0 * sensor_s)


def _analyse_views(signals: SignalViews) -> list[_ViewAnalysis]:
    longest = signals.seconds / MIN_CYCLES
    shortest = MIN_UPDATES_PER_PERIOD * signals.update_s
    return [
        _ViewAnalysis(
            view, way, float(signals.update_s[view]), alike, find_candidates(alike, shortest[view], longest)
        )
        for way, rows in enumerate(compute_similarities(signals, SIMILARITY_PARTS))
        for view, alike in enumerate(rows)
    ]


def _decide_period(signals: SignalViews, analyses: list[_ViewAnalysis]) -> Period:
    seconds = signals.seconds
    analyses = _drop_slow_views(analyses, seconds)
    best = _find_best_score(analyses)
    if best <= 0.0:
        return _find_long_repeat(analyses, seconds) or Period(float("nan"), 1.0, "aperiodic")
    period_s, look = _find_shortest_lag(analyses, NEAR_BEST_SHARE * best)
    period_s = refine_period(look.similarity, period_s)
    sure = _is_significant(look, period_s, seconds)
    if longer := find_longer_period(signals, period_s, seconds / MIN_CYCLES):
        look = next(x for x in analyses if (x.view, x.parts_index) == (longer[1], look.parts_index))
        period_s = refine_period(look.similarity, longer[0])
    verdict: Verdict = "periodic" if sure else "aperiodic"
    if not sure and (beyond := _find_long_repeat(analyses, seconds)):
        return beyond
    return Period(period_s, _compute_error(float(look.similarity.interpolate(np.array(period_s)))), verdict)


def _find_best_score(analyses: list[_ViewAnalysis]) -> float:
    return max(
        (float(look.candidates.score.max()) for look in analyses if len(look.candidates.score)), default=0.0
    )


def _drop_slow_views(analyses: list[_ViewAnalysis], seconds: float) -> list[_ViewAnalysis]:
    """Without the views that are updated too seldom for the period that others show."""
    often_s = FAST_UPDATE_FACTOR * min(look.update_s for look in analyses)
    often = [look for look in analyses if look.update_s <= often_s]
    best = _find_best_score(often)
    if best <= 0.0 or best < MIN_FAST_SCORE_SHARE * _find_best_score(analyses):
        return analyses
    period_s, look = _find_shortest_lag(often, NEAR_BEST_SHARE * best)
    if not _is_significant(look, period_s, seconds):
        return analyses
    return [
        look
        for look in analyses
        if look.update_s <= often_s or MIN_UPDATES_BETWEEN_ALIASES * look.update_s <= period_s
    ]


def _is_significant(analysis: _ViewAnalysis, period_s: float, seconds: float) -> bool:
    score = float(score_lags(analysis.similarity, np.array([period_s]))[0])
    return score >= MIN_SCORE + SINGLE_REPEAT_PENALTY * period_s / seconds


def _find_shortest_lag(analyses: list[_ViewAnalysis], min_score: float) -> tuple[float, _ViewAnalysis]:
    """The shortest lag with about that score, and where it was seen."""
    firsts = []
    for look in analyses:
        lags = look.candidates.lag_s
        good = lags[
            look.candidates.score >= min_score * (1.0 - NEAR_BEST_UPDATE_DISCOUNT * look.update_s / lags)
        ]
        firsts += [(float(lag), look) for lag in good[:1]]
    return min(firsts, key=lambda pair: pair[0])


def _find_long_repeat(analyses: list[_ViewAnalysis], seconds: float) -> Period | None:
    """A striking likeness at a lag that was not seen often enough."""
    for look in analyses:
        long = look.similarity.lag_s > seconds / MIN_CYCLES
        if long.any() and look.similarity.likeness[long].max() >= STRONG_LIKENESS:
            top = np.flatnonzero(long)[np.argmax(look.similarity.likeness[long])]
            return Period(
                float(look.similarity.lag_s[top]),
                _compute_error(float(look.similarity.likeness[top])),
                "too_short",
            )
    return None


def _compute_error(likeness: float) -> float:
    return min(max(1.0 - likeness, 0.0), 1.0)


def _stretch_to_resolution(period: Period, min_s: float) -> Period:
    """What is too fast for the sensor is told as a multiple that is not."""
    if period.verdict != "periodic" or period.seconds >= min_s:
        return period
    return Period(period.seconds * float(np.ceil(min_s / period.seconds)), period.error, "multiple")
