"""Detection of the period of signals of known period."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekc.errors import InvalidInput
from ekc.governor import detect_period
from ekc.governor.period.signals import resample_signals
from ekc.governor.samples import SensorSamples

HZ = 10.0


def make_wave(seconds: float, period: float, seed: int = 0, noise: float = 0.0) -> np.ndarray:
    """A job that computes for 70 % of its iteration and waits for 30 %, in percent of the cap."""
    at = np.arange(int(seconds * HZ)) / HZ
    busy = np.where((at % period) < 0.7 * period, 80.0, 30.0)
    return busy + noise * np.random.default_rng(seed).standard_normal(len(at))


@pytest.mark.parametrize("period", [0.7, 1.3, 2.0, 4.4, 9.7])
def test_plain_period_is_found(period: float) -> None:
    found = detect_period(make_wave(60.0, period, noise=3.0), HZ)
    assert found.verdict == "periodic"
    assert found.seconds == pytest.approx(period, rel=0.01)
    assert 0.0 <= found.error < 0.2


def test_noise_is_aperiodic() -> None:
    assert detect_period(np.random.default_rng(0).standard_normal(600), HZ).verdict == "aperiodic"


def test_constant_signal_is_aperiodic() -> None:
    found = detect_period(np.full(600, 55.0), HZ)
    assert found.verdict == "aperiodic"
    assert np.isnan(found.seconds)


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("shape", [lambda t: 2 * t, lambda t: t**2, lambda t: 90 * np.exp(-t / 10)])
def test_monotonic_signal_is_aperiodic(shape, noise: float) -> None:
    seconds = np.arange(0, 60, 0.1)
    load = shape(seconds) + noise * np.random.default_rng(0).standard_normal(len(seconds))
    assert detect_period(load, 10.0).verdict == "aperiodic"


def test_signals_in_opposite_phase_do_not_cancel() -> None:
    one = make_wave(60.0, 3.1)
    assert detect_period(np.stack([one, 110.0 - one]), HZ).seconds == pytest.approx(3.1, rel=0.01)


def test_period_below_the_window_is_a_multiple() -> None:
    found = detect_period(make_wave(60.0, 0.7, noise=1.0), HZ, sensor_s=1.0)
    assert found.verdict == "multiple"
    assert found.seconds == pytest.approx(2.1, rel=0.01)


def test_short_recording_is_too_short() -> None:
    assert detect_period(make_wave(60.0, 25.0), HZ).verdict == "too_short"
    assert detect_period(make_wave(1.0, 0.5), HZ).verdict == "too_short"


def test_uneven_samples_with_gaps_have_a_period() -> None:
    rng = np.random.default_rng(1)
    time = np.cumsum(rng.uniform(0.07, 0.13, 600))
    busy = np.where((time % 2.3) < 1.5, 250.0, 120.0)
    busy[100:140] = np.nan
    keep = rng.random(600) > 0.1
    flat = np.full(600, np.nan)
    samples = SensorSamples(time[keep], busy[keep], flat[keep], flat[keep], flat[keep], 300.0)
    found = detect_period(samples, HZ)
    assert found.verdict == "periodic"
    assert found.seconds == pytest.approx(2.3, rel=0.01)


@pytest.mark.parametrize(
    ("samples", "hz", "window_s", "words"),
    [
        *((np.zeros(100), hz, None, "sampling_hz") for hz in (0.0, -1.0, float("nan"), float("inf"))),
        (np.zeros((2, 2, 2)), HZ, None, "3 axes"),
        *(
            (bad, HZ, None, "samples are not numbers")
            for bad in (["a", "b"], [[1.0, 2.0], [1.0]], {"x": 1.0})
        ),
        *((np.ones(400), HZ, window, "sensor_s") for window in (0.0, -1.0, float("nan"))),
    ],
)
def test_bad_arguments_are_refused(samples: Any, hz: float, window_s: float | None, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        detect_period(samples, hz, window_s)


def test_power_cap_of_zero_is_ignored() -> None:
    signal = make_wave(40.0, 2.3)
    flat = np.full(len(signal), np.nan)
    samples = SensorSamples(np.arange(len(signal)) / HZ, signal, flat, flat, flat, power_limit_w=0.0)
    assert detect_period(samples, HZ).seconds == pytest.approx(2.3, rel=0.01)


PERIODS = st.floats(0.6, 12.0)


@settings(max_examples=30, deadline=None)
@given(PERIODS, st.floats(0.5, 40.0), st.floats(-200.0, 200.0), st.integers(0, 30), st.integers(0, 99))
def test_units_offset_and_sign_do_not_matter(
    period: float, scale: float, offset: float, later: int, seed: int
) -> None:
    signal = make_wave(100.0, period, seed, noise=4.0)[later:]
    one, two = detect_period(signal, HZ), detect_period(offset - scale * signal, HZ)
    assert one.verdict == two.verdict == "periodic"
    assert one.seconds == pytest.approx(two.seconds, rel=1e-6)
    assert one.seconds == pytest.approx(period, rel=0.02)


@settings(max_examples=20, deadline=None)
@given(PERIODS, st.floats(2.0, 20.0))
def test_period_scales_with_the_rate(period: float, hz: float) -> None:
    """The same readings at another rate, so that the filter of the sensor's window is the same."""
    signal = make_wave(90.0, period, 1, noise=2.0)
    reference = detect_period(signal, HZ, sensor_s=2.0 / HZ)
    other = detect_period(signal, hz, sensor_s=2.0 / hz) if hz <= HZ else reference
    assert other.seconds * (hz if hz <= HZ else HZ) == pytest.approx(reference.seconds * HZ, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(-1e6, 1e6) | st.just(float("nan")) | st.sampled_from([0.0, 1.0]), min_size=0, max_size=120
    ),
    st.floats(0.1, 100.0),
)
def test_every_signal_gets_a_verdict(values: list[float], hz: float) -> None:
    found = detect_period(np.array(values), hz)
    assert found.verdict in ("periodic", "multiple", "aperiodic", "too_short")
    assert 0.0 <= found.error <= 1.0
    assert np.isnan(found.seconds) or found.seconds > 0
    if found.verdict in ("periodic", "multiple"):
        assert found.seconds <= max(len(values) / hz / 2.7, 0.4)


