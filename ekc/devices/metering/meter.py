"""The meter: power and energy of one call of a kernel, from any board whose sensors can be read.

The meter lets the board idle, warms it up until power is steady, then keeps the kernel running back to back
and reads the total-energy counter every millisecond. The window opens and closes on a tick of the counter.
Each tick inside is one sample of power. The scatter of the samples gives the interval: it contains the noise
of the sensor, the rounding of the counter and the millisecond by which a tick may be read late.

Readings of the power sensor are the second estimator. Where no counter moves they are the only one, and a
note of the window says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import ENERGY_COUNTER, POWER_READINGS, UNREPORTED, MeasurementConditions, Metering
from ekc.devices.metering.checked_energy import (
    COUNTER_TOLERANCE,
    MIN_TICKS,
    READING_INTERVAL_S,
    BoardLog,
    BoardReading,
    BoardSensors,
    compute_max_power_w,
    is_believable_power,
    record_board,
)
from ekc.devices.statistics import MIN_AMOUNTS, Interval, estimate_mean_rate
from ekc.errors import DeviceError, EkcError, InvalidInput

IDLE_PERIOD_S = 0.5
WARM_UP_PERIOD_S = 0.5
"""Seconds of one warm-up period."""
MAX_WARM_UP_PERIODS = 10
STEADY_POWER_TOLERANCE = 0.01
"""Relative difference of power between two warm-up periods, below which the board counts as warm."""
LEAD_IN_S = 0.15
"""Seconds of calls before the window of `run_hot`: power readings are means over up to 0.1 s, and the clock
follows the power cap within some tens of milliseconds."""
MIN_CALLS = 5
"""Calls in a window, at least: power may change within a call."""
ESTIMATOR_TOLERANCE = 0.05
"""Relative difference of the estimators from which on a note is written: lost ticks, or a sensor's lag."""
CLOCK_TOLERANCE = 0.02
"""Relative change of the clock within a window above which a note is written."""
LONG_CALL_S = 0.005
"""Seconds of a call from which aliasing with the sensor is looked for: a sensor that measures for 25 ms at a
time averages over at least five calls that are shorter."""
MAX_UNSAMPLED_SHARE = 0.25
"""Share of a call without a period of the sensor from which on calls count as in step with the sensor."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CompletedCalls:
    """The calls between `start` and `stop`."""

    count: int
    seconds: float
    """Seconds from the beginning of the first call to the end of the last."""


class Board(BoardSensors, Protocol):
    """The part of a GPU that the meter needs from a GPU, real or virtual: sensors, and a kernel that runs."""

    def start(self, kernel: CompiledKernel) -> None:
        """Begin to call the kernel back to back, until `stop`."""

    def stop(self) -> CompletedCalls:
        """Finish the running call and go idle."""


@dataclass(frozen=True)
class PowerEstimate:
    """Mean power by one estimator, and the time span that the mean covers."""

    power_w: float
    power_interval_w: Interval
    start_s: float
    """Start of the span in seconds, by the board's clock."""
    seconds: float
    samples_w: tuple[float, ...]
    """Mean power in watts between two ticks of the counter, or of each value of the power sensor."""


@dataclass(frozen=True)
class MeteringWindow(PowerEstimate):
    """Result of one metering window."""

    estimator: str
    """The estimator that `power_w` comes from: `ENERGY_COUNTER` or `POWER_READINGS`."""
    sampled_power_w: float
    """Mean of the power readings, in watts; NaN where there are none."""
    call_s: float
    """Wall-clock seconds per call, back to back, over the window and its margins."""
    idle_power_w: float
    temperature_c: float
    clock_mhz: float
    throttle: tuple[str, ...]
    power_cap_w: float | None
    notes: tuple[str, ...]

    @property
    def counter_power_w(self) -> float:
        """Mean power by the energy counter, in watts; NaN where no counter moved."""
        return self.power_w if self.estimator == ENERGY_COUNTER else math.nan

    def to_metering(self, conditions: MeasurementConditions) -> Metering:
        """The window as power and energy per call."""
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
            samples=len(self.samples_w),
            conditions=conditions,
            estimator=self.estimator,
            notes=self.notes,
            samples_w=self.samples_w,
        )


