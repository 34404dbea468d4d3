"""What GPOEO and ODPP share as coded by GPOEO's authors: readings per period, the rule of choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.measure import JobMeter
from ekc.governor.period import detect_period
from ekc.governor.samples import Values, concatenate_samples

SLOWDOWN_LIMIT = 0.045
RULES_MAX_PERIOD_S = 15.0


@dataclass(frozen=True)
class CostPoint:
    """Seconds and joules of one period (or of the same work, where there is none) under some limits."""

    seconds: float
    joules: float

    def compute_slowdown(self, default: CostPoint) -> float:
        """Against the default."""
        return self.seconds / default.seconds - 1


@dataclass(frozen=True)
class GpoeoRule:
    """Least E T^n below 4.5 % slowdown. Published, coded and run with n = 2, though the objective is called
    energy; n = 0 is the line that the authors left in a comment."""

    exponent: int = 2
    max_slowdown: float = SLOWDOWN_LIMIT

    def compute_score(self, point: CostPoint) -> float:
        """Lower is better."""
        return float(point.joules * point.seconds**self.exponent)

    def is_better(self, one: CostPoint, other: CostPoint, default: CostPoint) -> bool:
        """Their comparison: feasible before infeasible, lower score, smaller violation."""
        feasible = [p.compute_slowdown(default) <= self.max_slowdown for p in (one, other)]
        if all(feasible):
            return self.compute_score(one) < self.compute_score(other)
        if any(feasible):
            return feasible[0]
        return one.compute_slowdown(default) < other.compute_slowdown(default)

    def find_best_gear(self, gears: Values, seconds: Values, joules: Values, default: CostPoint) -> int:
        """Place of the choice on smoothed curves; the highest gear where nothing is feasible."""
        feasible = seconds / default.seconds - 1 <= self.max_slowdown
        if not feasible.any():
            return len(gears) - 1
        return int(np.where(feasible, joules * seconds**self.exponent, np.inf).argmin())


def measure_period_point(meter: JobMeter, first_window_s: float) -> CostPoint | None:
    """Seconds and joules of a period, watched until one is found; None after three times the longest one."""
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


def measure_rate_point(meter: JobMeter, seconds: float) -> CostPoint:
    """Work without a beat: time and joules per instruction, by counters, in arbitrary units."""
    start, joules = meter.probe.now(), meter.probe.read_energy_j()
    counters = meter.probe.read_counters(seconds)
    watts = (meter.probe.read_energy_j() - joules) / max(1e-9, meter.probe.now() - start)
    samples = meter.record(1.0)
    if not counters:
        return CostPoint(1.0, watts)
    clock = float(np.nanmedian(samples.clock_mhz))
    # Percent of the peak issue rate, which itself follows the clock.
    rate = max(1e-6, (counters["fma"] + counters["tensor"]) * clock)
    return CostPoint(1e4 / rate, watts * 1e4 / rate)
