"""Pauses of the job between two looks of the loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ekc.governor.event_records import Event, Measured
from ekc.governor.loop import MAX_WAIT_S, govern
from ekc.governor.samples import SensorSamples, concatenate_samples
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import select_events

PAUSE_S, IDLE_W = 35.0, 90.0
WORK_S = 3.0
"""Seconds of work before a pause."""


class PausingRun(SimulatedRun):
    """A run that pauses during each of its first long waits."""

    def __init__(self, seed: int, pauses: int) -> None:
        super().__init__(sample_job(seed, "aperiodic", "h200", 840.0), seed)
        self.pauses_left, self.paused_s = pauses, 0.0

    def now(self) -> float:
        return super().now() + self.paused_s

    def read_energy_j(self) -> float:
        return super().read_energy_j() + IDLE_W * self.paused_s

    def record(self, seconds: float) -> SensorSamples:
        if seconds < MAX_WAIT_S or not self.pauses_left:
            return self._record_shifted(seconds)
        self.pauses_left -= 1
        before = self._record_shifted(WORK_S)
        at = self.now() + np.arange(0.1, PAUSE_S, 0.1)
        still = SensorSamples(at, np.full(len(at), IDLE_W), *np.zeros((2, len(at))), np.full(len(at), 1980.0))
        self.paused_s += PAUSE_S
        return concatenate_samples(
            concatenate_samples(before, still), self._record_shifted(seconds - PAUSE_S - WORK_S)
        )

    def _record_shifted(self, seconds: float) -> SensorSamples:
        stood_s = self.paused_s
        events = super().record(seconds)
        return replace(events, time_s=events.time_s + stood_s)


@pytest.mark.parametrize("seed", [3, 5])
def test_pause_between_two_looks_is_left_out_of_checks(seed: int) -> None:
    """A pause was once part of the reading, and the choice seemed to draw a fifth less."""
    choices, watts = [], []
    for pauses in (0, 2):
        run, events = PausingRun(seed, pauses), list[Event]()
        (phase,) = govern(run, run, on_event=events.append).phases
        assert run.pauses_left == 0 or not pauses
        choices.append(phase.choice.sm_mhz)
        watts.append([e.reading.watts for e in select_events(events, Measured) if e.purpose == "check"])
    assert watts[1] == pytest.approx(watts[0], rel=0.03)
    gears = run.gears().sm_mhz
    # The stretch before a pause is left out, so the curve differs a little.
    assert abs(gears.index(choices[1]) - gears.index(choices[0])) <= 1
