"""The control loop on simulated jobs: budget, beats, memory clock, pauses and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.governor.baselines import find_oracle_clocks
from ekc.governor import phase as phases
from ekc.governor.event_records import (
    Applied,
    Chosen,
    Ended,
    Idled,
    Measured,
    PeriodFound,
    Resumed,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.job_meter import JobMeter
from ekc.governor.loop import MAX_WAIT_S, _ControlLoop, govern
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from ekc.governor.simulation.card import find_card
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_job import JobStage
from ekc.governor.simulation.simulated_run import SimulatedRun
from ekc.governor.simulation.timeline import Timeline, make_pause
from tests.governor.helpers import (
    STAGES,
    DisturbedRun,
    make_iterations,
    make_job,
    run_at_default,
    run_governed,
    select_events,
)


@pytest.mark.parametrize("kind", JOB_KINDS)
def test_loop_saves_energy_within_the_budget(kind: str) -> None:
    made = sample_job(3, kind, "h200", 1500.0)
    run, events = run_governed(made)
    free = run_at_default(made)
    best = find_oracle_clocks(made, Policy())
    assert run.now() / free.now() - 1 < 0.06
    assert 1 - run.true_j / free.true_j > 0.5 * best.saving
    assert isinstance(events[0], Started)
    assert events[0].simulated
    assert isinstance(events[-1], Ended)
    assert events[-1].joules == pytest.approx(run.read_energy_j(), rel=1e-6)
    assert all(event.format_line() for event in events)
    assert [e.at_s for e in events] == sorted(e.at_s for e in events)


@pytest.mark.parametrize("first_s", [8.0, 24.0])
def test_hooks_are_used_after_a_late_first_step(first_s: float) -> None:
    """Jobs that compile in their first step were once governed by signals to their end."""
    run = SimulatedRun(
        make_job([make_iterations(first_s, stage_seconds=(0.05, first_s, 0.45)), make_iterations(300)]),
        has_hooks=True,
    )
    phase = phases.begin_phase(JobMeter(run, run, lambda event: None), Policy(), run.gears())
    assert phase.progress.kind == "steps"
    assert phase.progress.period_s == pytest.approx(1.5, rel=0.05)
    assert phase.readings.default_readings[0].pace.beats_error < 0.02


def test_hooks_are_the_first_source_of_progress() -> None:
    _, events = run_governed(make_job([make_iterations(400)]), hooks=True)
    assert select_events(events, PeriodFound)[0].progress == "steps"
    _, events = run_governed(make_job([make_iterations(400)]))
    assert select_events(events, PeriodFound)[0].progress == "period"


def test_aperiodic_work_is_measured_under_the_choice() -> None:
    """A reading of the default whose few blocks agreed by chance once made this job 7.4 % slower."""
    made = sample_job(101, "aperiodic", "h200")
    run, events = run_governed(made, hooks=True)
    assert run.now() / run_at_default(made).now() - 1 < 0.06
    checks = [e.reading for e in select_events(events, Measured) if e.purpose == "check"]
    assert max(r.seconds for r in checks) > 300
    errors = [e.reading.pace.moved_error for e in select_events(events, Measured) if e.purpose == "default"]
    # Variances are pooled, so errors of readings of one length are similar.
    assert min(errors[2:]) > 0.4 * max(errors[2:])


def test_disturbed_reading_is_repeated() -> None:
    run, events = DisturbedRun(make_job([make_iterations(600)])), []
    govern(run, run, on_event=events.append)
    candidates = [e.reading for e in select_events(events, Measured) if e.purpose == "candidate"]
    assert candidates
    assert all(reading.sm_util > 60 for reading in candidates)
    assert select_events(events, Chosen)


def test_memory_clock_alone_is_predicted_by_its_reading() -> None:
    """The memory clock was once expected to change nothing, so every check would have found another job."""
    run = SimulatedRun(make_job([make_iterations(200)], device="rtx3090"), has_hooks=True)
    meter = JobMeter(run, run, lambda event: None)
    phase = phases.begin_phase(meter, Policy(), run.gears())
    phase.choice = Settings(memory_mhz=5001)
    for _ in range(2):
        assert phases.measure_settings(meter, phase, phase.choice, "candidate")
    expected = phases.predict_choice(phase)
    assert expected.slowdown > 0.03
    assert not phase.readings.has_refuted(expected)
    assert phases.predict_settings(phase, Settings()).slowdown == 0


def test_zero_budget_resets_the_memory_clock() -> None:
    """The memory clock once stayed where the search had set it, which alone cost 5 %."""
    run = SimulatedRun(make_job([make_iterations(400)], device="rtx3090"), has_hooks=True)
    governor = _ControlLoop(run, run, Policy(max_slowdown=0.0), lambda event: None, None)
    governor._start_s = run.now()
    phase = phases.begin_phase(governor._meter, Policy(), run.gears())
    for choice in (Settings(sm_mhz=1600, memory_mhz=5001), Settings(memory_mhz=5001)):
        assert phases.measure_settings(governor._meter, phase, choice, "candidate")
        phase.search, phase.choice = replace(phase.search, memory_mhz=5001), choice
        assert governor._update_choice(phase) == "moved"
        assert phase.choice == Settings()


def test_limits_stay_during_a_pause() -> None:
    _, events = run_governed(make_job([make_iterations(400), make_pause(90.0), make_iterations(400, 1)]))
    (idle,), (back,) = select_events(events, Idled), select_events(events, Resumed)
    # Noticed after a wait and a look at the latest.
    assert 90 - MAX_WAIT_S - 15 < back.idle_s < 100
    between = [e for e in select_events(events, Applied) if idle.at_s <= e.at_s < back.at_s]
    assert not between
    assert not select_events(events, Shifted)


def test_late_job_is_waited_for() -> None:
    _, events = run_governed(make_job([make_pause(60.0), make_iterations(300)]))
    assert isinstance(events[1], Idled)
    assert select_events(events, Chosen)


@pytest.mark.parametrize("seconds", [1.0, 10.0, 30.0])
def test_loop_ends_with_a_short_job(seconds: float) -> None:
    run, events = run_governed(make_job([make_iterations(seconds)]))
    assert isinstance(events[-1], Ended)
    assert not run.is_running()


def test_search_is_skipped_where_it_cannot_pay() -> None:
    run, events = run_governed(make_job([make_iterations(200)]), policy=Policy(remaining_s=60.0))
    (skipped,) = select_events(events, Skipped)
    assert skipped.remaining_s < 60
    assert run.settings() == Settings()
    assert not select_events(events, Applied)


def test_memory_clock_is_lowered_where_memory_is_little_used() -> None:
    lonely = JobStage("arithmetic", 0.995, 1.0, 0.6, 100.0, 6.0, 90.0, 0.0)
    stretches = Timeline.concatenate([make_iterations(1200, 0, (1, 5), (0.3, 1.5))])
    made = stretches.make_job("arithmetic alone", "made", find_card("rtx3090"), (*STAGES, lonely), 0.0)
    run, events = run_governed(made, policy=Policy(objective="edp"))
    assert select_events(events, Chosen)[0].settings.memory_mhz == 5001
    free = run_at_default(made)
    assert run.true_j * run.now() < free.true_j * free.now()
    # Where memory is used its clock stays, and no reading is spent on it.
    _, events = run_governed(make_job([make_iterations(600)], device="rtx3090"))
    assert all(e.settings.memory_mhz is None for e in select_events(events, Applied))