def check_window_length(seconds: float) -> None:
    """Raises `InvalidInput` for a window that is not positive and finite."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidInput(f"metering window: {seconds} s; give a positive number of seconds")


def meter_kernel(board: Board, kernel: CompiledKernel, call_s: float, seconds: float) -> MeteringWindow:
    """Meter calls of about `call_s` over a window of `seconds` or a little more. Raises `DeviceError` where
    the board reports neither energy nor power, or only one that does not change."""
    board.wait(board.averaging_s)
    idle = _measure_mean_power(board, IDLE_PERIOD_S)
    if math.isnan(idle):
        raise DeviceError("the board reports no power, so nothing can be metered")
    notes: list[str] = []
    with _stop_after_error(board):
        board.start(kernel)
        if not _warm_up(board):
            spent_s = WARM_UP_PERIOD_S * MAX_WARM_UP_PERIODS
            notes.append(f"power still changed after {spent_s:.0f} s of warming up")
        board.stop()
        recorded = _record_calls(
            board, kernel, board.averaging_s, max(seconds, MIN_CALLS * call_s), MIN_TICKS
        )
    return _make_window(board, *recorded, idle, notes)


def run_hot(board: Board, kernel: CompiledKernel, call_s: float, seconds: float) -> MeteringWindow:
    """Meter calls of about `call_s` on a board that is hot from the kernel before: without an idle period or
    warm-up, after a lead-in of `LEAD_IN_S`, over a window of `seconds` or up to a tick more.

    Power is NaN, and a note has the reason, where the board reports neither energy nor power."""
    lead_s = max(LEAD_IN_S, board.averaging_s)
    with _stop_after_error(board):
        recorded = _record_calls(board, kernel, lead_s, max(seconds, MIN_CALLS * call_s), MIN_AMOUNTS)
    return _make_window(board, *recorded, math.nan, [], is_power_needed=False)


@contextmanager
def _stop_after_error(board: Board) -> Iterator[None]:
    """Stop the kernel where the block raises an error."""
    try:
        yield
    except BaseException:
        with suppress(EkcError):  # The first error is the one to report.
            board.stop()
        raise


def _record_calls(
    board: Board, kernel: CompiledKernel, lead_s: float, seconds: float, min_ticks: int
) -> tuple[BoardLog, CompletedCalls, float]:
    """The board while the kernel runs, from `lead_s` on; its calls; degrees Celsius at the end."""
    board.start(kernel)
    board.wait(lead_s)
    log = record_board(board, seconds, min_ticks)
    celsius = board.temperature_c()
    return log, board.stop(), celsius


def _make_window(
    board: Board,
    log: BoardLog,
    calls: CompletedCalls,
    temperature_c: float,
    idle_w: float,
    notes: list[str],
    is_power_needed: bool = True,
) -> MeteringWindow:
    cap_w = board.power_cap_w()
    max_power_w = compute_max_power_w(cap_w)
    readings = [reading for reading in log.readings if is_believable_power(reading.power_w, max_power_w)]
    sampled = float(np.mean([reading.power_w for reading in readings])) if readings else math.nan
    try:
        best = _choose_estimate(log, readings, sampled, board.averaging_s, max_power_w)
    except DeviceError as problem:
        if is_power_needed:
            raise
        notes = [str(problem)]
        best = PowerEstimate(math.nan, Interval(math.nan, math.nan), math.nan, math.nan, ())
    clocks = [reading.clock_mhz for reading in log.readings if not math.isnan(reading.clock_mhz)]
    return MeteringWindow(
        **vars(best),
        estimator=POWER_READINGS if log.counter_problem else ENERGY_COUNTER,
        sampled_power_w=sampled,
        call_s=calls.seconds / calls.count,
        idle_power_w=idle_w,
        temperature_c=temperature_c,
        clock_mhz=float(np.mean(clocks)) if clocks else math.nan,
        throttle=tuple(sorted(log.throttle)),
        power_cap_w=cap_w,
        notes=(*notes, *_write_notes(log, best.power_w, sampled, clocks), *_find_aliasing(best, calls)),
    )


def _choose_estimate(
    log: BoardLog, readings: Sequence[BoardReading], sampled_w: float, averaging_s: float, max_power_w: float
) -> PowerEstimate:
    """Power by the counter, or by the readings where the counter is wrong. Raises `DeviceError` where neither
    shows a power that is believed."""
    best = None if log.counter_problem else _estimate_from_counter(log)
    if best and abs(best.power_w / sampled_w - 1) > COUNTER_TOLERANCE:
        log.counter_problem = (
            f"the board has an energy counter that says {best.power_w:,.0f} W, where its power readings say "
            f"{sampled_w:,.0f} W"
        )
        best = None
    best = best or _estimate_from_readings(readings, averaging_s, log.counter_problem)
    if not is_believable_power(best.power_w, max_power_w):
        raise DeviceError(
            f"the board seems to draw {best.power_w:,.0f} W, and may draw {max_power_w:,.0f} W at most: its "
            "sensors are not believed"
        )
    return best


def _measure_mean_power(board: Board, seconds: float) -> float:
    """Mean power over some seconds, from the readings that did not fail. Where all failed: by the counter;
    NaN where the counter does not move."""
    readings = []
    for _ in range(round(seconds / READING_INTERVAL_S)):
        board.wait(READING_INTERVAL_S)
        readings.append(board.power_w())
    valid = [watts for watts in readings if not math.isnan(watts)]
    return float(np.mean(valid)) if valid else _measure_counter_power(board, seconds)


def _measure_counter_power(board: Board, seconds: float) -> float:
    log = record_board(board, seconds)
    return math.nan if log.counter_problem else _estimate_from_counter(log).power_w


def _warm_up(board: Board) -> bool:
    """Whether power became steady."""
    before = 0.0
    for _ in range(MAX_WARM_UP_PERIODS):
        now = _measure_mean_power(board, WARM_UP_PERIOD_S)
        if abs(now - before) <= STEADY_POWER_TOLERANCE * now:
            return True
        before = now
    return False


def _estimate_from_counter(log: BoardLog) -> PowerEstimate:
    """Mean power by the energy counter, tick by tick."""
    at = np.array([tick.time_s for tick in log.ticks])
    joules = np.diff(np.array([tick.counter_mj for tick in log.ticks])) / 1000.0
    return _make_estimate(at, joules, np.diff(at))


def _estimate_from_readings(
    readings: Sequence[BoardReading], averaging_s: float, counter_problem: str
) -> PowerEstimate:
    """Mean power by the power sensor. A value that repeats over several readings is one sample; of averaged
    readings one averaging time is one sample."""
    at, watts = np.array([(reading.time_s, reading.power_w) for reading in readings]).reshape(-1, 2).T
    if len(at) <= MIN_AMOUNTS:
        raise DeviceError(f"{counter_problem}, and it reports no power")
    spans = np.diff(at)
    starts = _find_sample_starts(at[:-1], watts[:-1], averaging_s)
    if len(starts) < MIN_AMOUNTS:
        raise DeviceError(f"{counter_problem}, and the power sensor stays at {watts[0]:.1f} W")
    return _make_estimate(at, np.add.reduceat(watts[:-1] * spans, starts), np.add.reduceat(spans, starts))


def _make_estimate(at: Array, joules: Array, spans: Array) -> PowerEstimate:
    watts, interval = estimate_mean_rate(joules, spans)
    samples_w = tuple((joules / spans).tolist())
    return PowerEstimate(watts, interval, float(at[0]), float(at[-1] - at[0]), samples_w)


def _find_sample_starts(times_s: Array, watts: Array, averaging_s: float) -> NDArray[np.intp]:
    """Index of the first reading of each sample."""
    fresh = np.flatnonzero(np.diff(watts, prepend=np.nan))
    if not averaging_s or len(fresh) < MIN_AMOUNTS:
        return fresh
    return np.unique((times_s - times_s[0]) // averaging_s, return_index=True)[1]


def _write_notes(
    log: BoardLog, power_w: float, sampled_power_w: float, clocks_mhz: Sequence[float]
) -> list[str]:
    notes = [f"{log.counter_problem}; energy is from readings of power"] if log.counter_problem else []
    if math.isnan(sampled_power_w):
        notes.append("the board reports no power now; energy is from its counter alone")
    excess = sampled_power_w / power_w - 1
    if abs(excess) > ESTIMATOR_TOLERANCE:
        notes.append(f"readings of power say {100 * excess:+z.0f} % beside the energy counter")
    if UNREPORTED in log.throttle:
        notes.append("the driver does not report whether something throttles the clock")
    low, high = min(clocks_mhz, default=0.0), max(clocks_mhz, default=0.0)
    if not clocks_mhz:
        notes.append("the board does not report its clock")
    if high - low > CLOCK_TOLERANCE * high:
        notes.append(f"the clock moved from {low:.0f} to {high:.0f} MHz")
    return notes


def _find_aliasing(estimate: PowerEstimate, calls: CompletedCalls) -> list[str]:
    """A note where long calls are in step with the sensor: a sensor that measures part of the time then
    measures the same part of each call."""
    call_s = calls.seconds / calls.count
    if call_s < LONG_CALL_S or not estimate.samples_w:
        return []
    tick_s = estimate.seconds / len(estimate.samples_w)
    begun = np.sort(np.arange(len(estimate.samples_w)) * tick_s / call_s % 1.0)
    if float(np.max(np.diff(begun, append=begun[0] + 1.0))) < MAX_UNSAMPLED_SHARE:
        return []
    return [
        f"calls of {1000 * call_s:.1f} ms are in step with the sensor ({1000 * tick_s:.0f} ms), which may "
        "measure the same part of each call; the interval does not contain that error"
    ]
