"""Progress rate of a job by the best available source: its steps, its period, or the bytes it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ekc.governor.period import PeriodRecording, detect_period
from ekc.governor.period_tracking import track_period_near
from ekc.governor.readings import NOT_MEASURED, ProgressRate
from ekc.governor.samples import (
    SensorSamples,
    Values,
    cut_pauses,
    detect_pauses,
    finite_mean,
    shift_times,
)

ProgressKind = Literal["steps", "period", "throughput", "none"]
MIN_CLARITY = 0.25
"""Least share of the signals' variance that a period must explain to count as progress, 0 to 1."""
MIN_MEMORY_UTIL = 3.0
"""Percent of memory use below which rounding hides progress."""
BLOCK_S = 2.5
"""Least length of the blocks whose scatter gives the variance of bytes and watts, in seconds."""
MIN_RATE_ERROR = 0.002
MIN_BLOCKS = 2
"""Least number of blocks for a variance; two suffice, since variances are pooled over the phase."""
STEP_POLL_S = 0.2
"""Seconds between two polls of the count of steps."""
MIN_STEPS = 3
STEP_BLOCK_COUNT = 8
"""Number of blocks of steps whose scatter gives the variance of timing."""
DEFAULT_JITTER = 0.015
"""Assumed standard deviation from one period to the next, relative, until it is measured."""


@dataclass(frozen=True)
class VarianceRate:
    """Variance of a measure per second, pooled over stretches: the few blocks of a single stretch may agree
    by chance, which would give it too much weight."""

    variance_per_s: float = 0.0
    stretch_count: int = 0

    def add_stretch(self, variance_per_s: float) -> VarianceRate:
        """The mean with one more stretch; NaN leaves it unchanged."""
        if not variance_per_s >= 0:
            return self
        total, count = self.variance_per_s * self.stretch_count + variance_per_s, self.stretch_count + 1
        return VarianceRate(total / count, count)

    def compute_error(self, seconds: float) -> float:
        """Standard error of a mean over so many seconds."""
        return float(np.sqrt(self.variance_per_s / seconds))


@dataclass(frozen=True)
class ProgressSource:
    """How progress of a phase is measured, decided at the default limits."""

    kind: ProgressKind
    period_s: float = float("nan")
    """Seconds of a step or period at the default limits; NaN for the other kinds."""
    verdict: str = "aperiodic"
    timing_variance: VarianceRate = VarianceRate()
    """Variance of the timing of steps or periods (`TrackedPeriod.timing_variance_per_s`)."""
    fast_variance: VarianceRate = VarianceRate()
    """`TrackedPeriod.fast_variance_per_s`; not used for steps."""
    bytes_variance: VarianceRate = VarianceRate()
    """Relative variance of the bytes per busy second."""
    power_variance: VarianceRate = VarianceRate()
    """Relative variance of the power."""

    def compute_window_s(self) -> float:
        """Least seconds of a reading."""
        if self.kind == "steps":
            return float(np.clip(6.0 + 3.2 * self.period_s, 12.0, 60.0))
        if self.kind == "period":
            return max(10.0, min(3.2 * self.period_s, 6.0 + 2.2 * self.period_s))
        return 20.0 if self.kind == "throughput" else 12.0


def make_step_source(samples: SensorSamples, step_count: float) -> ProgressSource:
    """The source of a job whose hooks counted `step_count` steps in a stretch at the default limits."""
    step_s = float(samples.time_s[-1] - samples.time_s[0]) / max(step_count, 0.5)
    return ProgressSource("steps", step_s, detect_period(samples, samples.sampling_hz).verdict)


