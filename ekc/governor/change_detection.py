"""Whether a job still does the same work.

Under the choice, signatures (power, SM and memory use) of recordings, called looks, are compared with a
reference, and the loss of the beat is noticed. `is_disturbed` says whether a reading can be used, and
`is_same_phase` whether a phase was measured before. `CheckSchedule` says when the default is measured again:
early where a choice is uncertain, at doubling intervals while checks agree, and early again where the job
seems to have changed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from ekc.governor.progress_rate import ProgressSource
from ekc.governor.readings import DRIFT_PER_S, JobReading, PhaseReadings
from ekc.governor.samples import SensorSamples, Values, finite_mean

MIN_CHANGE = 0.08
"""Least relative change of a signature that counts as a change of the job."""
MIN_DEVIATION = 0.03
"""Least relative change after which the default is measured again."""
SCATTER_SIGMAS = 4.0
"""Standard deviations of scatter below which a difference is ignored."""
REFERENCE_UPDATE_SHARE = 0.5
"""Weight of a look in the running reference, which so follows slow drift."""
SCATTER_CLIP, MIN_SCATTER_CLIP = 2.0, 0.01
"""Largest difference of a look that updates the scatter: a multiple of the scatter, and a least value."""
SCATTER_UPDATE_SHARE = 0.1
"""Weight of a look in the running variance of scatter."""
LARGE_CHANGE = 0.25
"""Relative change from which on a change is `large`: no choice of the job was confirmed yet."""
CONFIRM_S = 75.0
"""Seconds that a change must last: evaluations and checkpoints are shorter."""
UNSTABLE_S = 2 * CONFIRM_S
"""Seconds of looks of which most must deviate, where some do not."""
MAX_REMEMBERED = 64
"""Number of looks that are kept."""
REFERENCE_LOOK_COUNT = 4
"""Number of looks that make the first reference."""
MAX_UNEXPECTED_USE = 0.15
"""Relative difference of use beyond that of one or two offered values: the job changed when the reference was
made."""
MAX_LOOKS = 6
"""Most looks that are averaged where single ones scatter too much."""
MIN_BEATS_FOUND = 3
"""Number of looks that must have found the beat before its loss counts."""


@dataclass
class ChangeDetector:
    """Compares looks with a reference signature."""

    look_s: float
    expected_signature: Values | None = None
    """Signature of readings under the same limits, or nearly the same; None without one."""
    _first_looks: list[Values] = field(default_factory=list)
    _reference: Values | None = None
    _scatter: Values = field(default_factory=lambda: np.zeros(3))
    _last_looks: deque[Values] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))
    _deviated_flags: deque[bool] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def is_ready(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    def measure_distance(self, samples: SensorSamples) -> float:
        """Relative distance of the last, consecutive looks from the reference; 0 without one."""
        if not np.isfinite(samples.power_w).any():
            return 0.0
        look = compute_signature(samples)
        if self._reference is None:
            self._learn_reference(look)
            return 0.0
        self._last_looks.append(look)
        together = np.array(self._last_looks)[-self._count_needed_looks() :]
        difference = np.abs(together.mean(axis=0) / self._reference - 1)
        is_significant = difference > SCATTER_SIGMAS * self._scatter / np.sqrt(len(together))
        distance = float(difference[is_significant].max(initial=0.0))
        self._deviated_flags.append(self.is_deviating(distance))
        return distance

    def is_deviating(self, distance: float) -> bool:
        """Whether a distance is worth confirming."""
        return self.is_ready() and distance > MIN_DEVIATION

    def is_unstable(self) -> bool:
        """Whether most looks deviated for `UNSTABLE_S` without a lasting change, as do long iterations."""
        count = ceil(UNSTABLE_S / self.look_s)
        last = list(self._deviated_flags)[-count:]
        return len(last) == count and sum(last) > count / 2

    def update_reference(self) -> None:
        """Take the last look, which was as expected, into reference and scatter."""
        if self._reference is None or not self._last_looks:
            return
        difference = np.abs(self._last_looks[-1] / self._reference - 1)
        # Clipped, since the first look of a change may seem as expected: it must not count as scatter.
        difference = np.minimum(difference, np.maximum(SCATTER_CLIP * self._scatter, MIN_SCATTER_CLIP))
        variance = (1 - SCATTER_UPDATE_SHARE) * self._scatter**2 + SCATTER_UPDATE_SHARE * difference**2
        self._scatter = np.sqrt(variance)
        # The oldest look of the average, so that the beginning of a change does not enter the reference.
        needed = self._count_needed_looks()
        oldest = self._last_looks[-min(needed, len(self._last_looks))]
        share = REFERENCE_UPDATE_SHARE / needed
        self._reference = (1 - share) * self._reference + share * oldest

    def _count_needed_looks(self) -> int:
        """Number of looks whose mean shows a change of `MIN_CHANGE`."""
        return int(np.clip(np.ceil((SCATTER_SIGMAS * self._scatter.max() / MIN_CHANGE) ** 2), 1, MAX_LOOKS))

    def _learn_reference(self, look: Values) -> None:
        self._first_looks.append(look)
        if len(self._first_looks) >= REFERENCE_LOOK_COUNT:
            rows = np.array(self._first_looks)
            # The median, since an evaluation may be among the first looks.
            self._reference = np.median(rows, axis=0)
            self._scatter = 1.5 * np.median(np.abs(rows / self._reference - 1), axis=0)
            expected = self.expected_signature
            # Power is left out, as counter and sensor differ.
            if expected is not None and (
                (np.abs(self._reference / expected - 1)[1:] > MAX_UNEXPECTED_USE).any()
            ):
                # The job changed before the first look: its own looks are no reference.
                self._reference, self._scatter = expected, np.zeros(3)


@dataclass
class BeatMonitor:
    """Watches whether the beat of a job is lost."""

    _found_count: int = 0
    _looks: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def add_look(self, at_s: float, found: bool | None) -> None:
        """Add the next look; `found`: whether it has the beat, None where unknown."""
        if found is not None:
            self._found_count += found
            self._looks.append((at_s, found))

    def is_lost(self, at_s: float) -> bool:
        """Whether most looks have missed the beat for `CONFIRM_S` / 2; chance finds it now and then."""
        recent = [(at, found) for at, found in self._looks if at_s - at <= UNSTABLE_S]
        missed = [at for at, found in recent if not found]
        is_long = len(missed) >= MIN_BEATS_FOUND and recent[-1][0] - missed[0] >= CONFIRM_S / 2
        is_majority = len(missed) > 2 * (len(recent) - len(missed))
        return self._found_count >= MIN_BEATS_FOUND and is_long and is_majority


def compute_signature(samples: SensorSamples) -> Values:
    """Signature of some samples."""
    return make_signature(
        finite_mean(samples.power_w), finite_mean(samples.sm_util), finite_mean(samples.memory_util)
    )


def make_signature(watts: float, sm_util: float, memory_util: float) -> Values:
    """Array of watts, SM use and memory use; each use plus 50 %, so that changes of a small one are small."""
    return np.array([watts, 50.0 + np.nan_to_num(sm_util), 50.0 + np.nan_to_num(memory_util)])


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
