"""Comparisons of readings and phases: is a reading disturbed, is a phase one that was measured before?

`CheckSchedule` says when the default is measured again: early where a choice is uncertain, at doubling
intervals while checks agree, and early again where the job seems to have changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.change_detection import CONFIRM_S
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.readings import DRIFT_PER_S, JobReading, PhaseReadings
from ekc.governor.samples import Values

MAX_PERIOD_CHANGE = 0.01
"""Share by which the period may differ between two readings at the default, beyond its error and drift."""
MAX_BYTES_CHANGE = 0.05
"""Share by which a phase's bytes per busy second may differ between readings, beyond their errors."""
MAX_SIGNATURE_DISTANCE = 0.04
"""Largest relative difference between the signatures of one phase at the default."""
MAX_PERIOD_DISTANCE = 0.05
"""Largest relative difference between the periods of one phase at the default."""
MIN_BUSY_PERCENT = 60
"""SM use, in percent of the default's, below which a reading counts as idle."""


def is_disturbed(readings: PhaseReadings, reading: JobReading) -> bool:
    """Whether `reading` cannot be used: the job was idle for a while meanwhile, or did other work."""
    is_idle = reading.sm_util < MIN_BUSY_PERCENT * readings.get_default_sm_util()
    return is_idle or readings.is_outlier(reading) or _is_other_work(readings, reading)


def has_lost_beat(progress: ProgressSource, readings: PhaseReadings, reading: JobReading) -> bool:
    """Whether the beat is gone in `reading`, a new one at the default.

    It is gone if it is missing, or differs both from the last reading at the default and from the period
    that was tracked under the choice since. Too few steps to measure a beat do not count as a lost one.
    """
    if progress.kind not in ("steps", "period"):
        return False
    earlier = [r for r in readings.default_readings if r.pace.beats > 0]
    if not earlier or not reading.pace.beats > 0:
        return progress.kind == "period"
    last = earlier[-1]
    errors = float(np.hypot(last.pace.beats_error, reading.pace.beats_error))
    drift = DRIFT_PER_S * (reading.at_s - last.at_s)
    has_changed = abs(reading.pace.beats / last.pace.beats - 1) > MAX_PERIOD_CHANGE + 3 * errors + drift
    if progress.kind == "steps":
        return has_changed
    return has_changed and abs(reading.pace.beats * progress.period_s - 1) > MAX_PERIOD_CHANGE + 3 * errors


def _is_other_work(readings: PhaseReadings, reading: JobReading) -> bool:
    """Whether the bytes per busy second differ from the last reading under the same limits, or else from the
    default by more than the SM clock explains: as in an evaluation, which proves nothing about the period."""
    of_phase = readings.default_readings + readings.other_readings
    same_limits = [r.pace for r in of_phase if r.settings == reading.settings]
    earlier = [pace for pace in same_limits if np.isfinite(pace.moved)]
    lowest = 1.0
    if not same_limits and reading.settings.memory_mhz is None:
        earlier = [r.pace for r in readings.default_readings if np.isfinite(r.pace.moved)]
        # Kernels that follow the clock move fewer bytes a second, in proportion. Caps do not say their clock.
        share = (reading.settings.sm_mhz or 0) / readings.get_default_clock_mhz()
        lowest = min(1.0, float(np.nan_to_num(share)))
    if not earlier or not np.isfinite(reading.pace.moved):
        return False
    margin = MAX_BYTES_CHANGE + 3 * float(np.hypot(earlier[-1].moved_error, reading.pace.moved_error))
    ratio = reading.pace.moved / earlier[-1].moved
    return bool(ratio > 1 + margin or ratio < lowest - margin)


def is_same_phase(
    signature: Values, progress: ProgressSource, earlier_signature: Values, earlier_progress: ProgressSource
) -> bool:
    """Whether two phases have the same signature (power and use) and the same period at the default."""
    if np.abs(signature / earlier_signature - 1).max() >= MAX_SIGNATURE_DISTANCE:
        return False
    if progress.kind != earlier_progress.kind:
        return False
    period_s = progress.period_s
    return not period_s > 0 or abs(period_s / earlier_progress.period_s - 1) < MAX_PERIOD_DISTANCE


FIRST_CHECK_S = 240.0
EARLY_CHECK_S = 120.0
"""Seconds until the first check of an uncertain choice, and the least ones before a suspected change's."""
MAX_CHECK_GAP_S = 1800.0
"""Longest gap between two checks in seconds."""
MAX_DOUBTS = 2
"""Consecutive checks that disagree with the readings so far; so many count as a change of the job."""


@dataclass
class CheckSchedule:
    """When the checks of one choice are due, in seconds on the probe's clock."""

    last_s: float
    """Time of the last check, or of the choice."""
    gap_s: float
    _doubt_count: int = 0
    _early_gap_s: float | None = None

    def is_due(self, at_s: float, suspected: bool) -> bool:
        """Whether a check is due at `at_s`; `suspected`: the job seems to have changed."""
        gap = self.gap_s if self._early_gap_s is None else self._early_gap_s
        return at_s - self.last_s > (min(gap, EARLY_CHECK_S) if suspected else gap)

    def record_agreement(self, at_s: float) -> None:
        """The default is unchanged and the choice did as expected: double the gap."""
        self.last_s, self._doubt_count, self._early_gap_s = at_s, 0, None
        self.gap_s = min(2 * self.gap_s, MAX_CHECK_GAP_S)

    def record_doubt(self, at_s: float) -> bool:
        """The check disagreed: check again soon, since an evaluation passes. True after too many doubts."""
        self.last_s, self._early_gap_s = at_s, CONFIRM_S
        self._doubt_count += 1
        return self._doubt_count >= MAX_DOUBTS
