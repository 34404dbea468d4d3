"""The loop where the job changes, seems to, or comes back: what is searched anew, and what is not kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ekc.governor import phase as phases
from ekc.governor.events import Applied, Checked, Chosen, Event, EventCallback, Measured, PeriodFound, Shifted
from ekc.governor.loop import _ControlLoop, govern
from ekc.governor.measure import JobEnded, JobMeter, WatchedStretch
from ekc.governor.phase import Phase
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from ekc.governor.simulation.card import find_card
from ekc.governor.simulation.job import JobStage
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.run import SimulatedRun
from ekc.governor.simulation.timeline import Timeline, insert_evaluations, sample_iterations
from tests.governor.made_jobs import (
    FORWARD_STAGE,
    STAGE_SECONDS,
    STAGES,
    DisturbedRun,
    make_iterations,
    make_job,
    run_at_default,
    run_governed,
    select_events,
)


def test_a_true_change_is_found_and_searched_anew() -> None:
    made = make_job([make_iterations(900), make_iterations(1200, 1, (1, 4), (0.3, 0.8)).with_regime(1)])
    run = SimulatedRun(made)
    shifts: list[tuple[Shifted, int]] = []
    chosen: list[Chosen] = []

    def note(event: Event) -> None:
        if isinstance(event, Shifted):
            shifts.append((event, run.get_regime()))
        if isinstance(event, Chosen):
            chosen.append(event)

    govern(run, run, on_event=note)
    ((shift, regime),) = shifts
    assert regime == 1
    assert shift.at_s < 1300
    first, second = chosen
    # What is bound by memory can be slowed further.
    assert second.settings.sm_mhz < first.settings.sm_mhz


@pytest.mark.parametrize("hooks", [False, True])
def test_a_job_that_becomes_one_that_draws_as_much_is_told_by_its_beat(hooks: bool) -> None:
    """Held at the clocks of the job before, this very one ended 7.0 % slower (7.3 % with hooks)."""
    made = sample_job(505, "drifting", "rtx3090")
    run = SimulatedRun(made, has_hooks=hooks)
    shifted: list[int] = []
    govern(run, run, on_event=lambda e: shifted.append(run.get_regime()) if isinstance(e, Shifted) else None)
    assert shifted == [1]
    assert run.now() / run_at_default(made).now() - 1 < 0.06


@pytest.mark.parametrize("hooks", [False, True])
def test_a_choice_that_checks_refute_is_not_taken_up_again(hooks: bool) -> None:
    """Work that draws as much at the default in as long a beat, and follows the clock much more: what was
    chosen for the work before was taken up time after time, 8 % slower to the end."""
    stages = (*STAGES, replace(FORWARD_STAGE, core=0.45), replace(FORWARD_STAGE, core=0.98))
    parts = [make_iterations(600, 1, (1, 5, 3)), make_iterations(4000, 2, (1, 6, 3)).with_regime(1)]
    made = Timeline.concatenate(parts).make_job("made", "made", find_card("h200"), stages, 0.0)
    run, told = run_governed(made, hooks=hooks)
    assert run.now() / run_at_default(made).now() - 1 < 0.06
    assert len(select_events(told, Chosen)) == 2
    (shifted,) = select_events(told, Shifted)
    # Checks told it: no size was measured.
    assert shifted.line() == "the job changed (small)"


def make_governor_after_loss(
    low_s: float,
    seconds: float = 600.0,
    on_event: EventCallback = lambda event: None,
    pause_s: float | None = None,
) -> tuple[_ControlLoop, Phase]:
    """A job whose work before was held at 1200 MHz for so much of a quarter of an hour; the work of now is
    learned. With a pause between the two it is told how long the job goes on."""
    run = SimulatedRun(make_job([make_iterations(seconds)]))
    meter = JobMeter(run, run, lambda event: None)
    policy = Policy() if pause_s is None else Policy(remaining_s=3000.0 + pause_s)
    governor = _ControlLoop(run, run, policy, on_event, None)
    governor._start_s = run.now() - 900.0 - (pause_s or 0.0)
    other = phases.begin_phase(meter, Policy(), run.gears(), lambda event: None)
    assert phases.measure_settings(meter, other, Settings(sm_mhz=1200), "candidate", lambda event: None)
    other.seconds_by_settings = {Settings(): 900.0 - low_s, Settings(sm_mhz=1200): low_s}
    other.default_signature = 2 * other.default_signature  # Of other work.
    governor._phases.append(other)
    return governor, governor._learn_phase("large", None)


def test_what_an_unnoticed_change_cost_is_saved_again() -> None:
    """The choice for the same work, after a change that cost 3 % and without one."""
    after, without = (make_governor_after_loss(low_s)[1].choice.sm_mhz for low_s in (200.0, 0.0))
    assert after is not None
    assert without is not None
    assert after > without


def test_a_pause_gives_no_loss_back() -> None:
    budgets = [
        make_governor_after_loss(200.0, pause_s=p)[1].search.policy.max_slowdown for p in (0.0, 7200.0)
    ]
    assert budgets[0] < 0.045
    assert budgets[1] == pytest.approx(budgets[0], abs=1e-3)


@pytest.mark.parametrize("low_s", [300.0, 600.0])
def test_once_a_loss_is_saved_again_the_job_is_no_longer_held_at_its_default(low_s: float) -> None:
    """It stayed there to its end, or at the only clock that the small budget had let it read."""
    governor, phase = make_governor_after_loss(low_s, 7000.0)
    assert phase.search.policy.max_slowdown < 0.005
    assert phase.choice.sm_mhz is None or phase.choice.sm_mhz > 1900
    with pytest.raises(JobEnded):
        governor._watch_phase(phase)
    wanted = make_governor_after_loss(0.0)[1].choice.sm_mhz
    assert phase.choice.sm_mhz == pytest.approx(wanted, rel=0.03)


def test_a_default_that_a_check_chose_is_left_when_the_loss_is_saved_again() -> None:
    told: list[Event] = []
    governor, phase = make_governor_after_loss(0.0, on_event=told.append)
    before = phase.choice
    (lost,) = (p for p in governor._phases if p is not phase)
    usual, lost.seconds_by_settings = lost.seconds_by_settings, {Settings(sm_mhz=1200): 900.0}
    governor._meter.set_limits(Settings(), "the default again")
    assert governor._update_choice(phase) == "moved"
    assert phase.choice == Settings()
    assert told[-1] == Applied(governor._probe.now(), Settings(), "the check moved the choice")
    lost.seconds_by_settings = usual
    assert governor._check_choice(phase, WatchedStretch(governor._probe), 240.0) == "moved"
    assert phase.choice == before


def test_a_phase_seen_before_is_taken_up_without_a_search() -> None:
    other = make_iterations(600, 1, (1, 4), (0.3, 0.8)).with_regime(1)
    _, told = run_governed(make_job([make_iterations(600), other, make_iterations(900, 2)]))
    assert [s.level for s in select_events(told, Shifted)][-1] == "known"
    assert len(select_events(told, Chosen)) == 2
    assert select_events(told, Applied)[-1].settings.sm_mhz is not None


def test_evaluations_are_no_change() -> None:
    rng = np.random.default_rng(4)
    evaluated = insert_evaluations(rng, make_iterations(1500), np.array([1, 4]), np.array([0.05, 0.4]))
    run, told = run_governed(make_job([evaluated]))
    assert not select_events(told, Shifted)
    assert select_events(told, Checked)
    assert run.now() < 1.06 * run_at_default(make_job([evaluated])).now()


def _make_phase_after_disturbance(run: SimulatedRun) -> Phase:
    """A phase begun in the training: a default read in other work, at 75 s, is not kept; one at 125 s is."""
    meter = JobMeter(run, run, lambda event: None)
    phase = phases.begin_phase(meter, Policy(), run.gears(), lambda event: None)
    run.record(75 - run.now())
    assert not phases.remeasure_default(meter, phase, lambda event: None)
    run.record(125 - run.now())
    assert phases.remeasure_default(meter, phase, lambda event: None)
    return phase


def test_a_default_read_in_an_evaluation_is_no_proof_that_there_is_no_beat() -> None:
    """Taken for one, it held a job 6.4 % slower than its default where 5 % were allowed."""
    other = sample_iterations(np.random.default_rng(2), np.array([1, 2]), np.array([0.05, 0.37]), 60.0)
    run = SimulatedRun(make_job([make_iterations(60), other, make_iterations(60, 1)]))
    phase = _make_phase_after_disturbance(run)
    assert phase.progress.kind == "period"
    assert len(phase.readings.default_readings) == 2


def test_a_default_of_other_work_is_not_kept_even_if_its_beat_would_do() -> None:
    """One that was, of an evaluation with nearly the beat of the training, held a job 7.5 % slower."""
    other = sample_iterations(np.random.default_rng(2), np.array([1, 2]), np.array([0.05, 1.45]), 60.0)
    for hooks in (False, True):
        run = SimulatedRun(make_job([make_iterations(60), other, make_iterations(60, 1)]), has_hooks=hooks)
        _make_phase_after_disturbance(run)


def test_a_beat_that_drifts_fast_is_no_other_job() -> None:
    """Held against the last default alone, nine minutes old, this one's was twice taken for another."""
    _, told = run_governed(
        make_job([sample_iterations(np.random.default_rng(0), np.arange(1, 4), STAGE_SECONDS, 2400.0, -0.4)])
    )
    assert not select_events(told, Shifted)
    assert select_events(told, PeriodFound)[-1].verdict == "periodic"
    assert len(select_events(told, Checked)) >= 2


