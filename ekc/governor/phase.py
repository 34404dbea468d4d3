"""One phase of a job: measure it at the default, search SM clocks or caps, then memory clocks, and choose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from ekc.governor.change_detection import (
    BeatMonitor,
    ChangeDetector,
    compute_signature,
    has_lost_beat,
    is_disturbed,
    make_signature,
)
from ekc.governor.decision import LimitSearch, compute_score, compute_violation, find_best
from ekc.governor.event_records import Checked, Chosen, Measured, ModelUnused, PeriodFound, Predicted
from ekc.governor.job_meter import WORK_POLL_S, JobMeter, TotalsBySettings, make_reading
from ekc.governor.period import find_period
from ekc.governor.period_tracking import track_period_near
from ekc.governor.progress_rate import (
    MIN_CLARITY,
    ProgressSource,
    choose_progress_source,
    make_step_source,
    measure_progress_rate,
)
from ekc.governor.protocols import CountersMissing, OfferedSettings, Settings
from ekc.governor.readings import NOT_MEASURED, DefaultComparison, JobReading, PhaseReadings
from ekc.governor.request import Policy
from ekc.governor.response_curve import SM_CLOCK, choose_control
from ekc.governor.response_model import ResponseModel
from ekc.governor.samples import (
    SensorSamples,
    concatenate_samples,
    finite_mean,
    has_work,
    measure_longest_idle_s,
)

RECORD_MORE_S = 5.0
MAX_FIRST_S = 75.0
"""Seconds after which the first reading starts, however few steps have ended."""
MIN_FIRST_STEPS = 3
"""Steps that must have ended before their mean length is used."""
COUNTER_WINDOW_S = (4.0, 25.0)
"""Shortest and longest stretch in seconds over which counters are read; it lasts one period."""
MIN_IDLE_S = 8.0
"""Seconds without a kernel after which a job is idle, if that is also longer than `IDLE_PERIODS` periods."""
IDLE_PERIODS = 1.5
MAX_TRIES = 2
"""Readings that are tried where other work disturbs them."""
MIN_CONFIRMATIONS = 3
"""Readings at the default that must agree on a period before it counts as confirmed."""
MIN_LOOK_S = 10.0
MAX_LOOK_S = 40.0
APERIODIC_LOOK_S = 24.0
"""Seconds of a recording under the choice: limits for whole periods, and length without a period."""


@dataclass
class Phase:
    """State of one phase: readings, search and choice."""

    progress: ProgressSource
    readings: PhaseReadings
    search: LimitSearch
    default_signature: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Signature (`compute_signature`) at the default limits."""
    choice: Settings = field(default_factory=Settings)
    """Chosen limits; the default until the search ends."""
    top_memory_mhz: int = 0
    """Top memory clock of the card; 0 if memory clocks cannot be set."""
    seconds_by_settings: TotalsBySettings = field(default_factory=dict)
    joules_by_settings: TotalsBySettings = field(default_factory=dict)
    searched_max_slowdown: float = 0.0
    agreed_checks: int = 0
    """Checks that agreed with the expected slowdown of the choice."""
    is_refuted: bool = False
    """Whether the last complete check contradicted the expected slowdown; such a phase is not used again."""

    def compute_max_stretch(self, settings: Settings) -> float:
        """Largest possible length of an iteration under some limits, in lengths at the default."""
        base = self.search.get_default_limit(self.readings)
        memory = 1.0
        if settings.memory_mhz is not None and self.top_memory_mhz:
            # Only time that waits for memory is stretched by the memory clock.
            use = finite_mean(np.array([r.memory_util for r in self.readings.default_readings])) / 100
            memory += use * (self.top_memory_mhz / settings.memory_mhz - 1)
        return max(1.0, base / (self.search.control.get_value(settings) or base)) * memory

    def predict_settings(self, settings: Settings) -> DefaultComparison:
        """Expected outcome of some limits, at the memory clock of the search."""
        return self.search.predict_settings(self.readings, settings)

    def predict_choice(self) -> DefaultComparison:
        """Expected outcome of the choice."""
        return self.predict_settings(self.choice)

    def track_period(self, samples: SensorSamples) -> bool | None:
        """Track the period at the default (that of the samples over the expected stretch of the choice) as it
        drifts; whether it was found, None if unknown."""
        if self.progress.kind != "period":
            return None
        expected = 1 + self.predict_choice().slowdown
        found = track_period_near(samples, self.progress.period_s * expected, 0.97, 1.03)
        if found is None:
            return None
        if found.clarity >= MIN_CLARITY:
            default_s = found.seconds / expected
            self.progress = replace(self.progress, period_s=0.7 * self.progress.period_s + 0.3 * default_s)
        return found.clarity >= MIN_CLARITY / 2

    def compute_look_s(self) -> float:
        """Seconds of a recording under the choice: whole periods, since parts of one differ."""
        if not self.progress.period_s > 0:
            return APERIODIC_LOOK_S
        period = self.progress.period_s * (1 + self.predict_choice().slowdown)
        fewest, most = (max(1, ceil(MIN_LOOK_S / period)), max(1, int(MAX_LOOK_S / period)))
        return period * min(max(3, fewest), most)

    def get_expected_signature(self) -> np.ndarray | None:
        """Signature of the last reading under the limits nearest to the choice; None without one."""
        value, control = self.search.control.get_value(self.choice), self.search.control
        readings = control.select_readings(self.readings, self.choice.memory_mhz)
        if value is None or not readings:
            return None
        last = min(reversed(readings), key=lambda r: abs((control.get_value(r.settings) or value) - value))
        return make_signature(last.watts, last.sm_util, last.memory_util)

    def make_monitors(self) -> tuple[ChangeDetector, BeatMonitor]:
        """New monitors of the job under the choice."""
        return ChangeDetector(self.compute_look_s(), self.get_expected_signature()), BeatMonitor()

    def has_confirmed_beat(self) -> bool:
        """Whether several readings at the default found the beat: if it is lost then, the job has changed."""
        return sum(r.pace.beats > 0 for r in self.readings.default_readings) >= MIN_CONFIRMATIONS

    def is_idle(self, samples: SensorSamples) -> bool:
        """Whether the job was idle during the samples."""
        longest = np.fmax(MIN_IDLE_S, IDLE_PERIODS * self.progress.period_s)
        return bool(measure_longest_idle_s(samples) > longest)


