"""What measuring takes on the device, at least: seconds and joules, added up over a run.

A figure on file counts as if it had been measured now, so that a run that resumes comes to the same
sum, and to the same decisions. What the host spends on searching and compiling is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices.device import Metering, Timing
from ekc.devices.metering.meter import IDLE_PERIOD_S, WARM_UP_PERIOD_S

MIN_WARM_UP_S = 2 * WARM_UP_PERIOD_S
"""Seconds of warming up in a metering, the least: power must agree in two stretches."""


@dataclass
class MeasurementCost:
    """Device time and energy. On a simulated device: what a real one would take."""

    timing_s: float = 0.0
    metering_s: float = 0.0
    """Windows, warming up and the look at idle power before them."""
    joules: float = 0.0
    idle_w: float = 0.0
    """Idle power of the board as last seen; 0 until something was metered."""

    def add_timing(self, timing: Timing, power_w: float) -> None:
        """One timing; its power is not known, so the caller gives what it is at most."""
        seconds = timing.samples * timing.calls * timing.latency_s
        self.timing_s += seconds
        self.joules += seconds * power_w

    def add_metering(self, metering: Metering) -> None:
        """One metering: idle, warm up, window."""
        self.metering_s += estimate_metering_s(metering.window_s)
        self.joules += (
            metering.power_w * (metering.window_s + MIN_WARM_UP_S) + metering.idle_power_w * IDLE_PERIOD_S
        )
        self.idle_w = metering.idle_power_w


def compute_break_even_calls(
    search_energy_j: float, best_j: float | None, other_j: float | None
) -> float | None:
    """Calls of the best kernel, in place of another, that save what the search cost; None if none ever do."""
    if best_j is None or other_j is None or best_j >= other_j:
        return None
    return search_energy_j / (other_j - best_j)


def estimate_metering_s(window_s: float) -> float:
    """What a metering takes with a window of so many seconds."""
    return window_s + MIN_WARM_UP_S + IDLE_PERIOD_S
