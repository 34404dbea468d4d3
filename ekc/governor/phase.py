"""One phase of a job, learned: measured at the default, predicted, searched, and a choice made.

The search in one phase: SM clocks or caps, then memory clocks where there are several, then the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Protocol

import numpy as np

from ekc.governor import objective
from ekc.governor.change_detection import compute_signature, has_work, make_signature, measure_longest_idle_s
from ekc.governor.events import (
    Checked,
    Chosen,
    CountersRead,
    EventCallback,
    Measured,
    PeriodFound,
    Predicted,
)
from ekc.governor.job_reading import NOT_MEASURED, JobReading, get_rate_error
from ekc.governor.measure import JobMeter, make_reading
from ekc.governor.period import find_period
from ekc.governor.period_tracking import find_period_near
from ekc.governor.phase_match import has_lost_beat, is_disturbed
from ekc.governor.policy import Policy
from ekc.governor.progress import (
    MIN_CLARITY,
    ProgressSource,
    choose_progress_source,
    make_step_source,
    measure_progress_rate,
)
from ekc.governor.protocols import Gears, Settings
from ekc.governor.readings import DefaultComparison, PhaseReadings
from ekc.governor.response_curve import SM_CLOCK, ResponsePrior, choose_control
from ekc.governor.samples import SensorSamples, concatenate_samples, finite_mean
from ekc.governor.search import LimitSearch

RECORD_MORE_S = 5.0
MAX_FIRST_S = 75.0
MIN_FIRST_STEPS = 3
"""So many must have ended before it is said how long one takes."""
COUNTER_WINDOW_S = (4.0, 25.0)
"""Counter windows last a period, within this."""
MIN_IDLE_S = 8.0
"""Without a kernel for so long, and for longer than an iteration, a job is idle."""
IDLE_PERIODS = 1.5
MAX_TRIES = 2
WORK_POLL_S = 2.0
"""Between two looks whether work has come back."""
MIN_CONFIRMATIONS = 3
"""So many defaults agree on a period: chance does not."""
MIN_LOOK_S = 10.0
MAX_LOOK_S = 40.0
APERIODIC_LOOK_S = 24.0
"""Looks at a job under its choice."""

SecondsBySettings = dict[Settings, float]


class ResponseModel(Protocol):
    """Says what to expect before any clock was tried."""

    @property
    def trained_on(self) -> str:
        """For people; what is simulated says so."""
        ...

    def __call__(self, counters: Mapping[str, float], reading: JobReading) -> ResponsePrior:
        """From counters, if there are any, and the reading at the default."""
        ...


@dataclass
class Phase:
    """What is known of one phase."""

    progress: ProgressSource
    readings: PhaseReadings
    search: LimitSearch
    default_signature: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Its signature at the default limits."""
    choice: Settings = field(default_factory=Settings)
    top_memory_mhz: int = 0
    seconds_by_settings: SecondsBySettings = field(default_factory=dict)
    """Seconds under each setting."""
    searched_max_slowdown: float = 0.0
    """The slowdown that the last search had to keep."""
    is_refuted: bool = False
    """Whether the last whole check found the choice other than believed: no phase to take up again."""

    def compute_max_stretch(self, settings: Settings) -> float:
        """How much longer an iteration can be under these limits."""
        base = self.search.get_default_limit(self.readings)
        memory = 1.0
        if settings.memory_mhz is not None and self.top_memory_mhz:
            # What does not wait for memory is not stretched by it.
            use = finite_mean(np.array([r.memory_util for r in self.readings.default_readings])) / 100
            memory += use * (self.top_memory_mhz / settings.memory_mhz - 1)
        return max(1.0, base / (self.search.control.get_value(settings) or base)) * memory

    def track_period(self, samples: SensorSamples) -> bool | None:
        """Let the beat drift with the job: what is seen under the choice says how long the default would
        be. Whether the beat was there; None where that cannot be told."""
        if self.progress.kind != "period":
            return None
        expected = 1 + predict_choice(self).slowdown
        found = find_period_near(samples, self.progress.period_s * expected, 0.97, 1.03)
        if found is None:
            return None
        if found.clarity >= MIN_CLARITY:
            drifted = found.seconds / expected
            self.progress = replace(self.progress, period_s=0.7 * self.progress.period_s + 0.3 * drifted)
        return found.clarity >= MIN_CLARITY / 2

    def compute_look_s(self) -> float:
        """Whole iterations under the choice, as a part of one scatters; without a beat as long as a few."""
        if not self.progress.period_s > 0:
            return APERIODIC_LOOK_S
        period = self.progress.period_s * (1 + predict_choice(self).slowdown)
        fewest, most = (max(1, ceil(MIN_LOOK_S / period)), max(1, int(MAX_LOOK_S / period)))
        return period * min(max(3, fewest), most)

    def get_expected_signature(self) -> np.ndarray | None:
        """The signature of the last reading under the limits nearest to the choice."""
        gear, knob = self.search.control.get_value(self.choice), self.search.control
        if gear is None:
            return None
        memory = self.choice.memory_mhz
        read = [
            r
            for r in self.readings.other_readings
            if r.settings.memory_mhz == memory and knob.get_value(r.settings)
        ]
        if not read:
            return None
        last = min(reversed(read), key=lambda r: abs((knob.get_value(r.settings) or gear) - gear))
        return make_signature(last.watts, last.sm_util, last.memory_util)

    def has_confirmed_beat(self) -> bool:
        """Whether the beat was found again at the default as it had been: it is one, and where it is gone the
        job is another."""
        return sum(r.pace.beats > 0 for r in self.readings.default_readings) >= MIN_CONFIRMATIONS

    def is_idle(self, samples: SensorSamples) -> bool:
        """Whether a stretch stood still."""
        longest = (
            MIN_IDLE_S
            if not self.progress.period_s > 0
            else max(MIN_IDLE_S, IDLE_PERIODS * self.progress.period_s)
        )
        return measure_longest_idle_s(samples) > longest


