"""Readings and accounts of a job whose governor, and the job with it, was stopped for a while."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ekc.governor.event_records import Chosen, Ended, Interrupted, Shifted
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import begin_phase, govern_run, make_iterations, make_job, select_events

STOP_S, STOPPED_W = 600.0, 55.0


class StoppedRun(SimulatedRun):
    """A run that is stopped for `STOP_S` in one of its recordings, with the board at `STOPPED_W`."""

    stop_at = 0
    """Number of that recording, from 1; 0 for none."""
    _count = 0
    _stopped_s = 0.0

    def now(self) -> float:
        return super().now() + self._stopped_s

    def read_energy_j(self) -> float:
        return super().read_energy_j() + STOPPED_W * self._stopped_s

    def record(self, seconds: float) -> SensorSamples:
        samples = super().record(seconds)
        samples = replace(samples, time_s=samples.time_s + self._stopped_s)
        self._count += 1
        if self._count == self.stop_at:
            self._stopped_s = STOP_S
        return samples


def make_run(stop_at: int) -> StoppedRun:
    run = StoppedRun(make_job([make_iterations(1500)]))
    run.stop_at = stop_at
    return run


def test_reading_that_a_stop_interrupts_is_taken_again() -> None:
    meter, phase = begin_phase(make_run(0))
    usual, _ = meter.take_reading(phase.progress, 1.05)
    run = make_run(0)
    meter, phase = begin_phase(run)
    run.stop_at = run._count + 1
    reading, _ = meter.take_reading(phase.progress, 1.05)
    assert meter.stop_count == 1
    assert reading.seconds < 3 * usual.seconds
    assert reading.watts == pytest.approx(usual.watts, rel=0.03)
    assert reading.pace.beats == pytest.approx(usual.pace.beats, rel=0.02)


@pytest.mark.parametrize("stop_at", [2, *(pytest.param(x, marks=pytest.mark.slow) for x in (6, 12, 40))])
def test_stop_is_in_no_account_and_no_change(stop_at: int) -> None:
    run = make_run(stop_at)
    events = govern_run(run)
    (stop,) = select_events(events, Interrupted)
    assert stop.gap_s == pytest.approx(STOP_S, abs=1.0)
    assert not select_events(events, Shifted)
    (ended,) = select_events(events, Ended)
    assert ended.seconds > STOP_S
    (usual,) = select_events(govern_run(make_run(0)), Chosen)
    chosen = select_events(events, Chosen)[0]
    assert chosen.settings.sm_mhz == pytest.approx(usual.settings.sm_mhz, rel=0.05)


@pytest.mark.parametrize("stop_at", [3, 20])
def test_joules_of_a_stop_are_those_of_no_setting(stop_at: int) -> None:
    watts = []
    for number in (0, stop_at):
        run = make_run(number)
        meter, _ = begin_phase(run)
        start_s, start_j = run.now(), run.read_energy_j()
        meter.switch_account({}, {})
        if number:
            run.stop_at = run._count + number
        for _ in range(30):
            meter.record(10.0)
        meter.count_joules()
        (seconds,), (joules,) = meter.seconds_by_settings.values(), meter.joules_by_settings.values()
        assert seconds == pytest.approx(300.0, abs=1.0)
        watts.append(joules / seconds)
        assert (run.now() - start_s > STOP_S) == bool(number)
        assert run.read_energy_j() > start_j
    assert watts[1] == pytest.approx(watts[0], rel=0.02)
    assert np.isfinite(watts).all()
