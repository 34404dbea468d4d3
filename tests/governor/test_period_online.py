"""Recording of a running job until its period is stable, under a virtual clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ekc.governor.period import find_period
from ekc.governor.period.detect import assess_recording
from ekc.governor.samples import SensorSamples, Values, concatenate_samples

HZ = 10.0


class FunctionProbe:
    """A probe whose signal is a function of time, for a number of seconds."""

    label, simulated = "played", True

    def __init__(self, load: Callable[[Values], Values], seconds: float = 1e9, noise: float = 1.0) -> None:
        self.load, self.seconds, self.noise = load, seconds, noise
        self.clock, self.rng = 0.0, np.random.default_rng(0)

    def now(self) -> float:
        return self.clock

    def is_running(self) -> bool:
        return self.clock < self.seconds

    def record(self, seconds: float) -> SensorSamples:
        end = min(self.clock + seconds, self.seconds)
        time = np.arange(round(self.clock * HZ), round(end * HZ)) / HZ
        self.clock = end
        load = self.load(time) + self.noise * self.rng.standard_normal(len(time))
        unknown = np.full(len(time), np.nan)
        return SensorSamples(time, 3.0 * load, load, unknown, unknown, 300.0)


def make_square_wave(period: float) -> Callable[[Values], Values]:
    # No reading falls on an edge.
    return lambda time: np.where((time + 0.037) % period < 0.6 * period, 90.0, 20.0)


@pytest.mark.parametrize("period", [0.9, 3.7, 6.0])
def test_short_period_needs_one_recording(period: float) -> None:
    probe = FunctionProbe(make_square_wave(period))
    found = find_period(probe.record, probe.is_running)
    assert found.is_stable
    assert found.period.verdict == "periodic"
    assert found.period.seconds == pytest.approx(period, rel=0.01)
    assert found.spread < 0.02
    assert probe.clock <= max(20.0, 6 * period)


def test_long_period_extends_the_recording() -> None:
    probe = FunctionProbe(make_square_wave(17.3))
    found = find_period(probe.record, probe.is_running)
    assert found.is_stable
    assert found.period.seconds == pytest.approx(17.3, rel=0.01)
    assert 60.0 <= probe.clock <= 6 * 17.3


def test_aperiodic_job_is_given_up_in_time() -> None:
    probe = FunctionProbe(lambda time: np.zeros(len(time)), noise=10.0)
    found = find_period(probe.record, probe.is_running)
    assert not found.is_stable
    assert found.period.verdict == "aperiodic"
    assert 55.0 <= probe.clock <= 65.0
    assert len(found.samples) == round(probe.clock * HZ)


def test_changing_period_is_not_stable() -> None:
    probe = FunctionProbe(lambda time: make_square_wave(2.0 + 1.1 * (time[0] > 20))(time))
    recording = concatenate_samples(probe.record(22.0), probe.record(22.0))
    assert not assess_recording(recording).is_stable


def test_recording_ends_with_the_job() -> None:
    probe = FunctionProbe(make_square_wave(17.3), seconds=30.0)
    assert not find_period(probe.record, probe.is_running).is_stable
    assert probe.clock == 30.0
    gone = FunctionProbe(make_square_wave(2.0), seconds=0.0)
    assert find_period(gone.record, gone.is_running).period.verdict == "too_short"