@dataclass(frozen=True)
class _RecorderUntilSteps:
    """Records until it is known that hooks count steps: no period is needed then."""

    meter: JobMeter

    def record(self, seconds: float) -> SensorSamples:
        """As the meter does."""
        return self.meter.record(seconds)

    def is_running(self) -> bool:
        """Whether there is no step yet."""
        return self.meter.probe.read_step_count() is None


def begin_phase(meter: JobMeter, policy: Policy, gears: Gears, on_event: EventCallback) -> Phase:
    """Measure at the driver's default and find out what tells progress."""
    meter.set_limits(Settings(), "the default is what everything is held against")
    start, joules, steps = (
        meter.probe.now(),
        meter.probe.read_energy_j(),
        meter.probe.read_step_count() or 0.0,
    )
    found = find_period(_RecorderUntilSteps(meter))
    # Asked now: hooks tell nothing until the first step has ended, which may take longer than the others.
    if meter.probe.read_step_count() is not None:
        samples, beat, first = _measure_with_hooks(meter, found.samples, start, steps)
    else:
        samples, beat = found.samples, choose_progress_source(found)
        seconds = meter.probe.now() - start
        pace, beat = measure_progress_rate(beat, samples, 1.05)
        watts = (meter.probe.read_energy_j() - joules) / seconds
        first = make_reading(Settings(), start, seconds, watts, pace, samples, beat)
    on_event(PeriodFound(meter.probe.now(), beat.verdict, beat.period_s, beat.kind))
    knob = choose_control(gears)
    search = LimitSearch(
        policy, knob, knob.select_gears(gears), ResponsePrior(knob.time_prior, knob.power_prior)
    )
    top = max(gears.memory_mhz, default=0)
    phase = Phase(beat, PhaseReadings([first]), search, compute_signature(samples), top_memory_mhz=top)
    on_event(Measured(meter.probe.now(), first, "default", 0.0, 0.0))
    return phase


def _measure_with_hooks(
    meter: JobMeter, samples: SensorSamples, start: float, start_step_count: float
) -> tuple[SensorSamples, ProgressSource, JobReading]:
    """By steps: so many were counted at the start, from which the samples are."""
    while (done := (meter.probe.read_step_count() or 0.0) - start_step_count) < MIN_FIRST_STEPS:
        if meter.probe.now() - start > MAX_FIRST_S:
            break
        samples = concatenate_samples(samples, meter.record(RECORD_MORE_S))
    first, beat = meter.take_reading(make_step_source(samples, done), 1.05)
    if first.pace.period_s > 0:
        # Before the first step ended, something else may have run.
        beat = replace(beat, period_s=first.pace.period_s)
    return samples, beat, first


def predict_from_counters(
    meter: JobMeter, phase: Phase, model: ResponseModel | None, on_event: EventCallback
) -> None:
    """Read counters over a period, where that is permitted, and let the model say what to expect."""
    if model is None or phase.search.control is not SM_CLOCK or not len(phase.search.gears):
        return
    longest = phase.progress.period_s if phase.progress.period_s > 0 else 10.0
    seconds = float(np.clip(longest, *COUNTER_WINDOW_S))
    counters = meter.probe.read_counters(seconds)
    if counters is not None:
        on_event(CountersRead(meter.probe.now(), seconds, counters))
    foreseen = model(counters or {}, phase.readings.default_readings[-1])
    phase.search = replace(phase.search, predicted_prior=foreseen)
    now = phase.search.fit_response(phase.readings)
    place = now.choose_index(phase.search.policy)
    where = phase.search.control.make_settings(now.gears[place])
    expected = float(now.slowdown[place]), float(now.saving[place])
    on_event(Predicted(meter.probe.now(), where, *expected, model.trained_on))