def test_a_reading_of_other_work_than_under_the_same_limits_before_is_not_kept() -> None:
    other = sample_iterations(np.random.default_rng(2), np.array([1, 2]), np.array([0.05, 1.45]), 90.0)
    run = SimulatedRun(make_job([make_iterations(60), other, make_iterations(60, 1)]))
    meter = JobMeter(run, run, lambda event: None)
    phase = phases.begin_phase(meter, Policy(), run.gears(), lambda event: None)
    low = Settings(sm_mhz=1700)
    assert phases.measure_settings(meter, phase, low, "candidate", lambda event: None)
    strays = phase.progress.bytes_variance
    run.record(80 - run.now())
    assert not phases.measure_settings(meter, phase, low, "check", lambda event: None)
    assert len(phase.readings.other_readings) == 1
    assert phase.progress.bytes_variance == strays


def test_steps_of_another_length_are_another_job() -> None:
    """Its watts and bytes may be much the same."""
    shorter = sample_iterations(np.random.default_rng(2), np.arange(1, 4), 0.6 * STAGE_SECONDS, 60.0)
    run = SimulatedRun(make_job([make_iterations(60), shorter]), has_hooks=True)
    meter = JobMeter(run, run, lambda event: None)
    phase = phases.begin_phase(meter, Policy(), run.gears(), lambda event: None)
    assert phases.remeasure_default(meter, phase, lambda event: None)
    run.record(70 - run.now())
    assert not phases.remeasure_default(meter, phase, lambda event: None)


