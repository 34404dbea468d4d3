"""Readings of a job under limits: set, wait until they hold, watch until progress is told well enough."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ekc.governor.events import Applied, Event
from ekc.governor.progress import POLL_S, Beat, Steps, pace_of
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.reading import Pace, Reading
from ekc.governor.samples import Samples, joined, mean

SETTLE_S = 2.0
"""From setting a limit until sensors that average a second show nothing of the old one."""
GOOD_ERROR = 0.006
"""A reading is prolonged until its pace is known this well."""
PROLONGED = 2.5
"""At most, times its first length."""
LONGEST_S = 60.0
"""And no reading is prolonged beyond this."""


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

    def read(self, beat: Beat, most_stretch: float, good: float = GOOD_ERROR) -> tuple[Reading, Beat]:
        """One reading under the limits in force, and the beat with what it taught."""
        begin, joules = self.probe.now(), self.probe.energy_j()
        samples, steps = self._stretch(beat, beat.window_s())
        pace, after = pace_of(beat, samples, most_stretch, steps)
        longest = min(PROLONGED * beat.window_s(), LONGEST_S)
        while known(pace) > good and self.probe.now() - begin < longest:
            more, counted = self._stretch(beat, 0.5 * beat.window_s())
            samples, steps = joined(samples, more), steps + counted
            pace, after = pace_of(beat, samples, most_stretch, steps)
        seconds = self.probe.now() - begin
        watts = (self.probe.energy_j() - joules) / seconds
        return reading(self.actuator.settings(), begin, seconds, watts, pace, samples), after

    def _stretch(self, beat: Beat, seconds: float) -> tuple[Samples, list[Steps]]:
        """Samples of a stretch and, where hooks count steps, when the count was seen to move."""
        if beat.source != "steps":
            return self.watch(seconds), []
        parts, seen = [], [Steps(self.probe.now(), self.probe.steps() or 0.0)]
        for _ in range(max(1, round(seconds / POLL_S))):
            parts.append(self.watch(POLL_S))
            count = self.probe.steps() or 0.0
            if count != seen[-1].count:
                seen.append(Steps(self.probe.now(), count))
        # When the step that was under way at the start began is not known.
        return reduce(joined, parts), seen[1:]


def known(pace: Pace) -> float:
    """Standard error of the better witness; 0 where there is none, as waiting would not help."""
    errors = [e for e in (pace.beats_error, pace.moved_error) if np.isfinite(e)]
    return min(errors, default=0.0)


def whole_w(samples: Samples, pace: Pace, counted_w: float) -> float:
    """Mean watts over whole periods: the counter's mean, corrected by what the rest of a period draws."""
    if not pace.period_s > 0 or len(samples) < 2:
        return counted_w
    span = samples.time_s[-1] - samples.time_s[0]
    whole = np.floor(span / pace.period_s) * pace.period_s
    inside = samples.time_s > samples.time_s[-1] - whole
    if whole <= 0 or inside.sum() < 2:
        return counted_w
    return counted_w * float(np.nan_to_num(mean(samples.power_w[inside]) / mean(samples.power_w), nan=1.0))


def reading(
    settings: Settings, begin: float, seconds: float, counted_w: float, pace: Pace, samples: Samples
) -> Reading:
    """The means of a stretch."""
    clocks = samples.clock_mhz[np.isfinite(samples.clock_mhz)]
    return Reading(
        settings=settings,
        at_s=begin + seconds / 2,
        seconds=seconds,
        watts=whole_w(samples, pace, counted_w),
        pace=pace,
        sm_util=mean(samples.sm_util),
        memory_util=mean(samples.memory_util),
        clock_mhz=float(np.median(clocks)) if len(clocks) else float("nan"),
    )
