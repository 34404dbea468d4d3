"""Lags that may be the period.

Whether a period is only part of a longer one: micro-steps of an iteration.

A period to better than the distance between two readings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.self_similarity import SelfSimilarity, compute_similarities
from ekc.governor.period.signals import SignalViews
from ekc.governor.samples import Values

MAX_MULTIPLES = 4
"""A period is judged by how alike the signal is so many periods later, too; the k-th counts 1/k."""
PRIOR_LIKENESS, PRIOR_WEIGHT = 0.3, 0.5
"""What is thought of likeness before any is seen, and how heavy: a long lag, that was seen to repeat once,
must be better than a short one."""


@dataclass(frozen=True)
class PeriodCandidates:
    """Peaks of likeness, from short to long."""

    lag_s: Values
    score: Values
    """Mean likeness at the lag and its multiples; at most 1."""


def find_candidates(similarity: SelfSimilarity, shortest_s: float, longest_s: float) -> PeriodCandidates:
    """The peaks between two lags."""
    at = similarity.likeness
    peak = np.flatnonzero((at[1:-1] >= at[:-2]) & (at[1:-1] > at[2:])) + 1
    peak = peak[
        (at[peak] > 0.0) & (similarity.lag_s[peak] >= shortest_s) & (similarity.lag_s[peak] <= longest_s)
    ]
    lags = _interpolate_peaks(similarity, peak)
    return PeriodCandidates(lags, score_lags(similarity, lags))


def _interpolate_peaks(similarity: SelfSimilarity, peak: NDArray[np.intp]) -> Values:
    """Where a parabola through each peak and its neighbours is highest."""
    left, top, right = (similarity.likeness[peak + step] for step in (-1, 0, 1))
    bend = np.minimum(left - 2.0 * top + right, -1e-12)
    step = 0.5 * (similarity.lag_s[peak + 1] - similarity.lag_s[peak - 1])
    lags: Values = similarity.lag_s[peak] + step * np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return lags


def score_lags(similarity: SelfSimilarity, lags: Values) -> Values:
    """Of lags."""
    times = np.arange(1, MAX_MULTIPLES + 1)[:, None]
    weights = (lags * times <= similarity.lag_s[-1]) / times
    total = (similarity.interpolate(lags * times) * weights).sum(axis=0)
    judged: Values = (total + PRIOR_LIKENESS * PRIOR_WEIGHT) / (weights.sum(axis=0) + PRIOR_WEIGHT)
    return judged


MAX_PARTS = 9.7
"""So many parts at most; what comes more rarely (a log line) does not make an iteration."""
MIN_VARIANCE_SHARE, MIN_VARIANCE_UPDATE_FACTOR = 0.01, 1.5
"""Least share of the variance that is left after averaging over the part; and that as a multiple of the
square of update over part, since beats of both leave about so much, and look like a longer period."""
SIMILARITY_PARTS = 8.0
FAST_UPDATE_FACTOR = 1.2
"""Asked are the views that are updated most often, or nearly so: micro-steps beat with the others."""
MIN_SCORE, SINGLE_REPEAT_PENALTY = 0.25, 1.2
"""Least score of the longer period, and how much more is asked of one that was seen once."""


def find_longer_period(views: SignalViews, part_s: float, longest_s: float) -> tuple[float, int] | None:
    """(the longer period in what is left of a view averaged over `part_s`, which view); None without one."""
    if views.seconds < 2.0 * part_s:
        return None
    slow = _average_views(views, part_s)
    share = slow.values.var(axis=1) / np.maximum(views.values.var(axis=1), 1e-300)
    enough = share >= np.maximum(
        MIN_VARIANCE_SHARE, MIN_VARIANCE_UPDATE_FACTOR * (views.update_s / part_s) ** 2
    )
    enough &= views.update_s <= FAST_UPDATE_FACTOR * views.update_s.min()
    (alike,) = compute_similarities(slow, (SIMILARITY_PARTS,))
    best, answer = 0.0, None
    for view in np.flatnonzero(enough):
        found = find_candidates(alike[view], 1.5 * part_s, min(longest_s, MAX_PARTS * part_s))
        good = found.score >= MIN_SCORE + SINGLE_REPEAT_PENALTY * found.lag_s / views.seconds
        if good.any() and (top := float(found.score[good].max())) > best:
            best, answer = top, (float(found.lag_s[good][np.argmax(found.score[good])]), int(view))
    return answer


def _average_views(views: SignalViews, seconds: float) -> SignalViews:
    """The means over so long around each reading; of what is known."""
    half = 0.5 * seconds / views.interval_s
    at = np.arange(np.ceil(half), views.values.shape[1] - half)
    known = np.stack([_integrate_around(row, at, half) for row in views.valid_mask])
    total = np.stack([_integrate_around(row, at, half) for row in views.values])
    enough = np.asarray(known >= half, dtype=np.float64)
    values = enough * total / np.maximum(known, 1e-9)
    means = values.sum(axis=1, keepdims=True) / np.maximum(enough.sum(axis=1, keepdims=True), 1.0)
    centred: Values = values - enough * means
    return SignalViews(centred, enough, views.interval_s, views.update_s)


def _integrate_around(row: Values, at: Values, half: float) -> Values:
    """Integral of a row of readings, each of which holds until the next, around each point."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    edges = np.arange(len(total))
    around: Values = np.interp(at + half, edges, total) - np.interp(at - half, edges, total)
    return around


PEAK_WINDOW_SHARE = 0.12
"""A peak belongs to a multiple of the period if it is within this share of the period."""
MIN_LIKENESS_SHARE = 0.6
"""Multiples are followed while they stay this share as alike as the first."""


def refine_period(similarity: SelfSimilarity, first_s: float) -> float:
    """The period from the peaks at it and its multiples: the line from 0 through them."""
    top, height = _find_peak(similarity, first_s, PEAK_WINDOW_SHARE * first_s)
    seconds, tops = top, [top]
    while (at := (len(tops) + 1) * seconds) < similarity.lag_s[-1]:
        top, likeness = _find_peak(similarity, at, PEAK_WINDOW_SHARE * seconds)
        if likeness < MIN_LIKENESS_SHARE * height:
            break
        tops.append(top)
        count = np.arange(1, len(tops) + 1)
        seconds = float(np.dot(count, tops) / np.dot(count, count))
    return seconds


def _find_peak(similarity: SelfSimilarity, around_s: float, within_s: float) -> tuple[float, float]:
    """(lag, likeness) of the highest point around a lag, between lags by a parabola."""
    low, high = np.searchsorted(similarity.lag_s, (around_s - within_s, around_s + within_s))
    low, high = max(int(low), 1), min(max(int(high), int(low) + 1), len(similarity.lag_s) - 1)
    if low >= high:
        return around_s, -1.0
    top = low + int(np.argmax(similarity.likeness[low:high]))
    left, mid, right = (float(v) for v in similarity.likeness[top - 1 : top + 2])
    bend = left - 2.0 * mid + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    step = float(similarity.lag_s[top + 1] - similarity.lag_s[top - 1]) / 2.0
    return float(similarity.lag_s[top]) + min(max(shift, -0.5), 0.5) * step, mid
