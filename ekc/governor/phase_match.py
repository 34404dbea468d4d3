"""Whether it is still the work that it was: readings of one phase, and phases, held against each other.

When the default is measured again: soon where a choice is not known well, seldomer as long as checks
agree, and at once where the job looks as if it had changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ekc.governor.change_detection import CONFIRM_S
from ekc.governor.readings import DRIFT_PER_S, JobReading

if TYPE_CHECKING:
    from ekc.governor.phase import Phase


MAX_PERIOD_CHANGE = 0.01
"""How much a period may differ between two looks at the default, beyond its error and drift."""
MAX_BYTES_CHANGE = 0.05
"""How much the bytes per busy second of one work may differ between two looks, beyond their errors."""
MAX_SIGNATURE_DISTANCE = 0.04
"""Two defaults closer than this are of one phase."""
MAX_PERIOD_DISTANCE = 0.05
"""And so must their beats be."""


def is_disturbed(phase: Phase, reading: JobReading) -> bool:
    """Whether the stretch stood still for a while, or something else ran: it teaches nothing then."""
    idle = reading.sm_util < 30 * phase.readings.get_default_sm_util()
    return idle or phase.readings.is_outlier(reading) or _is_other_work(phase, reading)


def has_lost_beat(phase: Phase, reading: JobReading) -> bool:
    """Whether the beat at the default is not there, or another than at the last one and than what was
    followed under the choice since. Steps that are too few to tell are no other beat."""
    if phase.progress.kind not in ("steps", "period"):
        return False
    last = [r for r in phase.readings.default_readings if r.pace.beats > 0]
    if not last or not reading.pace.beats > 0:
        return phase.progress.kind == "period"
    errors = float(np.hypot(last[-1].pace.beats_error, reading.pace.beats_error))
    drift = DRIFT_PER_S * (reading.at_s - last[-1].at_s)
    off = abs(reading.pace.beats / last[-1].pace.beats - 1) > MAX_PERIOD_CHANGE + 3 * errors + drift
    if phase.progress.kind == "steps":
        return off
    return off and abs(reading.pace.beats * phase.progress.period_s - 1) > MAX_PERIOD_CHANGE + 3 * errors


def _is_other_work(phase: Phase, reading: JobReading) -> bool:
    """Whether other bytes are moved than last under the same limits: in an evaluation, say, which proves
    nothing of the period either."""
    before = [
        r
        for r in phase.readings.default_readings + phase.readings.other_readings
        if r.settings == reading.settings
    ]
    last = [r.pace for r in before if np.isfinite(r.pace.moved)]
    if not last or not np.isfinite(reading.pace.moved):
        return False
    errors = float(np.hypot(last[-1].moved_error, reading.pace.moved_error))
    return abs(reading.pace.moved / last[-1].moved - 1) > MAX_BYTES_CHANGE + 3 * errors


def is_same_phase(phase: Phase, earlier: Phase) -> bool:
    """Whether both draw and use as much at the default, and have one beat."""
    if np.abs(phase.default_signature / earlier.default_signature - 1).max() >= MAX_SIGNATURE_DISTANCE:
        return False
    if phase.progress.kind != earlier.progress.kind:
        return False
    return (
        not phase.progress.period_s > 0
        or abs(phase.progress.period_s / earlier.progress.period_s - 1) < MAX_PERIOD_DISTANCE
    )


FIRST_CHECK_S = 240.0
EARLY_CHECK_S = 120.0
"""The first where a choice is not known well, and the least between two that a seeming change asks for."""
MAX_CHECK_GAP_S = 1800.0
MAX_DOUBTS = 2
"""So many checks in a row that find another default are a change that the watch has missed."""


@dataclass
class CheckSchedule:
    """Those of one choice, by the probe's clock."""

    last_s: float
    gap_s: float
    _doubt_count: int = 0
    _early_gap_s: float | None = None

    def is_due(self, at_s: float, suspected: bool) -> bool:
        """Whether it is time; `suspected` where the job looks other than it did."""
        gap = self.gap_s if self._early_gap_s is None else self._early_gap_s
        return at_s - self.last_s > (min(gap, EARLY_CHECK_S) if suspected else gap)

    def record_agreement(self, at_s: float) -> None:
        """The default was as it used to be, and the choice did as believed."""
        self.last_s, self._doubt_count, self._early_gap_s = at_s, 0, None
        self.gap_s = min(2 * self.gap_s, MAX_CHECK_GAP_S)

    def record_doubt(self, at_s: float) -> bool:
        """It was not: it is looked at again soon, since an evaluation comes and goes. Whether that was so too
        often."""
        self.last_s, self._early_gap_s = at_s, CONFIRM_S
        self._doubt_count += 1
        return self._doubt_count >= MAX_DOUBTS
