"""The loop on whole simulated jobs: budget, beats, memory clock, pauses and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekc.governor import phase as phases
from ekc.governor.baselines import oracle
from ekc.governor.events import (
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
from ekc.governor.jobs.card import card
from ekc.governor.jobs.draw import KINDS, draw
from ekc.governor.jobs.stage import Stage
from ekc.governor.jobs.timeline import Timeline, pause
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.loop import LONGEST_WAIT_S, _Governor, govern
from ekc.governor.measure import Meter
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from tests.governor.made_jobs import (
    STAGES,
    Disturbed,
    at_default,
    governed,
    job,
    of,
    plain,
)


@pytest.mark.parametrize("kind", KINDS)
def test_energy_goes_down_within_the_budget(kind: str) -> None:
    made = draw(3, kind, "h200", 1500.0)
    run, told = governed(made)
    free = at_default(made)
    best = oracle(made, Policy())
    assert run.now() / free.now() - 1 < 0.06
    assert 1 - run.true_j / free.true_j > 0.5 * best.saving
    assert isinstance(told[0], Started)
    assert told[0].simulated
    assert isinstance(told[-1], Ended)
    assert told[-1].joules == pytest.approx(run.energy_j(), rel=1e-6)
    assert all(event.line() for event in told)
    assert [e.at_s for e in told] == sorted(e.at_s for e in told)


@pytest.mark.parametrize("first_s", [8.0, 24.0])
def test_hooks_are_believed_though_the_first_step_ends_late(first_s: float) -> None:
    """Whoever compiles in it was governed by signals to its end."""
    run = SimulatedRun(job([plain(first_s, lasts=(0.05, first_s, 0.45)), plain(300)]), hooks=True)
    phase = phases.begin(Meter(run, run, lambda event: None), Policy(), run.gears(), lambda event: None)
    assert phase.beat.source == "steps"
    assert phase.beat.period_s == pytest.approx(1.5, rel=0.05)
    assert phase.ledger.defaults[0].pace.beats_error < 0.02


def test_hooks_are_believed_before_anything_else() -> None:
    _, told = governed(job([plain(400)]), hooks=True)
    assert of(told, PeriodFound)[0].progress == "steps"
    _, told = governed(job([plain(400)]))
    assert of(told, PeriodFound)[0].progress == "period"


def test_work_without_a_beat_is_read_while_it_is_held() -> None:
    """One default whose few pieces agreed by chance once held this very job 7.4 % slower."""
    made = draw(101, "aperiodic", "h200")
    run, told = governed(made, hooks=True)
    assert run.now() / at_default(made).now() - 1 < 0.06
    checks = [e.reading for e in of(told, Measured) if e.purpose == "check"]
    assert max(r.seconds for r in checks) > 300
    errors = [e.reading.pace.moved_error for e in of(told, Measured) if e.purpose == "default"]
    # Pooled, none is much surer than another of its length.
    assert min(errors[2:]) > 0.4 * max(errors[2:])


def test_a_stretch_that_was_disturbed_is_read_again_and_never_kept() -> None:
    run, told = Disturbed(job([plain(600)])), []
    govern(run, run, on_event=told.append)
    candidates = [e.reading for e in of(told, Measured) if e.purpose == "candidate"]
    assert candidates
    assert all(reading.sm_util > 60 for reading in candidates)
    assert of(told, Chosen)


def test_a_memory_clock_alone_is_believed_to_do_what_was_read() -> None:
    """It was believed to do nothing, and surely so: every check would have found another job."""
    run = SimulatedRun(job([plain(200)], device="rtx3090"), hooks=True)
    meter = Meter(run, run, lambda event: None)
    phase = phases.begin(meter, Policy(), run.gears(), lambda event: None)
    phase.choice = Settings(memory_mhz=5001)
    for _ in range(2):
        assert phases.visit(meter, phase, phase.choice, "candidate", lambda event: None)
    expected = phases.expectation(phase)
    assert expected.slowdown > 0.03
    assert not phase.ledger.contradicts(expected)
    assert phases.believed(phase, Settings()).slowdown == 0


def test_where_nothing_may_be_lost_the_memory_clock_is_given_up_too() -> None:
    """It stayed where the search had put it, and cost 5 % by itself."""
    run = SimulatedRun(job([plain(400)], device="rtx3090"), hooks=True)
    governor = _Governor(run, run, Policy(max_slowdown=0.0), lambda event: None, None)
    governor._start = run.now()
    phase = phases.begin(governor._meter, Policy(), run.gears(), lambda event: None)
    for choice in (Settings(sm_mhz=1600, memory_mhz=5001), Settings(memory_mhz=5001)):
        assert phases.visit(governor._meter, phase, choice, "candidate", lambda event: None)
        phase.search, phase.choice = replace(phase.search, memory_mhz=5001), choice
        assert governor._choose(phase) == "moved"
        assert phase.choice == Settings()


def test_a_pause_is_waited_out_and_limits_stay() -> None:
    _, told = governed(job([plain(400), pause(90.0), plain(400, 1)]))
    (idle,), (back,) = of(told, Idled), of(told, Resumed)
    # Noticed at the latest after a wait and a look.
    assert 90 - LONGEST_WAIT_S - 15 < back.idle_s < 100
    between = [e for e in of(told, Applied) if idle.at_s <= e.at_s < back.at_s]
    assert not between
    assert not of(told, Shifted)


def test_a_job_that_begins_late_is_waited_for() -> None:
    _, told = governed(job([pause(60.0), plain(300)]))
    assert isinstance(told[1], Idled)
    assert of(told, Chosen)


@pytest.mark.parametrize("seconds", [1.0, 10.0, 30.0])
def test_a_job_that_ends_at_once_ends_the_loop(seconds: float) -> None:
    run, told = governed(job([plain(seconds)]))
    assert isinstance(told[-1], Ended)
    assert not run.running()


def test_no_search_where_it_cannot_pay() -> None:
    run, told = governed(job([plain(200)]), policy=Policy(remaining_s=60.0))
    (skipped,) = of(told, Skipped)
    assert skipped.remaining_s < 60
    assert run.settings() == Settings()
    assert not of(told, Applied)


def test_the_memory_clock_goes_down_where_memory_is_hardly_used() -> None:
    lonely = Stage("arithmetic", 0.995, 1.0, 0.6, 100.0, 6.0, 90.0, 0.0)
    whole = Timeline.joined([plain(1200, 0, (1, 5), (0.3, 1.5))])
    made = whole.job("arithmetic alone", "made", card("rtx3090"), (*STAGES, lonely), 0.0)
    run, told = governed(made, policy=Policy(objective="edp"))
    assert of(told, Chosen)[0].settings.memory_mhz == 5001
    free = at_default(made)
    assert run.true_j * run.now() < free.true_j * free.now()
    # Where memory is used it is left alone, and nothing is spent on trying.
    _, told = governed(job([plain(600)], device="rtx3090"))
    assert all(e.settings.memory_mhz is None for e in of(told, Applied))
