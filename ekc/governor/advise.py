"""Advice: a job is measured as it runs, nothing is set, and it is said what a governor would do."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.errors import ActuatorError
from ekc.governor import phase as phases
from ekc.governor.events import Ended, Event, OnEvent, Started, settings_text
from ekc.governor.measure import JobEnded, Meter
from ekc.governor.phase import Model
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, Probe, Settings
from ekc.governor.sets_nothing import SetsNothing
from ekc.governor.watch import working

LOOK_S = 2.0
REST_S = 10.0


@dataclass(frozen=True)
class Advised(Event):
    """What would be set, and what is expected of it: nothing was tried."""

    settings: Settings
    slowdown: float
    sigma: float
    """Standard deviation of the expected slowdown."""
    saving: float

    def line(self) -> str:
        """The advice."""
        if self.settings == Settings():
            return "advice: leave the clocks as they are"
        expected = f"{self.slowdown:+.1%} (+- {self.sigma:.1%}) time, {-self.saving:+.1%} energy per step"
        return f"advice: set {settings_text(self.settings)}; expected, not tried: {expected}"


def advise(
    probe: Probe, actuator: SetsNothing, policy: Policy, on_event: OnEvent, model: Model | None = None
) -> None:
    """Measure, advise, and go on measuring until the job ends.

    Raises `ActuatorError` for a card with neither clocks nor caps to choose from, and what the probe raises.
    """
    if not actuator.could.sm_mhz and not actuator.could.power_w:
        raise ActuatorError("no advice: neither clocks nor power of this GPU can be limited")
    start, joules = probe.now(), probe.energy_j()
    on_event(Started(start, probe.label, actuator.label, probe.simulated, policy.objective))
    meter = Meter(probe, actuator, on_event)
    try:
        while not working(meter.record(LOOK_S)):
            pass
        _advise_once(meter, actuator.could, policy, on_event, model)
        while True:
            meter.record(REST_S)
    except JobEnded:
        on_event(Ended(probe.now(), probe.now() - start, probe.energy_j() - joules))


def _advise_once(meter: Meter, gears: Gears, policy: Policy, tell: OnEvent, model: Model | None) -> None:
    phase = phases.begin(meter, policy, gears, tell)
    phases.count(meter, phase, model, tell)
    gear = phase.search.advised(phase.ledger)
    phase.choice = Settings() if gear is None else phase.search.knob.settings(gear)
    expected = phases.expectation(phase)
    tell(Advised(meter.probe.now(), phase.choice, expected.slowdown, expected.error, expected.saving))
