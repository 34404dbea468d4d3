"""Lost time and remaining slowdown budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.governor import phase as phases
from ekc.governor.decision import CONFIDENT_SIGMA
from ekc.governor.job_limits import TimeLoss, compute_affordable_slowdown, estimate_time_loss
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import begin_phase

HOUR = 3600.0


@given(st.floats(10.0, HOUR), st.floats(10.0, HOUR), st.floats(0.0, 0.3), st.floats(0.0, 0.2))
def test_affordable_slowdown_keeps_the_job_within_the_budget(elapsed, remaining, lost, budget) -> None:
    policy = Policy(max_slowdown=budget)
    left = compute_affordable_slowdown(policy, elapsed, remaining, TimeLoss(lost * elapsed, 0.0))
    assert 0 <= left <= budget
    timeline = lost * elapsed + left * remaining
    done = (1 - lost) * elapsed + remaining
    # Unless so much is lost already that the rest cannot make up for it.
    assert timeline <= budget * done * (1 + 1e-9) or left == 0.0


def test_affordable_slowdown_never_exceeds_the_policy() -> None:
    policy = Policy(max_slowdown=0.05)
    assert compute_affordable_slowdown(policy, HOUR, HOUR, TimeLoss(0.0, 0.0)) == 0.05
    assert compute_affordable_slowdown(policy, 0.0, HOUR, TimeLoss(0.0, 0.0)) == 0.05
    sure, unsure = (
        compute_affordable_slowdown(policy, HOUR, HOUR, TimeLoss(0.07 * HOUR, e * HOUR))
        for e in (CONFIDENT_SIGMA, 0.02)
    )
    assert unsure < sure < 0.05


def test_time_loss_follows_the_present_expectation() -> None:
    run = SimulatedRun(sample_job(0, "compute", "h200", 600.0))
    meter, phase = begin_phase(run)
    phase.seconds_by_settings = meter.seconds_by_settings
    assert estimate_time_loss([phase]).seconds == 0.0
    low = Settings(sm_mhz=1200)
    before = run.now()
    assert phases.measure_settings(meter, phase, low, "candidate")
    assert meter.seconds_by_settings[low] == pytest.approx(run.now() - before)
    assert sum(meter.seconds_by_settings.values()) == pytest.approx(run.now())
    lost = estimate_time_loss([phase])
    slowdown = phase.predict_settings(low).slowdown
    assert lost.seconds == pytest.approx(meter.seconds_by_settings[low] * slowdown / (1 + slowdown))
    assert lost.error > 0
    assert estimate_time_loss([phase, phase]).seconds == pytest.approx(2 * lost.seconds)
