"""How fast a job goes, from the best source there is: its steps, its period, or the memory it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ekc.governor.job_reading import NOT_MEASURED, ProgressRate
from ekc.governor.period import PeriodRecording, detect_period
from ekc.governor.period_tracking import find_period_near
from ekc.governor.samples import SensorSamples, finite_mean

ProgressKind = Literal["steps", "period", "throughput", "none"]
MIN_CLARITY = 0.25
"""Least share of the signals' variance that a period must explain to be trusted as progress."""
MIN_MEMORY_UTIL = 3.0
"""Percent of memory use below which rounding hides progress."""
BLOCK_S = 2.5
MIN_RATE_ERROR = 0.002
"""No pace is known better than this share."""
MIN_BLOCKS = 2
"""How far they stray is pooled over the phase, so two teach something."""
STEP_POLL_S = 0.2
"""How often the count of steps is looked at."""
MIN_STEPS = 3
STEP_BLOCK_COUNT = 8
DEFAULT_JITTER = 0.015
"""Of one period to the next, one sigma, believed until seen."""


@dataclass(frozen=True)
class VarianceRate:
    """Variance that a witness gains per second, the mean of all stretches that were seen.

    One stretch alone tells its own error badly: its few blocks may agree by chance, and what looks surest
    would then weigh most.
    """

    variance_per_s: float = 0.0
    stretch_count: int = 0

    def add_stretch(self, variance_per_s: float) -> VarianceRate:
        """With one more stretch; one that tells nothing (NaN) changes nothing."""
        if not variance_per_s >= 0:
            return self
        return VarianceRate(
            (self.variance_per_s * self.stretch_count + variance_per_s) / (self.stretch_count + 1),
            self.stretch_count + 1,
        )

    def compute_error(self, seconds: float) -> float:
        """Standard error of a mean over so long; of timing, in the unit of `per_s` over seconds."""
        return float(np.sqrt(self.variance_per_s / seconds))


@dataclass(frozen=True)
class ProgressSource:
    """What tells progress, settled at the default limits."""

    kind: ProgressKind
    period_s: float = float("nan")
    """At the default limits, where the source is a period."""
    verdict: str = "aperiodic"
    timing_variance: VarianceRate = VarianceRate()
    """How the beat strays (`Tempo.wander`)."""
    bytes_variance: VarianceRate = VarianceRate()
    """The same of the bytes that are moved."""
    power_variance: VarianceRate = VarianceRate()
    """The same of the watts that are drawn."""

    def compute_window_s(self) -> float:
        """How long a reading must be, at least."""
        if self.kind == "steps":
            return float(np.clip(6.0 + 3.2 * self.period_s, 12.0, 60.0))
        if self.kind == "period":
            return max(10.0, min(3.2 * self.period_s, 6.0 + 2.2 * self.period_s))
        return 20.0 if self.kind == "throughput" else 12.0


def make_step_source(samples: SensorSamples, step_count: float) -> ProgressSource:
    """Of a job whose hooks counted so many steps in a stretch at the default limits."""
    each = float(samples.time_s[-1] - samples.time_s[0]) / max(step_count, 0.5)
    return ProgressSource("steps", each, detect_period(samples, samples.sampling_hz).verdict)


def choose_progress_source(found: PeriodRecording) -> ProgressSource:
    """The source of progress of a job without hooks, recorded at the default limits."""
    period, samples = found.period, found.samples
    if period.verdict in ("periodic", "multiple"):
        seen = find_period_near(samples, period.seconds, 0.9, 1.1)
        if seen is not None and seen.clarity >= MIN_CLARITY:
            usual = VarianceRate(DEFAULT_JITTER**2 * seen.seconds, 1)
            return ProgressSource("period", seen.seconds, period.verdict, usual)
    moving = finite_mean(samples.memory_util)
    return ProgressSource("throughput" if moving >= MIN_MEMORY_UTIL else "none", verdict=period.verdict)


@dataclass(frozen=True)
class StepMark:
    """A moment at which the count of the hooks was seen to have moved, and the count."""

    at_s: float
    count: float


def measure_progress_rate(
    source: ProgressSource, samples: SensorSamples, max_stretch: float, steps: Sequence[StepMark] = ()
) -> tuple[ProgressRate, ProgressSource]:
    """Progress per second over a stretch, and the beat with what that taught of its errors.

    `most_stretch`: how much longer than at the default an iteration can be at most.
    """
    told, source = _measure_beats(source, samples, max_stretch, steps)
    # Blocks of whole iterations as they are now: parts of one, as those of the default's length, tell other
    # work.
    period = told.period_s if told.period_s > 0 else source.period_s
    moved, uneven = _measure_memory_rate(samples, period)
    source = replace(
        source,
        bytes_variance=source.bytes_variance.add_stretch(uneven),
        power_variance=source.power_variance.add_stretch(_estimate_power_variance(samples, period)),
    )
    if not np.isfinite(moved):
        return told, source
    lasted = float(samples.time_s[-1] - samples.time_s[0])
    return replace(
        told, moved=moved, moved_error=max(2 * MIN_RATE_ERROR, source.bytes_variance.compute_error(lasted))
    ), source