def measure_settings(
    meter: JobMeter, phase: Phase, settings: Settings, purpose: str, on_event: EventCallback
) -> bool:
    """Read the job under some limits. A stretch into which something came between does not count; False where
    it was so each time."""
    meter.set_limits(settings, purpose)
    for _ in range(MAX_TRIES):
        seen, beat = meter.take_reading(phase.progress, phase.compute_max_stretch(settings))
        if not is_disturbed(phase.readings, seen):
            phase.progress = beat
            add_reading(meter, phase, seen, purpose, on_event)
            return True
        while not has_work(meter.record(WORK_POLL_S)):
            pass
    return False


def add_reading(
    meter: JobMeter, phase: Phase, reading: JobReading, purpose: str, on_event: EventCallback
) -> None:
    """Keep a reading."""
    phase.readings.other_readings.append(reading)
    outcome = phase.readings.compare_to_default(reading)
    on_event(Measured(meter.probe.now(), reading, purpose, outcome.slowdown, outcome.saving))


def remeasure_default(
    meter: JobMeter, phase: Phase, on_event: EventCallback, max_s: float | None = None
) -> bool:
    """Measure the default once more: what drifts meanwhile is then known. False where it was disturbed.

    `longest_s`: as in `Meter.read`.
    """
    meter.set_limits(Settings(), "the default again")
    seen, beat = meter.take_reading(phase.progress, 1.05, max_s)
    if is_disturbed(phase.readings, seen):
        return False
    if has_lost_beat(phase.progress, phase.readings, seen):
        if phase.progress.kind == "steps" or phase.has_confirmed_beat():
            return False
        phase.progress = ProgressSource("throughput", verdict="aperiodic")
        phase.readings.discard_beats()
        seen = replace(
            seen, pace=replace(seen.pace, beats=NOT_MEASURED, beats_error=NOT_MEASURED, period_s=NOT_MEASURED)
        )
        on_event(PeriodFound(meter.probe.now(), "aperiodic", NOT_MEASURED, "throughput"))
    else:
        phase.progress = beat
    if seen.pace.period_s > 0:
        phase.progress = replace(phase.progress, period_s=seen.pace.period_s)
    phase.readings.default_readings.append(seen)
    on_event(Measured(meter.probe.now(), seen, "default", 0.0, 0.0))
    return True


def summarise_checks(phase: Phase, at_s: float) -> Checked | None:
    """The mean of all checks of the choice; None where progress was told in none."""
    outcomes = [
        phase.readings.compare_to_default(r)
        for r in phase.readings.other_readings
        if r.settings == phase.choice
    ]
    outcomes = [o for o in outcomes if np.isfinite(o.slowdown)]
    if not outcomes:
        return None
    weight = np.array([1 / o.slowdown_error**2 for o in outcomes])
    mean = float(weight @ [o.slowdown for o in outcomes] / weight.sum())
    unsure = np.hypot(1 / np.sqrt(weight.sum()), np.median([o.default_error for o in outcomes]))
    return Checked(at_s, mean, float(1.96 * unsure), float(np.mean([o.saving for o in outcomes])))


def choose_settings(phase: Phase) -> Settings:
    """The best that is known at the phase's memory clock; the default where nothing is better."""
    gear, memory = phase.search.choose_gear(phase.readings), phase.search.memory_mhz
    if gear is not None:
        return phase.search.control.make_settings(gear, memory)
    alone = Settings(memory_mhz=memory)
    told = predict_settings(phase, alone)
    within = objective.compute_violation(phase.search.policy, told.slowdown, told.saving) <= 0
    # Not unless it was held so: what the memory clock costs by itself no curve tells.
    return alone if alone == phase.choice and within else Settings()


def predict_choice(phase: Phase) -> DefaultComparison:
    """What the choice is believed to do."""
    return predict_settings(phase, phase.choice)


