"""Takes readings of a job: set limits, wait for them, record until progress is measured well enough."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from math import ceil
from typing import TypeVar

import numpy as np

from ekc.errors import DriverTrouble, EkcError, RecordError
from ekc.governor.event_records import Applied, EventCallback, Failed, Idled, Interrupted, Resumed
from ekc.governor.progress_rate import STEP_POLL_S, ProgressSource, StepMark, measure_progress_rate
from ekc.governor.protocols import Actuator, LimitTaken, Probe, Settings
from ekc.governor.readings import (
    MIN_WATTS_ERROR,
    NOT_MEASURED,
    TARGET_ERROR,
    JobReading,
    ProgressRate,
    get_rate_error,
)
from ekc.governor.samples import (
    SensorSamples,
    Values,
    concatenate_samples,
    cut_pauses,
    finite_mean,
    has_work,
)

SETTLE_S = 2.0
"""Seconds after setting a limit until sensors that average over a second no longer include the old one."""
MAX_EXTENSION = 2.5
"""Longest reading, as a multiple of its first length."""
MAX_READING_S = 60.0
MIN_GAP_S = 2.0
"""Seconds without a sample from which on this process was stopped, and the job perhaps with it."""
MIN_GAP_INTERVALS = 10
"""The same in intervals of the samples, where these are long."""
MAX_TAKEN = 3
"""Times that a recording or a reading is made, at most: some batch systems stop jobs in turn."""
WORK_POLL_S = 2.0
"""Seconds between two checks whether an idle job works again."""

PASSING_FAILURES = DriverTrouble, RecordError
"""Errors after which a later try may succeed: of the driver, and of a full disk."""

T = TypeVar("T")
TotalsBySettings = dict[Settings, float]
"""Seconds or joules under each setting."""


class JobEnded(Exception):
    """The job has ended; ends the control loop, and is no error."""


class JobMeter:
    """Sets limits through one actuator and measures the job through one probe."""

    def __init__(self, probe: Probe, actuator: Actuator, on_event: EventCallback) -> None:
        self.probe = probe
        self.actuator = actuator
        self.on_event = on_event
        self.seconds_by_settings: TotalsBySettings = {}
        """Seconds under each setting."""
        self.joules_by_settings: TotalsBySettings = {}
        """Joules of the board under each setting, up to the last change of limits or of the account."""
        self._counted_j = probe.read_energy_j()
        self._recorded_j = 0.0
        """Joules of the recordings since `_counted_j`, by their mean watts."""
        self.stop_count = 0
        """Stops of this process so far."""
        self._taken_limits = actuator.taken_limits()

    def switch_account(self, seconds: TotalsBySettings, joules: TotalsBySettings) -> None:
        """Add seconds and joules to these dicts from now on."""
        self.count_joules()
        self.seconds_by_settings, self.joules_by_settings = seconds, joules

    def count_joules(self) -> None:
        """Add the joules since the last call to the limits in force. Few calls: a reading costs a driver's
        call on every GPU."""
        settings, joules = self.actuator.settings(), self.probe.read_energy_j()
        counted = self.joules_by_settings.get(settings, 0.0) + joules - self._counted_j
        self.joules_by_settings[settings], self._counted_j = counted, joules
        self._recorded_j = 0.0

    def record(self, seconds: float) -> SensorSamples:
        """Record sensor samples for some seconds, and again where this process was stopped meanwhile. Raises
        `JobEnded` where the job ends, and `LimitTaken` where others have set a limit since the last
        recording: these samples are of no setting of ours."""
        for attempt in range(1, MAX_TAKEN + 1):
            begin = self.probe.now()
            samples = self.probe.record(seconds)
            end = self.probe.now()
            gap_s = _find_gap_s(np.array([begin, *samples.time_s, end]))
            if gap_s is None or attempt == MAX_TAKEN:
                self._count_recording(end - begin, samples)
            self._check_job_and_limits()
            if gap_s is None:
                break
            self._skip_stop(gap_s)
        return samples

    def _count_recording(self, seconds: float, samples: SensorSamples) -> None:
        settings = self.actuator.settings()
        self.seconds_by_settings[settings] = self.seconds_by_settings.get(settings, 0.0) + seconds
        self._recorded_j += seconds * float(np.nan_to_num(finite_mean(samples.power_w)))

    def _skip_stop(self, gap_s: float) -> None:
        """Leave a stop, and the recording that it disturbed, out of all accounts."""
        self.stop_count += 1
        settings, joules = self.actuator.settings(), self.probe.read_energy_j()
        counted = self.joules_by_settings.get(settings, 0.0) + min(self._recorded_j, joules - self._counted_j)
        self.joules_by_settings[settings], self._counted_j, self._recorded_j = counted, joules, 0.0
        self.on_event(Interrupted(self.probe.now(), gap_s))

    def _check_job_and_limits(self) -> None:
        if not self.probe.is_running():
            raise JobEnded
        if (taken := self.actuator.taken_limits()) != self._taken_limits:
            self._taken_limits = taken
            raise LimitTaken("others have set limits of the GPU")

    def wait_while_idle(self) -> None:
        """Wait until work resumes; limits stay as they are, so that it is not slowed. The pause is of no
        account."""
        began, account = self.probe.now(), (self.seconds_by_settings, self.joules_by_settings)
        self.switch_account({}, {})
        self.on_event(Idled(began))
        while not has_work(self.record(WORK_POLL_S)):
            pass
        self.switch_account(*account)
        self.on_event(Resumed(self.probe.now(), self.probe.now() - began))

    def set_limits(self, settings: Settings, why: str) -> None:
        """Set limits and wait until they take effect; nothing to do where they are set already."""
        if settings == self.actuator.settings():
            return
        self.count_joules()
        self.actuator.apply(settings)
        self.on_event(Applied(self.probe.now(), settings, why))
        self.record(SETTLE_S)

    def take_reading(
        self, source: ProgressSource, max_stretch: float, max_s: float | None = None
    ) -> tuple[JobReading, ProgressSource]:
        """One reading under the limits in force, and `source` with updated variances.

        The reading is prolonged until progress is measured to `TARGET_ERROR`, up to `max_s` seconds, by
        default `compute_max_reading_s`. It is taken again where this process was stopped meanwhile.
        `max_stretch`: see `measure_progress_rate`.
        """
        return self.repeat_if_stopped(lambda: self._take_reading_once(source, max_stretch, max_s))

    def repeat_if_stopped(self, measure: Callable[[], T]) -> T:
        """Call `measure` again where this process was stopped meanwhile."""
        for _ in range(MAX_TAKEN):
            stop_count = self.stop_count
            found = measure()
            if self.stop_count == stop_count:
                break
        return found

    def _take_reading_once(
        self, source: ProgressSource, max_stretch: float, max_s: float | None
    ) -> tuple[JobReading, ProgressSource]:
        begin, joules = self.probe.now(), self.probe.read_energy_j()
        samples, steps = self._record_stretch(source, source.compute_window_s())
        rate, updated = measure_progress_rate(source, samples, max_stretch, steps)
        longest_s = self.compute_max_reading_s(source) if max_s is None else max_s
        while get_rate_error(rate) > TARGET_ERROR and self.probe.now() - begin < longest_s:
            more_samples, more_steps = self._record_stretch(source, 0.5 * source.compute_window_s())
            samples, steps = concatenate_samples(samples, more_samples), steps + more_steps
            rate, updated = measure_progress_rate(source, samples, max_stretch, steps)
        seconds = self.probe.now() - begin
        watts = (self.probe.read_energy_j() - joules) / seconds
        reading = make_reading(self.actuator.settings(), begin, seconds, watts, rate, samples, updated)
        return reading, updated

    @staticmethod
    def compute_max_reading_s(source: ProgressSource) -> float:
        """Seconds up to which a reading is prolonged by default."""
        return min(MAX_EXTENSION * source.compute_window_s(), MAX_READING_S)

    def _record_stretch(self, source: ProgressSource, seconds: float) -> tuple[SensorSamples, list[StepMark]]:
        """(samples of a stretch, times at which the hooks' count of steps moved)."""
        if source.kind != "steps":
            return self.record(seconds), []
        parts, marks = [], [StepMark(self.probe.now(), self.probe.read_step_count() or 0.0)]
        for _ in range(max(1, round(seconds / STEP_POLL_S))):
            parts.append(self.record(STEP_POLL_S))
            count = self.probe.read_step_count() or 0.0
            if count != marks[-1].count:
                marks.append(StepMark(self.probe.now(), count))
        # The first mark is left out: the step that was running at the start began earlier.
        return reduce(concatenate_samples, parts), marks[1:]


RETRY_S, MAX_RETRY_S = 5.0, 300.0
"""Shortest and longest pause in seconds after a failure of the driver; it doubles."""
RETRY_PERIODS = 3.0
"""The same in iterations of the job, where these are longer than `RETRY_S`."""
MAX_FAILURES = 8
"""Failures in a row after which governing ends: a quarter of an hour."""


class DriverRetries:
    """Failures of the driver in a row, as far as they may pass, and the pauses after them."""

    def __init__(self, probe: Probe, actuator: Actuator, on_event: EventCallback) -> None:
        self._probe, self._actuator, self._on_event = probe, actuator, on_event
        self._failures = 0

    def note_success(self) -> None:
        """The driver has answered: the next failure is the first one."""
        self._failures = 0

    def recover(self, problem: EkcError, period_s: float = NOT_MEASURED) -> None:
        """Go back to the previous settings, and return after a pause, once they are in force. `period_s`:
        length of the job's iterations; NaN where it is unknown. Raises `problem` after `MAX_FAILURES`,
        `GpuUnusable` for a lost GPU, and `JobEnded`."""
        is_restored = False
        while not is_restored:
            self._failures += 1
            if self._failures > MAX_FAILURES:
                raise problem
            shortest_s = float(np.fmax(RETRY_S, RETRY_PERIODS * period_s))
            pause_s = min(shortest_s * 2 ** (self._failures - 1), MAX_RETRY_S)
            is_restored = self._restore()
            self._on_event(Failed(self._probe.now(), str(problem), pause_s, is_restored))
            self._wait(pause_s)
            is_restored = is_restored or self._restore()

    def _restore(self) -> bool:
        try:
            self._actuator.apply(Settings())
        except PASSING_FAILURES:
            return False
        return True

    def _wait(self, seconds: float) -> None:
        """Wait while the job runs, also where no reading succeeds."""
        for _ in range(ceil(seconds / RETRY_S)):
            with suppress(*PASSING_FAILURES):
                self._probe.record(min(RETRY_S, seconds))
            if not self._probe.is_running():
                raise JobEnded


def _find_gap_s(times: Values) -> float | None:
    """The longest interval where it shows a stop; None without one."""
    intervals = np.diff(times)
    longest_s = float(intervals.max())
    least_s = max(MIN_GAP_S, MIN_GAP_INTERVALS * float(np.median(intervals)))
    return longest_s if longest_s >= least_s else None


class WatchedStretch:
    """Samples recorded under one choice without interruption, for work whose readings of a minute have a
    large error: a long reading at no cost, of bytes alone, since a beat drifts in a quarter of an hour."""

    def __init__(self, meter: JobMeter) -> None:
        self._meter, self._probe, self._stop_count = meter, meter.probe, meter.stop_count
        self._begin, self._joules = self._probe.now(), self._probe.read_energy_j()
        self._parts: list[SensorSamples] = []

    def add_samples(self, samples: SensorSamples) -> None:
        """Add the samples right after the last ones."""
        self._parts.append(samples)

    def make_reading(self, source: ProgressSource, settings: Settings) -> JobReading | None:
        """One reading of all samples; None where that is no longer than a usual reading, or where a stop
        interrupted it."""
        seconds = self._probe.now() - self._begin
        was_stopped = self._meter.stop_count != self._stop_count
        if was_stopped or not self._parts or seconds < MAX_EXTENSION * source.compute_window_s():
            return None
        samples = reduce(concatenate_samples, self._parts)
        watts = (self._probe.read_energy_j() - self._joules) / seconds
        rate, updated = measure_progress_rate(replace(source, kind="throughput"), samples, 1.0)
        return make_reading(settings, self._begin, seconds, watts, rate, samples, updated)


def average_power_w(
    samples: SensorSamples, worked: SensorSamples, period_s: float, counted_w: float
) -> float:
    """Mean watts over complete periods without pauses (`worked`): `counted_w`, the counter's mean over all
    `samples`, corrected for the rest."""
    if not period_s > 0 or len(worked) < 2:
        return counted_w
    span = worked.time_s[-1] - worked.time_s[0]
    complete_s = np.floor(span / period_s) * period_s
    inside = worked.time_s > worked.time_s[-1] - complete_s
    if complete_s <= 0 or inside.sum() < 2:
        return counted_w
    return counted_w * float(
        np.nan_to_num(finite_mean(worked.power_w[inside]) / finite_mean(samples.power_w), nan=1.0)
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
    """The reading of a stretch, without pauses of the job; `source` has the variance of power."""
    clocks = samples.clock_mhz[np.isfinite(samples.clock_mhz)]
    worked = cut_pauses(samples, rate.period_s)
    return JobReading(
        settings=settings,
        at_s=begin + seconds / 2,
        seconds=seconds,
        watts=average_power_w(samples, worked, rate.period_s, counted_w),
        pace=rate,
        sm_util=finite_mean(worked.sm_util),
        memory_util=finite_mean(worked.memory_util),
        clock_mhz=float(np.median(clocks)) if len(clocks) else float("nan"),
        watts_error=max(MIN_WATTS_ERROR, source.power_variance.compute_error(seconds)),
    )
