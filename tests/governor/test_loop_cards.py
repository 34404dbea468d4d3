"""The loop on cards that can or tell less, and on probes that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from ekc.governor.events import (
    Chosen,
    Ended,
    Event,
    Measured,
)
from ekc.governor.jobs.draw import draw
from ekc.governor.jobs.world import SimulatedRun
from ekc.governor.landscape import Beliefs
from ekc.governor.loop import govern
from ekc.governor.payoff import payoff
from ekc.governor.phase import Model
from ekc.governor.policy import Policy
from ekc.governor.protocols import Gears, Settings
from ekc.governor.samples import Samples
from tests.governor.made_jobs import (
    at_default,
    job,
    of,
    plain,
)


class Blind(SimulatedRun):
    """An actuator that can set nothing."""

    def gears(self) -> Gears:
        return Gears()

    def apply(self, settings: Settings) -> None:
        raise AssertionError("there is nothing to set")


def test_without_gears_nothing_is_set() -> None:
    run = Blind(job([plain(120)]))
    told: list[Event] = []
    govern(run, run, on_event=told.append)
    assert of(told, Measured)
    assert not run.running()


def test_without_gears_a_model_is_not_asked() -> None:
    def asked(counters: object, reading: object) -> Beliefs:
        raise AssertionError("there is nothing to expect")

    run = Blind(job([plain(120)]))
    told: list[Event] = []
    govern(run, run, on_event=told.append, model=cast(Model, asked))
    assert of(told, Measured)
    assert not run.running()


class Capped(SimulatedRun):
    """A card whose clocks cannot be set, but its power cap."""

    def gears(self) -> Gears:
        return Gears(power_w=super().gears().power_w)


def test_power_caps_serve_where_clocks_cannot_be_set() -> None:
    made = job([plain(900)])
    run = Capped(made)
    told: list[Event] = []
    govern(run, run, on_event=told.append)
    (chosen,) = of(told, Chosen)
    assert chosen.settings.power_w is not None
    assert chosen.settings.sm_mhz is None
    free = at_default(made)
    assert run.true_j < free.true_j
    assert run.now() < 1.06 * free.now()


class Failing(SimulatedRun):
    """A probe whose GPU is lost after some looks."""

    looks = 0

    def record(self, seconds: float):
        self.looks += 1
        if self.looks > 4:
            raise OSError("GPU is lost")
        return super().record(seconds)


def test_what_the_probe_raises_is_not_swallowed() -> None:
    run = Failing(job([plain(300)]))
    with pytest.raises(OSError, match="GPU is lost"):
        govern(run, run)


class Gappy(SimulatedRun):
    """A probe that loses a third of its readings, and all of one sensor."""

    def record(self, seconds: float):
        whole = super().record(seconds)
        kept = np.random.default_rng(len(whole)).random(len(whole)) > 0.33
        names = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")
        thin = {name: getattr(whole, name)[kept] for name in names}
        return replace(whole, **thin | {"memory_util": np.full(int(kept.sum()), np.nan)})


@pytest.mark.filterwarnings("error")
def test_missing_readings_and_a_missing_sensor_are_lived_with() -> None:
    made = job([plain(600)])
    run = Gappy(made)
    told: list[Event] = []
    govern(run, run, on_event=told.append)
    assert of(told, Chosen)
    assert run.now() < 1.06 * at_default(made).now()


def test_nothing_remains_of_a_job_that_lasts_longer_than_told() -> None:
    assert payoff(Policy(remaining_s=60.0), 100.0, 10.0, 300.0).remaining_s == 0.0


@pytest.mark.parametrize("untold", [1, 2])
def test_a_card_that_does_not_tell_its_clock_is_governed(untold: int) -> None:
    """Never, or not in every second stretch."""

    class Untold(SimulatedRun):
        times = 0

        def record(self, seconds: float) -> Samples:
            told = super().record(seconds)
            self.times += 1
            nothing = np.full(len(told), np.nan)
            return told if self.times % untold else replace(told, clock_mhz=nothing)

    run, told = Untold(draw(0, "compute", "h200", 900.0)), []
    govern(run, run, on_event=told.append)
    assert of(told, Chosen)[0].settings.sm_mhz is not None
    assert isinstance(told[-1], Ended)
