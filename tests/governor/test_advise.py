"""Advice: nothing is set, the unchanged job is measured, and the rest is said to be assumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ekc.errors import ActuatorError
from ekc.governor.advise import Advised, advise
from ekc.governor.event_records import Ended, Event
from ekc.governor.protocols import NullActuator, OfferedSettings, Settings
from ekc.governor.request import Policy
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun, compute_costs
from tests.governor.helpers import make_iterations, make_job


def _make_run(seconds: float = 600.0) -> SimulatedRun:
    return SimulatedRun(sample_job(0, "compute", "h200", seconds), 0)


def run_advice(run: SimulatedRun, offered: OfferedSettings | None = None) -> tuple[Advised, list[Event]]:
    """The first advice for a run, and all events."""
    events: list[Event] = []
    advise(run, NullActuator(offered or run.list_offered(), simulated=True), Policy(), events.append)
    return next(e for e in events if isinstance(e, Advised)), events


def test_advice_sets_nothing_and_predicts() -> None:
    run = _make_run()
    advice, events = run_advice(run)
    assert run.settings() == Settings()
    assert advice.settings.sm_mhz in run.list_offered().sm_mhz
    assert advice.slowdown <= 0.05
    assert "not tried" in advice.format_line()
    assert isinstance(events[-1], Ended)
    with pytest.raises(ActuatorError, match="advice only"):
        NullActuator(run.list_offered(), simulated=True).apply(Settings(sm_mhz=1200))


def test_advice_measures_the_unchanged_job_until_it_ends() -> None:
    """Power, time and energy of an iteration are measured; the outcome of a clock is said to be assumed."""
    run = _make_run()
    first, events = run_advice(run)
    last = [e for e in events if isinstance(e, Advised)][-1]
    truth = compute_costs(run.job)
    watts = float((truth.joules[:, -1, -1] / truth.seconds[:, -1, -1]).mean())
    assert (first.baseline.readings, np.isnan(first.baseline.scatter)) == (1, True)
    assert last.baseline.readings >= 3
    assert last.baseline.watts == pytest.approx(watts, rel=0.03)
    assert last.baseline.step_j == pytest.approx(last.baseline.watts * last.baseline.step_s, rel=0.01)
    assert 0 < last.baseline.scatter < 0.02
    lines = "; ".join(last.baseline.format_lines())
    assert "kernels run 9" in lines
    assert f"{last.baseline.readings} readings of the unchanged job differ by" in lines
    assert "as recorded kernels answer; not tried" in last.format_assumption()


def test_advice_knows_the_bound_of_a_slowdown() -> None:
    """Kernels run at most as much longer as the clock is lower, and only while they run."""
    run = SimulatedRun(sample_job(3, "starved", "h200", 200.0), 0)
    advice, _ = run_advice(run)
    longer = advice.baseline.clock_mhz / advice.settings.sm_mhz - 1
    assert advice.max_slowdown == pytest.approx(advice.baseline.busy_share * longer, rel=0.02)
    assert advice.max_slowdown < 0.8 * longer


def test_advice_is_given_again_after_a_change() -> None:
    other = make_iterations(500, 1, (1, 4), (0.3, 0.8))
    _, events = run_advice(SimulatedRun(make_job([make_iterations(300), other])))
    watts = [e.baseline.watts for e in events if isinstance(e, Advised)]
    assert max(watts) > 1.1 * min(watts)


def test_advice_for_a_power_cap_is_a_clock_within_it() -> None:
    events: list[Event] = []
    run = _make_run(120.0)
    policy = Policy("speed", power_cap_w=400.0)
    advise(run, NullActuator(run.list_offered(), simulated=True), policy, events.append)
    advice = next(e for e in events if isinstance(e, Advised))
    assert advice.baseline.watts > 400
    assert advice.baseline.watts * (1 - advice.saving) / (1 + advice.slowdown) <= 400


def test_advice_goes_as_far_as_the_prediction() -> None:
    """Advice may name a clock far from the default, which a search would not set before a reading."""
    run = _make_run(120.0)
    advice, _ = run_advice(run)
    assert advice.settings.sm_mhz < 0.96 * run.list_offered().sm_mhz[-1]
    assert 0.03 < advice.slowdown <= 0.05


def test_advice_without_clocks_is_a_cap() -> None:
    offered = OfferedSettings(power_w=tuple(float(w) for w in range(200, 701, 25)))
    advice, _ = run_advice(_make_run(), offered)
    assert advice.settings.sm_mhz is None
    assert advice.settings.power_w is None or advice.settings.power_w in offered.power_w


def test_advice_without_utilisation() -> None:
    class Silent(SimulatedRun):
        def record(self, seconds: float) -> SensorSamples:
            samples = super().record(seconds)
            nothing = np.full(len(samples), np.nan)
            return replace(samples, sm_util=nothing, memory_util=nothing)

    run_advice(Silent(sample_job(0, "compute", "h200", 600.0), 0))


def test_advice_is_refused_for_a_card_without_limits() -> None:
    with pytest.raises(ActuatorError, match="can be limited"):
        advise(_make_run(), NullActuator(OfferedSettings()), Policy(), lambda event: None)
