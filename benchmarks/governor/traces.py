"""Generated traces of a GPU's sensors (simulated): training jobs of known period, and loads without a period.

A job is a sequence of stretches of constant load; one iteration is a pattern of them. Sensors average over a
window and may be read late, twice or not at all. The period of a trace is the mean time from the start of an
iteration to the start of the next, pauses between two iterations left out. A pattern is rejected, and
sampled again, where the sensor blurs it below its own noise or makes it look like a fraction of itself: no
detector could find its period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.governor.samples import SensorSamples

Values = NDArray[np.float64]
Random = np.random.Generator
CAP_W = 300.0
TICK_S = 0.1
"""Seconds between two new values of most cards' sensors."""
MIN_TICKS = 4.0
"""Shortest period that a sensor which shows only part of the time is judged on, in values that it shows."""
PAUSE_SHARE = 0.15
"""Length of a pause between two iterations, as a share of an iteration."""
MIN_SIGNAL_RATIO = 2.0
"""Least signal of a pattern, and of its difference from its fractions, as a multiple of the noise."""


@dataclass(frozen=True)
class Trace:
    """A recording and its true period."""

    samples: SensorSamples
    sampling_hz: float
    kind: str
    period_s: float | None
    """True period in seconds; None for an aperiodic load."""


@dataclass(frozen=True)
class Load:
    """A GPU's load over time: stretches of constant power, SM use and memory use."""

    seconds: Values
    """Length of each stretch, (n,)."""
    levels: Values
    """Power, SM use and memory use of each stretch in percent, (n, 3)."""

    def mean(self, time_s: Values, window_s: float) -> Values:
        """Mean of each level over the window before each time, (times, 3)."""
        edges = np.concatenate([[0.0], np.cumsum(self.seconds)])
        total = np.vstack([np.zeros(3), np.cumsum(self.seconds[:, None] * self.levels, axis=0)])
        sums = [
            np.interp(time_s, edges, total[:, k]) - np.interp(time_s - window_s, edges, total[:, k])
            for k in range(3)
        ]
        return np.stack(sums, axis=1) / window_s


@dataclass(frozen=True)
class Sensors:
    """Properties of the sensors."""

    power_s: float
    """Averaging window of a power reading in seconds; shorter than `TICK_S` where a sensor shows only part
    of the time."""
    util_s: float
    """Averaging window of a utilisation reading in seconds."""
    ticking: bool
    """Whether a new value is shown only once per `TICK_S`."""
    noise: float = 1.0
    """Standard deviation of a power reading in percent of the cap."""
    missing: float = 0.01
    """Share of the readings that fail, 0 to 1."""
    gaps: int = 0
    """Number of gaps of one to three seconds without readings."""
    late: float = 0.03
    """Standard deviation of reading times, as a share of the interval."""


@dataclass(frozen=True)
class Variation:
    """Differences between iterations."""

    jitter: float = 0.01
    """Standard deviation of the log length of an iteration; of each stretch in it, twice that."""
    level: float = 0.01
    """Standard deviation of the log load of a stretch."""
    drift: float = 0.0
    """Share by which iterations get longer along the trace."""
    heating: float = 0.0
    """Share by which power grows along the trace."""
    pause_every: int = 0
    """Iterations between two pauses; 0 for none."""
    stragglers: float = 0.0
    """Share of iterations that take 1.5 times as long."""


