"""Savings of a job: its account against the truth of simulated jobs, and in money and CO2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekc.errors import InvalidInput
from ekc.governor.accounting import Accounted, account_savings, compute_truth, estimate_saving, make_savings
from ekc.governor.event_records import Chosen, Ended, Event, Resumed
from ekc.governor.loop import _ControlLoop
from ekc.governor.protocols import NullActuator, Settings
from ekc.governor.request import Policy, Tariff
from ekc.governor.simulation.random_jobs import JOB_KINDS, make_pause, sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import (
    govern_run,
    make_iterations,
    make_job,
    run_governed,
    select_events,
)


def account_job(parts: list) -> tuple[SimulatedRun, list[Event], Accounted]:
    run, events = run_governed(make_job(parts))
    return run, events, select_events(events, Accounted)[-1]


@pytest.fixture(scope="module")
def usual() -> tuple[SimulatedRun, list[Event], Accounted]:
    """A job of 15 minutes, governed."""
    return account_job([make_iterations(900)])


def test_account_holds_the_truth_and_all_joules(usual: tuple) -> None:
    run, events, account = usual
    (ended,) = select_events(events, Ended)
    truth = compute_truth(run, Policy())
    low, high = account.share_interval
    assert account.joules == ended.joules
    assert low < truth.saving < high
    assert high - low < 0.04
    assert account.saved_share == pytest.approx(account.saved_j / (account.joules + account.saved_j))


def test_search_and_checks_are_billed(usual: tuple) -> None:
    """The choice held from the start would have saved more, by what they cost."""
    _, events, account = usual
    (chosen,) = select_events(events, Chosen)
    held = chosen.saving * (account.joules + account.saved_j)
    assert 0 < account.cost_j < 0.5 * held
    assert account.saved_j + account.cost_j == pytest.approx(held, rel=0.15)


def test_pause_saves_nothing() -> None:
    parts = [make_iterations(300), make_pause(900.0), make_iterations(300, 1)]
    run, events, account = account_job(parts)
    assert select_events(events, Resumed)
    low, high = account.share_interval
    assert low < compute_truth(run, Policy()).saving < high
    assert high - low < 0.03


def test_best_static_limit_is_near_the_true_one(usual: tuple) -> None:
    run, _, account = usual
    truth = compute_truth(run, Policy())
    assert account.static is not None
    assert account.static.settings.sm_mhz == pytest.approx(truth.static_settings.sm_mhz, rel=0.04)
    assert abs(account.static.saving - truth.static_saving) < account.static.half_width + 0.01


def test_time_at_the_default_saves_nothing() -> None:
    """A job that is too short for a search has an account of zero, not none."""
    run = SimulatedRun(make_job([make_iterations(120)]))
    events = govern_run(run, policy=Policy(remaining_s=60))
    (account,) = select_events(events, Accounted)
    assert (account.saved_j, account.half_width_j, account.cost_j, account.static) == (0.0, 0.0, 0.0, None)


def test_joules_of_a_phase_are_those_of_the_board() -> None:
    run = SimulatedRun(make_job([make_iterations(600)]))
    loop = _ControlLoop(run, run, Policy(), lambda event: None)
    phase = loop._learn_phase("large", None)
    loop._meter.count_joules()
    assert sum(phase.joules_by_settings.values()) == pytest.approx(run.read_energy_j())
    assert set(phase.joules_by_settings) == set(phase.seconds_by_settings)
    assert estimate_saving(phase, Settings()).error == 0
    account = account_savings([phase], Policy(), run.now(), run.read_energy_j())
    parts = [
        joules * (estimate := estimate_saving(phase, settings).saving) / (1 - estimate)
        for settings, joules in phase.joules_by_settings.items()
    ]
    assert account.saved_j == pytest.approx(sum(parts))


def test_scatter_of_readings_widens_the_interval() -> None:
    run = SimulatedRun(make_job([make_iterations(900)]))
    loop = _ControlLoop(run, run, Policy(), lambda event: None)
    phase = loop._learn_phase("large", None)
    # By iterations alone: bytes that agree would say that only these are wrong.
    for readings in (phase.readings.default_readings, phase.readings.other_readings):
        readings[:] = [
            replace(r, pace=replace(r.pace, moved=float("nan"), moved_error=float("nan"))) for r in readings
        ]
    (last,) = phase.readings.other_readings[-1:]
    pace = replace(last.pace, beats=1.06 * last.pace.beats)
    before = estimate_saving(phase, phase.choice).error
    phase.readings.other_readings += [replace(last, pace=pace), last]
    assert estimate_saving(phase, phase.choice).error > 1.5 * before


def test_advice_has_no_account() -> None:
    run = SimulatedRun(make_job([make_iterations(300)]))
    events: list[Event] = []
    actuator = NullActuator(run.list_offered(), simulated=True)
    _ControlLoop(run, actuator, Policy(), events.append).run()
    assert not select_events(events, Accounted)


def test_money_and_co2_follow_the_joules() -> None:
    account = Accounted(0.0, 3.6e8, 3.6e7, 3.6e6, 1e5, None)
    savings = make_savings(account, Tariff(0.30, "EUR", 400.0))
    assert (savings.kwh, savings.money, savings.co2_g) == (10.0, 3.0, 4000.0)
    text = " ".join(text for _, text in savings.format_rows())
    assert "10.000 kWh" in text
    assert "3.00 EUR, 4,000 g CO2" in text
    assert make_savings(account, Tariff()).money is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"price": 0.3}, "needs the word of its currency"),
        ({"price": 0.3, "currency": "--quiet"}, "write 0.3 EUR"),
        ({"price": -1.0, "currency": "EUR"}, "price: -1"),
        ({"intensity": float("nan")}, "intensity: nan"),
    ],
)
def test_bad_tariffs_are_refused(options: dict, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Tariff(**options)


@pytest.mark.exhaustive
def test_intervals_cover_the_truth() -> None:
    """At least 85 % of 48 jobs of all kinds are inside: fewer is unlikely for intervals of 95 %."""
    covered = []
    for kind in JOB_KINDS:
        for seed in range(5200, 5204):
            for card in ("rtx3090", "h200"):
                run = SimulatedRun(sample_job(seed, kind, card, 3600.0))
                account = select_events(govern_run(run), Accounted)[-1]
                low, high = account.share_interval
                covered.append(low <= compute_truth(run, Policy()).saving <= high)
    assert sum(covered) >= 0.85 * len(covered)
