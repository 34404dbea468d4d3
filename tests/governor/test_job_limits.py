"""Power caps and deadlines: kept on simulated jobs, refused where they exclude other wishes."""

from __future__ import annotations

from datetime import datetime

import pytest

from ekc.errors import InvalidInput
from ekc.governor.event_records import Applied, Chosen, Skipped
from ekc.governor.governor import Governor
from ekc.governor.job_limits import LimitMissed
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy, parse_deadline
from ekc.governor.simulation.simulated_run import SimulatedRun, compute_costs
from tests.governor.helpers import govern_run, make_iterations, make_job, run_at_default, select_events


def cap_policy(watts: float) -> Policy:
    return Policy("speed", power_cap_w=watts)


def test_power_cap_is_kept_by_the_fastest_settings() -> None:
    job = make_job([make_iterations(1200)])
    costs = compute_costs(job)
    watts = (costs.joules / costs.seconds)[0, -1]
    cap_w = 0.85 * float(watts[-1])
    run = SimulatedRun(job)
    events = govern_run(run, policy=cap_policy(cap_w))
    choice = select_events(events, Chosen)[-1].settings
    place = job.card.list_sm_clocks_mhz().tolist().index(choice.sm_mhz)
    assert 0.96 * cap_w < watts[place] <= cap_w
    assert not select_events(events, LimitMissed)


def test_default_is_never_set_again_under_a_power_cap() -> None:
    """It would draw more than the cap; checks read the choice alone."""
    run = SimulatedRun(make_job([make_iterations(900)]))
    events = govern_run(run, policy=cap_policy(450.0))
    chosen_s = select_events(events, Chosen)[0].at_s
    later = [x.settings for x in select_events(events, Applied) if x.at_s > chosen_s]
    assert Settings() not in later


def test_cap_above_the_power_changes_nothing() -> None:
    run = SimulatedRun(make_job([make_iterations(300)]))
    events = govern_run(run, policy=cap_policy(5000.0))
    assert [x.settings for x in select_events(events, Chosen)] == [Settings()]
    assert not select_events(events, Applied)


def test_cap_below_the_lowest_power_is_said() -> None:
    run = SimulatedRun(make_job([make_iterations(300)]))
    events = govern_run(run, policy=cap_policy(60.0))
    missed = select_events(events, LimitMissed)
    assert "the power cap of 60 W is missed" in missed[0].format_line()


def test_cap_is_kept_although_a_search_does_not_pay() -> None:
    run = SimulatedRun(make_job([make_iterations(400)]))
    policy = Policy("speed", power_cap_w=450.0, remaining_s=100.0)
    events = govern_run(run, policy=policy)
    assert not select_events(events, Skipped)
    assert select_events(events, Chosen)[0].settings != Settings()


def test_cap_of_a_group_is_for_all_of_its_gpus() -> None:
    assert cap_policy(300.0).for_unit(4).power_cap_w == 1200.0
    node = Policy("speed", node_power_cap_w=1000.0).for_unit(4)
    assert (node.power_cap_w, node.node_power_cap_w) == (1000.0, None)


@pytest.mark.parametrize("hooks", [False, True])
def test_deadline_is_kept_with_more_saved_than_by_the_budget(hooks: bool) -> None:
    job = make_job([make_iterations(1500)])
    usual = run_at_default(job)
    deadline_s = 1.12 * usual.now()
    left = {"steps_total": int(job.iteration[-1]) + 1} if hooks else {"remaining_s": usual.now()}
    run, budget = SimulatedRun(job, has_hooks=hooks), SimulatedRun(job)
    govern_run(run, policy=Policy(deadline_s=deadline_s, **left))
    govern_run(budget)
    assert 1.06 * usual.now() < run.now() < deadline_s
    assert run.true_j < budget.true_j


def test_deadline_that_cannot_be_kept_is_said_and_costs_no_time() -> None:
    job = make_job([make_iterations(600)])
    usual, run = run_at_default(job), SimulatedRun(job)
    events = govern_run(run, policy=Policy(deadline_s=500.0, remaining_s=600.0))
    line = select_events(events, LimitMissed)[0].format_line()
    assert line.startswith("the deadline is missed by about 1")
    assert run.now() < 1.01 * usual.now()


def test_job_longer_than_expected_runs_at_the_default() -> None:
    """Work beyond `remaining_s` is of unknown length."""
    job = make_job([make_iterations(900)])
    run = SimulatedRun(job)
    events = govern_run(run, policy=Policy(deadline_s=540.0, remaining_s=300.0))
    assert "nothing tells how much work is left" in select_events(events, LimitMissed)[-1].format_line()
    assert run.settings() == Settings()


def test_time_before_the_governor_counts() -> None:
    policy = Policy(deadline_s=3600.0, remaining_s=3000.0).for_unit(1, late_s=100.0)
    assert (policy.deadline_s, policy.remaining_s) == (3500.0, 2900.0)


NOW = datetime(2026, 5, 4, 17, 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("1h30m", 5400),
        ("90 min", 5400),
        ("1.5h", 5400),
        ("45s", 45),
        ("18:30", 5400),
        ("9:00", 16 * 3600),
        ("2026-05-05T17:00", 86400),
    ],
)
def test_deadlines_are_read(text: str, seconds: float) -> None:
    assert parse_deadline(text, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("soon", "write 2h"),
        ("25:00", "no time of day"),
        ("2026-05-04T16:59", "has passed"),
        ("0h", "no time at all"),
    ],
)
def test_other_deadlines_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_deadline(text, NOW)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"power_cap_w": 300.0}, "use the objective speed"),
        ({"objective": "speed", "power_cap_w": 0.0}, "power_cap_w: 0, finite watts above 0"),
        ({"objective": "speed", "power_cap_w": 300.0, "node_power_cap_w": 300.0}, "give one cap"),
        ({"deadline_s": 60.0}, "say how much work is left"),
        ({"deadline_s": 60.0, "remaining_s": 10.0, "steps_total": 5}, "give one of them"),
        ({"deadline_s": 60.0, "remaining_s": 10.0, "objective": "edp"}, "use the objective energy"),
        ({"steps_total": 5}, "it is for a deadline"),
        ({"steps_total": 0, "deadline_s": 60.0}, "a whole number of steps from 1"),
    ],
)
def test_policies_that_exclude_themselves_are_refused(options: dict, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Policy(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"power_cap_w": 300.0, "max_slowdown": 0.1}, "replaces it"),
        ({"power_cap_w": 300.0, "objective": "edp"}, "use the objective speed"),
        ({"deadline": "2h"}, "say how much work is left"),
        ({"deadline": "2h", "power_cap_w": 300.0}, "give one of them"),
        ({"price": 0.3}, "write \\(0.30, 'EUR'\\)"),
        ({"remember": "../x"}, "a name is"),
    ],
)
def test_arguments_of_the_governor_are_refused(options: dict, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Governor(**options)