def begin_phase(meter: JobMeter, policy: Policy, offered: OfferedSettings) -> Phase:
    """Measure at the driver's default and choose the source of progress."""
    meter.set_limits(Settings(), "the default, the base of all comparisons")
    samples, source, first = meter.repeat_if_stopped(lambda: _measure_default(meter))
    meter.on_event(PeriodFound(meter.probe.now(), source.verdict, source.period_s, source.kind))
    control = choose_control(offered)
    search = LimitSearch(policy, control, control.select_values(offered))
    top = max(offered.memory_mhz, default=0)
    phase = Phase(source, PhaseReadings([first]), search, compute_signature(samples), top_memory_mhz=top)
    meter.on_event(Measured(meter.probe.now(), first, "default", 0.0, 0.0))
    return phase


def _measure_default(meter: JobMeter) -> tuple[SensorSamples, ProgressSource, JobReading]:
    """(samples at the default, the source of progress that was found in them, the first reading)."""
    start, joules = meter.probe.now(), meter.probe.read_energy_j()
    steps = meter.probe.read_step_count() or 0.0
    # No period is needed once hooks count steps.
    found = find_period(meter.record, lambda: meter.probe.read_step_count() is None)
    # Hooks report no count until the first step has ended, which may take longer than later steps.
    if meter.probe.read_step_count() is not None:
        return _measure_with_hooks(meter, found.samples, start, steps)
    samples, source = found.samples, choose_progress_source(found)
    seconds = meter.probe.now() - start
    rate, source = measure_progress_rate(source, samples, 1.05)
    watts = (meter.probe.read_energy_j() - joules) / seconds
    return samples, source, make_reading(Settings(), start, seconds, watts, rate, samples, source)


def _measure_with_hooks(
    meter: JobMeter, samples: SensorSamples, start: float, start_step_count: float
) -> tuple[SensorSamples, ProgressSource, JobReading]:
    """The first reading by counted steps: (samples since `start`, source, reading)."""
    while (steps := (meter.probe.read_step_count() or 0.0) - start_step_count) < MIN_FIRST_STEPS:
        if meter.probe.now() - start > MAX_FIRST_S:
            break
        samples = concatenate_samples(samples, meter.record(RECORD_MORE_S))
    first, source = meter.take_reading(make_step_source(samples, steps), 1.05)
    if first.pace.period_s > 0:
        # Other work may have run before the first step ended.
        source = replace(source, period_s=first.pace.period_s)
    return samples, source, first


