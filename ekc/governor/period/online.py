"""A period measured on a running job: recorded until it is stable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ekc.governor.period.detect import MIN_CYCLES, Period, detect_period
from ekc.governor.samples import SensorSamples, concatenate_samples

FIRST_RECORDING_S = 15.0
"""Recorded before anything is said (GPOEO: 25)."""
TARGET_PERIODS = 5.3
"""Periods that are wanted, and at most so many seconds more at once (GPOEO)."""
MIN_EXTENSION_S, MAX_EXTENSION_S = 5.0, 30.0
MAX_PERIOD_S = 20.0
"""Periods up to this are looked for."""
STABILITY_PARTS = (0.75, 0.5)
"""Of the recording, the last: a stable period is found there too."""
STRICT_SPREAD, NORMAL_SPREAD, RELAXED_SPREAD = 0.10, 0.15, 0.30
"""Largest spread of a stable period, as a share (GPOEO)."""


class SampleRecorder(Protocol):
    """What is asked of a probe, or of whatever watches through one."""

    def record(self, seconds: float) -> SensorSamples:
        """Wait that long and return what was sampled."""
        ...

    def is_running(self) -> bool:
        """Whether the job is still there."""
        ...


@dataclass(frozen=True)
class PeriodRecording:
    """What a recording told."""

    period: Period
    spread: float
    """What the period differs by between parts of the recording, as a share; NaN where there is none."""
    is_stable: bool
    """Whether it is found in all parts, and differs little. If not, it is good as a window only."""
    samples: SensorSamples
    """The whole recording."""


def find_period(probe: SampleRecorder, max_spread: float = NORMAL_SPREAD) -> PeriodRecording:
    """Record until the period is stable, or nothing repeats in three times `LONGEST_S`, or the job ends.

    `spread`: what is still stable.
    """
    samples = probe.record(FIRST_RECORDING_S)
    while True:
        found = assess_recording(samples, max_spread)
        missing_s = _compute_missing_s(found)
        if missing_s <= 0.0 or not probe.is_running():
            return found
        # Twice as long is often enough.
        more_s = float(
            np.clip(
                missing_s, MIN_EXTENSION_S, min(MAX_EXTENSION_S, max(FIRST_RECORDING_S, _get_span_s(samples)))
            )
        )
        samples = concatenate_samples(samples, probe.record(more_s))


def assess_recording(samples: SensorSamples, max_spread: float = NORMAL_SPREAD) -> PeriodRecording:
    """What a recording tells, and whether its last parts tell the same."""
    hz = samples.sampling_hz
    period = detect_period(samples, hz)
    if period.verdict not in ("periodic", "multiple"):
        return PeriodRecording(period, float("nan"), False, samples)
    parts = [detect_period(part, hz) for part in _take_last_parts(samples, MIN_CYCLES * period.seconds)]
    seconds = [period.seconds, *(part.seconds for part in parts)]
    apart = (max(seconds) - min(seconds)) / period.seconds
    same = all(part.verdict == period.verdict for part in parts) and bool(parts)
    return PeriodRecording(period, apart, same and apart < max_spread, samples)


def _take_last_parts(samples: SensorSamples, min_s: float) -> list[SensorSamples]:
    """The last parts of a recording that are not too short."""
    span = _get_span_s(samples)
    return [
        samples.slice_from(samples.time_s[-1] - part * span)
        for part in STABILITY_PARTS
        if part * span > min_s
    ]


def _compute_missing_s(recording: PeriodRecording) -> float:
    """Seconds that are still to be recorded: 0 where more would not help."""
    span, period = _get_span_s(recording.samples), recording.period
    if recording.is_stable:
        return 0.0
    if period.verdict in ("periodic", "multiple"):
        # What its parts do not share may be chance: the most is recorded before it is given up.
        wanted = (
            TARGET_PERIODS * period.seconds
            if span < TARGET_PERIODS * period.seconds
            else MIN_CYCLES * MAX_PERIOD_S
        )
    else:
        wanted = MIN_CYCLES * MAX_PERIOD_S
    return wanted - span


def _get_span_s(samples: SensorSamples) -> float:
    return float(samples.time_s[-1] - samples.time_s[0]) if len(samples) else 0.0
