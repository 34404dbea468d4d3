"""Advice: measure a job, set nothing, and report what the governor would set.

Measured, without any change of the card: power, time and energy of a step at the settings that the job has,
the clock that the card really runs at, the share of the time in which kernels run, and how much readings of
the unchanged job differ (A/A). The share bounds the slowdown of a lower clock. How far below that bound it
stays, and what power falls to, is assumed: kernels answer to the clock as recorded ones do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ekc.errors import ActuatorError
from ekc.governor.change_detection import MAX_DOUBTS, is_disturbed
from ekc.governor.event_records import Ended, EventCallback, Expected, Measured, Started, format_settings
from ekc.governor.job_limits import make_phase_policy
from ekc.governor.job_meter import PASSING_FAILURES, WORK_POLL_S, DriverRetries, JobEnded, JobMeter
from ekc.governor.phase import Phase, begin_phase
from ekc.governor.protocols import NullActuator, OfferedSettings, Probe, Settings
from ekc.governor.readings import NOT_MEASURED
from ekc.governor.request import Policy
from ekc.governor.samples import has_work

READING_GAPS_S = (60.0, 1800.0)
"""Seconds before the second reading, and most seconds between two; the gap doubles."""
THROTTLED_SHARE = 0.98
"""Share of the top clock below which the card is limited already, by its power cap or by heat."""


@dataclass(frozen=True)
class Baseline:
    """Figures measured at the settings of the job, over all readings of its present phase."""

    readings: int
    watts: float
    step_s: float
    """Seconds of a step or found iteration; NaN where none was found."""
    step_j: float
    """Joules of one, likewise."""
    scatter: float
    """Standard deviation of the watts from reading to reading, as a share; NaN for a single one."""
    step_scatter: float
    """The same of the time of a step."""
    clock_mhz: float
    """SM clock that the card ran at; NaN where it is not read."""
    top_mhz: float
    """Highest SM clock of the card; NaN where clocks cannot be limited."""
    busy_share: float
    """Share of the time in which a kernel ran."""

    def format_lines(self) -> list[str]:
        """The measured figures for people."""
        step = f", {self.step_s:.3g} s and {self.step_j:,.0f} J per iteration" if self.step_s > 0 else ""
        clock = "" if np.isnan(self.clock_mhz) else f", SM clock {self.clock_mhz:.0f} MHz"
        if self.clock_mhz < THROTTLED_SHARE * self.top_mhz:
            clock += f" of {self.top_mhz:.0f}: a power cap or heat limits it already"
        lines = [f"{self.watts:.0f} W{step}{clock}; kernels run {self.busy_share:.0%} of the time"]
        if self.readings > 1:
            differ = f"{self.scatter:.1%} in power"
            if not np.isnan(self.step_scatter):
                differ += f", {self.step_scatter:.1%} in time"
            lines.append(f"{self.readings} readings of the unchanged job differ by {differ}")
        return lines


@dataclass(frozen=True)
class Advised(Expected):
    """The advised settings and their expected outcome; nothing was tried."""

    sigma: float
    """Standard deviation of the expected slowdown."""
    max_slowdown: float
    """Largest possible slowdown, by the measured share of the time in which kernels run; NaN for a power
    cap, which has no such bound."""
    baseline: Baseline

    def format_line(self) -> str:
        """Advised settings, what was measured and what is assumed."""
        measured = f"measured: {'; '.join(self.baseline.format_lines())}"
        if self.settings == Settings():
            return f"advice: leave the clocks as they are; {measured}"
        return (
            f"advice: set {format_settings(self.settings)}; {measured}; assumed: {self.format_assumption()}"
        )

    def format_assumption(self) -> str:
        """The expected outcome, what it rests on, and its bound."""
        low, high = self.slowdown - 1.96 * self.sigma, self.slowdown + 1.96 * self.sigma
        high = np.fmin(high, self.max_slowdown)
        bound = "" if np.isnan(self.max_slowdown) else f", surely below {self.max_slowdown:+z.1%}"
        time = f"{self.slowdown:+z.1%} time (95 %: {max(0.0, low):+z.1%} to {high:+z.1%}{bound})"
        return f"{time}, {-self.saving:+z.1%} energy per step, as recorded kernels answer; not tried"


def advise(
    probe: Probe,
    actuator: NullActuator,
    policy: Policy,
    on_event: EventCallback,
) -> None:
    """Measure and advise until the job ends, again after a change of it. Raises `ActuatorError` for a card
    without clocks or caps to choose from, and what the probe raises."""
    offered = actuator.offered
    if not offered.sm_mhz and not offered.power_w:
        raise ActuatorError("no advice: neither clocks nor power of this GPU can be limited")
    start, joules = probe.now(), probe.read_energy_j()
    on_event(Started(start, probe.label, actuator.label, probe.simulated, policy.objective))
    meter, retries = JobMeter(probe, actuator, on_event), DriverRetries(probe, actuator, on_event)
    phase: Phase | None = None
    try:
        while True:
            phase = None
            try:
                while not has_work(meter.record(WORK_POLL_S)):
                    pass
                phase = begin_phase(meter, policy, offered)
                retries.note_success()
                _report_advice(meter, phase, policy, offered, start)
                _read_until_change(meter, phase)
            except PASSING_FAILURES as problem:
                retries.recover(problem)
    except JobEnded:
        if phase is not None and len(phase.readings.default_readings) > 1:
            _report_advice(meter, phase, policy, offered, start)
        on_event(Ended(probe.now(), probe.now() - start, probe.read_energy_j() - joules))


def _report_advice(
    meter: JobMeter, phase: Phase, policy: Policy, offered: OfferedSettings, start_s: float
) -> None:
    now_s, steps = meter.probe.now(), meter.probe.read_step_count()
    limited, _ = make_phase_policy(policy, phase, [phase], now_s - start_s, steps)
    phase.search = replace(phase.search, policy=limited)
    value = phase.search.choose_value(phase.readings, only_advise=True)
    choice = Settings() if value is None else phase.search.control.make_settings(value)
    expected = phase.predict_settings(choice)
    bound = NOT_MEASURED
    if choice.sm_mhz is not None:
        longer = phase.search.get_default_limit(phase.readings) / choice.sm_mhz - 1
        bound = phase.readings.get_default_sm_util() * longer
    outcome = expected.slowdown, expected.saving, expected.slowdown_error, bound
    meter.on_event(Advised(now_s, choice, *outcome, measure_baseline(phase, offered)))


def _read_until_change(meter: JobMeter, phase: Phase) -> None:
    """Read the job again at doubling intervals until it has changed."""
    gap_s, doubts = READING_GAPS_S[0], 0
    while doubts < MAX_DOUBTS:
        meter.record(gap_s if not doubts else READING_GAPS_S[0])
        reading, source = meter.take_reading(phase.progress, 1.05)
        if is_disturbed(phase.readings, reading):
            doubts += 1
            continue
        phase.progress, doubts = source, 0
        phase.readings.default_readings.append(reading)
        meter.on_event(Measured(meter.probe.now(), reading, "default", 0.0, 0.0))
        gap_s = min(2 * gap_s, READING_GAPS_S[1])


def measure_baseline(phase: Phase, offered: OfferedSettings) -> Baseline:
    """Figures over all readings at the settings that the job has."""
    readings = phase.readings.default_readings
    watts = np.array([r.watts for r in readings])
    step_s = np.array([r.pace.period_s for r in readings if r.pace.period_s > 0])
    mean_s = float(step_s.mean()) if len(step_s) else NOT_MEASURED
    return Baseline(
        readings=len(readings),
        watts=float(watts.mean()),
        step_s=mean_s,
        step_j=mean_s * float(watts.mean()),
        scatter=_compute_scatter(watts),
        step_scatter=_compute_scatter(step_s),
        clock_mhz=phase.readings.get_default_clock_mhz(),
        top_mhz=float(max(offered.sm_mhz, default=NOT_MEASURED)),
        busy_share=phase.readings.get_default_sm_util(),
    )


def _compute_scatter(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / values.mean()) if len(values) > 1 else NOT_MEASURED
