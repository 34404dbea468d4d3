"""Readings of a job under limits: set, wait until they hold, watch until progress is told well enough."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from ekc.governor.events import Applied, EventCallback
from ekc.governor.job_reading import MIN_WATTS_ERROR, TARGET_ERROR, JobReading, ProgressRate, get_rate_error
from ekc.governor.progress import STEP_POLL_S, ProgressSource, StepMark, measure_progress_rate
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.samples import SensorSamples, concatenate_samples, finite_mean

SETTLE_S = 2.0
"""From setting a limit until sensors that average a second show nothing of the old one."""
MAX_EXTENSION = 2.5
"""At most, times its first length."""
MAX_READING_S = 60.0
"""And no reading is prolonged beyond this."""


class JobEnded(Exception):
    """The job is gone; ends the loop, and is no error."""


class JobMeter:
    """Sets limits and reads the job, through one probe and one actuator."""

    def __init__(self, probe: Probe, actuator: Actuator, on_event: EventCallback) -> None:
        self.probe = probe
        self.actuator = actuator
        self._on_event = on_event
        self.seconds_by_settings: dict[Settings, float] = {}
        """Seconds under each setting; whoever wants to know puts a new one here."""

    def is_running(self) -> bool:
        """So long as nothing raises `JobEnded`."""
        return True

    def record(self, seconds: float) -> SensorSamples:
        """Let time pass; `JobEnded` where the job does."""
        begin = self.probe.now()
        samples = self.probe.record(seconds)
        settings = self.actuator.settings()
        self.seconds_by_settings[settings] = (
            self.seconds_by_settings.get(settings, 0.0) + self.probe.now() - begin
        )
        if not self.probe.is_running():
            raise JobEnded
        return samples

    def set_limits(self, settings: Settings, why: str) -> None:
        """Put limits in force and wait until they hold; nothing where they do already."""
        if settings == self.actuator.settings():
            return
        self.actuator.apply(settings)
        self._on_event(Applied(self.probe.now(), settings, why))
        self.record(SETTLE_S)

    def take_reading(
        self, source: ProgressSource, max_stretch: float, max_s: float | None = None
    ) -> tuple[JobReading, ProgressSource]:
        """One reading under the limits in force, and the beat with what it taught.

        It is prolonged until its pace is known to `GOOD_ERROR`, but not beyond `longest_s`, by default a few
        times its first length.
        """
        begin, joules = self.probe.now(), self.probe.read_energy_j()
        samples, steps = self._record_stretch(source, source.compute_window_s())
        pace, after = measure_progress_rate(source, samples, max_stretch, steps)
        longest = self.compute_max_reading_s(source) if max_s is None else max_s
        while get_rate_error(pace) > TARGET_ERROR and self.probe.now() - begin < longest:
            more, counted = self._record_stretch(source, 0.5 * source.compute_window_s())
            samples, steps = concatenate_samples(samples, more), steps + counted
            pace, after = measure_progress_rate(source, samples, max_stretch, steps)
        seconds = self.probe.now() - begin
        watts = (self.probe.read_energy_j() - joules) / seconds
        return make_reading(self.actuator.settings(), begin, seconds, watts, pace, samples, after), after

    @staticmethod
    def compute_max_reading_s(source: ProgressSource) -> float:
        """Beyond which a reading is not prolonged, as a rule."""
        return min(MAX_EXTENSION * source.compute_window_s(), MAX_READING_S)

    def _record_stretch(self, source: ProgressSource, seconds: float) -> tuple[SensorSamples, list[StepMark]]:
        """Samples of a stretch and, where hooks count steps, when the count was seen to move."""
        if source.kind != "steps":
            return self.record(seconds), []
        parts, seen = [], [StepMark(self.probe.now(), self.probe.read_step_count() or 0.0)]
        for _ in range(max(1, round(seconds / STEP_POLL_S))):
            parts.append(self.record(STEP_POLL_S))
            count = self.probe.read_step_count() or 0.0
            if count != seen[-1].count:
                seen.append(StepMark(self.probe.now(), count))
        # When the step that was under way at the start began is not known.
        return reduce(concatenate_samples, parts), seen[1:]


class WatchedStretch:
    """What was watched under one choice while nothing came between: a free reading, as long as it went on.

    Where work comes in no beat a reading of a minute says little, and this says more; of bytes alone, as a
    beat that is followed over a quarter of an hour may drift.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._begin, self._joules = probe.now(), probe.read_energy_j()
        self._parts: list[SensorSamples] = []

    def add_samples(self, samples: SensorSamples) -> None:
        """The next stretch, right after the last one."""
        self._parts.append(samples)

    def make_reading(self, source: ProgressSource, settings: Settings) -> JobReading | None:
        """All of it as one; None where that is no longer than a common reading."""
        seconds = self._probe.now() - self._begin
        if seconds < MAX_EXTENSION * source.compute_window_s() or not self._parts:
            return None
        samples = reduce(concatenate_samples, self._parts)
        watts = (self._probe.read_energy_j() - self._joules) / seconds
        pace, after = measure_progress_rate(replace(source, kind="throughput"), samples, 1.0)
        return make_reading(settings, self._begin, seconds, watts, pace, samples, after)


def average_power_w(samples: SensorSamples, rate: ProgressRate, counted_w: float) -> float:
    """Mean watts over whole periods: the counter's mean, corrected by what the rest of a period draws."""
    if not rate.period_s > 0 or len(samples) < 2:
        return counted_w
    span = samples.time_s[-1] - samples.time_s[0]
    whole = np.floor(span / rate.period_s) * rate.period_s
    inside = samples.time_s > samples.time_s[-1] - whole
    if whole <= 0 or inside.sum() < 2:
        return counted_w
    return counted_w * float(
        np.nan_to_num(finite_mean(samples.power_w[inside]) / finite_mean(samples.power_w), nan=1.0)
    )


def make_reading(
    settings: Settings,
    begin: float,
    seconds: float,
    counted_w: float,
    rate: ProgressRate,
    samples: SensorSamples,
    source: ProgressSource,
) -> JobReading:
    """The means of a stretch; `beat` knows how watts stray."""
    clocks = samples.clock_mhz[np.isfinite(samples.clock_mhz)]
    return JobReading(
        settings=settings,
        at_s=begin + seconds / 2,
        seconds=seconds,
        watts=average_power_w(samples, rate, counted_w),
        pace=rate,
        sm_util=finite_mean(samples.sm_util),
        memory_util=finite_mean(samples.memory_util),
        clock_mhz=float(np.median(clocks)) if len(clocks) else float("nan"),
        watts_error=max(MIN_WATTS_ERROR, source.power_variance.compute_error(seconds)),
    )
