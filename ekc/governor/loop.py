"""The control loop: learn a phase, put its choice in force, watch; learn anew when the job has changed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np

from ekc.governor import phase as phases
from ekc.governor.events import (
    Checked,
    Ended,
    Idled,
    OnEvent,
    Resumed,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.ledger import SURPRISE
from ekc.governor.measure import Held, JobEnded, Meter
from ekc.governor.payoff import payoff
from ekc.governor.phase import POLL_S, Model, Phase
from ekc.governor.policy import Policy
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.watch import CONFIRM_S, LARGE, Watch, working

SHORTEST_WINDOW_S = 10.0
LONGEST_WINDOW_S = 40.0
LONGEST_WAIT_S = 40.0
"""Back-off: the job is left alone so long between two looks, at most."""
FIRST_CHECK_S = 120.0
LONGEST_CHECK_S = 900.0
"""The default is measured again after so long; the gap doubles from the first to the longest."""
WORTH = 0.12
"""Of that gap, what the default may be watched for where it is hard to tell."""
DOUBTS = 2
"""So many checks in a row that find another default are a change that the watch has missed."""
MOVE = 0.006
"""A check moves the clock only if by more than this share."""


@dataclass(frozen=True)
class Outcome:
    """What a governed job came to."""

    seconds: float
    joules: float
    phases: tuple[Phase, ...]


def govern(
    probe: Probe,
    actuator: Actuator,
    policy: Policy | None = None,
    on_event: OnEvent = lambda event: None,
    model: Model | None = None,
) -> Outcome:
    """Steer one job until it ends.

    Only `actuator.apply` is called to set limits, and nothing is restored at the end: that is the business of
    whoever made the actuator. Raises what probe and actuator raise. Without gears (an actuator that sets
    nothing) the job is only measured.
    """
    return _Governor(probe, actuator, policy or Policy(), on_event, model).run()


class _Governor:
    def __init__(
        self, probe: Probe, actuator: Actuator, policy: Policy, on_event: OnEvent, model: Model | None
    ) -> None:
        self._probe = probe
        self._policy = policy
        self._tell = on_event
        self._model = model
        self._gears = actuator.gears()
        self._settable = bool(self._gears.sm_mhz or self._gears.power_w)
        self._actuator = actuator
        self._meter = Meter(probe, actuator, on_event)
        self._known: list[Phase] = []

    def run(self) -> Outcome:
        start, joules = self._probe.now(), self._probe.energy_j()
        simulated = self._probe.simulated or self._actuator.simulated
        labels = self._probe.label, self._actuator.label
        self._tell(Started(start, *labels, simulated, self._policy.objective))
        self._start = start
        with contextlib.suppress(JobEnded):
            self._govern()
        spent = self._probe.now() - start, self._probe.energy_j() - joules
        self._tell(Ended(self._probe.now(), *spent))
        return Outcome(*spent, tuple(self._known))

    def _govern(self) -> None:
        level = "large"
        current: Phase | None = None
        while True:
            self._wait_for_work()
            current = self._learn(level, current)
            level = self._watch(current)

    def _wait_for_work(self) -> None:
        """Nothing is measured while nothing runs."""
        began = self._probe.now()
        if working(self._meter.record(POLL_S)):
            return
        # An iteration may wait for its input for as long as this.
        for _ in range(8):
            if working(self._meter.record(POLL_S)):
                return
        self._tell(Idled(self._probe.now()))
        while not working(self._meter.record(POLL_S)):
            pass
        self._tell(Resumed(self._probe.now(), self._probe.now() - began))

    def _learn(self, level: str, last: Phase | None) -> Phase:
        phase = phases.begin(self._meter, self._policy, self._gears, self._tell)
        for known in self._known:
            if np.abs(phase.default / known.default - 1).max() < phases.SAME_PHASE and _alike(phase, known):
                self._tell(Shifted(self._probe.now(), "known", 0.0))
                self._meter.set(known.choice, "the choice for a phase seen before")
                return known
        self._known.append(phase)
        if level == "small" and last is not None:
            # The memory clock that suited the old work is no ground to search the new one on.
            phase.search = replace(last.search, memory_mhz=None)
        else:
            phases.count(self._meter, phase, self._model, self._tell)
        first = phase.ledger.defaults[0]
        worth = payoff(self._policy, self._probe.now() - self._start, phase.beat.window_s(), first.watts)
        if not worth.pays or not self._settable:
            self._tell(Skipped(self._probe.now(), worth.remaining_s, worth.saving_w, worth.search_s))
            return phase
        phases.explore(self._meter, phase, self._gears, self._tell)
        return phase

    def _watch(self, phase: Phase) -> str:
        """Until the job is another; returns the level of the change."""
        watch, held = Watch(), Held(self._probe)
        wait, gap, checked, doubts = 0.0, FIRST_CHECK_S, self._probe.now(), 0
        period = phase.beat.period_s if phase.beat.period_s > 0 else 8.0
        window = float(np.clip(3 * period, SHORTEST_WINDOW_S, LONGEST_WINDOW_S))
        while True:
            samples = self._meter.record(window)
            if phase.idle(samples):
                self._idle()
                held = Held(self._probe)
                continue
            distance = watch.distance(samples)
            if watch.deviates(distance):
                lasting = self._confirmed(phase, watch, window)
                held = Held(self._probe)
                if lasting is not None:
                    level = "large" if lasting >= LARGE else "small"
                    self._tell(Shifted(self._probe.now(), level, lasting))
                    return level
                continue
            watch.follow(samples)
            phase.follow(samples)
            held.add(samples)
            if self._probe.now() - checked > gap and watch.ready():
                sound, moved = self._check(phase, held, WORTH * gap)
                held = Held(self._probe)
                doubts = 0 if sound else doubts + 1
                if doubts >= DOUBTS:
                    self._tell(Shifted(self._probe.now(), "small", SURPRISE))
                    return "small"
                if moved:
                    watch = Watch()
                gap, wait = min(2 * gap, LONGEST_CHECK_S), 0.0
                checked = self._probe.now() if sound else self._probe.now() - gap + CONFIRM_S
            elif watch.ready():
                wait = min(max(window, 2 * wait), LONGEST_WAIT_S)
                held.add(self._meter.record(wait))

    def _confirmed(self, phase: Phase, watch: Watch, window: float) -> float | None:
        """How far the job is off, if it stays so; an evaluation comes and goes."""
        least = float("inf")
        until = self._probe.now() + max(CONFIRM_S, 3 * window)
        while self._probe.now() < until:
            samples = self._meter.record(window)
            if phase.idle(samples):
                self._idle()
                return None
            distance = watch.distance(samples)
            if not watch.deviates(distance):
                return None
            least = min(least, distance)
        return least

    def _idle(self) -> None:
        """Limits stay as they are: the work that comes back must not be punished."""
        began = self._probe.now()
        self._tell(Idled(began))
        while not working(self._meter.record(POLL_S)):
            pass
        self._tell(Resumed(self._probe.now(), self._probe.now() - began))

    def _check(self, phase: Phase, held: Held, worth_s: float) -> tuple[bool, bool]:
        """A/B/A: the choice, the default, and the choice again in what follows.

        Whether the default was as it used to be, and whether the choice moved.
        """
        if phase.choice == Settings() or not self._settable:
            return True, False
        seen = held.reading(phase.beat, phase.choice) if phase.ledger.vague() else None
        if seen is not None:
            phases.note(self._meter, phase, seen, "check", self._tell)
        elif not phases.visit(self._meter, phase, phase.choice, "check", self._tell):
            return False, False
        if not phases.again(self._meter, phase, self._tell, worth_s):
            # What disturbed the default may have begun before it.
            phase.ledger.others.pop()
            self._meter.set(phase.choice, "the choice after a check")
            return False, False
        outcomes = [phase.ledger.outcome(r) for r in phase.ledger.others if r.settings == phase.choice]
        outcomes = [o for o in outcomes if np.isfinite(o.slowdown)]
        if outcomes:
            weight = np.array([1 / o.error**2 for o in outcomes])
            mean = float(weight @ [o.slowdown for o in outcomes] / weight.sum())
            unsure = np.hypot(1 / np.sqrt(weight.sum()), np.median([o.shared for o in outcomes]))
            saving = float(np.mean([o.saving for o in outcomes]))
            self._tell(Checked(self._probe.now(), mean, float(1.96 * unsure), saving))
        before = phase.choice
        after = phases.chosen(phase)
        base = phase.search.base(phase.ledger)
        gears = [phase.search.knob.of(s) or base for s in (before, after)]
        moved = abs(gears[1] / gears[0] - 1) > MOVE
        if moved:
            phase.choice = after
        self._meter.set(phase.choice, "the check moved the choice" if moved else "the choice after a check")
        return True, moved


def _alike(phase: Phase, known: Phase) -> bool:
    """Whether both have one beat."""
    if phase.beat.source != known.beat.source:
        return False
    return not phase.beat.period_s > 0 or abs(phase.beat.period_s / known.beat.period_s - 1) < 0.05
