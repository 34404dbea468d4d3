"""The control loop: learn a phase, put its choice in force, watch; learn anew when the job has changed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Literal

from ekc.governor import phase as phases
from ekc.governor.budget import (
    compute_affordable_slowdown,
    estimate_payoff,
    estimate_remaining_s,
    estimate_time_loss,
)
from ekc.governor.change_detection import (
    CONFIRM_S,
    LARGE_CHANGE,
    MIN_CHANGE,
    BeatMonitor,
    ChangeDetector,
    has_work,
)
from ekc.governor.events import Applied, Ended, EventCallback, Idled, Resumed, Shifted, Skipped, Started
from ekc.governor.job_reading import NOT_MEASURED
from ekc.governor.measure import JobEnded, JobMeter, WatchedStretch
from ekc.governor.phase import WORK_POLL_S, Phase, ResponseModel, SecondsBySettings, run_search
from ekc.governor.phase_match import EARLY_CHECK_S, FIRST_CHECK_S, CheckSchedule, is_disturbed, is_same_phase
from ekc.governor.policy import Policy
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.readings import PhaseReadings
from ekc.governor.response_curve import CONFIDENT_SIGMA

MAX_WAIT_S = 40.0
"""Back-off: the job is left alone so long between two looks, at most."""
MAX_CHECK_SHARE = 0.08
"""Of the gap between two checks, what the default may be watched for: what that saves is lost meanwhile."""
MAX_UNCERTAIN_CHECK_SHARE = 0.12
"""The same where no reading of a minute knows its pace: what is not known there ends in slowdown."""
MIN_MOVE_SHARE = 0.006
"""A check moves the clock only if by more than this share."""
MIN_BUDGET_SHARE = 0.8
"""A search that had to keep less than this share of the slowdown allowed read no gears that use all of it. It
is made again when that may be."""

CheckVerdict = Literal["agreed", "moved", "searched", "doubt"]
"""Of a check: the choice stays, or moves, or is another search's, or the job was not what it used to be."""


@dataclass(frozen=True)
class GovernResult:
    """What a governed job came to."""

    seconds: float
    joules: float
    phases: tuple[Phase, ...]


def govern(
    probe: Probe,
    actuator: Actuator,
    policy: Policy | None = None,
    on_event: EventCallback = lambda event: None,
    model: ResponseModel | None = None,
) -> GovernResult:
    """Steer one job until it ends.

    Only `actuator.apply` is called to set limits, and nothing is restored at the end: that is the business of
    whoever made the actuator. Raises what probe and actuator raise. Without gears (an actuator that sets
    nothing) the job is only measured.
    """
    return _ControlLoop(probe, actuator, policy or Policy(), on_event, model).run()


