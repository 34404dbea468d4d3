"""Readings of a job under limits: set, wait until they hold, watch until progress is told well enough."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekc.governor.events import Applied, Event
from ekc.governor.progress import Beat, Pace, joined, pace_of
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.reading import Reading
from ekc.governor.samples import Samples

SETTLE_S = 2.0
"""From setting a limit until sensors that average a second show nothing of the old one."""
GOOD_ERROR = 0.006
"""A reading is prolonged until its pace is known this well."""
PROLONGED = 2.5
"""At most, times its first length."""


class JobEnded(Exception):
    """The job is gone; ends the loop, and is no error."""


class Meter:
    """Sets limits and reads the job, through one probe and one actuator."""

    def __init__(self, probe: Probe, actuator: Actuator, on_event: Callable[[Event], None]) -> None:
        self.probe = probe
        self.actuator = actuator
        self._tell = on_event

    def watch(self, seconds: float) -> Samples:
        """Let time pass; `JobEnded` where the job does."""
        samples = self.probe.record(seconds)
        if not self.probe.running():
            raise JobEnded
        return samples

    def set(self, settings: Settings, why: str) -> None:
        """Put limits in force and wait until they hold; nothing where they do already."""
        if settings == self.actuator.settings():
            return
        self.actuator.apply(settings)
        self._tell(Applied(self.probe.now(), settings, why))
        self.watch(SETTLE_S)

    def read(self, beat: Beat, most_stretch: float, good: float = GOOD_ERROR) -> Reading:
        """One reading under the limits in force."""
        begin, joules, steps = self.probe.now(), self.probe.energy_j(), self.probe.steps()
        samples = self.watch(beat.window_s())
        longest = PROLONGED * beat.window_s()
        pace = self._pace(beat, samples, most_stretch, begin, steps)
        while pace is not None and pace.error > good and self.probe.now() - begin < longest:
            samples = joined(samples, self.watch(0.5 * beat.window_s()))
            pace = self._pace(beat, samples, most_stretch, begin, steps)
        seconds = self.probe.now() - begin
        watts = (self.probe.energy_j() - joules) / seconds
        return reading(self.actuator.settings(), begin, seconds, whole_w(samples, pace, watts), pace, samples)

    def _pace(
        self, beat: Beat, samples: Samples, most_stretch: float, begin: float, steps: float | None
    ) -> Pace | None:
        now = self.probe.steps()
        if beat.source != "steps" or steps is None or now is None:
            return pace_of(beat, samples, most_stretch)
        done = now - steps
        # A step is told when it ends: one more or less is the error.
        return Pace(done / (self.probe.now() - begin), 0.3 / done) if done >= 1 else None


def whole_w(samples: Samples, pace: Pace | None, counted_w: float) -> float:
    """Mean watts over whole periods: the counter's mean, corrected by what the rest of a period draws."""
    if pace is None or not pace.period_s > 0 or len(samples) < 2:
        return counted_w
    span = samples.time_s[-1] - samples.time_s[0]
    whole = np.floor(span / pace.period_s) * pace.period_s
    inside = samples.time_s > samples.time_s[-1] - whole
    if whole <= 0 or inside.sum() < 2:
        return counted_w
    return counted_w * float(np.nanmean(samples.power_w[inside]) / np.nanmean(samples.power_w))


def reading(
    settings: Settings, begin: float, seconds: float, watts: float, pace: Pace | None, samples: Samples
) -> Reading:
    """The means of a stretch."""
    told = pace or Pace(float("nan"), float("nan"))
    return Reading(
        settings=settings,
        at_s=begin + seconds / 2,
        seconds=seconds,
        watts=watts,
        pace=told.per_s,
        error=told.error,
        sm_util=float(np.nanmean(samples.sm_util)),
        memory_util=float(np.nanmean(samples.memory_util)),
        clock_mhz=float(np.nanmedian(samples.clock_mhz)),
        period_s=told.period_s,
    )