def read_sensors(
    load: Load, sensors: Sensors, hz: float, start_s: float, seconds: float, rng: Random
) -> SensorSamples:
    """Sensor readings of a load from `start_s` for `seconds`."""
    count = int(seconds * hz)
    time = start_s + (np.arange(count) + sensors.late * rng.standard_normal(count).clip(-3, 3)) / hz
    time.sort()
    shown = np.floor(time / TICK_S) * TICK_S if sensors.ticking else time
    power = load.mean(shown, sensors.power_s)[:, 0]
    updated = np.floor(time / sensors.util_s) * sensors.util_s
    util = load.mean(updated, sensors.util_s)[:, 1:]
    util += 0.5 * np.stack([_make_held_noise(updated, rng), _make_held_noise(updated, rng)], axis=1)
    power = power + sensors.noise * _make_held_noise(shown, rng)
    util = np.clip(np.rint(util), 0, 100)
    is_valid = rng.random(count) >= sensors.missing
    for _ in range(sensors.gaps):
        begin = rng.uniform(start_s, start_s + seconds)
        is_valid &= (time < begin) | (time > begin + rng.uniform(1.0, 3.0))
    time, power, util = time[is_valid], power[is_valid] * CAP_W / 100.0, util[is_valid]
    clock = np.full(len(time), 1500.0)
    return SensorSamples(time, power, util[:, 0], util[:, 1], clock, CAP_W, max(sensors.power_s, TICK_S))


def _make_held_noise(shown: Values, rng: Random) -> Values:
    """Noise that is constant while the sensor shows the same value."""
    _, which = np.unique(shown, return_inverse=True)
    return rng.standard_normal(which.max() + 1)[which]


def make_pattern(count: int, rng: Random) -> Load:
    """A random pattern of `count` stretches, one second long."""
    shares = rng.dirichlet(np.full(count, 2.0))
    sm = rng.uniform(20.0, 100.0, count) * (rng.random(count) > 0.15)
    memory = sm * rng.uniform(0.1, 0.9, count)
    power = np.clip(15.0 + 0.6 * sm + 0.25 * memory + rng.normal(0.0, 6.0, count), 10.0, 105.0)
    return Load(shares, np.stack([power, sm, memory], axis=1))


def make_plain_pattern(rng: Random) -> Load:
    return make_pattern(int(rng.integers(2, 6)), rng)


def make_rich_pattern(rng: Random) -> Load:
    return make_pattern(int(rng.integers(7, 16)), rng)


def make_nested_pattern(rng: Random) -> Load:
    """Two to eight equal micro-steps, then an optimiser step, 0.4 to 1.5 times as long as one."""
    steps, step, last = (
        int(rng.integers(2, 9)),
        make_pattern(int(rng.integers(2, 4)), rng),
        make_pattern(2, rng),
    )
    longer = rng.uniform(0.4, 1.5)
    seconds = np.concatenate([np.tile(step.seconds, steps), last.seconds * longer]) / (steps + longer)
    return Load(seconds, np.vstack([np.tile(step.levels, (steps, 1)), last.levels]))


def is_visible(pattern: Load, period_s: float, sensors: Sensors, variation: Variation) -> bool:
    """Whether power shows the pattern, and its difference from its fractions, above noise and load
    variation."""
    load = repeat_pattern(pattern, np.full(int(3 + 2 * sensors.power_s / period_s), period_s))
    fold = 240
    end = load.seconds.sum()
    power = load.mean(end - period_s + (np.arange(fold) + 0.5) / fold * period_s, sensors.power_s)[:, 0]
    deviations = [power.std()]
    for parts in (2, 3, 4, 5, 6, 8):
        folded = power.reshape(parts, -1)
        deviations.append((folded - folded.mean(axis=0)).std())
    return min(deviations) >= MIN_SIGNAL_RATIO * float(
        np.hypot(sensors.noise, variation.level * power.mean())
    )


def repeat_pattern(pattern: Load, lengths: Values) -> Load:
    seconds = (lengths[:, None] * pattern.seconds).ravel()
    return Load(seconds, np.tile(pattern.levels, (len(lengths), 1)))