def predict_settings(phase: Phase, settings: Settings) -> DefaultComparison:
    """What limits are believed to do, at the memory clock of the search."""
    gear = phase.search.control.get_value(settings)
    if gear is None:
        return _get_last_comparison(phase, settings)
    now = phase.search.fit_response(phase.readings)
    place = int(np.searchsorted(now.gears, gear))
    slowdown, saving = float(now.slowdown[place]), float(now.saving[place])
    return DefaultComparison(
        slowdown, float(now.slowdown_std[place]), 0.0, (1 - saving) / (1 + slowdown), 0.0
    )


def _get_last_comparison(phase: Phase, settings: Settings) -> DefaultComparison:
    """The default, or a memory clock alone: no curve leads there, so what was read there last counts."""
    outcomes = [
        phase.readings.compare_to_default(r) for r in phase.readings.other_readings if r.settings == settings
    ]
    told = [o for o in outcomes if np.isfinite(o.slowdown)]
    return told[-1] if told else DefaultComparison(0.0, 0.0, 0.0, 1.0, 0.0)


MAX_MEMORY_UTIL = 12.0
"""Percent of memory use above which a lower memory clock is not tried."""
MAX_TRADED_SLOWDOWN = 0.02
"""Slowdown that the SM clock may give back for a lower memory clock."""


def run_search(meter: JobMeter, phase: Phase, gears: Gears, on_event: EventCallback) -> None:
    """Search SM clocks, then memory clocks where there are several, and put the choice in force."""
    start, joules = meter.probe.now(), meter.probe.read_energy_j()
    points = len(phase.readings.other_readings)
    while (place := phase.search.propose_next(phase.readings)) is not None:
        settings = phase.search.control.make_settings(phase.search.gears[place], phase.search.memory_mhz)
        if not measure_settings(meter, phase, settings, "candidate", on_event):
            break
        last = phase.readings.other_readings[-1]
        if phase.readings.estimate_default_error(last.at_s) > max(0.008, 0.8 * get_rate_error(last.pace)):
            remeasure_default(meter, phase, on_event)
    if len(phase.readings.default_readings) == 1 and phase.readings.other_readings:
        remeasure_default(meter, phase, on_event)
    phase.choice = choose_settings(phase)
    if gears.memory_mhz and _can_memory_pay(phase):
        _search_memory_clocks(meter, phase, gears, on_event)
    meter.set_limits(phase.choice, "the choice")
    expected = predict_choice(phase)
    spent = meter.probe.now() - start, meter.probe.read_energy_j() - joules
    visited = len(phase.readings.other_readings) - points
    on_event(Chosen(meter.probe.now(), phase.choice, expected.slowdown, expected.saving, visited, *spent))


def _can_memory_pay(phase: Phase) -> bool:
    use = float(np.mean([r.memory_util for r in phase.readings.default_readings]))
    return phase.progress.kind in ("steps", "period") and use < MAX_MEMORY_UTIL


def _find_faster_settings(
    phase: Phase, base_settings: Settings, slowdown_reduction: float
) -> Settings | None:
    """The choice at the default's memory clock that leaves so much more of the budget."""
    now = phase.search.fit_response(phase.readings)
    wanted = predict_settings(phase, base_settings).slowdown - slowdown_reduction
    fast = np.flatnonzero(
        (now.slowdown <= wanted) & (now.gears < phase.search.get_default_limit(phase.readings))
    )
    return phase.search.control.make_settings(now.gears[fast[0]]) if len(fast) else None


def _search_memory_clocks(meter: JobMeter, phase: Phase, gears: Gears, on_event: EventCallback) -> None:
    """Step down the memory clock at the chosen SM clock while that is allowed and better."""
    policy = phase.search.policy
    best, standing = predict_choice(phase), phase.choice
    top = gears.memory_mhz[-1]
    for memory in reversed([m for m in gears.memory_mhz if m < 0.9 * top]):
        settings = replace(standing, memory_mhz=memory)
        if not measure_settings(meter, phase, settings, "candidate", on_event):
            return
        now = phase.readings.compare_to_default(phase.readings.other_readings[-1])
        over = float(objective.compute_violation(policy, now.slowdown, now.saving))
        if (
            0 < over <= MAX_TRADED_SLOWDOWN
            and (faster := _find_faster_settings(phase, standing, over)) is not None
        ):
            settings = replace(faster, memory_mhz=memory)
            if not measure_settings(meter, phase, settings, "candidate", on_event):
                return
            now = phase.readings.compare_to_default(phase.readings.other_readings[-1])
            over = float(objective.compute_violation(policy, now.slowdown, now.saving))
        if not over <= 0:
            return
        if objective.compute_score(policy, now.slowdown, now.saving) >= objective.compute_score(
            policy, best.slowdown, best.saving
        ):
            return
        best, phase.choice = now, settings
        phase.search = replace(phase.search, memory_mhz=memory)
