"""Detection of a period: the verdict and the period of a job from its views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.period.candidates import (
    PeriodCandidates,
    SelfSimilarity,
    compute_similarities,
    find_longer_period,
    list_candidates,
    refine_period,
    score_lags,
)
from ekc.governor.period.folding import find_folded_period
from ekc.governor.period.signals import SignalViews, build_views, resample_signals
from ekc.governor.samples import SensorSamples, Values, concatenate_samples, cut_pauses

Verdict = Literal["periodic", "multiple", "aperiodic", "too_short"]


@dataclass(frozen=True)
class Period:
    """The period of a signal, and a verdict on it."""

    seconds: float
    """Mean period; a guess, good as a window's length, unless `periodic`. NaN without one."""
    error: float
    """Difference of adjacent periods: 0 where one repeats the other, 1 where they have nothing in common."""
    verdict: Verdict
    """`periodic`: an iteration takes `seconds`. `multiple`: several iterations take `seconds`, since the
    sensor is too slow to show one. `aperiodic`: nothing repeats. `too_short`: the recording is too short to
    decide."""


MIN_CYCLES = 3.0
"""Least number of periods in a recording."""
SIMILARITY_PARTS = (16.0, 6.0)
"""Resolutions of likeness: a fine one, and one that tolerates iterations of uneven length."""
NEAR_BEST_SHARE, NEAR_BEST_UPDATE_DISCOUNT = 0.85, 0.5
"""The shortest lag whose score is at least this share of the best is chosen, so that the period wins over
its multiples. The share is reduced by a multiple of update over lag, since a period of few updates falls
between two of them."""
MIN_SCORE, SINGLE_REPEAT_PENALTY = 0.20, 1.2
"""Least score of a period, and its increase for a period as long as the recording: chance seldom repeats
often. Fitted on traces that the benchmark does not judge (`DEVELOPED` in benchmarks/governor/period.py)."""
MIN_FOLDED_CYCLES, MIN_FOLDED_EXPLAINED = 16.0, 0.45
"""Least number of periods in a recording, and least share of the variance explained, for which one profile is
proof enough of a period."""
STRONG_LIKENESS = 0.9
"""Likeness at a lag too long to decide from which on a longer recording is needed."""
MIN_UPDATES_PER_PERIOD, MIN_UPDATES_BETWEEN_ALIASES = 1.9, 4.0
"""Shortest period in a view, in updates of its sensor; and the period of the fastest views, in updates of a
slower view, below which that view is not used: it would beat with the period."""
FAST_UPDATE_FACTOR = 1.2
"""Update interval of the fastest views, as a multiple of the shortest one."""
MIN_FAST_SCORE_SHARE = 0.5
"""Least score of the fastest views, as a share of the best score of all views."""


@dataclass(frozen=True)
class _ViewAnalysis:
    """Self-similarity and candidates of one view at one resolution."""

    view: int
    parts_index: int
    """Place of the resolution in `SIMILARITY_PARTS`."""
    update_s: float
    """Seconds between two updates of the view's sensor."""
    similarity: SelfSimilarity
    candidates: PeriodCandidates