class _ControlLoop:
    def __init__(
        self,
        probe: Probe,
        actuator: Actuator,
        policy: Policy,
        on_event: EventCallback,
        model: ResponseModel | None,
    ) -> None:
        self._probe = probe
        self._policy = policy
        self._on_event = on_event
        self._model = model
        self._gears = actuator.gears()
        self._can_set = bool(self._gears.sm_mhz or self._gears.power_w)
        self._actuator = actuator
        self._meter = JobMeter(probe, actuator, on_event)
        self._phases: list[Phase] = []
        self._late_seconds: SecondsBySettings = {}
        """Seconds of a phase that began before it was found."""

    def run(self) -> GovernResult:
        start, joules = self._probe.now(), self._probe.read_energy_j()
        simulated = self._probe.simulated or self._actuator.simulated
        labels = self._probe.label, self._actuator.label
        self._on_event(Started(start, *labels, simulated, self._policy.objective))
        self._start_s = start
        with contextlib.suppress(JobEnded):
            self._run_phases()
        bill = self._probe.now() - start, self._probe.read_energy_j() - joules
        self._on_event(Ended(self._probe.now(), *bill))
        return GovernResult(*bill, tuple(self._phases))

    def _run_phases(self) -> None:
        level = "large"
        current: Phase | None = None
        while True:
            self._wait_for_work()
            current = self._learn_phase(level, current)
            level = self._watch_phase(current)

    def _wait_for_work(self) -> None:
        """Nothing is measured while nothing runs."""
        began = self._probe.now()
        if has_work(self._meter.record(WORK_POLL_S)):
            return
        # An iteration may wait for its input for as long as this.
        for _ in range(8):
            if has_work(self._meter.record(WORK_POLL_S)):
                return
        self._on_event(Idled(self._probe.now()))
        while not has_work(self._meter.record(WORK_POLL_S)):
            pass
        self._on_event(Resumed(self._probe.now(), self._probe.now() - began))

    def _learn_phase(self, level: str, last_phase: Phase | None) -> Phase:
        held: dict[Settings, float] = {}
        self._meter.seconds_by_settings = held
        phase = phases.begin_phase(self._meter, self._policy, self._gears, self._on_event)
        for known in self._phases:
            if not known.is_refuted and is_same_phase(
                phase.default_signature, phase.progress, known.default_signature, known.progress
            ):
                self._on_event(Shifted(self._probe.now(), "known", NOT_MEASURED))
                self._enter_phase(known, held)
                self._apply_choice(known.choice, "the choice for a phase seen before")
                return known
        self._phases.append(phase)
        self._enter_phase(phase, held)
        if level == "small" and last_phase is not None:
            # The memory clock that suited the old work is no ground to search the new one on.
            phase.search = replace(last_phase.search, memory_mhz=None)
        else:
            phases.predict_from_counters(self._meter, phase, self._model, self._on_event)
        first = phase.readings.default_readings[0]
        worth = estimate_payoff(
            self._policy, self._probe.now() - self._start_s, phase.progress.compute_window_s(), first.watts
        )
        if not worth.is_worthwhile or not self._can_set:
            self._on_event(Skipped(self._probe.now(), worth.remaining_s, worth.saving_w, worth.search_s))
            return phase
        self._limit_search_budget(phase)
        self._search_phase(phase)
        return phase

    def _enter_phase(self, phase: Phase, seconds_by_settings: SecondsBySettings) -> None:
        """From here on time is reckoned as that phase's, with what was measured before it was known."""
        for settings, seconds in (*seconds_by_settings.items(), *self._late_seconds.items()):
            phase.seconds_by_settings[settings] = phase.seconds_by_settings.get(settings, 0.0) + seconds
        self._meter.seconds_by_settings, self._late_seconds = phase.seconds_by_settings, {}

    def _leave_phase(self, phase: Phase, late_s: float) -> None:
        """The phase has been over for so long: the time since then is the next one's."""
        late = min(late_s, phase.seconds_by_settings.get(phase.choice, 0.0))
        if late > 0:
            phase.seconds_by_settings[phase.choice] -= late
            self._late_seconds = {phase.choice: late}

    def _limit_search_budget(self, phase: Phase) -> None:
        """Search and choose within what the job has left of its slowdown."""
        lasts = estimate_remaining_s(self._policy, self._probe.now() - self._start_s)
        # A pause gives nothing back: no step was quick in it.
        worked = sum(seconds for known in self._phases for seconds in known.seconds_by_settings.values())
        budget = compute_affordable_slowdown(self._policy, worked, lasts, estimate_time_loss(self._phases))
        phase.search = replace(phase.search, policy=replace(self._policy, max_slowdown=budget))

    def _search_phase(self, phase: Phase) -> None:
        phase.searched_max_slowdown = phase.search.policy.max_slowdown
        run_search(self._meter, phase, self._gears, self._on_event)

    def _has_budget_returned(self, phase: Phase) -> bool:
        """Whether the last search had to keep less than may be used now."""
        whole = self._policy.max_slowdown
        short = self._policy.objective == "energy" and phase.searched_max_slowdown < MIN_BUDGET_SHARE * whole
        return short and phase.search.policy.max_slowdown >= whole

    def _watch_phase(self, phase: Phase) -> str:
        """Until the job is another; returns the level of the change."""
        watch, pulse, held = (
            ChangeDetector(phase.compute_look_s(), phase.get_expected_signature()),
            BeatMonitor(),
            WatchedStretch(self._probe),
        )
        checks, wait = self._make_check_schedule(phase), 0.0
        while True:
            window = phase.compute_look_s()
            samples = self._meter.record(window)
            if phase.is_idle(samples):
                self._wait_while_idle()
                held = WatchedStretch(self._probe)
                continue
            pulse.add_look(self._probe.now(), phase.track_period(samples))
            off = watch.is_deviating(watch.measure_distance(samples))
            if off:
                lasting = self._confirm_change(phase, watch, pulse, window)
                held = WatchedStretch(self._probe)
                if lasting >= MIN_CHANGE:
                    self._leave_phase(phase, CONFIRM_S)
                    return self._report_shift("large" if lasting >= LARGE_CHANGE else "small", lasting)
                suspected = lasting > 0 or watch.is_unstable()
            else:
                watch.update_reference()
                held.add_samples(samples)
                suspected = False
            now = self._probe.now()
            suspected |= pulse.is_lost(now)
            if watch.is_ready() and checks.is_due(now, suspected):
                since = now - checks.last_s
                verdict = self._check_choice(phase, held, checks.gap_s)
                held, wait = WatchedStretch(self._probe), 0.0
                if verdict == "searched":
                    checks = self._make_check_schedule(phase)
                elif verdict != "doubt":
                    checks.record_agreement(self._probe.now())
                elif checks.record_doubt(self._probe.now()):
                    # Nobody knows when it began.
                    self._leave_phase(phase, since / 2)
                    return self._report_shift("small", NOT_MEASURED)
                if verdict in ("moved", "searched") or suspected:
                    watch, pulse = (
                        ChangeDetector(phase.compute_look_s(), phase.get_expected_signature()),
                        BeatMonitor(),
                    )
            elif watch.is_ready() and not off:
                wait = min(max(window, 2 * wait), MAX_WAIT_S)
                samples = self._meter.record(wait)
                if phase.is_idle(samples):
                    held = WatchedStretch(
                        self._probe
                    )  # What stood still for a while says nothing of the choice.
                else:
                    held.add_samples(samples)

    def _make_check_schedule(self, phase: Phase) -> CheckSchedule:
        """Those of a choice just made."""
        unsure = phases.predict_choice(phase).slowdown_error > CONFIDENT_SIGMA
        if phase.readings.has_uncertain_progress():
            gap = EARLY_CHECK_S
        else:
            gap = max(
                EARLY_CHECK_S if unsure else FIRST_CHECK_S,
                phase.progress.compute_window_s() / MAX_CHECK_SHARE,
            )
        return CheckSchedule(self._probe.now(), gap)

    def _report_shift(self, level: str, size: float) -> str:
        self._on_event(Shifted(self._probe.now(), level, size))
        return level

    def _confirm_change(
        self, phase: Phase, detector: ChangeDetector, beat_monitor: BeatMonitor, window_s: float
    ) -> float:
        """How far the job is off, if it stays so, else 0; an evaluation comes and goes."""
        least = float("inf")
        until = self._probe.now() + max(CONFIRM_S, 3 * window_s)
        while self._probe.now() < until:
            samples = self._meter.record(window_s)
            if phase.is_idle(samples):
                self._wait_while_idle()
                return 0.0
            beat_monitor.add_look(self._probe.now(), phase.track_period(samples))
            distance = detector.measure_distance(samples)
            if not detector.is_deviating(distance):
                return 0.0
            least = min(least, distance)
        return least

    def _wait_while_idle(self) -> None:
        """Limits stay as they are: the work that comes back must not be punished."""
        began, self._meter.seconds_by_settings, held = self._probe.now(), {}, self._meter.seconds_by_settings
        self._on_event(Idled(began))
        while not has_work(self._meter.record(WORK_POLL_S)):
            pass
        self._meter.seconds_by_settings = held
        self._on_event(Resumed(self._probe.now(), self._probe.now() - began))

    def _check_choice(self, phase: Phase, stretch: WatchedStretch, gap_s: float) -> CheckVerdict:
        """A/B/A: the choice, the default, and the choice again in what follows."""
        if not self._can_set:
            return "agreed"
        if phase.choice == Settings():
            # There is nothing to hold against the default, but what may be lost may have been given back.
            return self._update_choice(phase) if phase.readings.other_readings else "agreed"
        expected = phases.predict_choice(phase)
        # What is held is told by bytes, which say nothing across memory clocks.
        by_bytes = phase.readings.has_uncertain_progress() and phase.choice.memory_mhz is None
        seen = stretch.make_reading(phase.progress, phase.choice) if by_bytes else None
        if seen is not None and not is_disturbed(phase.readings, seen):
            phases.add_reading(self._meter, phase, seen, "check", self._on_event)
        elif not phases.measure_settings(self._meter, phase, phase.choice, "check", self._on_event):
            return "doubt"
        usual = self._meter.compute_max_reading_s(phase.progress)
        longest = (
            max(MAX_UNCERTAIN_CHECK_SHARE * gap_s, usual)
            if phase.readings.has_uncertain_progress()
            else MAX_CHECK_SHARE * gap_s
        )
        if not phases.remeasure_default(self._meter, phase, self._on_event, longest):
            # What disturbed the default may have begun before it.
            phase.readings.other_readings.pop()
            self._meter.set_limits(phase.choice, "the choice after a check")
            return "doubt"
        phase.is_refuted = phase.readings.has_refuted(expected)
        if phase.is_refuted:
            phase.readings.other_readings.pop()
            phase.readings.default_readings.pop()
            self._meter.set_limits(phase.choice, "the choice after a check")
            return "doubt"
        if (told := phases.summarise_checks(phase, self._probe.now())) is not None:
            self._on_event(told)
        return self._update_choice(phase)

    def _update_choice(self, phase: Phase) -> CheckVerdict:
        """By what is believed, and may be lost, now."""
        self._limit_search_budget(phase)
        if self._has_budget_returned(phase):
            phase.readings = PhaseReadings(phase.readings.default_readings[-1:])
            phase.search = replace(phase.search, memory_mhz=None)
            self._search_phase(phase)
            return "searched"
        before = phase.choice
        after = phases.choose_settings(phase)
        base = phase.search.get_default_limit(phase.readings)
        gears = [phase.search.control.get_value(s) or base for s in (before, after)]
        moved = abs(gears[1] / gears[0] - 1) > MIN_MOVE_SHARE or before.memory_mhz != after.memory_mhz
        if not moved:
            self._meter.set_limits(before, "the choice after a check")
            return "agreed"
        phase.choice = after
        self._apply_choice(after, "the check moved the choice")
        return "moved"

    def _apply_choice(self, choice: Settings, why: str) -> None:
        """Another choice, told too where it is the default, which was just measured: nothing is set then."""
        if choice == self._actuator.settings():
            self._on_event(Applied(self._probe.now(), choice, why))
        self._meter.set_limits(choice, why)
