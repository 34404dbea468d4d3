"""ODPP (Zou, Li, Barker, Ge, CCGRID 2020), as coded by GPOEO's authors: FFT period, piecewise-linear model.

Simplified: the perceptron that they retrain on the three middle points is replaced by those points
themselves, as knots of the piecewise-linear model, which can only be kinder to it.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise

import numpy as np

from ekc.governor.baselines.rules import CostPoint, GpoeoRule
from ekc.governor.measure import JobEnded, JobMeter
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.samples import SensorSamples

MAX_PERIOD_S = 60.0
SAMPLED_CLOCK_SHARES = (0.225, 0.47, 0.715, 0.96)
"""Sampled clocks over the top one (450 to 1920 MHz of 1995)."""
SETTLE_S = 4.0
MAX_POWER_CHANGE = 0.15
FIRST_WINDOW_S = 25.0


def run_odpp(probe: Probe, actuator: Actuator) -> None:
    """Steer one job until it ends."""
    with contextlib.suppress(JobEnded):
        _OdppRun(probe, actuator).run_forever()


def find_fft_period(samples: SensorSamples) -> float:
    """The strongest frequency of the plain mean of power, SM and memory use."""
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
        self._gears = np.array(actuator.gears().sm_mhz, float)

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
            self._apply_gear(int(places[0]) + GpoeoRule().find_best_gear(inside, seconds, joules, default))
            self._wait_for_change()

    def _apply_gear(self, place: int | None) -> None:
        self._actuator.apply(Settings() if place is None else Settings(sm_mhz=int(self._gears[place])))
        self._meter.record(SETTLE_S)

    def _measure_point(self, place: int | None) -> CostPoint:
        self._apply_gear(place)
        start, joules = self._meter.probe.now(), self._meter.probe.read_energy_j()
        samples = self._meter.record(FIRST_WINDOW_S)
        period = find_fft_period(samples)
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
