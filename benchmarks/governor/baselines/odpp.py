"""ODPP (Zou, Li, Barker, Ge, CCGRID 2020), as coded by GPOEO's authors: FFT period, piecewise-linear model.

Simplified: the original retrains a perceptron on the three middle points. Here those points themselves are
knots of the piecewise-linear model, which can only help ODPP. `CostPoint`, `GpoeoRule` and the functions
that measure points are shared with GPOEO, as in its authors' code.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ekc.governor.job_meter import JobEnded, JobMeter
from ekc.governor.period import detect_period
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.samples import SensorSamples, Values, concatenate_samples
from ekc.governor.simulation.simulated_run import SimulatedRun

SLOWDOWN_LIMIT = 0.045
RULES_MAX_PERIOD_S = 15.0


@dataclass(frozen=True)
class CostPoint:
    """Seconds and joules of one period under some limits; without a period, of a fixed amount of work."""

    seconds: float
    joules: float

    def compute_slowdown(self, default: CostPoint) -> float:
        """Slowdown against the default, as a share."""
        return self.seconds / default.seconds - 1


@dataclass(frozen=True)
class GpoeoRule:
    """Least E T^n below 4.5 % slowdown, n = `exponent`.

    Published, coded and run with n = 2, though the objective is called energy; the authors' code has n = 0
    in a comment.
    """

    exponent: int = 2
    max_slowdown: float = SLOWDOWN_LIMIT

    def compute_score(self, point: CostPoint) -> float:
        """E T^n of a point; lower is better."""
        return float(point.joules * point.seconds**self.exponent)

    def is_better(self, one: CostPoint, other: CostPoint, default: CostPoint) -> bool:
        """GPOEO's comparison: feasible before infeasible, then lower score, or smaller violation."""
        feasible = [p.compute_slowdown(default) <= self.max_slowdown for p in (one, other)]
        if all(feasible):
            return self.compute_score(one) < self.compute_score(other)
        if any(feasible):
            return feasible[0]
        return one.compute_slowdown(default) < other.compute_slowdown(default)

    def choose_best_gear(self, gears: Values, seconds: Values, joules: Values, default: CostPoint) -> int:
        """Place of the best gear on smoothed curves; the highest gear where none is feasible."""
        feasible = seconds / default.seconds - 1 <= self.max_slowdown
        if not feasible.any():
            return len(gears) - 1
        return int(np.where(feasible, joules * seconds**self.exponent, np.inf).argmin())


def measure_period_point(meter: JobMeter, first_window_s: float) -> CostPoint | None:
    """Record until a period is found; its seconds and joules, or None after three times the longest
    period."""
    start, joules = meter.probe.now(), meter.probe.read_energy_j()
    samples = meter.record(first_window_s)
    while True:
        period = detect_period(samples, samples.sampling_hz)
        lasted = meter.probe.now() - start
        if period.verdict in ("periodic", "multiple") and lasted >= 2.8 * period.seconds:
            watts = (meter.probe.read_energy_j() - joules) / lasted
            return CostPoint(period.seconds, watts * period.seconds)
        if lasted >= 3 * RULES_MAX_PERIOD_S:
            return None
        samples = concatenate_samples(samples, meter.record(max(5.0, 0.3 * lasted)))


def measure_rate_point(run: SimulatedRun, meter: JobMeter, seconds: float) -> CostPoint:
    """Seconds and joules per instruction in arbitrary units, by counters, for work without a period."""
    start, joules = meter.probe.now(), meter.probe.read_energy_j()
    counters = run.read_counters(seconds)
    watts = (meter.probe.read_energy_j() - joules) / max(1e-9, meter.probe.now() - start)
    samples = meter.record(1.0)
    clock = float(np.nanmedian(samples.clock_mhz))
    # Counters are percent of the peak issue rate, which is proportional to the clock.
    rate = max(1e-6, (counters["fma"] + counters["tensor"]) * clock)
    return CostPoint(1e4 / rate, watts * 1e4 / rate)


MAX_PERIOD_S = 60.0
SAMPLED_CLOCK_SHARES = (0.225, 0.47, 0.715, 0.96)
"""Measured clocks over the top clock (450 to 1920 MHz of 1995)."""
SETTLE_S = 4.0
MAX_POWER_CHANGE = 0.15
FIRST_WINDOW_S = 25.0


def run_odpp(probe: Probe, actuator: Actuator) -> None:
    """Govern one job until it ends."""
    with contextlib.suppress(JobEnded):
        _OdppRun(probe, actuator).run_forever()


def compute_fft_period(samples: SensorSamples) -> float:
    """Period of the strongest frequency of the mean of power, SM use and memory use."""
    mean = (100 * samples.power_w / samples.power_limit_w + samples.sm_util + samples.memory_util) / 3
    step = float(np.median(np.diff(samples.time_s)))
    spectrum = np.abs(np.fft.rfft(np.nan_to_num(mean - np.nanmean(mean))))
    seconds = len(mean) * step / np.maximum(np.arange(len(spectrum)), 1e-9)
    spectrum[seconds > MAX_PERIOD_S] = 0.0
    return float(seconds[int(spectrum.argmax())])


class _OdppRun:
    def __init__(self, probe: Probe, actuator: Actuator) -> None:
        self._meter = JobMeter(probe, actuator, lambda event: None)
        self._actuator = actuator
        self._gears = np.array(actuator.list_offered().sm_mhz, float)

    def run_forever(self) -> None:
        while True:
            default = self._measure_point(None)
            sampled = [
                int(np.abs(self._gears - share * self._gears[-1]).argmin()) for share in SAMPLED_CLOCK_SHARES
            ]
            middle = [int((a + b) // 2) for a, b in pairwise(sampled)]
            places = np.array(sorted({*sampled, *middle}))
            points = [self._measure_point(int(p)) for p in places]
            inside = self._gears[places[0] : places[-1] + 1]
            clocks = self._gears[places]
            seconds = np.interp(inside, clocks, [p.seconds for p in points])
            joules = np.interp(inside, clocks, [p.joules for p in points])
            self._apply_gear(int(places[0]) + GpoeoRule().choose_best_gear(inside, seconds, joules, default))
            self._wait_for_change()

    def _apply_gear(self, place: int | None) -> None:
        self._actuator.apply(Settings() if place is None else Settings(sm_mhz=int(self._gears[place])))
        self._meter.record(SETTLE_S)

    def _measure_point(self, place: int | None) -> CostPoint:
        self._apply_gear(place)
        start, joules = self._meter.probe.now(), self._meter.probe.read_energy_j()
        samples = self._meter.record(FIRST_WINDOW_S)
        period = compute_fft_period(samples)
        if period > FIRST_WINDOW_S / 3:
            self._meter.record(min(3 * period, 3 * MAX_PERIOD_S) - FIRST_WINDOW_S + 0.1)
        watts = (self._meter.probe.read_energy_j() - joules) / (self._meter.probe.now() - start)
        return CostPoint(period, watts * period)

    def _wait_for_change(self) -> None:
        before = self._measure_watts()
        while abs(self._measure_watts() / before - 1) <= MAX_POWER_CHANGE:
            pass

    def _measure_watts(self) -> float:
        joules, start = self._meter.probe.read_energy_j(), self._meter.probe.now()
        self._meter.record(FIRST_WINDOW_S)
        return (self._meter.probe.read_energy_j() - joules) / (self._meter.probe.now() - start)
