"""The period of signals whose period is known."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.errors import InvalidInput
from ekc.governor import detect_period
from ekc.governor.samples import Samples

HZ = 10.0


def wave(seconds: float, period: float, seed: int = 0, noise: float = 0.0) -> np.ndarray:
    """A job that computes for 70 % of its iteration and waits for 30 %, in percent of the cap."""
    at = np.arange(int(seconds * HZ)) / HZ
    busy = np.where((at % period) < 0.7 * period, 80.0, 30.0)
    return busy + noise * np.random.default_rng(seed).standard_normal(len(at))


@pytest.mark.parametrize("period", [0.7, 1.3, 2.0, 4.4, 9.7])
def test_a_plain_period_is_found(period: float) -> None:
    found = detect_period(wave(60.0, period, noise=3.0), HZ)
    assert found.verdict == "periodic"
    assert found.seconds == pytest.approx(period, rel=0.01)
    assert 0.0 <= found.error < 0.2


def test_noise_has_none() -> None:
    assert detect_period(np.random.default_rng(0).standard_normal(600), HZ).verdict == "aperiodic"


def test_a_flat_signal_has_none() -> None:
    found = detect_period(np.full(600, 55.0), HZ)
    assert found.verdict == "aperiodic"
    assert np.isnan(found.seconds)


def test_signals_in_opposite_phase_do_not_cancel() -> None:
    one = wave(60.0, 3.1)
    assert detect_period(np.stack([one, 110.0 - one]), HZ).seconds == pytest.approx(3.1, rel=0.01)


def test_what_the_sensor_cannot_show_is_a_multiple() -> None:
    found = detect_period(wave(60.0, 0.7, noise=1.0), HZ, sensor_s=1.0)
    assert found.verdict == "multiple"
    assert found.seconds == pytest.approx(2.1, rel=0.01)


def test_too_short() -> None:
    assert detect_period(wave(60.0, 25.0), HZ).verdict == "too_short"
    assert detect_period(wave(1.0, 0.5), HZ).verdict == "too_short"


def test_uneven_samples_with_gaps() -> None:
    rng = np.random.default_rng(1)
    time = np.cumsum(rng.uniform(0.07, 0.13, 600))
    busy = np.where((time % 2.3) < 1.5, 250.0, 120.0)
    busy[100:140] = np.nan
    keep = rng.random(600) > 0.1
    flat = np.full(600, np.nan)
    samples = Samples(time[keep], busy[keep], flat[keep], flat[keep], flat[keep], 300.0)
    found = detect_period(samples, HZ)
    assert found.verdict == "periodic"
    assert found.seconds == pytest.approx(2.3, rel=0.01)


@pytest.mark.parametrize("hz", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none(hz: float) -> None:
    with pytest.raises(InvalidInput, match="sampling_hz"):
        detect_period(np.zeros(100), hz)


def test_a_shape_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="3 axes"):
        detect_period(np.zeros((2, 2, 2)), HZ)