def make_job_load(
    pattern: Load, period_s: float, seconds: float, variation: Variation, rng: Random
) -> tuple[Load, Values]:
    """(load of a job that repeats the pattern, (start of each iteration, its length) in seconds)."""
    count = int(np.ceil(seconds / period_s * 1.1)) + 2
    along = np.minimum(np.arange(count) * period_s / seconds, 1.0)
    lengths = (
        period_s
        * (1.0 + variation.drift * (along - 0.5))
        * np.exp(variation.jitter * rng.standard_normal(count))
    )
    lengths *= np.where(rng.random(count) < variation.stragglers, 1.5, 1.0)
    shares = pattern.seconds * np.exp(
        2.0 * variation.jitter * rng.standard_normal((count, len(pattern.seconds)))
    )
    stretches = lengths[:, None] * shares / shares.sum(axis=1, keepdims=True)
    levels = pattern.levels * np.exp(variation.level * rng.standard_normal((count, len(pattern.seconds), 1)))
    levels[..., 0] *= 1.0 + variation.heating * along[:, None]
    if variation.pause_every:
        pauses = np.where(np.arange(count) % variation.pause_every == 0, PAUSE_SHARE * period_s, 0.0)
        stretches = np.hstack([stretches, pauses[:, None]])
        levels = np.concatenate([levels, np.broadcast_to([20.0, 0.0, 0.0], (count, 1, 3))], axis=1)
    ends = np.concatenate([[0.0], np.cumsum(stretches.sum(axis=1))])
    return Load(stretches.ravel(), levels.reshape(-1, 3)), np.stack([ends[:-1], lengths])


def sample_sensors(window_s: float, rng: Random) -> Sensors:
    if window_s >= 1.0:
        return Sensors(1.0, float(rng.choice([1 / 6, 1.0])), True, noise=0.5)
    if window_s < TICK_S:
        return Sensors(window_s, float(rng.choice([1 / 6, 1.0])), True, noise=float(rng.uniform(0.3, 1.5)))
    return Sensors(window_s, 1 / 6, bool(rng.random() < 0.5), noise=float(rng.uniform(0.3, 1.5)))


Kind = tuple[Callable[[Random], Load], Callable[[Random], Variation], Callable[[Sensors, Random], Sensors]]


def _as_is(sensors: Sensors, rng: Random) -> Sensors:
    return sensors


def _spotty(sensors: Sensors, rng: Random) -> Sensors:
    return replace(
        sensors, missing=rng.uniform(0.05, 0.25), gaps=int(rng.integers(1, 4)), late=rng.uniform(0.1, 0.3)
    )


def _noisy(sensors: Sensors, rng: Random) -> Sensors:
    return replace(sensors, noise=rng.uniform(2.0, 6.0))


def _all(rng: Random) -> Variation:
    return Variation(
        jitter=rng.uniform(0.01, 0.04),
        level=0.03,
        drift=rng.uniform(-0.04, 0.04),
        heating=0.05,
        pause_every=int(rng.integers(10, 30)),
        stragglers=0.03,
    )


def _drifting(rng: Random) -> Variation:
    return Variation(drift=rng.uniform(-0.08, 0.08), heating=rng.uniform(0.0, 0.15))


KINDS: dict[str, Kind] = {
    "plain": (make_plain_pattern, lambda rng: Variation(), _as_is),
    "noise": (make_plain_pattern, lambda rng: Variation(), _noisy),
    "jitter": (
        make_plain_pattern,
        lambda rng: Variation(jitter=rng.uniform(0.03, 0.08), stragglers=0.04),
        _as_is,
    ),
    "harmonics": (make_rich_pattern, lambda rng: Variation(), _as_is),
    "sub-periods": (make_nested_pattern, lambda rng: Variation(), _as_is),
    "missing": (make_plain_pattern, lambda rng: Variation(), _spotty),
    "drift": (make_plain_pattern, _drifting, _as_is),
    "pauses": (make_plain_pattern, lambda rng: Variation(pause_every=int(rng.integers(10, 30))), _as_is),
    "all at once": (make_nested_pattern, _all, lambda s, rng: _spotty(s, rng)),
}


