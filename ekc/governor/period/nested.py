"""Whether a period is only part of a longer one: micro-steps of an iteration."""

from __future__ import annotations

import numpy as np

from ekc.governor.period.candidates import candidates
from ekc.governor.period.signal import Signals
from ekc.governor.period.similarity import similarities
from ekc.governor.samples import Values

MOST = 9.7
"""So many parts at most; what comes more rarely (a log line) does not make an iteration."""
SHARE, SHARE_UPDATE = 0.01, 1.5
"""Least share of the variance that is left after averaging over the part; and that as a multiple of the
square of update over part, since beats of both leave about so much, and look like a longer period."""
PARTS = 8.0
OFTEN = 1.2
"""Asked are the views that are updated most often, or nearly so: micro-steps beat with the others."""
ALIKE, ALIKE_SEEN = 0.25, 1.2
"""Least score of the longer period, and how much more is asked of one that was seen once."""


def whole(views: Signals, part_s: float, longest_s: float) -> tuple[float, int] | None:
    """(the longer period in what is left of a view averaged over `part_s`, which view); None without one."""
    if views.seconds < 2.0 * part_s:
        return None
    slow = _averaged(views, part_s)
    share = slow.values.var(axis=1) / np.maximum(views.values.var(axis=1), 1e-300)
    enough = share >= np.maximum(SHARE, SHARE_UPDATE * (views.update_s / part_s) ** 2)
    enough &= views.update_s <= OFTEN * views.update_s.min()
    (alike,) = similarities(slow, (PARTS,))
    best, answer = 0.0, None
    for view in np.flatnonzero(enough):
        found = candidates(alike[view], 1.5 * part_s, min(longest_s, MOST * part_s))
        good = found.score >= ALIKE + ALIKE_SEEN * found.lag_s / views.seconds
        if good.any() and (top := float(found.score[good].max())) > best:
            best, answer = top, (float(found.lag_s[good][np.argmax(found.score[good])]), int(view))
    return answer


def _averaged(views: Signals, seconds: float) -> Signals:
    """The means over so long around each reading; of what is known."""
    half = 0.5 * seconds / views.interval_s
    at = np.arange(np.ceil(half), views.values.shape[1] - half)
    known = np.stack([_over(row, at, half) for row in views.known])
    total = np.stack([_over(row, at, half) for row in views.values])
    enough = np.asarray(known >= half, dtype=np.float64)
    values = enough * total / np.maximum(known, 1e-9)
    means = values.sum(axis=1, keepdims=True) / np.maximum(enough.sum(axis=1, keepdims=True), 1.0)
    centred: Values = values - enough * means
    return Signals(centred, enough, views.interval_s, views.update_s)


def _over(row: Values, at: Values, half: float) -> Values:
    """Integral of a row of readings, each of which holds until the next, around each point."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    edges = np.arange(len(total))
    around: Values = np.interp(at + half, edges, total) - np.interp(at - half, edges, total)
    return around
