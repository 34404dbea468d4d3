"""The meter: power and energy of one call of a kernel, from any board that can be read.

It idles, warms up until power stands still, then keeps the kernel running back to back and looks at
the total-energy counter every millisecond. The window opens and closes on a tick of the counter.
Every tick inside is one sample of power, and their spread gives the interval: it holds the sensor's
noise, the rounding of the counter and the millisecond by which a tick may be seen late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Interval

LOOK_S = 0.001
"""Between two looks at the counter."""
READING_S = 0.02
"""Between two readings of instantaneous power; sensors refresh no faster."""
IDLE_S = 0.5
WARM_UP_S = 0.5
"""One stretch of warming up."""
WARM_UP_STRETCHES = 10
STEADY = 0.01
"""Warm when two stretches agree in power to this."""
FEWEST_TICKS = 8
FEWEST_CALLS = 5
"""Calls in a window at least: power may change within a call."""
NORMAL_95 = 1.959964
"""97.5 % quantile of the normal distribution."""


class Board(Protocol):
    """What the meter needs from a GPU, real or virtual. Power and energy are the whole board's."""

    def now_s(self) -> float:
        """A steady clock."""

    def counter_mj(self) -> int:
        """Total energy; moves only on its own ticks."""

    def power_w(self) -> float:
        """Instantaneous power."""

    def temperature_c(self) -> float:
        """Die temperature."""

    def clock_mhz(self) -> float:
        """SM clock now."""

    def throttle(self) -> tuple[str, ...]:
        """Reasons why the clock is lower than asked, if any."""

    def start(self, kernel: CompiledKernel) -> None:
        """Begin to call the kernel back to back, and keep at it during `wait`."""

    def wait(self, seconds: float) -> None:
        """Let time pass; idle, unless a kernel was started."""

    def stop(self) -> int:
        """Finish the call under way and go idle. How many calls there were since `start`."""


@dataclass(frozen=True)
class Window:
    """What the meter saw in one window."""

    power_w: float
    power_interval_w: Interval
    sampled_power_w: float
    """Mean of the instantaneous readings."""
    call_s: float
    """Wall time per call, back to back, over the window and its margins."""
    idle_power_w: float
    seconds: float
    samples: int
    """Counter ticks inside the window."""
    temperature_c: float
    clock_mhz: float
    throttle: tuple[str, ...]
    samples_w: tuple[float, ...] = ()
    """Mean power from each tick to the next."""

    def energy_interval_j(self) -> Interval:
        """Interval of the energy of one call."""
        return Interval(self.power_interval_w.low * self.call_s, self.power_interval_w.high * self.call_s)


@dataclass(frozen=True)
class _Tick:
    """The first look at the board after a tick of its counter."""

    now_s: float
    counter_mj: int


@dataclass
class _Log:
    """What the looks of one window found."""

    ticks: list[_Tick] = field(default_factory=list)
    readings_w: list[float] = field(default_factory=list)
    throttle: set[str] = field(default_factory=set)

    def complete(self, length_s: float) -> bool:
        """Are there enough ticks, over a span that is long enough?"""
        return len(self.ticks) > FEWEST_TICKS and self.span_s() >= length_s

    def span_s(self) -> float:
        """From the first tick to the last."""
        return self.ticks[-1].now_s - self.ticks[0].now_s

    def samples_w(self) -> tuple[float, ...]:
        """Mean power from each tick to the next."""
        joules = np.diff([tick.counter_mj for tick in self.ticks]) / 1000.0
        return tuple((joules / np.diff([tick.now_s for tick in self.ticks])).tolist())


def meter(board: Board, kernel: CompiledKernel, call_s: float, seconds: float) -> Window:
    """Meter calls of about `call_s` each over a window of about `seconds` or a little more."""
    idle = _mean_power(board, IDLE_S)
    board.start(kernel)
    _warm_up(board)
    board.stop()
    began = board.now_s()
    board.start(kernel)
    log = _record(board, max(seconds, FEWEST_CALLS * call_s))
    temperature, clock = board.temperature_c(), board.clock_mhz()
    calls = board.stop()
    mean = (log.ticks[-1].counter_mj - log.ticks[0].counter_mj) / 1000.0 / log.span_s()
    return Window(
        power_w=mean,
        power_interval_w=_interval(log.ticks, mean),
        sampled_power_w=float(np.mean(log.readings_w)),
        call_s=(board.now_s() - began) / calls,
        idle_power_w=idle,
        seconds=log.span_s(),
        samples=len(log.ticks) - 1,
        temperature_c=temperature,
        clock_mhz=clock,
        throttle=tuple(sorted(log.throttle)),
        samples_w=log.samples_w(),
    )


def _mean_power(board: Board, seconds: float) -> float:
    readings = []
    for _ in range(round(seconds / READING_S)):
        board.wait(READING_S)
        readings.append(board.power_w())
    return float(np.mean(readings))


def _warm_up(board: Board) -> None:
    before = 0.0
    for _ in range(WARM_UP_STRETCHES):
        now = _mean_power(board, WARM_UP_S)
        if abs(now - before) <= STEADY * now:
            return
        before = now


def _record(board: Board, length_s: float) -> _Log:
    """Look from the first tick that is seen to the first one after `length_s`."""
    log = _Log()
    shown = board.counter_mj()
    next_reading = board.now_s()
    while not log.complete(length_s):
        board.wait(LOOK_S)
        now, counter = board.now_s(), board.counter_mj()
        if counter != shown:
            log.ticks.append(_Tick(now, counter))
            shown = counter
        if log.ticks and now >= next_reading:
            log.readings_w.append(board.power_w())
            log.throttle.update(board.throttle())
            next_reading = now + READING_S
    return log


def _interval(ticks: list[_Tick], mean: float) -> Interval:
    """Student's t over what each tick's energy differs from the mean power times its span."""
    spans = np.diff([tick.now_s for tick in ticks])
    joules = np.diff([tick.counter_mj for tick in ticks]) / 1000.0
    samples = len(spans)
    variance = float(np.sum((joules - mean * spans) ** 2)) / (samples - 1)
    half = student_t(samples - 1) * math.sqrt(variance * samples) / float(np.sum(spans))
    return Interval(mean - half, mean + half)


def student_t(freedom: int) -> float:
    """97.5 % quantile of Student's t: Cornish-Fisher series about the normal one, four digits from 5
    degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z = NORMAL_95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
