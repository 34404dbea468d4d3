"""What a job has lost, what that leaves of its budget, and when the default is looked at again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.governor import phase as phases
from ekc.governor.checks import DOUBTS, FIRST_S, LONGEST_S, SOON_S, Checks
from ekc.governor.jobs.draw import draw
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.landscape import SURE
from ekc.governor.measure import Meter
from ekc.governor.policy import Policy
from ekc.governor.protocols import Settings
from ekc.governor.spent import Spent, affordable, spent
from ekc.governor.watch import CONFIRM_S

HOUR = 3600.0


@given(st.floats(10.0, HOUR), st.floats(10.0, HOUR), st.floats(0.0, 0.3), st.floats(0.0, 0.2))
def test_what_remains_keeps_the_whole_within_the_budget(elapsed, remaining, lost, budget) -> None:
    policy = Policy(max_slowdown=budget)
    left = affordable(policy, elapsed, remaining, Spent(lost * elapsed, 0.0))
    assert 0 <= left <= budget
    whole = lost * elapsed + left * remaining
    done = (1 - lost) * elapsed + remaining
    # Unless so much was lost already that nothing can give it back.
    assert whole <= budget * done * (1 + 1e-9) or left == 0.0


def test_what_was_kept_is_not_spent_later_and_what_is_unsure_counts_as_lost() -> None:
    policy = Policy(max_slowdown=0.05)
    assert affordable(policy, HOUR, HOUR, Spent(0.0, 0.0)) == 0.05
    assert affordable(policy, 0.0, HOUR, Spent(0.0, 0.0)) == 0.05
    sure, unsure = (affordable(policy, HOUR, HOUR, Spent(0.07 * HOUR, e * HOUR)) for e in (SURE, 0.02))
    assert unsure < sure < 0.05


def test_the_bill_follows_what_is_believed_now() -> None:
    run = SimulatedRun(draw(0, "compute", "h200", 600.0))
    meter = Meter(run, run, lambda event: None)
    phase = phases.begin(meter, Policy(), run.gears(), lambda event: None)
    phase.held = meter.held
    assert spent([phase]).seconds == 0.0
    low = Settings(sm_mhz=1200)
    before = run.now()
    assert phases.visit(meter, phase, low, "candidate", lambda event: None)
    assert meter.held[low] == pytest.approx(run.now() - before)
    assert sum(meter.held.values()) == pytest.approx(run.now())
    lost = spent([phase])
    slowdown = phases.believed(phase, low).slowdown
    assert lost.seconds == pytest.approx(meter.held[low] * slowdown / (1 + slowdown))
    assert lost.error > 0
    assert spent([phase, phase]).seconds == pytest.approx(2 * lost.seconds)


def test_checks_come_seldomer_while_they_agree_and_at_once_on_suspicion() -> None:
    checks = Checks(100.0, FIRST_S)
    assert not checks.due(100.0 + SOON_S + 1, suspected=False)
    assert not checks.due(100.0 + SOON_S - 1, suspected=True)
    assert checks.due(100.0 + SOON_S + 1, suspected=True)
    assert checks.due(100.0 + FIRST_S + 1, suspected=False)
    for _ in range(6):
        checks.agreed(1000.0)
    assert checks.gap_s == LONGEST_S
    assert not checks.due(1000.0 + LONGEST_S, suspected=False)


def test_a_doubt_is_looked_into_soon_and_several_are_a_change() -> None:
    checks = Checks(0.0, LONGEST_S)
    at_s = 2000.0
    for _ in range(DOUBTS - 1):
        assert not checks.doubted(at_s)
        assert not checks.due(at_s + CONFIRM_S, suspected=False)
        assert checks.due(at_s + CONFIRM_S + 1, suspected=False)
    checks.agreed(at_s)
    assert not checks.due(at_s + CONFIRM_S + 1, suspected=False)
    for _ in range(DOUBTS - 1):
        assert not checks.doubted(at_s)
    assert checks.doubted(at_s)
