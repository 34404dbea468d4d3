"""The meter: power and energy of one call of a kernel, from any board that can be read.

It idles, warms up until power stands still, then keeps the kernel running back to back and looks at
the total-energy counter every millisecond. The window opens and closes on a tick of the counter.
Every tick inside is one sample of power, and their scatter gives the interval: it holds the sensor's
noise, the rounding of the counter and the millisecond by which a tick may be seen late.

Readings of the power sensor are the second estimator. Where no counter moves they are the only one,
and the window says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import COUNTER, NOT_TOLD, READINGS, Conditions, Interval, Metering
from ekc.devices.interval import FEWEST, mean_rate
from ekc.devices.looks import READING_S, Gauges, Log, Reading, record
from ekc.errors import DeviceError, EkcError

IDLE_S = 0.5
WARM_UP_S = 0.5
"""One stretch of warming up."""
WARM_UP_STRETCHES = 10
STEADY = 0.01
"""Warm when two stretches agree in power to this."""
FEWEST_CALLS = 5
"""Calls in a window at least: power may change within a call."""
APART = 0.05
"""Estimators that differ by more are told of: a counter that lost ticks, or a sensor that lags."""
CLOCK_APART = 0.02
"""The same of the clock within a window."""
LONG_CALL_S = 0.005
"""A sensor that looks for 25 ms at a time averages over at least five calls that are shorter."""
UNSEEN = 0.25
"""Part of a call in which no look of the sensor begins, from which on calls keep step with it."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Calls:
    """What was called back to back since `start`."""

    number: int
    seconds: float
    """From the beginning of the first to the end of the last."""


class Board(Gauges, Protocol):
    """What the meter needs from a GPU, real or virtual: gauges, and a kernel that runs."""

    def power_cap_w(self) -> float | None:
        """What the board may draw; None where it has no cap or does not tell."""

    def start(self, kernel: CompiledKernel) -> None:
        """Begin to call the kernel back to back, and keep at it during `wait`."""

    def stop(self) -> Calls:
        """Finish the call under way and go idle."""


@dataclass(frozen=True)
class Window:
    """What the meter saw in one window."""

    power_w: float
    power_interval_w: Interval
    estimator: str
    """Which of the two estimators `power_w` is: `COUNTER` or `READINGS`."""
    counter_power_w: float
    """NaN where no counter moved."""
    sampled_power_w: float
    """Mean of the power readings; NaN where there are none."""
    call_s: float
    """Wall time per call, back to back, over the window and its margins."""
    idle_power_w: float
    began_s: float
    """On the board's clock."""
    seconds: float
    samples: int
    """Counter ticks inside the window, or values of the power sensor where no counter moved."""
    temperature_c: float
    clock_mhz: float
    throttle: tuple[str, ...]
    power_cap_w: float | None
    notes: tuple[str, ...]
    samples_w: tuple[float, ...]
    """Mean power over each sample."""

    def metering(self, conditions: Conditions) -> Metering:
        """The same per call, as a row keeps it."""
        low, high = self.power_interval_w.low, self.power_interval_w.high
        return Metering(
            power_w=self.power_w,
            power_interval_w=self.power_interval_w,
            energy_j=self.power_w * self.call_s,
            energy_interval_j=Interval(low * self.call_s, high * self.call_s),
            counter_energy_j=self.counter_power_w * self.call_s,
            sampled_energy_j=self.sampled_power_w * self.call_s,
            idle_power_w=self.idle_power_w,
            window_s=self.seconds,
            samples=self.samples,
            conditions=conditions,
            estimator=self.estimator,
            notes=self.notes,
            samples_w=self.samples_w,
        )


@dataclass(frozen=True)
class _Estimate:
    """Mean power by one estimator, and the span it is of."""

    watts: float
    interval: Interval
    began_s: float
    seconds: float
    samples_w: tuple[float, ...]


def meter(board: Board, kernel: CompiledKernel, call_s: float, seconds: float) -> Window:
    """Meter calls of about `call_s` each over a window of about `seconds` or a little more.

    Raises `DeviceError` where the board tells neither energy nor power, or one of them stands still alone.
    """
    board.wait(board.averaging_s)
    idle = _mean_power(board, IDLE_S)
    if math.isnan(idle):
        raise DeviceError("the board tells no power, so nothing can be metered")
    notes: list[str] = []
    try:
        board.start(kernel)
        if not _warm_up(board):
            notes.append(f"power still moved after {WARM_UP_S * WARM_UP_STRETCHES:.0f} s of warming up")
        board.stop()
        board.start(kernel)
        board.wait(board.averaging_s)
        log = record(board, max(seconds, FEWEST_CALLS * call_s))
        temperature = board.temperature_c()
        calls = board.stop()
    except BaseException:
        with suppress(EkcError):  # What went wrong first is what is told.
            board.stop()
        raise
    return _window(board, log, calls, idle, temperature, notes)


