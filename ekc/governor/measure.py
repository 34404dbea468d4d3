"""Readings of a job under limits: set, wait until they hold, watch until progress is told well enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np

from ekc.governor.events import Applied, Event
from ekc.governor.progress import POLL_S, Beat, Steps, pace_of
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.reading import GOOD_ERROR, WATTS_ERROR, Pace, Reading, known
from ekc.governor.samples import Samples, joined, mean

SETTLE_S = 2.0
"""From setting a limit until sensors that average a second show nothing of the old one."""
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
        self.held: dict[Settings, float] = {}
        """Seconds under each setting; whoever wants to know puts a new one here."""

    def running(self) -> bool:
        """So long as nothing raises `JobEnded`."""
        return True

    def record(self, seconds: float) -> Samples:
        """Let time pass; `JobEnded` where the job does."""
        begin = self.probe.now()
        samples = self.probe.record(seconds)
        settings = self.actuator.settings()
        self.held[settings] = self.held.get(settings, 0.0) + self.probe.now() - begin
        if not self.probe.running():
            raise JobEnded
        return samples

    def set(self, settings: Settings, why: str) -> None:
        """Put limits in force and wait until they hold; nothing where they do already."""
        if settings == self.actuator.settings():
            return
        self.actuator.apply(settings)
        self._tell(Applied(self.probe.now(), settings, why))
        self.record(SETTLE_S)

    def read(self, beat: Beat, most_stretch: float, longest_s: float | None = None) -> tuple[Reading, Beat]:
        """One reading under the limits in force, and the beat with what it taught.

        It is prolonged until its pace is known to `GOOD_ERROR`, but not beyond `longest_s`, by default a few
        times its first length.
        """
        begin, joules = self.probe.now(), self.probe.energy_j()
        samples, steps = self._stretch(beat, beat.window_s())
        pace, after = pace_of(beat, samples, most_stretch, steps)
        longest = self.longest_s(beat) if longest_s is None else longest_s
        while known(pace) > GOOD_ERROR and self.probe.now() - begin < longest:
            more, counted = self._stretch(beat, 0.5 * beat.window_s())
            samples, steps = joined(samples, more), steps + counted
            pace, after = pace_of(beat, samples, most_stretch, steps)
        seconds = self.probe.now() - begin
        watts = (self.probe.energy_j() - joules) / seconds
        return reading(self.actuator.settings(), begin, seconds, watts, pace, samples, after), after

    @staticmethod
    def longest_s(beat: Beat) -> float:
        """Beyond which a reading is not prolonged, as a rule."""
        return min(PROLONGED * beat.window_s(), LONGEST_S)

    def _stretch(self, beat: Beat, seconds: float) -> tuple[Samples, list[Steps]]:
        """Samples of a stretch and, where hooks count steps, when the count was seen to move."""
        if beat.source != "steps":
            return self.record(seconds), []
        parts, seen = [], [Steps(self.probe.now(), self.probe.steps() or 0.0)]
        for _ in range(max(1, round(seconds / POLL_S))):
            parts.append(self.record(POLL_S))
            count = self.probe.steps() or 0.0
            if count != seen[-1].count:
                seen.append(Steps(self.probe.now(), count))
        # When the step that was under way at the start began is not known.
        return reduce(joined, parts), seen[1:]


class Stretch:
    """What was watched under one choice while nothing came between: a free reading, as long as it went on.

    Where work comes in no beat a reading of a minute says little, and this says more; of bytes alone, as a
    beat that is followed over a quarter of an hour may drift.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._begin, self._joules = probe.now(), probe.energy_j()
        self._parts: list[Samples] = []

    def add(self, samples: Samples) -> None:
        """The next stretch, right after the last one."""
        self._parts.append(samples)

    def reading(self, beat: Beat, settings: Settings) -> Reading | None:
        """All of it as one; None where that is no longer than a common reading."""
        seconds = self._probe.now() - self._begin
        if seconds < PROLONGED * beat.window_s() or not self._parts:
            return None
        samples = reduce(joined, self._parts)
        watts = (self._probe.energy_j() - self._joules) / seconds
        pace, after = pace_of(replace(beat, source="throughput"), samples, 1.0)
        return reading(settings, self._begin, seconds, watts, pace, samples, after)


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
    settings: Settings,
    begin: float,
    seconds: float,
    counted_w: float,
    pace: Pace,
    samples: Samples,
    beat: Beat,
) -> Reading:
    """The means of a stretch; `beat` knows how watts stray."""
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
        watts_error=max(WATTS_ERROR, beat.draw.error(seconds)),
    )
