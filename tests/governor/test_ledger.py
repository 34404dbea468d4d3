"""What readings mean: drift taken out, two witnesses joined, disturbances seen, changes told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.governor.ledger import Ledger, Outcome
from ekc.governor.protocols import Settings
from ekc.governor.reading import Pace, Reading
from ekc.governor.samples import Samples
from ekc.governor.watch import REFERENCES, RESTLESS_S, Pulse, Watch, lifted, longest_idle_s

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


def test_a_check_contradicts_what_is_far_from_expected_and_no_noise() -> None:
    def checked(pace: float) -> Ledger:
        return Ledger([reading(0.0, Pace(1.0, 0.004))], [reading(20.0, Pace(1 / pace, 0.004), LOW)])

    expected = Outcome(0.05, 0.005, 0.0, 0.9, 0.0)
    assert not checked(1.065).contradicts(expected)
    assert checked(1.12).contradicts(expected)
    assert checked(0.98).contradicts(expected)
    untold = Ledger([reading(0.0, Pace())], [reading(20.0, Pace(), LOW)])
    assert not untold.contradicts(expected)


def test_watts_are_known_as_well_as_they_were_seen_to_stray() -> None:
    ledger = Ledger([reading(0.0, Pace(1.0, 0.002))])
    one = reading(20.0, Pace(0.95, 0.002), LOW, watts=270.0)
    errors = [ledger.outcome(replace(one, watts_error=error)).power_error for error in (0.005, 0.03)]
    assert errors[1] > 3 * errors[0]


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


def seen(watch: Watch, watts: float, seed: int = 0, **use: float) -> bool:
    """One more look; followed if it is as expected."""
    off = watch.deviates(watch.distance(stretch(watts, seed=seed, **use)))
    if not off:
        watch.follow()
    return off


def learned(scatter: float = 0.0, seed: int = 1) -> Watch:
    rng = np.random.default_rng(seed)
    watch = Watch(10.0)
    for n in range(REFERENCES):
        assert not watch.ready()
        assert not seen(watch, 300.0 * (1 + scatter * rng.standard_normal()), n)
    assert watch.ready()
    return watch


def test_a_watch_learns_follows_and_tells() -> None:
    assert not seen(learned(), 306.0)
    assert seen(learned(), 360.0)
    assert seen(learned(), 300.0, sm=60.0)
    drifting = learned()
    assert not any(seen(drifting, 300.0 * (1 + 0.004 * step), step) for step in range(60))


def test_work_without_a_beat_is_given_its_scatter() -> None:
    assert not seen(learned(0.1), 330.0)
    assert seen(learned(0.1), 520.0)


def test_a_change_while_the_reference_is_made_is_told_by_what_was_read() -> None:
    """A job that changed just then ran 40 % slower for half an hour."""
    watch = Watch(10.0, lifted(300.0, 95.0, 62.0))
    for n, memory in enumerate((62.0, 45.0, 17.0, 17.0)):
        assert not seen(watch, 300.0, n, memory=memory)
    assert seen(watch, 300.0, memory=17.0)
    # A gear or two is no such change, nor a counter that differs from the sensor.
    watch = Watch(10.0, lifted(330.0, 95.0, 62.0))
    assert not any(seen(watch, 300.0, n, memory=60.0) for n in range(8))


@pytest.mark.parametrize("seed", range(4))
def test_looks_that_scatter_are_put_together(seed: int) -> None:
    """A starved job once ran 12 % slower: it had come to draw half as much again, and each look alone
    scattered too much to tell."""
    rng = np.random.default_rng(seed)
    watch = learned(0.12, seed)
    for n in range(20):
        watch.distance(stretch(300.0 * (1 + 0.12 * rng.standard_normal()), seed=n))
        watch.follow()
    later = [seen(watch, 440.0 * (1 + 0.12 * rng.standard_normal()), n) for n in range(6)]
    assert any(later)


def test_looks_of_which_every_other_is_off_are_no_rest() -> None:
    """Iterations longer than a look show so, and no change ever lasts."""
    watch = learned()
    for n in range(int(RESTLESS_S / 10)):
        assert not watch.restless()
        watch.distance(stretch(300.0 if n % 3 == 2 else 345.0, seed=n))
    assert watch.restless()


def test_a_beat_that_is_gone_is_missed_if_it_was_there() -> None:
    def pulse(*looks: bool | None) -> Pulse:
        one = Pulse()
        for n, found in enumerate(looks):
            one.look(20.0 * n, found)
        return one

    assert not pulse(*[False] * 12).gone(240.0)
    assert not pulse(*[True] * 6).gone(120.0)
    assert not pulse(*[True] * 6, *[None] * 6).gone(240.0)
    # An evaluation has another beat, and ends.
    assert not pulse(*[True] * 6, False, False).gone(160.0)
    assert pulse(*[True] * 6, *[False] * 7).gone(260.0)
    # Other work has it now and then, by chance.
    assert pulse(*[True] * 6, False, False, True, *[False] * 4).gone(260.0)
    assert not pulse(*[True] * 6, *[False] * 7, *[True] * 4).gone(340.0)


def test_the_longest_idle_stretch() -> None:
    at = np.arange(0.1, 10.0, 0.1)
    util = np.where((at > 2) & (at < 6.05), 0.0, 90.0)
    rest = [np.full(len(at), 1.0)] * 2
    assert longest_idle_s(Samples(at, np.full(len(at), 99.0), util, *rest)) == pytest.approx(4.0, abs=0.15)
