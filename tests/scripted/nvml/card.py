"""A scripted GPU on a virtual clock, whose power is known exactly.

Scripted, not simulated: no GPU has this power. Energy is a closed form of time, so that a test knows it
without the sensors, and a thousand readings cost little time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ekc.devices.metering.meter import CompletedCalls


@dataclass
class Clock:
    """Virtual seconds."""

    seconds: float = 1000.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass(frozen=True)
class Card:
    """Properties of a scripted GPU."""

    idle_w: float = 70.0
    busy_w: float = 260.0
    warming_w: float = 0.0
    """Watts that leakage adds to a hot GPU, reached with the time constant `warming_s`."""
    warming_s: float = 25.0
    call_s: float = 1e-4
    swing_w: float = 0.0
    """Power is higher by so much in the first half of each call, lower in the second."""
    tick_s: float = 0.1
    """Seconds between two ticks of the energy counter and of the power sensor."""
    late_s: float = 0.0
    """Seconds by which a tick shows late, at most."""
    share: float = 1.0
    """Last part of each tick, during which the sensor measures."""
    noise: float = 0.005
    """Relative error of one measurement of the sensor."""
    counts: bool = True
    instantaneous: bool = True
    mean_s: float = 1.0
    """Averaging time of the other power reading, in seconds."""
    stalls: tuple[float, float] = (math.inf, math.inf)
    """Begin and end of a stall of the counter, in seconds since the first start."""
    forgets: bool = False
    """Whether the energy of a stall is lost."""
    name: str = "Scripted GPU"
    arch: int = 9
    capability: tuple[int, int] = (9, 0)
    mig: bool = False
    cap_mw: int | None = 400_000
    reasons: int = 0
    clock_mhz: int = 1410
    memory_mhz: int = 5001


def any_card(random: np.random.Generator) -> Card:
    """A random card: ticks of 20 to 100 ms, shown late or not, a sensor that measures all or a quarter of the
    time, power that swings within a call, leakage that grows while the window is open."""
    return Card(
        busy_w=random.uniform(90.0, 600.0),
        warming_w=random.uniform(0.0, 15.0),
        call_s=10 ** random.uniform(-5, -3),
        swing_w=random.uniform(0.0, 60.0),
        tick_s=random.choice([0.02, 0.05, 0.1]),
        late_s=random.choice([0.0, 0.004]),
        share=random.choice([0.25, 1.0]),
        noise=random.uniform(0.002, 0.012),
    )


@dataclass(frozen=True)
class _Stretch:
    """Time between two starts or stops. `warmth_w` is the leakage at its beginning."""

    at_s: float
    joules: float
    level_w: float
    warmth_w: float
    towards_w: float
    swing_w: float


@dataclass
class ScriptedGpu:
    """The power of a card over time, and the readings of its sensors. Also a kernel runner."""

    card: Card
    rng: np.random.Generator
    clock: Clock = field(default_factory=Clock)
    running: bool = False
    starts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        begun = self.clock.now() - 10.0
        self._stretches = [_Stretch(begun, 0.0, self.card.idle_w, 0.0, 0.0, 0.0)]
        self._began = [begun]
        self._sampled_s = self.clock.now() - self.card.tick_s * (1.0 + self.rng.uniform())
        self._counted_mj = float(self.rng.integers(10**6, 10**9))
        self._shown_mj = self._counted_mj
        self._shown_w = self.card.idle_w
        self._looks = deque([self.card.idle_w], maxlen=round(self.card.mean_s / self.card.tick_s))
        self._mean_w = self.card.idle_w
        self._next_s = self._sampled_s + self.card.tick_s

    def start(self, kernel: Any) -> None:
        assert not self.running
        self.running = True
        self.starts.append(self.clock.now())
        self._turn(self.card.busy_w, self.card.warming_w, self.card.swing_w)

    def stop(self) -> CompletedCalls:
        assert self.running
        calls = max(1, math.ceil((self.clock.now() - self.starts[-1]) / self.card.call_s))
        self.clock.seconds = max(self.clock.seconds, self.starts[-1] + calls * self.card.call_s)
        self.running = False
        self._turn(self.card.idle_w, 0.0, 0.0)
        return CompletedCalls(calls, calls * self.card.call_s)

    def joules(self, at_s: float) -> float:
        """Energy that really went into the board until then."""
        was = self._stretches[bisect_right(self._began, at_s) - 1]
        passed = at_s - was.at_s
        faded = self.card.warming_s * -math.expm1(-passed / self.card.warming_s)
        within = passed % self.card.call_s
        swing = was.swing_w * min(within, self.card.call_s - within)
        level = (was.level_w + was.towards_w) * passed
        return was.joules + level + (was.warmth_w - was.towards_w) * faded + swing

    def counter_mj(self) -> int:
        self._catch_up()
        return int(self._shown_mj)

    def instant_w(self) -> float:
        self._catch_up()
        return self._shown_w

    def mean_w(self) -> float:
        self._catch_up()
        return self._mean_w

    def _turn(self, level_w: float, towards_w: float, swing_w: float) -> None:
        now, was = self.clock.now(), self._stretches[-1]
        warmth = was.towards_w + (was.warmth_w - was.towards_w) * math.exp(
            -(now - was.at_s) / self.card.warming_s
        )
        self._stretches.append(_Stretch(now, self.joules(now), level_w, warmth, towards_w, swing_w))
        self._began.append(now)

    def _catch_up(self) -> None:
        while self.clock.seconds >= self._next_s:
            self._tick(self._sampled_s + self.card.tick_s)

    def _tick(self, at_s: float) -> None:
        card = self.card
        looked = card.share * card.tick_s
        watts = (self.joules(at_s) - self.joules(at_s - looked)) / looked
        watts *= 1.0 + card.noise * float(self.rng.standard_normal())
        stalled = bool(self.starts) and card.stalls[0] <= at_s - self.starts[0] < card.stalls[1]
        if not (stalled and card.forgets):
            self._counted_mj += 1000.0 * watts * card.tick_s
        if not stalled:
            self._shown_mj = self._counted_mj
        self._shown_w = watts
        self._looks.append(watts)
        self._mean_w = sum(self._looks) / len(self._looks)
        self._sampled_s = at_s
        self._next_s = at_s + card.tick_s + card.late_s * float(self.rng.uniform())
