"""Comparison of readings with the default, outliers, and detection of changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.governor.change_detection import (
    REFERENCE_LOOK_COUNT,
    UNSTABLE_S,
    BeatMonitor,
    ChangeDetector,
    make_signature,
    measure_longest_idle_s,
)
from ekc.governor.job_reading import JobReading, ProgressRate
from ekc.governor.protocols import Settings
from ekc.governor.readings import DefaultComparison, PhaseReadings
from ekc.governor.samples import SensorSamples

LOW_LIMIT = Settings(sm_mhz=1500)
NO_LIMIT = Settings()


def make_reading(
    at_s: float, pace: ProgressRate, settings: Settings = NO_LIMIT, watts: float = 300.0
) -> JobReading:
    return JobReading(settings, at_s, 10.0, watts, pace, 90.0, 40.0, 1980.0)


@given(st.floats(-0.2, 0.2), st.floats(0.0, 0.2), st.floats(20.0, 200.0))
def test_drift_between_two_defaults_cancels(per_hour, slowdown, apart) -> None:
    def drifted(at_s: float) -> float:
        return 1 + per_hour * at_s / 3600

    first, second = (make_reading(t, ProgressRate(drifted(t), 0.002)) for t in (0.0, apart))
    middle = apart / 2
    candidate = make_reading(middle, ProgressRate(drifted(middle) / (1 + slowdown), 0.002), LOW_LIMIT)
    told = PhaseReadings([first, second], [candidate]).compare_to_default(candidate)
    assert told.slowdown == pytest.approx(slowdown, abs=1e-3)


def test_more_exact_measure_has_more_weight() -> None:
    both = ProgressRate(1.0, 0.05, 50.0, 0.004)
    ledger = PhaseReadings([make_reading(0.0, both)])
    slower = ProgressRate(0.8, 0.05, 50.0 / 1.1, 0.004)
    told = ledger.compare_to_default(make_reading(20.0, slower, LOW_LIMIT))
    # 10 % longer kernels in 90 % of the time, by the sure one; 25 % by the other.
    assert told.slowdown == pytest.approx(0.09, abs=0.01)
    only = ledger.compare_to_default(make_reading(20.0, replace(slower, moved=float("nan")), LOW_LIMIT))
    assert only.slowdown == pytest.approx(0.25)


def test_contradicting_measures_have_a_large_error() -> None:
    ledger = PhaseReadings([make_reading(0.0, ProgressRate(1.0, 0.002, 50.0, 0.004))])
    agreed = ledger.compare_to_default(
        make_reading(9.0, ProgressRate(1 / 1.05, 0.002, 50 / 1.055, 0.004), LOW_LIMIT)
    )
    torn = ledger.compare_to_default(
        make_reading(9.0, ProgressRate(1 / 1.05, 0.002, 50 / 1.5, 0.004), LOW_LIMIT)
    )
    assert torn.slowdown_error > 10 * agreed.slowdown_error


def test_check_refutes_a_wrong_expectation_but_no_noise() -> None:
    def checked(pace: float) -> PhaseReadings:
        return PhaseReadings(
            [make_reading(0.0, ProgressRate(1.0, 0.004))],
            [make_reading(20.0, ProgressRate(1 / pace, 0.004), LOW_LIMIT)],
        )

    expected = DefaultComparison(0.05, 0.005, 0.0, 0.9, 0.0)
    assert not checked(1.065).has_refuted(expected)
    assert checked(1.12).has_refuted(expected)
    assert checked(0.98).has_refuted(expected)
    untold = PhaseReadings(
        [make_reading(0.0, ProgressRate())], [make_reading(20.0, ProgressRate(), LOW_LIMIT)]
    )
    assert not untold.has_refuted(expected)


def test_power_error_follows_its_scatter() -> None:
    ledger = PhaseReadings([make_reading(0.0, ProgressRate(1.0, 0.002))])
    one = make_reading(20.0, ProgressRate(0.95, 0.002), LOW_LIMIT, watts=270.0)
    errors = [
        ledger.compare_to_default(replace(one, watts_error=error)).power_error for error in (0.005, 0.03)
    ]
    assert errors[1] > 3 * errors[0]


def test_bytes_are_not_compared_across_memory_clocks() -> None:
    ledger = PhaseReadings([make_reading(0.0, ProgressRate(moved=50.0, moved_error=0.004))])
    told = ledger.compare_to_default(
        make_reading(9.0, ProgressRate(moved=50.0, moved_error=0.004), Settings(memory_mhz=5001))
    )
    assert np.isnan(told.slowdown)


def test_reading_unlike_the_last_is_an_outlier() -> None:
    steady = ProgressRate(1.0, 0.002)
    ledger = PhaseReadings([make_reading(0.0, steady)])
    assert not ledger.is_outlier(make_reading(50.0, steady, watts=306.0))
    assert ledger.is_outlier(make_reading(50.0, steady, watts=220.0))
    assert not ledger.is_outlier(make_reading(50.0, steady, LOW_LIMIT, watts=220.0))


def make_samples(watts: float, sm: float = 95.0, memory: float = 40.0, seed: int = 0) -> SensorSamples:
    rng = np.random.default_rng(seed)
    at = np.arange(0.1, 10.0, 0.1)
    noisy = watts * rng.normal(1, 0.01, len(at))
    flat = [np.full(len(at), v) for v in (sm, memory, 1500.0)]
    return SensorSamples(at, noisy, *flat)


def look_and_update(watch: ChangeDetector, watts: float, seed: int = 0, **use: float) -> bool:
    """One more look; followed if it is as expected."""
    off = watch.is_deviating(watch.measure_distance(make_samples(watts, seed=seed, **use)))
    if not off:
        watch.update_reference()
    return off


def make_detector(scatter: float = 0.0, seed: int = 1) -> ChangeDetector:
    rng = np.random.default_rng(seed)
    watch = ChangeDetector(10.0)
    for n in range(REFERENCE_LOOK_COUNT):
        assert not watch.is_ready()
        assert not look_and_update(watch, 300.0 * (1 + scatter * rng.standard_normal()), n)
    assert watch.is_ready()
    return watch


def test_detector_follows_drift_and_finds_a_change() -> None:
    assert not look_and_update(make_detector(), 306.0)
    assert look_and_update(make_detector(), 360.0)
    assert look_and_update(make_detector(), 300.0, sm=60.0)
    drifting = make_detector()
    assert not any(look_and_update(drifting, 300.0 * (1 + 0.004 * step), step) for step in range(60))


def test_detector_allows_for_scatter() -> None:
    assert not look_and_update(make_detector(0.1), 330.0)
    assert look_and_update(make_detector(0.1), 520.0)


def test_change_during_the_reference_is_found_by_readings() -> None:
    """A job that changed just then ran 40 % slower for half an hour."""
    watch = ChangeDetector(10.0, make_signature(300.0, 95.0, 62.0))
    for n, memory in enumerate((62.0, 45.0, 17.0, 17.0)):
        assert not look_and_update(watch, 300.0, n, memory=memory)
    assert look_and_update(watch, 300.0, memory=17.0)
    # A gear or two is no such change, nor a counter that differs from the sensor.
    watch = ChangeDetector(10.0, make_signature(330.0, 95.0, 62.0))
    assert not any(look_and_update(watch, 300.0, n, memory=60.0) for n in range(8))


@pytest.mark.parametrize("seed", range(4))
def test_scattering_looks_are_averaged(seed: int) -> None:
    """A starved job once ran 12 % slower: it had come to draw half as much again, and each look alone
    scattered too much to tell."""
    rng = np.random.default_rng(seed)
    watch = make_detector(0.12, seed)
    for n in range(20):
        watch.measure_distance(make_samples(300.0 * (1 + 0.12 * rng.standard_normal()), seed=n))
        watch.update_reference()
    later = [look_and_update(watch, 440.0 * (1 + 0.12 * rng.standard_normal()), n) for n in range(6)]
    assert any(later)


def test_alternating_looks_are_unstable() -> None:
    """Iterations longer than a look show so, and no change ever lasts."""
    watch = make_detector()
    for n in range(int(UNSTABLE_S / 10)):
        assert not watch.is_unstable()
        watch.measure_distance(make_samples(300.0 if n % 3 == 2 else 345.0, seed=n))
    assert watch.is_unstable()


def test_lost_beat_is_noticed_if_it_was_found_before() -> None:
    def pulse(*looks: bool | None) -> BeatMonitor:
        one = BeatMonitor()
        for n, found in enumerate(looks):
            one.add_look(20.0 * n, found)
        return one

    assert not pulse(*[False] * 12).is_lost(240.0)
    assert not pulse(*[True] * 6).is_lost(120.0)
    assert not pulse(*[True] * 6, *[None] * 6).is_lost(240.0)
    # An evaluation has another beat, and ends.
    assert not pulse(*[True] * 6, False, False).is_lost(160.0)
    assert pulse(*[True] * 6, *[False] * 7).is_lost(260.0)
    # Other work has it now and then, by chance.
    assert pulse(*[True] * 6, False, False, True, *[False] * 4).is_lost(260.0)
    assert not pulse(*[True] * 6, *[False] * 7, *[True] * 4).is_lost(340.0)


def test_longest_idle_stretch_is_measured() -> None:
    at = np.arange(0.1, 10.0, 0.1)
    util = np.where((at > 2) & (at < 6.05), 0.0, 90.0)
    rest = [np.full(len(at), 1.0)] * 2
    assert measure_longest_idle_s(SensorSamples(at, np.full(len(at), 99.0), util, *rest)) == pytest.approx(
        4.0, abs=0.15
    )
