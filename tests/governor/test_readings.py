"""Comparison of readings with the default, and outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.governor.protocols import Settings
from ekc.governor.readings import DefaultComparison, JobReading, PhaseReadings, ProgressRate

LOW_LIMIT = Settings(sm_mhz=1500)
NO_LIMIT = Settings()


def make_reading(
    at_s: float, pace: ProgressRate, settings: Settings = NO_LIMIT, watts: float = 300.0
) -> JobReading:
    return JobReading(settings, at_s, 10.0, watts, pace, 90.0, 40.0, 1980.0)


@given(st.floats(-0.2, 0.2), st.floats(0.0, 0.2), st.floats(20.0, 200.0))
def test_drift_between_two_defaults_cancels(per_hour, slowdown, difference) -> None:
    def drifted(at_s: float) -> float:
        return 1 + per_hour * at_s / 3600

    first, second = (make_reading(t, ProgressRate(drifted(t), 0.002)) for t in (0.0, difference))
    middle = difference / 2
    candidate = make_reading(middle, ProgressRate(drifted(middle) / (1 + slowdown), 0.002), LOW_LIMIT)
    events = PhaseReadings([first, second], [candidate]).compare_to_default(candidate)
    assert events.slowdown == pytest.approx(slowdown, abs=1e-3)


def test_more_exact_measure_has_more_weight() -> None:
    both = ProgressRate(1.0, 0.05, 50.0, 0.004)
    ledger = PhaseReadings([make_reading(0.0, both)])
    slower = ProgressRate(0.8, 0.05, 50.0 / 1.1, 0.004)
    events = ledger.compare_to_default(make_reading(20.0, slower, LOW_LIMIT))
    # The exact measure has kernels 10 % longer in 90 % of the time; the other one 25 %.
    assert events.slowdown == pytest.approx(0.09, abs=0.01)
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
    events = ledger.compare_to_default(
        make_reading(9.0, ProgressRate(moved=50.0, moved_error=0.004), Settings(memory_mhz=5001))
    )
    assert np.isnan(events.slowdown)


def test_reading_unlike_the_last_is_an_outlier() -> None:
    steady = ProgressRate(1.0, 0.002)
    ledger = PhaseReadings([make_reading(0.0, steady)])
    assert not ledger.is_outlier(make_reading(50.0, steady, watts=306.0))
    assert ledger.is_outlier(make_reading(50.0, steady, watts=220.0))
    assert not ledger.is_outlier(make_reading(50.0, steady, LOW_LIMIT, watts=220.0))
