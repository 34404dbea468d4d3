"""Simulated jobs: deterministic, with exact costs, and sensors as slow and noisy as real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekc.errors import InvalidInput
from ekc.governor.protocols import Settings
from ekc.governor.simulation.card import SIMULATED_CARDS, find_card
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun, compute_clock_indices, compute_costs

JOBS = st.builds(
    sample_job,
    st.integers(0, 10**6),
    st.sampled_from(JOB_KINDS),
    st.sampled_from(list(SIMULATED_CARDS)),
    st.just(240.0),
)


def run_to_end(run: SimulatedRun, window_s: float = 30.0) -> None:
    while run.is_running():
        run.record(window_s)


@settings(max_examples=25, deadline=None)
@given(JOBS, st.floats(0.5, 1.0), st.floats(1.0, 70.0))
def test_run_costs_match_the_exact_costs(job, share, window_s) -> None:
    limit = Settings(sm_mhz=int(share * job.card.spec.boost_mhz))
    memory, gear, _ = compute_clock_indices(job.card, limit)
    costs = compute_costs(job)
    run = SimulatedRun(job)
    run._current_tables = run._get_tables(limit)  # In force from the start, without the delay of a switch.
    run._settings = limit
    run_to_end(run, window_s)
    assert run.now() == pytest.approx(costs.seconds[:, memory, gear].sum(), rel=1e-6)
    swing = job.swing_w * run.now()
    assert run.true_j == pytest.approx(costs.joules[:, memory, gear].sum(), abs=swing + 1e-3, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(JOBS)
def test_lower_clocks_are_never_faster_and_never_draw_more(job) -> None:
    costs = compute_costs(job)
    assert np.all(np.diff(costs.seconds, axis=2) <= 1e-9 * costs.seconds[:, :, :1])
    assert np.all(np.diff(costs.joules / costs.seconds, axis=2) >= -1e-9)
    assert costs.seconds[:, -1, -1].sum() == pytest.approx(240.0)


def test_job_and_readings_depend_on_the_seed_alone() -> None:
    first, second = (SimulatedRun(sample_job(5, "compute", "h200", 120.0)) for _ in range(2))
    a, b = first.record(20.0), second.record(20.0)
    assert np.array_equal(a.power_w, b.power_w)
    assert np.array_equal(a.time_s, b.time_s)
    other = SimulatedRun(sample_job(6, "compute", "h200", 120.0)).record(20.0)
    assert len(other) != len(a) or not np.array_equal(other.power_w, a.power_w)


def test_power_cap_limits_power_and_slows() -> None:
    job = sample_job(1, "compute", "rtx3090", 120.0)
    free, capped = SimulatedRun(job), SimulatedRun(job)
    capped.apply(Settings(power_w=200.0))
    capped.record(2.0)
    assert np.nanmax(capped.record(20.0).power_w) < 200.0 * 1.03
    run_to_end(free)
    run_to_end(capped)
    assert capped.now() > free.now()


def test_limits_take_effect_after_a_delay() -> None:
    run = SimulatedRun(sample_job(2, "compute", "h200", 240.0))
    run.record(5.0)
    late = 0
    for clock in (1005, 1500) * 6:
        run.apply(Settings(sm_mhz=clock))
        assert run.settings() == Settings(sm_mhz=clock)
        observed = run.record(2.0)
        late += observed.clock_mhz[0] != clock
        assert observed.clock_mhz[-1] == clock
    assert late > 0


def test_sensors_average_and_lose_readings() -> None:
    slow = SimulatedRun(sample_job(0, "starved", "rtx3090", 600.0)).record(300.0)
    assert slow.sensor_s == SIMULATED_CARDS["rtx3090"].power_window_s == 1.0
    assert 0.97 * 3000 < len(slow) < 3000
    assert np.all(np.diff(slow.time_s) > 0)
    assert set(np.unique(slow.sm_util)) <= set(range(101))


def test_steps_need_hooks() -> None:
    job = sample_job(3, "compute", "rtx3090", 120.0)
    assert SimulatedRun(job).read_step_count() is None
    run = SimulatedRun(job, has_hooks=True)
    assert run.read_step_count() is None
    run_to_end(run)
    assert run.read_step_count() == job.iteration[-1]


def test_unknown_card_and_kind_are_refused() -> None:
    with pytest.raises(InvalidInput, match="simulated card: no card 'gtx1'; cards are rtx3090, h200"):
        find_card("gtx1")
    with pytest.raises(InvalidInput, match="job kind: no kind 'lazy'"):
        sample_job(0, "lazy", "h200")


def test_job_kinds_have_their_properties() -> None:
    starved = SimulatedRun(sample_job(1, "starved", "h200", 300.0)).record(120.0)
    busy = SimulatedRun(sample_job(1, "compute", "h200", 300.0)).record(120.0)
    assert starved.sm_util.mean() < 80 < busy.sm_util.mean()
    evaluated = sample_job(4, "evaluation", "h200", 3600.0)
    # Evaluations have no optimiser stage, which every training iteration has.
    per_iteration = np.bincount(evaluated.iteration)
    assert per_iteration.max() > 3 * np.median(per_iteration)