def _window(
    board: Board, log: Log, calls: Calls, idle: float, temperature: float, notes: list[str]
) -> Window:
    counted = None if log.uncounted else _counted(log)
    readings = [reading for reading in log.readings if not math.isnan(reading.watts)]
    sampled = float(np.mean([reading.watts for reading in readings])) if readings else math.nan
    best = counted or _from_readings(readings, board.averaging_s, log.uncounted)
    clocks = [reading.clock_mhz for reading in log.readings if not math.isnan(reading.clock_mhz)]
    return Window(
        power_w=best.watts,
        power_interval_w=best.interval,
        estimator=COUNTER if counted else READINGS,
        counter_power_w=counted.watts if counted else math.nan,
        sampled_power_w=sampled,
        call_s=calls.seconds / calls.number,
        idle_power_w=idle,
        began_s=best.began_s,
        seconds=best.seconds,
        samples=len(best.samples_w),
        temperature_c=temperature,
        clock_mhz=float(np.mean(clocks)) if clocks else math.nan,
        throttle=tuple(sorted(log.throttle)),
        power_cap_w=board.power_cap_w(),
        notes=(*notes, *_notes(log, best.watts, sampled, clocks), *_in_step(best, calls)),
        samples_w=best.samples_w,
    )


def _mean_power(board: Board, seconds: float) -> float:
    """Of the readings that did not fail; where all did, by the counter; NaN where that stands still."""
    readings = []
    for _ in range(round(seconds / READING_S)):
        board.wait(READING_S)
        readings.append(board.power_w())
    told = [watts for watts in readings if not math.isnan(watts)]
    return float(np.mean(told)) if told else _counted_power(board, seconds)


def _counted_power(board: Board, seconds: float) -> float:
    log = record(board, seconds)
    return math.nan if log.uncounted else _counted(log).watts


def _warm_up(board: Board) -> bool:
    """Whether power came to stand still."""
    before = 0.0
    for _ in range(WARM_UP_STRETCHES):
        now = _mean_power(board, WARM_UP_S)
        if abs(now - before) <= STEADY * now:
            return True
        before = now
    return False


def _counted(log: Log) -> _Estimate:
    """By the counter, tick by tick."""
    at = np.array([tick.at_s for tick in log.ticks])
    joules = np.diff(np.array([tick.counter_mj for tick in log.ticks])) / 1000.0
    spans = np.diff(at)
    watts, interval = mean_rate(joules, spans)
    return _Estimate(watts, interval, float(at[0]), float(at[-1] - at[0]), tuple((joules / spans).tolist()))


def _from_readings(readings: Sequence[Reading], averaging_s: float, why: str) -> _Estimate:
    """By the power sensor. A value that stands over several readings is one sample, and of averaged ones a
    length of averaging is."""
    at, watts = np.array([(reading.at_s, reading.watts) for reading in readings]).reshape(-1, 2).T
    if len(at) <= FEWEST:
        raise DeviceError(f"{why}, and it tells no power")
    spans = np.diff(at)
    starts = _starts(at[:-1], watts[:-1], averaging_s)
    if len(starts) < FEWEST:
        raise DeviceError(f"{why}, and the power sensor stands still at {watts[0]:.1f} W")
    joules = np.add.reduceat(watts[:-1] * spans, starts)
    lengths = np.add.reduceat(spans, starts)
    mean, interval = mean_rate(joules, lengths)
    return _Estimate(mean, interval, float(at[0]), float(at[-1] - at[0]), tuple((joules / lengths).tolist()))


def _starts(at: Array, watts: Array, averaging_s: float) -> NDArray[np.intp]:
    """Where each sample begins."""
    fresh = np.flatnonzero(np.diff(watts, prepend=np.nan))
    if not averaging_s or len(fresh) < FEWEST:
        return fresh
    return np.unique((at - at[0]) // averaging_s, return_index=True)[1]


def _notes(log: Log, watts: float, sampled: float, clocks: Sequence[float]) -> list[str]:
    notes = [f"{log.uncounted}; energy is from readings of power"] if log.uncounted else []
    if math.isnan(sampled):
        notes.append("the board tells no power now; energy is from its counter alone")
    if abs(sampled / watts - 1) > APART:
        notes.append(f"readings of power say {100 * (sampled / watts - 1):+.0f} % beside the energy counter")
    if NOT_TOLD in log.throttle:
        notes.append("the driver does not tell whether something throttles the clock")
    low, high = min(clocks, default=0.0), max(clocks, default=0.0)
    if not clocks:
        notes.append("the board does not tell its clock")
    if high - low > CLOCK_APART * high:
        notes.append(f"the clock moved from {low:.0f} to {high:.0f} MHz")
    return notes


def _in_step(best: _Estimate, calls: Calls) -> list[str]:
    """Long calls whose rhythm is the sensor's: one that looks part of the time sees the same part of each."""
    call_s, tick_s = calls.seconds / calls.number, best.seconds / len(best.samples_w)
    if call_s < LONG_CALL_S:
        return []
    begun = np.sort(np.arange(len(best.samples_w)) * tick_s / call_s % 1.0)
    if float(np.max(np.diff(begun, append=begun[0] + 1.0))) < UNSEEN:
        return []
    return [
        f"calls of {1000 * call_s:.1f} ms keep step with the sensor ({1000 * tick_s:.0f} ms): one that looks "
        "part of the time sees the same part of each, which the interval does not hold"
    ]