def make_periodic_trace(kind: str, seed: int, window_s: float, below: bool = False) -> Trace:
    """A trace with a period of at least twice the sensor's window, or of `MIN_TICKS` values of a sensor that
    shows only part of the time; or `below` that."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), int(10 * window_s), below])
    sample_pattern, sample_variation, change_sensors = KINDS[kind]
    least_s = MIN_TICKS * TICK_S if window_s < TICK_S else 2.0 * window_s
    low, high = (0.125 * least_s, 0.95 * least_s) if below else (least_s, 20.0)
    hz = 10.0 if window_s >= 1.0 else 20.0
    while True:
        period = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        sensors = change_sensors(sample_sensors(window_s, rng), rng)
        variation, pattern = sample_variation(rng), sample_pattern(rng)
        if below or is_visible(pattern, period, sensors, variation):
            break
    seconds = float(np.clip(period * rng.uniform(6.0, 20.0), 25.0, 200.0))
    start = float(rng.uniform(1.0, 2.0) * max(period, 1.0))
    load, iterations = make_job_load(pattern, period, start + seconds + 1.0, variation, rng)
    samples = read_sensors(load, sensors, hz, start, seconds, rng)
    begins, lengths = iterations
    inside = (begins + lengths > start) & (begins < start + seconds)
    return Trace(samples, hz, kind, float(lengths[inside].mean()))


def _telegraph(rng: Random, seconds: float) -> Load:
    mean, count = float(np.exp(rng.uniform(np.log(0.4), np.log(8.0)))), 2000
    return Load(mean * rng.gamma(rng.uniform(0.8, 2.0), 1.0, count), make_pattern(count, rng).levels)


def _bursts(rng: Random, seconds: float) -> Load:
    """Requests at random times."""
    mean, count, one = float(np.exp(rng.uniform(np.log(0.5), np.log(8.0)))), 1000, make_pattern(2, rng)
    lengths = np.stack([np.full(count, 0.4 * mean), rng.exponential(mean, count)], axis=1).ravel()
    return Load(lengths, np.tile(one.levels, (count, 1)))


def _uneven(rng: Random, seconds: float) -> Load:
    """One pattern repeated with random lengths, as by jobs on texts of any length."""
    mean, pattern = float(np.exp(rng.uniform(np.log(0.5), np.log(10.0)))), make_plain_pattern(rng)
    return repeat_pattern(pattern, mean * np.exp(rng.uniform(0.5, 0.9) * rng.standard_normal(1000)))


def _wander(rng: Random, seconds: float) -> Load:
    """A randomly wandering load: a first-order autoregression."""
    step, memory = 0.05, float(np.exp(rng.uniform(np.log(0.1), np.log(20.0))))
    keep, count = np.exp(-step / memory), int(3 * seconds / step)
    noise, at = rng.standard_normal(count) * np.sqrt(1 - keep**2), np.empty(count)
    value = 0.0
    for n in range(count):
        value = keep * value + noise[n]
        at[n] = value
    sm = np.clip(55.0 + 18.0 * at, 0.0, 100.0)
    return Load(np.full(count, step), np.stack([15.0 + 0.7 * sm, sm, 0.4 * sm], axis=1))


def _flat(rng: Random, seconds: float) -> Load:
    return Load(np.array([10.0 * seconds]), rng.uniform(40.0, 95.0, (1, 3)))


def _once(rng: Random, seconds: float) -> Load:
    """A few changes that do not repeat."""
    return Load(rng.uniform(0.2, 0.5, 12) * seconds, make_pattern(12, rng).levels)


APERIODIC: dict[str, Callable[[Random, float], Load]] = {
    "telegraph": _telegraph,
    "bursts": _bursts,
    "uneven": _uneven,
    "wander": _wander,
    "flat": _flat,
    "once": _once,
}


def make_aperiodic_trace(kind: str, seed: int, window_s: float) -> Trace:
    """A trace of a load without a period."""
    rng = np.random.default_rng([seed, 100 + list(APERIODIC).index(kind), int(10 * window_s)])
    seconds, hz = float(rng.uniform(30.0, 120.0)), 10.0 if window_s >= 1.0 else 20.0
    load = APERIODIC[kind](rng, seconds)
    return Trace(read_sensors(load, sample_sensors(window_s, rng), hz, 5.0, seconds, rng), hz, kind, None)
