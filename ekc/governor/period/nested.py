"""Whether a period is only part of a longer one: micro-steps of an iteration."""

from __future__ import annotations

import numpy as np

from ekc.governor.period.candidates import candidates
from ekc.governor.period.signal import Signals
from ekc.governor.period.similarity import similarities
from ekc.governor.samples import Values

MOST = 9.7
"""So many parts at most; what comes more rarely (a log line) does not make an iteration."""
SHARE, SHARE_UPDATE = 0.01, 0.6
"""Least share of the variance that is left after averaging over the part, and how much more is asked where a
part is as short as the sensor's update: there, beats between both look like a longer period."""
PARTS = 8.0
ALIKE, ALIKE_SEEN = 0.25, 0.8
"""Least score of the longer period, and how much more is asked of one that was seen once."""


def whole(view: Signals, part_s: float, longest_s: float) -> float:
    """The longer period in what is left of a view averaged over `part_s`; `part_s` where there is none."""
    if view.seconds < 2.0 * part_s:
        return part_s
    slow = _averaged(view, part_s)
    least = max(SHARE, SHARE_UPDATE * (float(view.update_s[0]) / part_s) ** 2)
    if slow.values.var() < least * view.values.var():
        return part_s
    ((alike,),) = similarities(slow, (PARTS,))
    found = candidates(alike, 1.5 * part_s, min(longest_s, MOST * part_s))
    good = found.score >= ALIKE + ALIKE_SEEN * found.lag_s / view.seconds
    return float(found.lag_s[good][np.argmax(found.score[good])]) if good.any() else part_s


def _averaged(view: Signals, seconds: float) -> Signals:
    """The mean over so long around each reading; of what is known."""
    half = 0.5 * seconds / view.interval_s
    at = np.arange(np.ceil(half), view.values.shape[1] - half)
    known = _over(view.known[0], at, half)
    total = _over(view.values[0], at, half)
    enough = np.asarray(known >= half, dtype=np.float64)
    values = enough * total / np.maximum(known, 1e-9)
    centred: Values = values - enough * values.sum() / max(enough.sum(), 1.0)
    return Signals(centred[None], enough[None], view.interval_s, view.update_s)


def _over(row: Values, at: Values, half: float) -> Values:
    """Integral of a row of readings, each of which holds until the next, around each point."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    edges = np.arange(len(total))
    around: Values = np.interp(at + half, edges, total) - np.interp(at - half, edges, total)
    return around
