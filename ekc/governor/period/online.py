"""Measures the period of a running job: records until the period is stable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ekc.governor.period.detect import MIN_CYCLES, Period, detect_period
from ekc.governor.samples import SensorSamples, concatenate_samples, cut_pauses

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


class SampleRecorder(Protocol):
    """A probe, or something that records through one."""

    def record(self, seconds: float) -> SensorSamples:
        """Wait that long and return the samples."""

    def is_running(self) -> bool:
        """Whether the job is still running."""


@dataclass(frozen=True)
class PeriodRecording:
    """A recording and the period found in it."""

    period: Period
    spread: float
    """Relative difference of the period between parts of the recording; NaN without a period."""
    is_stable: bool
    """Whether the period is found in all parts, with a small spread. If not, it is good as a window only."""
    samples: SensorSamples


def find_period(probe: SampleRecorder) -> PeriodRecording:
    """Record until the period is stable, nothing repeats in 3 x `MAX_PERIOD_S`, or the job ends."""
    samples = probe.record(FIRST_RECORDING_S)
    while True:
        found = assess_recording(samples)
        missing_s = _compute_missing_s(found)
        if missing_s <= 0.0 or not probe.is_running():
            return found
        # At most twice as long: that is often enough.
        longest_s = min(MAX_EXTENSION_S, max(FIRST_RECORDING_S, _get_span_s(samples)))
        more_s = float(np.clip(missing_s, MIN_EXTENSION_S, longest_s))
        samples = concatenate_samples(samples, probe.record(more_s))


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