def measure_settings(meter: JobMeter, phase: Phase, settings: Settings, purpose: str) -> bool:
    """Take a reading under some limits; False where each try was disturbed by other work."""
    meter.set_limits(settings, purpose)
    for _ in range(MAX_TRIES):
        reading, source = meter.take_reading(phase.progress, phase.compute_max_stretch(settings))
        if not is_disturbed(phase.readings, reading):
            phase.progress = source
            add_reading(meter, phase, reading, purpose)
            return True
        if not has_work(meter.record(WORK_POLL_S)):
            meter.wait_while_idle()
    return False


def add_reading(meter: JobMeter, phase: Phase, reading: JobReading, purpose: str) -> None:
    """Add a reading to the phase and report it."""
    phase.readings.other_readings.append(reading)
    outcome = phase.readings.compare_to_default(reading)
    meter.on_event(Measured(meter.probe.now(), reading, purpose, outcome.slowdown, outcome.saving))


def remeasure_default(meter: JobMeter, phase: Phase, max_s: float | None = None) -> bool:
    """Measure the default again, for drift; False if disturbed. `max_s`: as in `JobMeter.take_reading`."""
    meter.set_limits(Settings(), "the default again")
    reading, source = meter.take_reading(phase.progress, 1.05, max_s)
    if is_disturbed(phase.readings, reading):
        return False
    if has_lost_beat(phase.progress, phase.readings, reading):
        if phase.progress.kind == "steps" or phase.has_confirmed_beat():
            return False
        phase.progress = ProgressSource("throughput", verdict="aperiodic")
        phase.readings.discard_beats()
        rate = replace(reading.pace, beats=NOT_MEASURED, beats_error=NOT_MEASURED, period_s=NOT_MEASURED)
        reading = replace(reading, pace=rate)
        meter.on_event(PeriodFound(meter.probe.now(), "aperiodic", NOT_MEASURED, "throughput"))
    else:
        phase.progress = source
    if reading.pace.period_s > 0:
        phase.progress = replace(phase.progress, period_s=reading.pace.period_s)
    phase.readings.default_readings.append(reading)
    meter.on_event(Measured(meter.probe.now(), reading, "default", 0.0, 0.0))
    return True


def summarise_checks(phase: Phase, at_s: float) -> Checked | None:
    """Mean slowdown and saving over all checks of the choice; None where none measured progress."""
    outcomes = phase.readings.compare_settings(phase.choice)
    if not outcomes:
        return None
    weight = np.array([1 / o.slowdown_error**2 for o in outcomes])
    mean = float(weight @ [o.slowdown for o in outcomes] / weight.sum())
    error = np.hypot(1 / np.sqrt(weight.sum()), np.median([o.default_error for o in outcomes]))
    return Checked(at_s, mean, float(1.96 * error), float(np.mean([o.saving for o in outcomes])))


MAX_MEMORY_UTIL = 12.0
"""Memory use in percent above which lower memory clocks are not tried."""
MAX_TRADED_SLOWDOWN = 0.02
"""Largest slowdown that a higher SM clock may offset for a lower memory clock."""


def predict_first_value(meter: JobMeter, phase: Phase, model: ResponseModel) -> None:
    """Let the search begin at the SM clock that a model expects to be the best, within the clocks that it was
    trained over. It reads counters over one period at the default. Where it cannot predict, an event says
    why, and the search begins as it does without a model."""
    search, default = phase.search, phase.readings.default_readings[-1]
    base = search.get_default_limit(phase.readings)
    is_candidate = (search.values < base) & (search.values >= model.description.clock_ratios[0] * base)
    if search.control is not SM_CLOCK or not is_candidate.any():
        meter.on_event(ModelUnused(meter.probe.now(), "no SM clock that it was trained over can be set"))
        return
    counters: dict[str, float] = {}
    if model.description.counters:
        meter.set_limits(Settings(), "the default, to read counters")
        period_s = np.fmax(phase.progress.period_s, COUNTER_WINDOW_S[0])
        try:
            counters = meter.probe.read_counters(float(min(period_s, COUNTER_WINDOW_S[1])))
        except CountersMissing as problem:
            meter.on_event(ModelUnused(meter.probe.now(), str(problem)))
            return
    values = search.values[is_candidate]
    slowdown, saving = model.predict_clocks(counters, default, values, base)
    best = find_best(search.policy, slowdown, saving)
    place = len(values) - 1 if best is None else best
    phase.search = replace(search, first_value=float(values[place]))
    expected = search.control.make_settings(values[place]), float(slowdown[place]), float(saving[place])
    meter.on_event(Predicted(meter.probe.now(), *expected, model.description.trained_on, counters))


