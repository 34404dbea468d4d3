"""The control loop: measure a phase, set its choice, watch for changes; begin again after one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ekc.errors import EkcError
from ekc.governor import phase as phases
from ekc.governor.accounting import account_savings
from ekc.governor.change_detection import (
    CONFIRM_S,
    EARLY_CHECK_S,
    FIRST_CHECK_S,
    LARGE_CHANGE,
    MIN_CHANGE,
    BeatMonitor,
    ChangeDetector,
    CheckSchedule,
    is_disturbed,
    is_same_phase,
)
from ekc.governor.decision import CONFIDENT_SIGMA
from ekc.governor.event_records import (
    Applied,
    Ended,
    EventCallback,
    Idled,
    LimitsTaken,
    Resumed,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.job_limits import (
    LimitMissed,
    estimate_payoff,
    estimate_remaining_s,
    explain_missed_cap,
    has_budget_returned,
    make_phase_policy,
)
from ekc.governor.job_meter import (
    PASSING_FAILURES,
    WORK_POLL_S,
    DriverRetries,
    JobEnded,
    JobMeter,
    TotalsBySettings,
    WatchedStretch,
)
from ekc.governor.phase import Phase
from ekc.governor.protocols import Actuator, LimitTaken, Probe, Settings
from ekc.governor.readings import NOT_MEASURED, PhaseReadings
from ekc.governor.request import Policy
from ekc.governor.response_model import ResponseModel
from ekc.governor.samples import has_work
from ekc.governor.saved_choice import SavedChoice, SaveFunction, list_choices, try_choice

MAX_WAIT_S = 40.0
"""Longest pause between two looks in seconds; the pause doubles while nothing changes."""
MAX_CHECK_SHARE = 0.08
"""Longest reading of the default in a check, as a share of the gap between checks: it saves nothing."""
MAX_UNCERTAIN_CHECK_SHARE = 0.12
"""The same where a reading of a minute has a large error: an uncertain choice may be too slow."""
MIN_MOVE_SHARE = 0.006
"""Least relative change of the clock after a check."""
CheckVerdict = Literal["agreed", "moved", "searched", "doubt"]
"""Result of a check: the choice stays, moves, comes from another search, or the readings disagree."""


@dataclass(frozen=True)
class GovernResult:
    """Result of a governed job."""

    seconds: float
    joules: float
    """Joules of the board in that time."""
    phases: tuple[Phase, ...]


def govern(
    probe: Probe,
    actuator: Actuator,
    policy: Policy | None = None,
    on_event: EventCallback = lambda event: None,
    saved: Sequence[SavedChoice] = (),
    save: SaveFunction = lambda choices: None,
    model: ResponseModel | None = None,
) -> GovernResult:
    """Govern one job until it ends.

    Limits are set by `actuator.apply` only. Nothing is restored at the end; the owner of the actuator does
    that. `saved`: choices of an earlier run, which are tried first; `save` gets those of this run after each
    check and at the end. `model` says which clock a search tries first. Where the driver fails for a while,
    the job is measured again later (`DriverRetries`). Raises what else probe and actuator raise. An actuator
    that cannot set anything leaves the job as it is: it is only measured.
    """
    return _ControlLoop(probe, actuator, policy or Policy(), on_event, saved, save, model).run()


class _ControlLoop:
    def __init__(
        self,
        probe: Probe,
        actuator: Actuator,
        policy: Policy,
        on_event: EventCallback,
        saved: Sequence[SavedChoice] = (),
        save: SaveFunction = lambda choices: None,
        model: ResponseModel | None = None,
    ) -> None:
        self._probe = probe
        self._policy = policy
        self._on_event = on_event
        self._start_s, self._start_j = probe.now(), probe.read_energy_j()
        self._actuator = actuator
        self._list_offered()
        self._meter = JobMeter(probe, actuator, on_event)
        self._saved, self._save, self._model = saved, save, model
        self._retries = DriverRetries(probe, actuator, on_event)
        self._phases: list[Phase] = []
        self._unfinished: Phase | None = None  # No limits have been chosen for it yet.
        self._late_totals: tuple[TotalsBySettings, TotalsBySettings] = ({}, {})
        """Seconds and joules under each setting that belong to the next phase, which began before it was
        noticed."""

    def _list_offered(self) -> None:
        self._offered = self._actuator.list_offered()
        self._can_set = bool(self._offered.sm_mhz or self._offered.power_w)

    def run(self) -> GovernResult:
        start, labels = self._start_s, (self._probe.label, self._actuator.label)
        simulated = self._probe.simulated or self._actuator.simulated
        self._on_event(Started(start, *labels, simulated, self._policy.objective))
        with contextlib.suppress(JobEnded):
            self._run_phases()
        totals = self._probe.now() - start, self._probe.read_energy_j() - self._start_j
        self._report_savings()
        self._save(list_choices(self._phases))
        self._on_event(Ended(self._probe.now(), *totals))
        return GovernResult(*totals, tuple(self._phases))

    def _report_savings(self) -> None:
        if self._can_set:
            self._meter.count_joules()
            joules = self._probe.read_energy_j() - self._start_j
            self._on_event(account_savings(self._phases, self._policy, self._probe.now(), joules))

    def _run_phases(self) -> None:
        level = "large"
        current: Phase | None = None
        while True:
            try:
                self._wait_for_work()
                current = self._learn_phase(level, current)
                self._unfinished = None
                self._retries.note_success()
                level = self._watch_phase(current)
            except LimitTaken:
                self._begin_anew()
                level, current = "large", None
            except PASSING_FAILURES as problem:
                self._recover(problem)
                level, current = "large", None

    def _recover(self, problem: EkcError) -> None:
        """Wait until the driver may answer again, in no account; an interrupted search begins again."""
        self._meter.switch_account({}, {})
        self._late_totals = ({}, {})
        if self._unfinished is not None:
            self._unfinished.is_refuted = True
        self._retries.recover(problem, self._phases[-1].progress.period_s if self._phases else NOT_MEASURED)

    def _begin_anew(self) -> None:
        """Others have set a limit: earlier readings are not comparable, and fewer limits can be set."""
        self._list_offered()
        self._late_totals = ({}, {})
        for phase in self._phases:
            phase.is_refuted = True
        self._on_event(LimitsTaken(self._probe.now(), tuple(sorted(self._actuator.taken_limits()))))

    def _wait_for_work(self) -> None:
        """Wait while no kernel runs."""
        began = self._probe.now()
        # An iteration may wait for its input for so long.
        for _ in range(9):
            if has_work(self._meter.record(WORK_POLL_S)):
                return
        self._on_event(Idled(self._probe.now()))
        while not has_work(self._meter.record(WORK_POLL_S)):
            pass
        self._on_event(Resumed(self._probe.now(), self._probe.now() - began))

    def _learn_phase(self, level: str, last_phase: Phase | None) -> Phase:
        """Measure the job and choose limits; an earlier phase that has returned keeps its choice."""
        self._meter.switch_account({}, {})
        phase = phases.begin_phase(self._meter, self._policy, self._offered)
        doubted = last_phase if level == "doubt" else None
        if (earlier := self._find_earlier_phase(phase, doubted)) is not None:
            self._on_event(Shifted(self._probe.now(), "known", NOT_MEASURED))
            self._enter_phase(earlier)
            self._apply_choice(earlier.choice, "the choice for a phase seen before")
            return earlier
        self._phases.append(phase)
        self._unfinished = phase
        self._enter_phase(phase)
        if level != "large" and last_phase is not None:
            # The search starts at the default memory clock: the old choice may not suit the new work.
            phase.search = replace(last_phase.search, memory_mhz=None, first_value=None)
        first = phase.readings.default_readings[0]
        payoff = estimate_payoff(
            self._policy, self._probe.now() - self._start_s, phase.progress.compute_window_s(), first.watts
        )
        has_to_search = payoff.is_worthwhile or self._policy.has_power_cap
        if not has_to_search or not self._can_set:
            self._on_event(Skipped(self._probe.now(), payoff.remaining_s, payoff.saving_w, payoff.search_s))
            return phase
        self._limit_search_budget(phase)
        if not self._try_saved_choice(phase):
            if self._model is not None:
                phases.predict_first_value(self._meter, phase, self._model)
            self._search_phase(phase)
        return phase

    def _try_saved_choice(self, phase: Phase) -> bool:
        """Try the choice that an earlier run made in such a phase; False where there is none to trust."""
        found = [one for one in self._saved if one.is_for(phase) and one.can_be_set(self._offered)]
        if not found or not try_choice(self._meter, phase, found[0]):
            return False
        phase.searched_max_slowdown = phase.search.policy.max_slowdown
        return True

    def _find_earlier_phase(self, phase: Phase, doubted: Phase | None) -> Phase | None:
        """An earlier phase that has returned. Where that is the one that checks have just doubted, the job
        has not changed: its readings were wrong."""
        for earlier in self._phases:
            if not earlier.is_refuted and is_same_phase(
                phase.default_signature, phase.progress, earlier.default_signature, earlier.progress
            ):
                if earlier is not doubted:
                    return earlier
                earlier.is_refuted = True
        return None

    def _enter_phase(self, phase: Phase) -> None:
        """Count time and energy for a phase from now on, and add those before it was identified."""
        meter = self._meter
        meter.count_joules()
        before = (meter.seconds_by_settings, meter.joules_by_settings)
        for own, *others in zip(
            (phase.seconds_by_settings, phase.joules_by_settings), before, self._late_totals, strict=True
        ):
            for settings, amount in (item for other in others for item in other.items()):
                own[settings] = own.get(settings, 0.0) + amount
        meter.switch_account(phase.seconds_by_settings, phase.joules_by_settings)
        self._late_totals = ({}, {})

    def _leave_phase(self, phase: Phase, late_s: float) -> None:
        """The phase ended `late_s` ago: count time and energy since then for the next one."""
        self._meter.count_joules()
        held_s = phase.seconds_by_settings.get(phase.choice, 0.0)
        if (seconds := min(late_s, held_s)) > 0:
            joules = phase.joules_by_settings.get(phase.choice, 0.0) * seconds / held_s
            phase.seconds_by_settings[phase.choice] -= seconds
            phase.joules_by_settings[phase.choice] = phase.joules_by_settings.get(phase.choice, 0.0) - joules
            self._late_totals = ({phase.choice: seconds}, {phase.choice: joules})

    def _limit_search_budget(self, phase: Phase) -> None:
        """Set the limits of the job, as far as they are left, as those of the phase's search."""
        elapsed_s, steps = self._probe.now() - self._start_s, self._probe.read_step_count()
        policy, problem = make_phase_policy(self._policy, phase, self._phases, elapsed_s, steps)
        remaining_s = estimate_remaining_s(self._policy, elapsed_s)
        phase.search = replace(phase.search, policy=policy, remaining_s=remaining_s)
        self._report_missed_limit(problem)

    def _report_missed_limit(self, problem: str | None) -> None:
        if problem is not None:
            self._on_event(LimitMissed(self._probe.now(), problem))

    def _search_phase(self, phase: Phase) -> None:
        phase.searched_max_slowdown = phase.search.policy.max_slowdown
        phases.run_search(self._meter, phase, self._offered)
        self._report_missed_limit(explain_missed_cap(phase))

    def _watch_phase(self, phase: Phase) -> str:
        """Watch until the job changes; returns the level of the change, "doubt" where only checks show it."""
        detector, beat_monitor = phase.make_monitors()
        stretch = WatchedStretch(self._meter)
        checks, wait_s = self._make_check_schedule(phase), 0.0
        while True:
            look_s = phase.compute_look_s()
            samples = self._meter.record(look_s)
            if phase.is_idle(samples):
                self._meter.wait_while_idle()
                stretch = WatchedStretch(self._meter)
                continue
            beat_monitor.add_look(self._probe.now(), phase.track_period(samples))
            is_deviating = detector.is_deviating(detector.measure_distance(samples))
            if is_deviating:
                change = self._confirm_change(phase, detector, beat_monitor, look_s)
                stretch = WatchedStretch(self._meter)
                if change >= MIN_CHANGE:
                    self._leave_phase(phase, CONFIRM_S)
                    level = "large" if change >= LARGE_CHANGE else "small"
                    self._on_event(Shifted(self._probe.now(), level, change))
                    return level
                suspected = change > 0 or detector.is_unstable()
            else:
                detector.update_reference()
                stretch.add_samples(samples)
                suspected = False
            now_s = self._probe.now()
            suspected |= beat_monitor.is_lost(now_s)
            if detector.is_ready() and checks.is_due(now_s, suspected):
                since_s = now_s - checks.last_s
                verdict = self._check_choice(phase, stretch, checks.gap_s)
                stretch, wait_s = WatchedStretch(self._meter), 0.0
                if verdict == "searched":
                    checks = self._make_check_schedule(phase)
                elif verdict != "doubt":
                    checks.record_agreement(self._probe.now())
                elif checks.record_doubt(self._probe.now()):
                    # The change began at an unknown time since the last check.
                    self._leave_phase(phase, since_s / 2)
                    self._on_event(Shifted(self._probe.now(), "small", NOT_MEASURED))
                    return "doubt"
                if verdict in ("moved", "searched") or suspected:
                    detector, beat_monitor = phase.make_monitors()
            elif detector.is_ready() and not is_deviating:
                wait_s = min(max(look_s, 2 * wait_s), MAX_WAIT_S)
                samples = self._meter.record(wait_s)
                if phase.is_idle(samples):
                    stretch = WatchedStretch(self._meter)
                else:
                    stretch.add_samples(samples)

    def _make_check_schedule(self, phase: Phase) -> CheckSchedule:
        """Check schedule of a choice just made."""
        if phase.readings.has_uncertain_progress():
            return CheckSchedule(self._probe.now(), EARLY_CHECK_S)
        is_unsure = phase.predict_choice().slowdown_error > CONFIDENT_SIGMA
        first_s = EARLY_CHECK_S if is_unsure else FIRST_CHECK_S
        gap = max(first_s, phase.progress.compute_window_s() / MAX_CHECK_SHARE)
        return CheckSchedule(self._probe.now(), gap)

    def _confirm_change(
        self, phase: Phase, detector: ChangeDetector, beat_monitor: BeatMonitor, window_s: float
    ) -> float:
        """Least distance from the reference over `CONFIRM_S`; 0 if the job returns, as from an evaluation."""
        smallest = float("inf")
        end_s = self._probe.now() + max(CONFIRM_S, 3 * window_s)
        while self._probe.now() < end_s:
            samples = self._meter.record(window_s)
            if phase.is_idle(samples):
                self._meter.wait_while_idle()
                return 0.0
            beat_monitor.add_look(self._probe.now(), phase.track_period(samples))
            distance = detector.measure_distance(samples)
            if not detector.is_deviating(distance):
                return 0.0
            smallest = min(smallest, distance)
        return smallest

    def _check_choice(self, phase: Phase, stretch: WatchedStretch, gap_s: float) -> CheckVerdict:
        """Check a choice by A/B/A: a reading of the choice, then of the default; the choice again after."""
        if not self._can_set:
            return "agreed"
        if self._policy.has_power_cap:
            return self._check_power(phase)
        if phase.choice == Settings():
            # The default needs no check, but the full budget may be available again.
            return self._update_choice(phase) if phase.readings.other_readings else "agreed"
        expected = phase.predict_choice()
        # A watched stretch is measured by bytes, which are not comparable across memory clocks.
        by_bytes = phase.readings.has_uncertain_progress() and phase.choice.memory_mhz is None
        reading = stretch.make_reading(phase.progress, phase.choice) if by_bytes else None
        if reading is not None and not is_disturbed(phase.readings, reading):
            phases.add_reading(self._meter, phase, reading, "check")
        elif not phases.measure_settings(self._meter, phase, phase.choice, "check"):
            return "doubt"
        longest_s = MAX_CHECK_SHARE * gap_s
        if phase.readings.has_uncertain_progress():
            usual_s = self._meter.compute_max_reading_s(phase.progress)
            longest_s = max(MAX_UNCERTAIN_CHECK_SHARE * gap_s, usual_s)
        is_doubtful = not phases.remeasure_default(self._meter, phase, longest_s)
        if not is_doubtful:
            phase.is_refuted = is_doubtful = phase.readings.has_refuted(expected)
            if is_doubtful:
                phase.readings.default_readings.pop()
        if is_doubtful:
            # A disturbance may have begun before the default was set, so the reading of the choice goes too.
            phase.readings.other_readings.pop()
            self._meter.set_limits(phase.choice, "the choice after a check")
            return "doubt"
        phase.agreed_checks += 1
        phase.search = replace(phase.search, is_checked=True)
        if (summary := phases.summarise_checks(phase, self._probe.now())) is not None:
            self._on_event(summary)
            self._report_savings()
        verdict = self._update_choice(phase)
        self._save(list_choices(self._phases))
        return verdict

    def _check_power(self, phase: Phase) -> CheckVerdict:
        """Check a choice under a power cap by its own watts: the default might be above the cap."""
        if phase.choice == Settings():
            is_measured = phases.remeasure_default(self._meter, phase)
        else:
            is_measured = phases.measure_settings(self._meter, phase, phase.choice, "check")
        if not is_measured:
            return "doubt"
        self._report_savings()
        self._limit_search_budget(phase)
        if phase.choice == Settings() and not phase.search.is_default_within_cap():
            self._search_phase(phase)
            return "searched"
        phase.agreed_checks += 1
        verdict = self._update_choice(phase)
        self._report_missed_limit(explain_missed_cap(phase))
        self._save(list_choices(self._phases))
        return verdict

    def _update_choice(self, phase: Phase) -> CheckVerdict:
        """Choose again by the present readings and budget; search again if the full budget has returned."""
        self._limit_search_budget(phase)
        if has_budget_returned(self._policy, phase):
            phase.readings = PhaseReadings(phase.readings.default_readings[-1:])
            phase.search = replace(phase.search, memory_mhz=None)
            self._search_phase(phase)
            return "searched"
        before = phase.choice
        after = phase.search.choose_settings(phase.readings, before)
        default_limit = phase.search.get_default_limit(phase.readings)
        values = [phase.search.control.get_value(s) or default_limit for s in (before, after)]
        has_moved = abs(values[1] / values[0] - 1) > MIN_MOVE_SHARE or before.memory_mhz != after.memory_mhz
        if not has_moved:
            self._meter.set_limits(before, "the choice after a check")
            return "agreed"
        phase.choice = after
        self._apply_choice(after, "the check moved the choice")
        return "moved"

    def _apply_choice(self, choice: Settings, why: str) -> None:
        """Set a choice; report it also where it is the default, which is in force already."""
        if choice == self._actuator.settings():
            self._on_event(Applied(self._probe.now(), choice, why))
        self._meter.set_limits(choice, why)