def detect_period(
    samples: SensorSamples | Values, sampling_hz: float, sensor_s: float | None = None
) -> Period:
    """The period of a job from its GPU's power and utilisation, up to a third of the recording's length.

    `samples`: samples of a probe, or an array of one signal, (n,), or several, (signals, n), read at
    `sampling_hz` with NaN for missing readings. `sensor_s`: averaging window of a reading in seconds; by
    default that of the samples, or 0.1 for an array. Raises `InvalidInput` for a bad rate, window, shape or
    value.
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
            view, index, float(signals.update_s[view]), row, list_candidates(row, shortest[view], longest)
        )
        for index, rows in enumerate(compute_similarities(signals, SIMILARITY_PARTS))
        for view, row in enumerate(rows)
    ]


def _decide_period(signals: SignalViews, analyses: list[_ViewAnalysis]) -> Period:
    seconds = signals.seconds
    analyses = _drop_slow_views(analyses, seconds)
    best = _find_best_score(analyses)
    if best <= 0.0:
        return _find_long_repeat(analyses, seconds) or Period(float("nan"), 1.0, "aperiodic")
    period_s, analysis = _find_shortest_lag(analyses, NEAR_BEST_SHARE * best)
    period_s = refine_period(analysis.similarity, period_s)
    is_significant = _is_significant(analysis, period_s, seconds)
    if longer := find_longer_period(signals, period_s, seconds / MIN_CYCLES):
        place = longer[1], analysis.parts_index
        analysis = next(x for x in analyses if (x.view, x.parts_index) == place)
        period_s = refine_period(analysis.similarity, longer[0])
    error = _compute_error(float(analysis.similarity.interpolate(np.array(period_s))))
    row, mask = signals.values[analysis.view], signals.valid_mask[analysis.view]
    if folded := find_folded_period(row, mask, signals.interval_s, analysis.update_s, period_s):
        period_s, explained = folded
        error = 1.0 - explained
        is_significant |= seconds >= MIN_FOLDED_CYCLES * period_s and explained >= MIN_FOLDED_EXPLAINED
    if not is_significant and (long_repeat := _find_long_repeat(analyses, seconds)):
        return long_repeat
    return Period(period_s, error, "periodic" if is_significant else "aperiodic")


def _find_best_score(analyses: list[_ViewAnalysis]) -> float:
    return max((float(x.candidates.score.max(initial=0.0)) for x in analyses), default=0.0)


def _drop_slow_views(analyses: list[_ViewAnalysis], seconds: float) -> list[_ViewAnalysis]:
    """The analyses without views that are updated too seldom for the period of faster ones."""
    fast_s = FAST_UPDATE_FACTOR * min(analysis.update_s for analysis in analyses)
    fast = [analysis for analysis in analyses if analysis.update_s <= fast_s]
    best = _find_best_score(fast)
    if best <= 0.0 or best < MIN_FAST_SCORE_SHARE * _find_best_score(analyses):
        return analyses
    period_s, analysis = _find_shortest_lag(fast, NEAR_BEST_SHARE * best)
    if not _is_significant(analysis, period_s, seconds):
        return analyses
    longest_s = max(fast_s, period_s / MIN_UPDATES_BETWEEN_ALIASES)
    return [analysis for analysis in analyses if analysis.update_s <= longest_s]


def _is_significant(analysis: _ViewAnalysis, period_s: float, seconds: float) -> bool:
    score = float(score_lags(analysis.similarity, np.array([period_s]))[0])
    return score >= MIN_SCORE + SINGLE_REPEAT_PENALTY * period_s / seconds


def _find_shortest_lag(analyses: list[_ViewAnalysis], min_score: float) -> tuple[float, _ViewAnalysis]:
    """(shortest lag with about that score, its analysis)."""
    firsts = []
    for analysis in analyses:
        lags = analysis.candidates.lag_s
        least = min_score * (1.0 - NEAR_BEST_UPDATE_DISCOUNT * analysis.update_s / lags)
        good = lags[analysis.candidates.score >= least]
        firsts += [(float(lag), analysis) for lag in good[:1]]
    return min(firsts, key=lambda pair: pair[0])


def _find_long_repeat(analyses: list[_ViewAnalysis], seconds: float) -> Period | None:
    """A period whose likeness is high, but which is too long for the recording; None without one."""
    for analysis in analyses:
        is_long = analysis.similarity.lag_s > seconds / MIN_CYCLES
        lags, likeness = analysis.similarity.lag_s[is_long], analysis.similarity.likeness[is_long]
        if likeness.max(initial=0.0) >= STRONG_LIKENESS:
            top = np.argmax(likeness)
            return Period(float(lags[top]), _compute_error(float(likeness[top])), "too_short")
    return None


def _compute_error(likeness: float) -> float:
    return min(max(1.0 - likeness, 0.0), 1.0)


def _stretch_to_resolution(period: Period, min_s: float) -> Period:
    """A period too short for the sensor becomes a multiple of it, with the verdict `multiple`."""
    if period.verdict != "periodic" or period.seconds >= min_s:
        return period
    return Period(period.seconds * float(np.ceil(min_s / period.seconds)), period.error, "multiple")


FIRST_RECORDING_S = 15.0
"""Seconds of the first recording (GPOEO: 25)."""
TARGET_PERIODS = 5.3
"""Number of periods that a recording should hold (GPOEO)."""
MIN_EXTENSION_S, MAX_EXTENSION_S = 5.0, 30.0
"""Shortest and longest extension of a recording in seconds (GPOEO)."""
MAX_PERIOD_S = 20.0
"""Longest period that is sought, in seconds."""
STABILITY_PARTS = (0.75, 0.5)
"""Last parts of a recording in which a stable period must be found too, as shares of it."""
TRIED_PERIODS_S = (2.0, 5.0)
"""Longest periods in seconds for which pauses are cut out; idle stretches at greater distances count as
pauses."""
MAX_SPREAD = 0.15
"""Largest relative spread of a stable period (GPOEO)."""


@dataclass(frozen=True)
class PeriodRecording:
    """A recording and the period found in it."""

    period: Period
    spread: float
    """Relative difference of the period between parts of the recording; NaN without a period."""
    is_stable: bool
    """Whether the period is found in all parts, with a small spread. If not, it is good as a window only."""
    samples: SensorSamples


def find_period(record: Callable[[float], SensorSamples], goes_on: Callable[[], bool]) -> PeriodRecording:
    """Record until the period is stable, nothing repeats in 3 x `MAX_PERIOD_S`, or `goes_on` is false, as
    where the job ends. `record` waits so many seconds and returns the samples."""
    samples = record(FIRST_RECORDING_S)
    while True:
        found = assess_recording(samples)
        missing_s = _compute_missing_s(found)
        if missing_s <= 0.0 or not goes_on():
            return found
        # At most twice as long: that is often enough.
        longest_s = min(MAX_EXTENSION_S, max(FIRST_RECORDING_S, _get_span_s(samples)))
        more_s = float(np.clip(missing_s, MIN_EXTENSION_S, longest_s))
        samples = concatenate_samples(samples, record(more_s))


def assess_recording(samples: SensorSamples) -> PeriodRecording:
    """Detect the period of a recording, and whether its last parts have the same.

    Pauses of the job may hide it. Where no period is stable, it is sought without them, too: idle stretches
    at greater distances than iterations of a tried length have.
    """
    found = _assess_samples(samples)
    if found.is_stable:
        return found
    for longest_s in TRIED_PERIODS_S:
        worked = cut_pauses(samples, longest_s)
        if len(worked) < len(samples):
            again = _assess_samples(worked)
            if again.is_stable and again.period.seconds <= longest_s:
                return replace(again, samples=samples)
    return found


def _assess_samples(samples: SensorSamples) -> PeriodRecording:
    hz = samples.sampling_hz
    period = detect_period(samples, hz)
    if period.verdict not in ("periodic", "multiple"):
        return PeriodRecording(period, float("nan"), False, samples)
    parts = [detect_period(part, hz) for part in _take_last_parts(samples, MIN_CYCLES * period.seconds)]
    seconds = [period.seconds, *(part.seconds for part in parts)]
    spread = (max(seconds) - min(seconds)) / period.seconds
    is_same = all(part.verdict == period.verdict for part in parts) and bool(parts)
    return PeriodRecording(period, spread, is_same and spread < MAX_SPREAD, samples)


def _take_last_parts(samples: SensorSamples, min_s: float) -> list[SensorSamples]:
    """The last parts of a recording that last longer than `min_s`."""
    seconds = [part * _get_span_s(samples) for part in STABILITY_PARTS]
    return [samples.slice_from(samples.time_s[-1] - s) for s in seconds if s > min_s]


def _compute_missing_s(recording: PeriodRecording) -> float:
    """Seconds still to record; 0 where more would not help."""
    span, period = _get_span_s(recording.samples), recording.period
    if recording.is_stable:
        return 0.0
    if period.verdict in ("periodic", "multiple") and span < TARGET_PERIODS * period.seconds:
        return TARGET_PERIODS * period.seconds - span
    # A period that parts do not share may be chance: it is given up only after the longest recording.
    return MIN_CYCLES * MAX_PERIOD_S - span


def _get_span_s(samples: SensorSamples) -> float:
    return float(samples.time_s[-1] - samples.time_s[0]) if len(samples) else 0.0
