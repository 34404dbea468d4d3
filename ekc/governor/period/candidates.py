"""Candidate periods: peaks of self-similarity, longer periods that contain them, and refinement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.self_similarity import SelfSimilarity, compute_similarities
from ekc.governor.period.signals import SignalViews
from ekc.governor.samples import Values

MAX_MULTIPLES = 4
"""Number of multiples of a lag whose likeness enters its score; the k-th has weight 1/k."""
PRIOR_LIKENESS, PRIOR_WEIGHT = 0.3, 0.5
"""Prior of likeness and its weight in a score: a long lag, which repeats once, must be more alike."""


@dataclass(frozen=True)
class PeriodCandidates:
    """Peaks of likeness, from short to long lags; arrays of one length."""

    lag_s: Values
    score: Values
    """Weighted mean likeness at each lag and its multiples; at most 1."""


def find_candidates(similarity: SelfSimilarity, shortest_s: float, longest_s: float) -> PeriodCandidates:
    """Peaks of likeness between two lags."""
    likeness = similarity.likeness
    is_peak = (likeness[1:-1] >= likeness[:-2]) & (likeness[1:-1] > likeness[2:])
    peak = np.flatnonzero(is_peak) + 1
    lags = similarity.lag_s[peak]
    peak = peak[(likeness[peak] > 0.0) & (lags >= shortest_s) & (lags <= longest_s)]
    lags = _interpolate_peaks(similarity, peak)
    return PeriodCandidates(lags, score_lags(similarity, lags))


def _interpolate_peaks(similarity: SelfSimilarity, peak: NDArray[np.intp]) -> Values:
    """Lags at which a parabola through each peak and its neighbours is highest."""
    left, top, right = (similarity.likeness[peak + step] for step in (-1, 0, 1))
    bend = np.minimum(left - 2.0 * top + right, -1e-12)
    step = 0.5 * (similarity.lag_s[peak + 1] - similarity.lag_s[peak - 1])
    lags: Values = similarity.lag_s[peak] + step * np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return lags


def score_lags(similarity: SelfSimilarity, lags: Values) -> Values:
    """Score of each lag: weighted mean likeness at the lag and its multiples."""
    times = np.arange(1, MAX_MULTIPLES + 1)[:, None]
    weights = (lags * times <= similarity.lag_s[-1]) / times
    total = (similarity.interpolate(lags * times) * weights).sum(axis=0)
    scores: Values = (total + PRIOR_LIKENESS * PRIOR_WEIGHT) / (weights.sum(axis=0) + PRIOR_WEIGHT)
    return scores


MAX_PARTS = 9.7
"""Most micro-steps of an iteration; rarer events, such as a log line, make no iteration."""
MIN_VARIANCE_SHARE, MIN_VARIANCE_UPDATE_FACTOR = 0.01, 1.5
"""Least share of the variance that remains after averaging over a micro-step: a constant, and a multiple of
the square of update over micro-step, since beats between the two leave about that share and look like a
longer period."""
SIMILARITY_PARTS = 8.0
FAST_UPDATE_FACTOR = 1.2
"""Update interval of used views over the shortest one: slower views beat with micro-steps."""
MIN_SCORE, SINGLE_REPEAT_PENALTY = 0.25, 1.2
"""Least score of the longer period, and its increase for a period as long as the recording."""


def find_longer_period(views: SignalViews, part_s: float, longest_s: float) -> tuple[float, int] | None:
    """(longer period in a view averaged over `part_s`, index of the view); None without one."""
    if views.seconds < 2.0 * part_s:
        return None
    slow = _average_views(views, part_s)
    share = slow.values.var(axis=1) / np.maximum(views.values.var(axis=1), 1e-300)
    enough = share >= np.maximum(
        MIN_VARIANCE_SHARE, MIN_VARIANCE_UPDATE_FACTOR * (views.update_s / part_s) ** 2
    )
    enough &= views.update_s <= FAST_UPDATE_FACTOR * views.update_s.min()
    (similarities,) = compute_similarities(slow, (SIMILARITY_PARTS,))
    best, answer = 0.0, None
    for view in np.flatnonzero(enough):
        found = find_candidates(similarities[view], 1.5 * part_s, min(longest_s, MAX_PARTS * part_s))
        good = found.score >= MIN_SCORE + SINGLE_REPEAT_PENALTY * found.lag_s / views.seconds
        if good.any() and (top := float(found.score[good].max())) > best:
            best, answer = top, (float(found.lag_s[good][np.argmax(found.score[good])]), int(view))
    return answer


def _average_views(views: SignalViews, seconds: float) -> SignalViews:
    """Views averaged over `seconds` around each reading, without missing readings."""
    half = 0.5 * seconds / views.interval_s
    at = np.arange(np.ceil(half), views.values.shape[1] - half)
    valid_count = np.stack([_integrate_around(row, at, half) for row in views.valid_mask])
    total = np.stack([_integrate_around(row, at, half) for row in views.values])
    enough = np.asarray(valid_count >= half, dtype=np.float64)
    values = enough * total / np.maximum(valid_count, 1e-9)
    means = values.sum(axis=1, keepdims=True) / np.maximum(enough.sum(axis=1, keepdims=True), 1.0)
    centred: Values = values - enough * means
    return SignalViews(centred, enough, views.interval_s, views.update_s)


def _integrate_around(row: Values, at: Values, half: float) -> Values:
    """Integral of a row over 2 * `half` readings around each point; each reading continues until the next."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    edges = np.arange(len(total))
    around: Values = np.interp(at + half, edges, total) - np.interp(at - half, edges, total)
    return around


PEAK_WINDOW_SHARE = 0.12
"""Distance of a peak from a multiple of the period, in periods, up to which it belongs to it."""
MIN_LIKENESS_SHARE = 0.6
"""Likeness over that of the first peak down to which multiples are used."""


def refine_period(similarity: SelfSimilarity, first_s: float) -> float:
    """The period from the peaks at its multiples: slope of the line from 0 through them."""
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
    """(lag, likeness) of the highest point around a lag, interpolated by a parabola."""
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
