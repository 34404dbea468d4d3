"""Generated traces of training jobs whose period is known, as a GPU's sensors would show them (simulated).

A job is a row of stretches of constant load; one iteration is a pattern of them. Sensors average over a
window and may be read late, twice or not at all. The period of a trace is the mean time from the start of an
iteration to the start of the next, pauses between two iterations left out. A pattern that the sensor would
blur below its own noise, or beyond telling it from a fraction of itself, is drawn again: none could find it.
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
"""The sensors of most cards show a new value so often."""
PAUSE = 0.15
"""Of an iteration: how long a pause between iterations is."""
DISTINCT = 2.0
"""How many times its noise a sensor must show of a pattern, and of what sets it apart from its fractions."""


@dataclass(frozen=True)
class Trace:
    """A recording and the truth behind it."""

    samples: SensorSamples
    sampling_hz: float
    kind: str
    period_s: float | None
    """None for an aperiodic one."""


@dataclass(frozen=True)
class Load:
    """What a GPU does: stretches of constant load, each (power, SM, memory) in percent."""

    seconds: Values
    """Length of each stretch, (n,)."""
    levels: Values
    """(n, 3)."""

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
    """How a load is seen."""

    power_s: float
    util_s: float
    ticking: bool
    """Whether a new value is shown once per tick only."""
    noise: float = 1.0
    """Of a power reading, in percent of the cap, one sigma."""
    missing: float = 0.01
    """Share of the readings that fail."""
    gaps: int = 0
    """Stretches of one to three seconds without any."""
    late: float = 0.03
    """How uneven readings are, one sigma, as a share of the interval."""


@dataclass(frozen=True)
class Life:
    """What iterations differ by."""

    jitter: float = 0.01
    """Of the length of an iteration, one sigma, and twice that of each stretch in it."""
    level: float = 0.01
    drift: float = 0.0
    """By how much iterations get longer along the trace, as a share."""
    heating: float = 0.0
    """By how much power grows along the trace, as a share."""
    pause_every: int = 0
    stragglers: float = 0.0
    """Share of iterations that take half as long again."""


def read(
    load: Load, sensors: Sensors, hz: float, start_s: float, seconds: float, rng: Random
) -> SensorSamples:
    """The recording of a stretch of a load."""
    count = int(seconds * hz)
    time = start_s + (np.arange(count) + sensors.late * rng.standard_normal(count).clip(-3, 3)) / hz
    time.sort()
    shown = np.floor(time / TICK_S) * TICK_S if sensors.ticking else time
    power = load.mean(shown, sensors.power_s)[:, 0]
    seen = np.floor(time / sensors.util_s) * sensors.util_s
    util = load.mean(seen, sensors.util_s)[:, 1:]
    util += 0.5 * np.stack([_held(seen, rng), _held(seen, rng)], axis=1)
    power = power + sensors.noise * _held(shown, rng)
    util = np.clip(np.rint(util), 0, 100)
    kept = rng.random(count) >= sensors.missing
    for _ in range(sensors.gaps):
        begin = rng.uniform(start_s, start_s + seconds)
        kept &= (time < begin) | (time > begin + rng.uniform(1.0, 3.0))
    time, power, util = time[kept], power[kept] * CAP_W / 100.0, util[kept]
    clock = np.full(len(time), 1500.0)
    return SensorSamples(time, power, util[:, 0], util[:, 1], clock, CAP_W, sensors.power_s)


def _held(shown: Values, rng: Random) -> Values:
    """Noise that is the same for the same value shown."""
    _, which = np.unique(shown, return_inverse=True)
    return rng.standard_normal(which.max() + 1)[which]


def phases(count: int, rng: Random) -> Load:
    """A pattern of stretches in one second."""
    shares = rng.dirichlet(np.full(count, 2.0))
    sm = rng.uniform(20.0, 100.0, count) * (rng.random(count) > 0.15)
    memory = sm * rng.uniform(0.1, 0.9, count)
    power = np.clip(15.0 + 0.6 * sm + 0.25 * memory + rng.normal(0.0, 6.0, count), 10.0, 105.0)
    return Load(shares, np.stack([power, sm, memory], axis=1))


def plain(rng: Random) -> Load:
    return phases(int(rng.integers(2, 6)), rng)


def rich(rng: Random) -> Load:
    return phases(int(rng.integers(7, 16)), rng)


def nested(rng: Random) -> Load:
    """Two to eight alike micro-steps, then an optimiser step, 0.4 to 1.5 times as long as one."""
    steps, step, last = int(rng.integers(2, 9)), phases(int(rng.integers(2, 4)), rng), phases(2, rng)
    longer = rng.uniform(0.4, 1.5)
    seconds = np.concatenate([np.tile(step.seconds, steps), last.seconds * longer]) / (steps + longer)
    return Load(seconds, np.vstack([np.tile(step.levels, (steps, 1)), last.levels]))


def visible(pattern: Load, period_s: float, sensors: Sensors, life: Life) -> bool:
    """Whether power shows the pattern, and what its fractions lack, above noise and uneven levels."""
    many = repeated(pattern, np.full(int(3 + 2 * sensors.power_s / period_s), period_s))
    fold = 240
    end = many.seconds.sum()
    seen = many.mean(end - period_s + (np.arange(fold) + 0.5) / fold * period_s, sensors.power_s)[:, 0]
    apart = [seen.std()]
    for parts in (2, 3, 4, 5, 6, 8):
        folded = seen.reshape(parts, -1)
        apart.append((folded - folded.mean(axis=0)).std())
    return min(apart) >= DISTINCT * float(np.hypot(sensors.noise, life.level * seen.mean()))


def repeated(pattern: Load, lengths: Values) -> Load:
    seconds = (lengths[:, None] * pattern.seconds).ravel()
    return Load(seconds, np.tile(pattern.levels, (len(lengths), 1)))


def lived(pattern: Load, period_s: float, seconds: float, life: Life, rng: Random) -> tuple[Load, Values]:
    """(a job that runs the pattern for that long, [when each iteration began, how long it was])."""
    count = int(np.ceil(seconds / period_s * 1.1)) + 2
    along = np.minimum(np.arange(count) * period_s / seconds, 1.0)
    lengths = period_s * (1.0 + life.drift * (along - 0.5)) * np.exp(life.jitter * rng.standard_normal(count))
    lengths *= np.where(rng.random(count) < life.stragglers, 1.5, 1.0)
    shares = pattern.seconds * np.exp(2.0 * life.jitter * rng.standard_normal((count, len(pattern.seconds))))
    stretches = lengths[:, None] * shares / shares.sum(axis=1, keepdims=True)
    levels = pattern.levels * np.exp(life.level * rng.standard_normal((count, len(pattern.seconds), 1)))
    levels[..., 0] *= 1.0 + life.heating * along[:, None]
    if life.pause_every:
        pauses = np.where(np.arange(count) % life.pause_every == 0, PAUSE * period_s, 0.0)
        stretches = np.hstack([stretches, pauses[:, None]])
        levels = np.concatenate([levels, np.broadcast_to([20.0, 0.0, 0.0], (count, 1, 3))], axis=1)
    ends = np.concatenate([[0.0], np.cumsum(stretches.sum(axis=1))])
    return Load(stretches.ravel(), levels.reshape(-1, 3)), np.stack([ends[:-1], lengths])


def drawn_sensors(window_s: float, rng: Random) -> Sensors:
    if window_s >= 1.0:
        return Sensors(1.0, float(rng.choice([1 / 6, 1.0])), True, noise=0.5)
    return Sensors(window_s, 1 / 6, bool(rng.random() < 0.5), noise=float(rng.uniform(0.3, 1.5)))


Kind = tuple[Callable[[Random], Load], Callable[[Random], Life], Callable[[Sensors, Random], Sensors]]


def _as_is(sensors: Sensors, rng: Random) -> Sensors:
    return sensors


def _spotty(sensors: Sensors, rng: Random) -> Sensors:
    return replace(
        sensors, missing=rng.uniform(0.05, 0.25), gaps=int(rng.integers(1, 4)), late=rng.uniform(0.1, 0.3)
    )


def _noisy(sensors: Sensors, rng: Random) -> Sensors:
    return replace(sensors, noise=rng.uniform(2.0, 6.0))


def _all(rng: Random) -> Life:
    return Life(
        jitter=rng.uniform(0.01, 0.04),
        level=0.03,
        drift=rng.uniform(-0.04, 0.04),
        heating=0.05,
        pause_every=int(rng.integers(10, 30)),
        stragglers=0.03,
    )


def _drifting(rng: Random) -> Life:
    return Life(drift=rng.uniform(-0.08, 0.08), heating=rng.uniform(0.0, 0.15))


KINDS: dict[str, Kind] = {
    "plain": (plain, lambda rng: Life(), _as_is),
    "noise": (plain, lambda rng: Life(), _noisy),
    "jitter": (plain, lambda rng: Life(jitter=rng.uniform(0.03, 0.08), stragglers=0.04), _as_is),
    "harmonics": (rich, lambda rng: Life(), _as_is),
    "sub-periods": (nested, lambda rng: Life(), _as_is),
    "missing": (plain, lambda rng: Life(), _spotty),
    "drift": (plain, _drifting, _as_is),
    "pauses": (plain, lambda rng: Life(pause_every=int(rng.integers(10, 30))), _as_is),
    "all at once": (nested, _all, lambda s, rng: _spotty(s, rng)),
}


def periodic(kind: str, seed: int, window_s: float, below: bool = False) -> Trace:
    """A trace with a period: at least twice the sensor's window, or `below` that."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), int(10 * window_s), below])
    draw, live, see = KINDS[kind]
    low, high = (0.25 * window_s, 1.9 * window_s) if below else (2.0 * window_s, 20.0)
    hz = 10.0 if window_s >= 1.0 else 20.0
    while True:
        period = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        sensors, life, pattern = see(drawn_sensors(window_s, rng), rng), live(rng), draw(rng)
        if below or visible(pattern, period, sensors, life):
            break
    seconds = float(np.clip(period * rng.uniform(6.0, 20.0), 25.0, 200.0))
    start = float(rng.uniform(1.0, 2.0) * max(period, 1.0))
    load, iterations = lived(pattern, period, start + seconds + 1.0, life, rng)
    samples = read(load, sensors, hz, start, seconds, rng)
    begun, lengths = iterations
    inside = (begun + lengths > start) & (begun < start + seconds)
    return Trace(samples, hz, kind, float(lengths[inside].mean()))