def test_micro_steps_make_one_iteration() -> None:
    """Four equal micro-steps of a second each and an optimiser step of another load."""
    rng = np.random.default_rng(3)
    micro = np.concatenate([np.full(6, 85.0), np.full(4, 60.0)])
    one = np.concatenate([np.tile(micro, 4), np.full(7, 30.0)])
    signal = np.tile(one, 20) + 2.0 * rng.standard_normal(20 * len(one))
    assert detect_period(signal, HZ).seconds == pytest.approx(4.7, rel=0.01)
    alike = np.tile(micro, 80) + 2.0 * rng.standard_normal(80 * len(micro))
    assert detect_period(alike, HZ).seconds == pytest.approx(1.0, rel=0.01)


def test_slow_utilisation_does_not_hide_the_period_of_power() -> None:
    """A utilisation that is updated once a second beats with an iteration of 2.4 s."""
    at = np.arange(600) / HZ
    power = np.where(at % 2.4 < 1.5, 80.0, 30.0)
    coarse = power[(np.floor(at) * HZ).astype(int)]
    assert detect_period(np.stack([power, coarse, coarse]), HZ).seconds == pytest.approx(2.4, rel=0.01)


def test_missing_signals_are_ignored() -> None:
    rng = np.random.default_rng(0)
    nothing = np.full(600, np.nan)
    found = detect_period(np.stack([nothing, make_wave(60.0, 3.0, noise=2.0), nothing]), HZ)
    assert found.seconds == pytest.approx(3.0, rel=0.01)
    assert detect_period(np.stack([nothing, nothing]), HZ).verdict == "too_short"
    holes = make_wave(60.0, 3.0, noise=2.0)
    holes[rng.random(600) < 0.3] = np.nan
    assert detect_period(holes, HZ).seconds == pytest.approx(3.0, rel=0.01)