def run_search(meter: JobMeter, phase: Phase, offered: OfferedSettings) -> None:
    """Search SM clocks, then memory clocks where there are several, and set the choice."""
    start = meter.probe.now(), meter.probe.read_energy_j()
    points = len(phase.readings.other_readings)
    while (place := phase.search.propose_next(phase.readings)) is not None:
        if phase.search.values[place] >= phase.search.get_default_limit(phase.readings):
            if not remeasure_default(meter, phase):
                break
            continue
        settings = phase.search.control.make_settings(phase.search.values[place], phase.search.memory_mhz)
        if not measure_settings(meter, phase, settings, "candidate"):
            break
    phase.choice = phase.search.choose_settings(phase.readings, phase.choice)
    if offered.memory_mhz and _can_memory_pay(phase):
        _search_memory_clocks(meter, phase, offered)
    meter.set_limits(phase.choice, "the choice")
    report_choice(meter, phase, len(phase.readings.other_readings) - points, *start)


def report_choice(meter: JobMeter, phase: Phase, points: int, start_s: float, start_j: float) -> None:
    """Report a choice, the number of readings that it took, and its cost since a time and count of joules."""
    expected = phase.predict_choice()
    cost = meter.probe.now() - start_s, meter.probe.read_energy_j() - start_j
    meter.on_event(Chosen(meter.probe.now(), phase.choice, expected.slowdown, expected.saving, points, *cost))


def _can_memory_pay(phase: Phase) -> bool:
    use = float(np.mean([r.memory_util for r in phase.readings.default_readings]))
    return phase.progress.kind in ("steps", "period") and use < MAX_MEMORY_UTIL


def _find_faster_settings(
    phase: Phase, base_settings: Settings, slowdown_reduction: float
) -> Settings | None:
    """The lowest value whose slowdown is smaller by `slowdown_reduction` than that of `base_settings`."""
    response = phase.search.fit_response(phase.readings)
    largest = phase.predict_settings(base_settings).slowdown - slowdown_reduction
    is_limiting = response.values < phase.search.get_default_limit(phase.readings)
    places = np.flatnonzero((response.slowdown <= largest) & is_limiting)
    return phase.search.control.make_settings(response.values[places[0]]) if len(places) else None


def _search_memory_clocks(meter: JobMeter, phase: Phase, offered: OfferedSettings) -> None:
    """Lower the memory clock at the chosen SM clock while that is within the budget and better."""
    policy = phase.search.policy
    best, sm_choice = phase.predict_choice(), phase.choice
    top = offered.memory_mhz[-1]
    for memory in reversed([m for m in offered.memory_mhz if m < 0.9 * top]):
        settings = replace(sm_choice, memory_mhz=memory)
        if not measure_settings(meter, phase, settings, "candidate"):
            return
        outcome = phase.readings.compare_to_default(phase.readings.other_readings[-1])
        over = float(compute_violation(policy, outcome.slowdown, outcome.saving))
        if (
            0 < over <= MAX_TRADED_SLOWDOWN
            and (faster := _find_faster_settings(phase, sm_choice, over)) is not None
        ):
            settings = replace(faster, memory_mhz=memory)
            if not measure_settings(meter, phase, settings, "candidate"):
                return
            outcome = phase.readings.compare_to_default(phase.readings.other_readings[-1])
            over = float(compute_violation(policy, outcome.slowdown, outcome.saving))
        if not over <= 0:
            return
        if compute_score(policy, outcome.slowdown, outcome.saving) >= compute_score(
            policy, best.slowdown, best.saving
        ):
            return
        best, phase.choice = outcome, settings
        phase.search = replace(phase.search, memory_mhz=memory)
