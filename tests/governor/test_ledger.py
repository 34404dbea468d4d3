"""What readings mean: drift taken out, two witnesses joined, disturbances seen, changes told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.governor.ledger import Ledger
from ekc.governor.protocols import Settings
from ekc.governor.reading import Pace, Reading
from ekc.governor.samples import Samples
from ekc.governor.watch import REFERENCES, Watch, longest_idle_s

LOW = Settings(sm_mhz=1500)
FREE = Settings()


def reading(at_s: float, pace: Pace, settings: Settings = FREE, watts: float = 300.0) -> Reading:
    return Reading(settings, at_s, 10.0, watts, pace, 90.0, 40.0, 1980.0)


@given(st.floats(-0.2, 0.2), st.floats(0.0, 0.2), st.floats(20.0, 200.0))
def test_even_drift_between_two_defaults_cancels(per_hour, slowdown, apart) -> None:
    def drifted(at_s: float) -> float:
        return 1 + per_hour * at_s / 3600

    first, second = (reading(t, Pace(drifted(t), 0.002)) for t in (0.0, apart))
    middle = apart / 2
    candidate = reading(middle, Pace(drifted(middle) / (1 + slowdown), 0.002), LOW)
    told = Ledger([first, second], [candidate]).outcome(candidate)
    assert told.slowdown == pytest.approx(slowdown, abs=1e-3)


def test_the_surer_witness_weighs_more_and_only_busy_time_is_stretched() -> None:
    both = Pace(1.0, 0.05, 50.0, 0.004)
    ledger = Ledger([reading(0.0, both)])
    slower = Pace(0.8, 0.05, 50.0 / 1.1, 0.004)
    told = ledger.outcome(reading(20.0, slower, LOW))
    # 10 % longer kernels in 90 % of the time, by the sure one; 25 % by the other.
    assert told.slowdown == pytest.approx(0.09, abs=0.01)
    only = ledger.outcome(reading(20.0, replace(slower, moved=float("nan")), LOW))
    assert only.slowdown == pytest.approx(0.25)


def test_witnesses_that_contradict_each_other_are_not_believed() -> None:
    ledger = Ledger([reading(0.0, Pace(1.0, 0.002, 50.0, 0.004))])
    agreed = ledger.outcome(reading(9.0, Pace(1 / 1.05, 0.002, 50 / 1.055, 0.004), LOW))
    torn = ledger.outcome(reading(9.0, Pace(1 / 1.05, 0.002, 50 / 1.5, 0.004), LOW))
    assert torn.error > 10 * agreed.error


def test_bytes_say_nothing_across_memory_clocks() -> None:
    ledger = Ledger([reading(0.0, Pace(moved=50.0, moved_error=0.004))])
    told = ledger.outcome(reading(9.0, Pace(moved=50.0, moved_error=0.004), Settings(memory_mhz=5001)))
    assert np.isnan(told.slowdown)


def test_a_reading_unlike_the_last_under_the_same_limits_is_surprising() -> None:
    steady = Pace(1.0, 0.002)
    ledger = Ledger([reading(0.0, steady)])
    assert not ledger.surprising(reading(50.0, steady, watts=306.0))
    assert ledger.surprising(reading(50.0, steady, watts=220.0))
    assert not ledger.surprising(reading(50.0, steady, LOW, watts=220.0))


def stretch(watts: float, sm: float = 95.0, memory: float = 40.0, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    at = np.arange(0.1, 10.0, 0.1)
    noisy = watts * rng.normal(1, 0.01, len(at))
    flat = [np.full(len(at), v) for v in (sm, memory, 1500.0)]
    return Samples(at, noisy, *flat)


def test_a_watch_learns_follows_and_tells() -> None:
    watch = Watch()
    for n in range(REFERENCES):
        assert watch.distance(stretch(300.0, seed=n)) == 0.0
        assert not watch.deviates(1.0) or n == REFERENCES - 1
    assert not watch.deviates(watch.distance(stretch(306.0)))
    assert watch.deviates(watch.distance(stretch(360.0)))
    assert watch.deviates(watch.distance(stretch(300.0, sm=60.0)))
    for step in range(60):
        drifted = stretch(300.0 * (1 + 0.004 * step), seed=step)
        assert not watch.deviates(watch.distance(drifted))
        watch.follow(drifted)


def test_work_without_a_beat_is_given_its_scatter() -> None:
    rng = np.random.default_rng(1)
    watch = Watch()
    for n in range(REFERENCES):
        watch.distance(stretch(300.0 * (1 + 0.1 * rng.standard_normal()), seed=n))
    assert not watch.deviates(watch.distance(stretch(330.0)))
    assert watch.deviates(watch.distance(stretch(520.0)))


def test_the_longest_idle_stretch() -> None:
    at = np.arange(0.1, 10.0, 0.1)
    util = np.where((at > 2) & (at < 6.05), 0.0, 90.0)
    rest = [np.full(len(at), 1.0)] * 2
    assert longest_idle_s(Samples(at, np.full(len(at), 99.0), util, *rest)) == pytest.approx(4.0, abs=0.15)
