"""Generated traces of GPUs whose load never repeats (simulated): what must not be called periodic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from governor_traces import Load, Random, Trace, drawn_sensors, phases, plain, read, repeated


def _telegraph(rng: Random, seconds: float) -> Load:
    mean, count = float(np.exp(rng.uniform(np.log(0.4), np.log(8.0)))), 2000
    return Load(mean * rng.gamma(rng.uniform(0.8, 2.0), 1.0, count), phases(count, rng).levels)


def _bursts(rng: Random, seconds: float) -> Load:
    """Requests that come when they come."""
    mean, count, one = float(np.exp(rng.uniform(np.log(0.5), np.log(8.0)))), 1000, phases(2, rng)
    lengths = np.stack([np.full(count, 0.4 * mean), rng.exponential(mean, count)], axis=1).ravel()
    return Load(lengths, np.tile(one.levels, (count, 1)))


def _uneven(rng: Random, seconds: float) -> Load:
    """The same pattern, each time of another length: as jobs on texts of any length."""
    mean, pattern = float(np.exp(rng.uniform(np.log(0.5), np.log(10.0)))), plain(rng)
    return repeated(pattern, mean * np.exp(rng.uniform(0.5, 0.9) * rng.standard_normal(1000)))


def _wander(rng: Random, seconds: float) -> Load:
    """Load that strays: a first-order autoregression."""
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
    """A few changes that never come again."""
    return Load(rng.uniform(0.2, 0.5, 12) * seconds, phases(12, rng).levels)


APERIODIC: dict[str, Callable[[Random, float], Load]] = {
    "telegraph": _telegraph,
    "bursts": _bursts,
    "uneven": _uneven,
    "wander": _wander,
    "flat": _flat,
    "once": _once,
}


def aperiodic(kind: str, seed: int, window_s: float) -> Trace:
    """A trace without a period."""
    rng = np.random.default_rng([seed, 100 + list(APERIODIC).index(kind), int(10 * window_s)])
    seconds, hz = float(rng.uniform(30.0, 120.0)), 10.0 if window_s >= 1.0 else 20.0
    load = APERIODIC[kind](rng, seconds)
    return Trace(read(load, drawn_sensors(window_s, rng), hz, 5.0, seconds, rng), hz, kind, None)