PATTERNS = {
    "every second": lambda at: at % 2 == 0,
    "every third": lambda at: at % 3 == 0,
    "two of three": lambda at: at % 3 != 0,
    "half a second of every one": lambda at: at % 10 < 5,
}


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("period", [2.3, 3.1, 5.0])
def test_pattern_of_missing_readings_is_no_period(period: float, pattern: str, beside: bool) -> None:
    """The result was once 0.42 s instead of 5.0 s, with an error of 0.001: those lags had hardly a valid
    pair."""
    at = np.arange(600)
    load = np.where(at / HZ % period < 0.65 * period, 80, 30) + np.random.default_rng(1).normal(0, 3, 600)
    part = np.where(PATTERNS[pattern](at), load, np.nan)
    found = detect_period(np.stack([load, part]) if beside else part, HZ)
    assert found.verdict == "periodic"
    assert found.seconds == pytest.approx(period, rel=0.02)


def make_points(
    period: float, edges: list[float], levels: list[float], noise: float, seed: int
) -> np.ndarray:
    """Power in watts at single moments, ten a second for 45 s."""
    rng = np.random.default_rng(seed)
    phase = (rng.uniform(0, period) + np.arange(450) / HZ) / period % 1
    return np.array(levels)[np.searchsorted(edges, phase, side="right")] + noise * rng.standard_normal(450)


@pytest.mark.parametrize("noise", [6.0, 20.0])
@pytest.mark.parametrize("period", [0.86, 0.9433, 1.0271, 1.13, 1.2618, 1.45])
def test_readings_of_moments_show_the_iteration_and_no_multiple(period: float, noise: float) -> None:
    """A pattern at moments repeats exactly only after a whole number of readings; a multiple was found."""
    points = make_points(period, [0.2, 0.37, 0.6, 0.81], [120.0, 390.0, 180.0, 320.0, 240.0], noise, 1)
    found = detect_period(points, HZ)
    assert found.verdict == "periodic"
    assert found.seconds == pytest.approx(period, rel=0.01)


def test_micro_steps_at_moments_make_one_iteration() -> None:
    """Four micro-steps and an optimiser step as long as one, which differs by its power alone."""
    period = 5 * 0.9433
    edges = [x for n in range(4) for x in ((n + 0.5) / 5, (n + 1) / 5)]
    levels = [390.0, 200.0] * 4 + [120.0]
    found = detect_period(make_points(period, edges, levels, 6.0, 2), HZ)
    assert found.seconds == pytest.approx(period, rel=0.01)


def test_uneven_iterations_fit_no_profile() -> None:
    rng = np.random.default_rng(4)
    lengths = 1.05 * np.exp(0.5 * rng.standard_normal(200))
    phase = np.interp(np.arange(600) / HZ, np.cumsum(lengths), np.arange(200)) % 1
    load = np.where(phase < 0.5, 350.0, 120.0) + 6.0 * rng.standard_normal(600)
    assert detect_period(load, HZ).verdict == "aperiodic"


def test_cut_pauses_are_no_updates_of_a_sensor() -> None:
    """Both ends of a pause that was cut out have the same time, and a signal that seldom changes may change
    there alone."""
    time_s = np.arange(0, 60, 0.1)
    util = np.where(time_s % 20 < 10, 80.0, 20.0)
    changes = np.flatnonzero(np.diff(util)) + 1
    util[changes] = 50.0
    time_s[changes + 1] = time_s[changes]
    power = 300 + 50 * np.sin(2 * np.pi * time_s / 2.5)
    samples = SensorSamples(time_s, power, util, util, np.full(len(time_s), 1500.0), power_limit_w=700.0)
    assert all(signal.update_s > 0 for signal in resample_signals(samples, 10.0))
    assert detect_period(samples, 10.0).seconds > 0
