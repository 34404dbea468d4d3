"""Whether a period is only part of a longer one: micro-steps of an iteration."""

from __future__ import annotations

import numpy as np

from ekc.governor.period.candidates import find_candidates
from ekc.governor.period.signal import SignalViews
from ekc.governor.period.similarity import compute_similarities
from ekc.governor.samples import Values

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