def choose_progress_source(found: PeriodRecording) -> ProgressSource:
    """The source of progress of a job without hooks, recorded at the default limits."""
    period, samples = found.period, found.samples
    if period.verdict in ("periodic", "multiple"):
        tracked = track_period_near(samples, period.seconds, 0.9, 1.1)
        if tracked is not None and tracked.clarity >= MIN_CLARITY:
            usual = VarianceRate(DEFAULT_JITTER**2 * tracked.seconds, 1)
            return ProgressSource("period", tracked.seconds, period.verdict, usual, usual)
    memory_util = finite_mean(samples.memory_util)
    return ProgressSource("throughput" if memory_util >= MIN_MEMORY_UTIL else "none", verdict=period.verdict)


@dataclass(frozen=True)
class StepMark:
    """A change of the hooks' count of steps."""

    at_s: float
    """Time at which the change was noticed."""
    count: float
    """Steps since the job began."""


def measure_progress_rate(
    source: ProgressSource, samples: SensorSamples, max_stretch: float, steps: Sequence[StepMark] = ()
) -> tuple[ProgressRate, ProgressSource]:
    """Progress rate over a stretch without the job's pauses, and `source` with updated variances.
    `max_stretch`: largest length of an iteration over that at the default."""
    rate, source = _measure_beats(source, samples, max_stretch, steps)
    # Blocks are complete iterations at their present length; parts of iterations would differ in their work.
    period = rate.period_s if rate.period_s > 0 else source.period_s
    samples = cut_pauses(samples, period)
    moved, variance = _measure_memory_rate(samples, period)
    bytes_variance = source.bytes_variance.add_stretch(variance)
    power_variance = source.power_variance.add_stretch(_estimate_power_variance(samples, period))
    source = replace(source, bytes_variance=bytes_variance, power_variance=power_variance)
    if not np.isfinite(moved):
        return rate, source
    seconds = float(samples.time_s[-1] - samples.time_s[0])
    error = max(2 * MIN_RATE_ERROR, source.bytes_variance.compute_error(seconds))
    return replace(rate, moved=moved, moved_error=error), source


def _measure_beats(
    source: ProgressSource, samples: SensorSamples, max_stretch: float, steps: Sequence[StepMark]
) -> tuple[ProgressRate, ProgressSource]:
    """Progress rate by beats alone: steps or periods."""
    if source.kind == "steps":
        return _measure_step_rate(source, _skip_pauses(steps, detect_pauses(samples, source.period_s)))
    if source.kind != "period":
        return ProgressRate(), source
    found = track_period_near(samples, source.period_s, 0.95, 1.05 * max_stretch)
    if found is None or found.clarity < MIN_CLARITY / 2:
        return ProgressRate(), source
    source = replace(
        source,
        timing_variance=source.timing_variance.add_stretch(found.timing_variance_per_s),
        fast_variance=source.fast_variance.add_stretch(found.fast_variance_per_s),
    )
    time_s = cut_pauses(samples, found.seconds).time_s
    error = _estimate_period_error(source, float(time_s[-1] - time_s[0]))
    error = float(np.hypot(error, found.count_error))
    return ProgressRate(beats=1 / found.seconds, beats_error=error, period_s=found.seconds), source


def _skip_pauses(steps: Sequence[StepMark], pauses: Values) -> list[StepMark]:
    """The steps at times without those of the pauses before them. Idle time in which steps end, such as those
    that a resumed job skips, is no pause; one step before it may be noticed in it."""
    at_s = np.array([step.at_s for step in steps])
    is_inside = (at_s[:, None] > pauses[None, :, 0]) & (at_s[:, None] < pauses[None, :, 1])
    at_s = shift_times(at_s, pauses[is_inside.sum(axis=0) < 2])
    return [replace(step, at_s=float(at)) for step, at in zip(steps, at_s, strict=True)]


