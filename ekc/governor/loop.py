"""The control loop: learn a phase, put its choice in force, watch; learn anew when the job has changed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Literal

from ekc.governor import phase as phases
from ekc.governor.checks import FIRST_S, SOON_S, Checks
from ekc.governor.events import (
    Applied,
    Ended,
    Idled,
    OnEvent,
    Resumed,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.explore import explore
from ekc.governor.landscape import SURE
from ekc.governor.ledger import Ledger
from ekc.governor.measure import JobEnded, Meter, Stretch
from ekc.governor.payoff import payoff, remaining
from ekc.governor.phase import POLL_S, Held, Model, Phase
from ekc.governor.policy import Policy
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.reading import UNTOLD
from ekc.governor.same_work import alike, disturbed
from ekc.governor.spent import affordable, spent
from ekc.governor.watch import CONFIRM_S, LARGE, LEAST, Pulse, Watch, working

LONGEST_WAIT_S = 40.0
"""Back-off: the job is left alone so long between two looks, at most."""
WORTH = 0.08
"""Of the gap between two checks, what the default may be watched for: what that saves is lost meanwhile."""
VAGUE_WORTH = 0.12
"""The same where no reading of a minute knows its pace: what is not known there ends in slowdown."""
MOVE = 0.006
"""A check moves the clock only if by more than this share."""
GIVEN_BACK = 0.8
"""A search that had to keep less than this share of the slowdown allowed read no gears that use all of it. It
is made again when that may be."""

Verdict = Literal["agreed", "moved", "searched", "doubt"]
"""Of a check: the choice stays, or moves, or is another search's, or the job was not what it used to be."""


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
        self._late: Held = {}
        """Seconds of a phase that began before it was found."""

    def run(self) -> Outcome:
        start, joules = self._probe.now(), self._probe.energy_j()
        simulated = self._probe.simulated or self._actuator.simulated
        labels = self._probe.label, self._actuator.label
        self._tell(Started(start, *labels, simulated, self._policy.objective))
        self._start = start
        with contextlib.suppress(JobEnded):
            self._govern()
        bill = self._probe.now() - start, self._probe.energy_j() - joules
        self._tell(Ended(self._probe.now(), *bill))
        return Outcome(*bill, tuple(self._known))

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
        held: dict[Settings, float] = {}
        self._meter.held = held
        phase = phases.begin(self._meter, self._policy, self._gears, self._tell)
        for known in self._known:
            if not known.refuted and alike(phase, known):
                self._tell(Shifted(self._probe.now(), "known", UNTOLD))
                self._enter(known, held)
                self._put(known.choice, "the choice for a phase seen before")
                return known
        self._known.append(phase)
        self._enter(phase, held)
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
        self._afford(phase)
        self._explore(phase)
        return phase

    def _enter(self, phase: Phase, held: Held) -> None:
        """From here on time is reckoned as that phase's, with what was measured before it was known."""
        for settings, seconds in (*held.items(), *self._late.items()):
            phase.held[settings] = phase.held.get(settings, 0.0) + seconds
        self._meter.held, self._late = phase.held, {}

    def _leave(self, phase: Phase, late_s: float) -> None:
        """The phase has been over for so long: the time since then is the next one's."""
        late = min(late_s, phase.held.get(phase.choice, 0.0))
        if late > 0:
            phase.held[phase.choice] -= late
            self._late = {phase.choice: late}

    def _afford(self, phase: Phase) -> None:
        """Search and choose within what the job has left of its slowdown."""
        lasts = remaining(self._policy, self._probe.now() - self._start)
        # A pause gives nothing back: no step was quick in it.
        worked = sum(seconds for known in self._known for seconds in known.held.values())
        budget = affordable(self._policy, worked, lasts, spent(self._known))
        phase.search = replace(phase.search, policy=replace(self._policy, max_slowdown=budget))

    def _explore(self, phase: Phase) -> None:
        phase.within = phase.search.policy.max_slowdown
        explore(self._meter, phase, self._gears, self._tell)

    def _given_back(self, phase: Phase) -> bool:
        """Whether the last search had to keep less than may be used now."""
        whole = self._policy.max_slowdown
        short = self._policy.objective == "energy" and phase.within < GIVEN_BACK * whole
        return short and phase.search.policy.max_slowdown >= whole

    def _watch(self, phase: Phase) -> str:
        """Until the job is another; returns the level of the change."""
        watch, pulse, held = Watch(phase.look_s(), phase.expected_look()), Pulse(), Stretch(self._probe)
        checks, wait = self._checks(phase), 0.0
        while True:
            window = phase.look_s()
            samples = self._meter.record(window)
            if phase.idle(samples):
                self._idle()
                held = Stretch(self._probe)
                continue
            pulse.look(self._probe.now(), phase.follow(samples))
            off = watch.deviates(watch.distance(samples))
            if off:
                lasting = self._confirmed(phase, watch, pulse, window)
                held = Stretch(self._probe)
                if lasting >= LEAST:
                    self._leave(phase, CONFIRM_S)
                    return self._shifted("large" if lasting >= LARGE else "small", lasting)
                suspected = lasting > 0 or watch.restless()
            else:
                watch.follow()
                held.add(samples)
                suspected = False
            now = self._probe.now()
            suspected |= pulse.gone(now)
            if watch.ready() and checks.due(now, suspected):
                since = now - checks.last_s
                verdict = self._check(phase, held, checks.gap_s)
                held, wait = Stretch(self._probe), 0.0
                if verdict == "searched":
                    checks = self._checks(phase)
                elif verdict != "doubt":
                    checks.agreed(self._probe.now())
                elif checks.doubted(self._probe.now()):
                    # Nobody knows when it began.
                    self._leave(phase, since / 2)
                    return self._shifted("small", UNTOLD)
                if verdict in ("moved", "searched") or suspected:
                    watch, pulse = Watch(phase.look_s(), phase.expected_look()), Pulse()
            elif watch.ready() and not off:
                wait = min(max(window, 2 * wait), LONGEST_WAIT_S)
                samples = self._meter.record(wait)
                if phase.idle(samples):
                    held = Stretch(self._probe)  # What stood still for a while says nothing of the choice.
                else:
                    held.add(samples)

    def _checks(self, phase: Phase) -> Checks:
        """Those of a choice just made."""
        unsure = phases.expectation(phase).error > SURE
        if phase.ledger.vague():
            gap = SOON_S
        else:
            gap = max(SOON_S if unsure else FIRST_S, phase.beat.window_s() / WORTH)
        return Checks(self._probe.now(), gap)

    def _shifted(self, level: str, size: float) -> str:
        self._tell(Shifted(self._probe.now(), level, size))
        return level

    def _confirmed(self, phase: Phase, watch: Watch, pulse: Pulse, window: float) -> float:
        """How far the job is off, if it stays so, else 0; an evaluation comes and goes."""
        least = float("inf")
        until = self._probe.now() + max(CONFIRM_S, 3 * window)
        while self._probe.now() < until:
            samples = self._meter.record(window)
            if phase.idle(samples):
                self._idle()
                return 0.0
            pulse.look(self._probe.now(), phase.follow(samples))
            distance = watch.distance(samples)
            if not watch.deviates(distance):
                return 0.0
            least = min(least, distance)
        return least

    def _idle(self) -> None:
        """Limits stay as they are: the work that comes back must not be punished."""
        began, self._meter.held, held = self._probe.now(), {}, self._meter.held
        self._tell(Idled(began))
        while not working(self._meter.record(POLL_S)):
            pass
        self._meter.held = held
        self._tell(Resumed(self._probe.now(), self._probe.now() - began))

    def _check(self, phase: Phase, held: Stretch, gap_s: float) -> Verdict:
        """A/B/A: the choice, the default, and the choice again in what follows."""
        if not self._settable:
            return "agreed"
        if phase.choice == Settings():
            # There is nothing to hold against the default, but what may be lost may have been given back.
            return self._choose(phase) if phase.ledger.others else "agreed"
        expected = phases.expectation(phase)
        # What is held is told by bytes, which say nothing across memory clocks.
        by_bytes = phase.ledger.vague() and phase.choice.memory_mhz is None
        seen = held.reading(phase.beat, phase.choice) if by_bytes else None
        if seen is not None and not disturbed(phase, seen):
            phases.note(self._meter, phase, seen, "check", self._tell)
        elif not phases.visit(self._meter, phase, phase.choice, "check", self._tell):
            return "doubt"
        usual = self._meter.longest_s(phase.beat)
        longest = max(VAGUE_WORTH * gap_s, usual) if phase.ledger.vague() else WORTH * gap_s
        if not phases.again(self._meter, phase, self._tell, longest):
            # What disturbed the default may have begun before it.
            phase.ledger.others.pop()
            self._meter.set(phase.choice, "the choice after a check")
            return "doubt"
        phase.refuted = phase.ledger.contradicts(expected)
        if phase.refuted:
            phase.ledger.others.pop()
            phase.ledger.defaults.pop()
            self._meter.set(phase.choice, "the choice after a check")
            return "doubt"
        if (told := phases.checked(phase, self._probe.now())) is not None:
            self._tell(told)
        return self._choose(phase)

    def _choose(self, phase: Phase) -> Verdict:
        """By what is believed, and may be lost, now."""
        self._afford(phase)
        if self._given_back(phase):
            phase.ledger = Ledger(phase.ledger.defaults[-1:])
            phase.search = replace(phase.search, memory_mhz=None)
            self._explore(phase)
            return "searched"
        before = phase.choice
        after = phases.chosen(phase)
        base = phase.search.base(phase.ledger)
        gears = [phase.search.knob.of(s) or base for s in (before, after)]
        moved = abs(gears[1] / gears[0] - 1) > MOVE or before.memory_mhz != after.memory_mhz
        if not moved:
            self._meter.set(before, "the choice after a check")
            return "agreed"
        phase.choice = after
        self._put(after, "the check moved the choice")
        return "moved"

    def _put(self, choice: Settings, why: str) -> None:
        """Another choice, told too where it is the default, which was just measured: nothing is set then."""
        if choice == self._actuator.settings():
            self._tell(Applied(self._probe.now(), choice, why))
        self._meter.set(choice, why)