def test_what_was_read_before_a_disturbed_default_is_not_kept() -> None:
    class Visited(DisturbedRun):
        """Disturbed just where the default is read for the first check."""

        idle_s = (0.0, 0.0)

        def apply(self, settings: Settings) -> None:
            super().apply(settings)
            if settings == Settings() and self.now() > 150 and not self.idle_s[1]:
                self.idle_s = (self.now(), self.now() + 30)

    run, told = Visited(make_job([make_iterations(900)])), []
    govern(run, run, on_event=told.append)
    read = [e for e in told if isinstance(e, Checked) or (isinstance(e, Measured) and e.purpose == "check")]
    assert [type(e) for e in read[:3]] == [Measured, Measured, Checked]


def test_a_small_change_is_searched_at_the_memory_clock_of_the_default() -> None:
    """At the one that suited the old work the new one once ran 20 % slower until it ended."""
    lonely = JobStage("arithmetic", 0.995, 1.0, 0.6, 100.0, 6.0, 90.0, 0.0)
    mixed = JobStage("some memory", 0.75, 1.0, 0.62, 100.0, 16.0, 80.0, 0.0)
    parts = [
        make_iterations(400, 0, (1, 5), (0.3, 1.5)),
        make_iterations(500, 1, (1, 6), (0.3, 1.2)).with_regime(1),
    ]
    whole = Timeline.concatenate(parts)
    made = whole.make_job("memory matters later", "made", find_card("rtx3090"), (*STAGES, lonely, mixed), 0.0)
    run, told = run_governed(made, hooks=True)
    first, second = select_events(told, Chosen)
    assert first.settings.memory_mhz == 5001
    (shift,) = select_events(told, Shifted)
    assert shift.level == "small"
    assert second.settings.memory_mhz is None
    assert run.now() < 1.08 * run_at_default(made).now()


def test_a_change_that_the_watch_misses_shows_when_the_default_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "ekc.governor.change_detection.ChangeDetector.is_deviating", lambda self, distance: False
    )
    made = make_job([make_iterations(300), make_iterations(1500, 1, (1, 4), (0.3, 0.8)).with_regime(1)])
    _, told = run_governed(made)
    (shift,) = select_events(told, Shifted)
    assert 300 < shift.at_s < 900
    first, second = select_events(told, Chosen)
    assert second.settings.sm_mhz < first.settings.sm_mhz