def _estimate_period_error(source: ProgressSource, seconds: float) -> float:
    """Relative standard error of the mean period over so many seconds, as another such stretch shows it.

    Iterations that jitter give parts of any length the same variance of timing per second. What a slow wander
    of their length adds grows with the square of the part, from sixths and thirds to the whole.
    """
    slow, fast = source.timing_variance.variance_per_s, source.fast_variance.variance_per_s
    wander = max(0.0, slow - fast) / (1 / 3**2 - 1 / 6**2)
    variance = slow + min(wander, 3**2 * slow) * (1 - 1 / 3**2)
    # A variance from few stretches is itself uncertain: this is near the t distribution with 1.5 degrees of
    # freedom a stretch.
    few = 1.0 + 4.0 / max(1, source.timing_variance.stretch_count)
    return max(MIN_RATE_ERROR, float(np.sqrt(few * variance / seconds)))


def _measure_step_rate(
    source: ProgressSource, steps: Sequence[StepMark]
) -> tuple[ProgressRate, ProgressSource]:
    """Steps per second between the first and the last change of the count."""
    if len(steps) < MIN_STEPS:
        return ProgressRate(), source
    seconds, count = steps[-1].at_s - steps[0].at_s, steps[-1].count - steps[0].count
    poll_variance = STEP_POLL_S**2 / 12
    blocks = steps[:: max(1, len(steps) // STEP_BLOCK_COUNT)]
    block_s = np.array([b.at_s - a.at_s for a, b in pairwise(blocks)])
    expected_s = np.array([b.count - a.count for a, b in pairwise(blocks)]) * seconds / count
    # A poll notices the end of a step up to one poll late; that is no variance of the step.
    variance = float(((block_s - expected_s) ** 2).sum() / max(1, len(block_s) - 1)) - 2 * poll_variance
    source = replace(
        source, timing_variance=source.timing_variance.add_stretch(max(0.0, variance) / float(block_s.mean()))
    )
    error = float(
        np.hypot(source.timing_variance.compute_error(seconds), np.sqrt(2 * poll_variance) / seconds)
    )
    rate = ProgressRate(count / seconds, max(MIN_RATE_ERROR, error), period_s=seconds / count)
    return rate, source


def _measure_memory_rate(samples: SensorSamples, period_s: float) -> tuple[float, float]:
    """(memory use per busy second, its relative variance per second from blocks)."""
    length, spans = _split_blocks(samples, period_s)
    memory = np.array([finite_mean(samples.memory_util[span]) for span in spans])
    busy = np.array([finite_mean(samples.sm_util[span]) for span in spans]) / 100
    if len(spans) < MIN_BLOCKS or not finite_mean(memory) >= MIN_MEMORY_UTIL or not finite_mean(busy) > 0:
        return NOT_MEASURED, NOT_MEASURED
    rate = float(np.nansum(memory) / np.nansum(busy))
    # Residuals of the ratio: memory use of a block less the use expected for its busy time.
    residual = memory - rate * busy
    return rate, float(np.nansum(residual**2) / (len(residual) - 1)) / finite_mean(memory) ** 2 * length


def _estimate_power_variance(samples: SensorSamples, period_s: float) -> float:
    """Relative variance of watts per second: variance of the mean of blocks, times their length."""
    length, spans = _split_blocks(samples, period_s)
    watts = np.array([finite_mean(samples.power_w[span]) for span in spans])
    watts = watts[np.isfinite(watts)]
    if len(watts) < MIN_BLOCKS or not watts.mean() > 0:
        return NOT_MEASURED
    return float(np.var(watts, ddof=1)) / float(watts.mean()) ** 2 * length


def _split_blocks(samples: SensorSamples, period_s: float) -> tuple[float, list[slice]]:
    """(seconds of a block, slices of the samples); a block is a whole number of periods, if any."""
    length = BLOCK_S if not period_s > 0 else period_s * max(1.0, np.ceil(BLOCK_S / period_s))
    edges = np.searchsorted(samples.time_s, np.arange(samples.time_s[0], samples.time_s[-1] + 1e-9, length))
    return length, [slice(a, b) for a, b in pairwise(edges) if b - a > 1]
