"""Whether it is still the work that it was: readings of one phase, and phases, held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ekc.governor.ledger import DRIFT_PER_S
from ekc.governor.reading import Reading

if TYPE_CHECKING:
    from ekc.governor.phase import Phase

OFFBEAT = 0.01
"""How much a period may differ between two looks at the default, beyond its error and drift."""
OTHER_WORK = 0.05
"""How much the bytes per busy second of one work may differ between two looks, beyond their errors."""
SAME_PHASE = 0.04
"""Two defaults closer than this are of one phase."""
SAME_PERIOD = 0.05
"""And so must their beats be."""


def disturbed(phase: Phase, seen: Reading) -> bool:
    """Whether the stretch stood still for a while, or something else ran: it teaches nothing then."""
    idle = seen.sm_util < 30 * phase.ledger.sm_util()
    return idle or phase.ledger.surprising(seen) or _other_work(phase, seen)


def offbeat(phase: Phase, seen: Reading) -> bool:
    """Whether the beat at the default is not there, or another than at the last one and than what was
    followed under the choice since. Steps that are too few to tell are no other beat."""
    if phase.beat.source not in ("steps", "period"):
        return False
    last = [r for r in phase.ledger.defaults if r.pace.beats > 0]
    if not last or not seen.pace.beats > 0:
        return phase.beat.source == "period"
    errors = float(np.hypot(last[-1].pace.beats_error, seen.pace.beats_error))
    drift = DRIFT_PER_S * (seen.at_s - last[-1].at_s)
    off = abs(seen.pace.beats / last[-1].pace.beats - 1) > OFFBEAT + 3 * errors + drift
    if phase.beat.source == "steps":
        return off
    return off and abs(seen.pace.beats * phase.beat.period_s - 1) > OFFBEAT + 3 * errors


def _other_work(phase: Phase, seen: Reading) -> bool:
    """Whether other bytes are moved than last under the same limits: in an evaluation, say, which proves
    nothing of the period either."""
    before = [r for r in phase.ledger.defaults + phase.ledger.others if r.settings == seen.settings]
    last = [r.pace for r in before if np.isfinite(r.pace.moved)]
    if not last or not np.isfinite(seen.pace.moved):
        return False
    errors = float(np.hypot(last[-1].moved_error, seen.pace.moved_error))
    return abs(seen.pace.moved / last[-1].moved - 1) > OTHER_WORK + 3 * errors


def alike(phase: Phase, known: Phase) -> bool:
    """Whether both draw and use as much at the default, and have one beat."""
    if np.abs(phase.default / known.default - 1).max() >= SAME_PHASE:
        return False
    if phase.beat.source != known.beat.source:
        return False
    return not phase.beat.period_s > 0 or abs(phase.beat.period_s / known.beat.period_s - 1) < SAME_PERIOD
