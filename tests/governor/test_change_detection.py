"""Detection of changes of a job: signatures, scatter, and loss of the beat."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.governor.change_detection import (
    REFERENCE_LOOK_COUNT,
    UNSTABLE_S,
    BeatMonitor,
    ChangeDetector,
    make_signature,
)
from ekc.governor.samples import SensorSamples, measure_longest_idle_s


def make_samples(watts: float, sm: float = 95.0, memory: float = 40.0, seed: int = 0) -> SensorSamples:
    rng = np.random.default_rng(seed)
    at = np.arange(0.1, 10.0, 0.1)
    noisy = watts * rng.normal(1, 0.01, len(at))
    flat = [np.full(len(at), v) for v in (sm, memory, 1500.0)]
    return SensorSamples(at, noisy, *flat)


def look_and_update(watch: ChangeDetector, watts: float, seed: int = 0, **use: float) -> bool:
    """Add a look; the reference follows it if it is as expected. Whether it deviates."""
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
    """A job that changed while the reference was made once ran 40 % slower for half an hour."""
    watch = ChangeDetector(10.0, make_signature(300.0, 95.0, 62.0))
    for n, memory in enumerate((62.0, 45.0, 17.0, 17.0)):
        assert not look_and_update(watch, 300.0, n, memory=memory)
    assert look_and_update(watch, 300.0, memory=17.0)
    # No change: the effect of a value or two, and power of a counter that differs from the sensor's.
    watch = ChangeDetector(10.0, make_signature(330.0, 95.0, 62.0))
    assert not any(look_and_update(watch, 300.0, n, memory=60.0) for n in range(8))


@pytest.mark.parametrize("seed", range(4))
def test_scattering_looks_are_averaged(seed: int) -> None:
    """A starved job once ran 12 % slower: its power had risen by half, and single looks scattered too much
    to show it."""
    rng = np.random.default_rng(seed)
    watch = make_detector(0.12, seed)
    for n in range(20):
        watch.measure_distance(make_samples(300.0 * (1 + 0.12 * rng.standard_normal()), seed=n))
        watch.update_reference()
    later = [look_and_update(watch, 440.0 * (1 + 0.12 * rng.standard_normal()), n) for n in range(6)]
    assert any(later)


def test_alternating_looks_are_unstable() -> None:
    """Iterations longer than a look cause deviations of which none lasts."""
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
    # An evaluation has another beat, but is short.
    assert not pulse(*[True] * 6, False, False).is_lost(160.0)
    assert pulse(*[True] * 6, *[False] * 7).is_lost(260.0)
    # Other work shows the beat now and then, by chance.
    assert pulse(*[True] * 6, False, False, True, *[False] * 4).is_lost(260.0)
    assert not pulse(*[True] * 6, *[False] * 7, *[True] * 4).is_lost(340.0)


def test_longest_idle_stretch_is_measured() -> None:
    at = np.arange(0.1, 10.0, 0.1)
    util = np.where((at > 2) & (at < 6.05), 0.0, 90.0)
    rest = [np.full(len(at), 1.0)] * 2
    assert measure_longest_idle_s(SensorSamples(at, np.full(len(at), 99.0), util, *rest)) == pytest.approx(
        4.0, abs=0.15
    )
