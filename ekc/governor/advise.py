"""Advice: measure a job, set nothing, and report what the governor would set."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.errors import ActuatorError
from ekc.governor import phase as phases
from ekc.governor.change_detection import has_work
from ekc.governor.event_records import Ended, Event, EventCallback, Started, format_settings
from ekc.governor.job_meter import JobEnded, JobMeter
from ekc.governor.phase import WORK_POLL_S, ResponseModel
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, NullActuator, Probe, Settings

RECORD_S = 10.0


@dataclass(frozen=True)
class Advised(Event):
    """The advised settings and their expected outcome; nothing was tried."""

    settings: Settings
    slowdown: float
    sigma: float
    """Standard deviation of the expected slowdown."""
    saving: float
    """Expected saving, as a share of the default's joules per step."""

    def format_line(self) -> str:
        """Advised settings and expected outcome."""
        if self.settings == Settings():
            return "advice: leave the clocks as they are"
        expected = f"{self.slowdown:+z.1%} (+- {self.sigma:.1%}) time, {-self.saving:+z.1%} energy per step"
        return f"advice: set {format_settings(self.settings)}; expected, not tried: {expected}"


def advise(
    probe: Probe,
    actuator: NullActuator,
    policy: Policy,
    on_event: EventCallback,
    model: ResponseModel | None = None,
) -> None:
    """Measure, advise, and record until the job ends. Raises `ActuatorError` for a card without clocks or
    caps to choose from, and what the probe raises."""
    if not actuator.possible_gears.sm_mhz and not actuator.possible_gears.power_w:
        raise ActuatorError("no advice: neither clocks nor power of this GPU can be limited")
    start, joules = probe.now(), probe.read_energy_j()
    on_event(Started(start, probe.label, actuator.label, probe.simulated, policy.objective))
    meter = JobMeter(probe, actuator, on_event)
    try:
        while not has_work(meter.record(WORK_POLL_S)):
            pass
        _advise_once(meter, actuator.possible_gears, policy, model)
        while True:
            meter.record(RECORD_S)
    except JobEnded:
        on_event(Ended(probe.now(), probe.now() - start, probe.read_energy_j() - joules))


def _advise_once(meter: JobMeter, gears: Gears, policy: Policy, model: ResponseModel | None) -> None:
    phase = phases.begin_phase(meter, policy, gears)
    phases.predict_from_counters(meter, phase, model)
    gear = phase.search.advise_gear(phase.readings)
    phase.choice = Settings() if gear is None else phase.search.control.make_settings(gear)
    expected = phases.predict_choice(phase)
    outcome = expected.slowdown, expected.slowdown_error, expected.saving
    meter.on_event(Advised(meter.probe.now(), phase.choice, *outcome))
