"""The control loop on cards with fewer limits or sensors, and on failing probes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from ekc.governor.budget import estimate_payoff
from ekc.governor.event_records import Chosen, Ended, Event, Measured
from ekc.governor.loop import govern
from ekc.governor.phase import ResponseModel
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, Settings
from ekc.governor.response_curve import ResponsePrior
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import (
    make_iterations,
    make_job,
    run_at_default,
    select_events,
)


class UnsettableRun(SimulatedRun):
    """An actuator that can set nothing."""

    def gears(self) -> Gears:
        return Gears()

    def apply(self, settings: Settings) -> None:
        raise AssertionError("there is nothing to set")


def test_card_without_gears_is_only_measured() -> None:
    run = UnsettableRun(make_job([make_iterations(120)]))
    events: list[Event] = []
    govern(run, run, on_event=events.append)
    assert select_events(events, Measured)
    assert not run.is_running()


def test_card_without_gears_calls_no_model() -> None:
    def asked(counters: object, reading: object) -> ResponsePrior:
        raise AssertionError("there is nothing to expect")

    run = UnsettableRun(make_job([make_iterations(120)]))
    events: list[Event] = []
    govern(run, run, on_event=events.append, model=cast(ResponseModel, asked))
    assert select_events(events, Measured)
    assert not run.is_running()


class CapOnlyRun(SimulatedRun):
    """A card whose clocks cannot be set, but its power cap."""

    def gears(self) -> Gears:
        return Gears(power_w=super().gears().power_w)


def test_card_without_clocks_is_governed_by_caps() -> None:
    made = make_job([make_iterations(900)])
    run = CapOnlyRun(made)
    events: list[Event] = []
    govern(run, run, on_event=events.append)
    (chosen,) = select_events(events, Chosen)
    assert chosen.settings.power_w is not None
    assert chosen.settings.sm_mhz is None
    free = run_at_default(made)
    assert run.true_j < free.true_j
    assert run.now() < 1.06 * free.now()


class LostGpuRun(SimulatedRun):
    """A probe whose GPU is lost after some looks."""

    record_count = 0

    def record(self, seconds: float):
        self.record_count += 1
        if self.record_count > 4:
            raise OSError("GPU is lost")
        return super().record(seconds)


def test_probe_error_is_raised() -> None:
    run = LostGpuRun(make_job([make_iterations(300)]))
    with pytest.raises(OSError, match="GPU is lost"):
        govern(run, run)


class GappyRun(SimulatedRun):
    """A probe that loses a third of its readings, and all of one sensor."""

    def record(self, seconds: float):
        timeline = super().record(seconds)
        kept = np.random.default_rng(len(timeline)).random(len(timeline)) > 0.33
        names = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")
        thin = {name: getattr(timeline, name)[kept] for name in names}
        return replace(timeline, **thin | {"memory_util": np.full(int(kept.sum()), np.nan)})


@pytest.mark.filterwarnings("error")
def test_missing_readings_and_sensor_are_tolerated() -> None:
    made = make_job([make_iterations(600)])
    run = GappyRun(made)
    events: list[Event] = []
    govern(run, run, on_event=events.append)
    assert select_events(events, Chosen)
    assert run.now() < 1.06 * run_at_default(made).now()


def test_overdue_job_has_no_remaining_time() -> None:
    assert estimate_payoff(Policy(remaining_s=60.0), 100.0, 10.0, 300.0).remaining_s == 0.0


@pytest.mark.parametrize("untold", [1, 2])
def test_card_without_clock_readings_is_governed(untold: int) -> None:
    """The card never reports its clock, or not in every second recording."""

    class Untold(SimulatedRun):
        times = 0

        def record(self, seconds: float) -> SensorSamples:
            events = super().record(seconds)
            self.times += 1
            nothing = np.full(len(events), np.nan)
            return events if self.times % untold else replace(events, clock_mhz=nothing)

    run, events = Untold(sample_job(0, "compute", "h200", 900.0)), []
    govern(run, run, on_event=events.append)
    assert select_events(events, Chosen)[0].settings.sm_mhz is not None
    assert isinstance(events[-1], Ended)