def _measure_beats(
    source: ProgressSource, samples: SensorSamples, max_stretch: float, steps: Sequence[StepMark]
) -> tuple[ProgressRate, ProgressSource]:
    """What beats tell alone."""
    if source.kind == "steps":
        return _measure_step_rate(source, steps)
    if source.kind != "period":
        return ProgressRate(), source
    found = find_period_near(samples, source.period_s, 0.95, 1.05 * max_stretch)
    if found is None or found.clarity < MIN_CLARITY / 2:
        return ProgressRate(), source
    source = replace(source, timing_variance=source.timing_variance.add_stretch(found.timing_variance_per_s))
    error = max(
        MIN_RATE_ERROR, source.timing_variance.compute_error(float(samples.time_s[-1] - samples.time_s[0]))
    )
    return ProgressRate(beats=1 / found.seconds, beats_error=error, period_s=found.seconds), source


def _measure_step_rate(
    source: ProgressSource, steps: Sequence[StepMark]
) -> tuple[ProgressRate, ProgressSource]:
    """From the first step that was seen to end to the last one."""
    if len(steps) < MIN_STEPS:
        return ProgressRate(), source
    seconds, done = steps[-1].at_s - steps[0].at_s, steps[-1].count - steps[0].count
    late = STEP_POLL_S**2 / 12
    blocks = steps[:: max(1, len(steps) // STEP_BLOCK_COUNT)]
    lasted = np.array([b.at_s - a.at_s for a, b in pairwise(blocks)])
    usual = np.array([b.count - a.count for a, b in pairwise(blocks)]) * seconds / done
    # Polls see a step end up to one poll late, which is no straying of the step.
    strayed = float(((lasted - usual) ** 2).sum() / max(1, len(lasted) - 1)) - 2 * late
    source = replace(
        source, timing_variance=source.timing_variance.add_stretch(max(0.0, strayed) / float(lasted.mean()))
    )
    error = float(np.hypot(source.timing_variance.compute_error(seconds), np.sqrt(2 * late) / seconds))
    return ProgressRate(
        beats=done / seconds, beats_error=max(MIN_RATE_ERROR, error), period_s=seconds / done
    ), source


def _measure_memory_rate(samples: SensorSamples, period_s: float) -> tuple[float, float]:
    """Memory use per busy second, and how that strays, as a share: from blocks, of whole periods if there
    are."""
    length, spans = _split_blocks(samples, period_s)
    moving = np.array([finite_mean(samples.memory_util[span]) for span in spans])
    busy = np.array([finite_mean(samples.sm_util[span]) for span in spans]) / 100
    if len(spans) < MIN_BLOCKS or not finite_mean(moving) >= MIN_MEMORY_UTIL or not finite_mean(busy) > 0:
        return NOT_MEASURED, NOT_MEASURED
    rate = float(np.nansum(moving) / np.nansum(busy))
    # A ratio of sums: what a block moves beyond what it should for the time it was busy.
    off = moving - rate * busy
    return rate, float(np.nansum(off**2) / (len(off) - 1)) / finite_mean(moving) ** 2 * length


def _estimate_power_variance(samples: SensorSamples, period_s: float) -> float:
    """How watts stray, as a share: variance of the mean of blocks, times their length."""
    length, spans = _split_blocks(samples, period_s)
    watts = np.array([finite_mean(samples.power_w[span]) for span in spans])
    watts = watts[np.isfinite(watts)]
    if len(watts) < MIN_BLOCKS or not watts.mean() > 0:
        return NOT_MEASURED
    return float(np.var(watts, ddof=1)) / float(watts.mean()) ** 2 * length


def _split_blocks(samples: SensorSamples, period_s: float) -> tuple[float, list[slice]]:
    """Seconds of a block, and where blocks lie: of whole periods if there are."""
    length = BLOCK_S if not period_s > 0 else period_s * max(1.0, np.ceil(BLOCK_S / period_s))
    edges = np.searchsorted(samples.time_s, np.arange(samples.time_s[0], samples.time_s[-1] + 1e-9, length))
    return length, [slice(a, b) for a, b in pairwise(edges) if b - a > 1]
