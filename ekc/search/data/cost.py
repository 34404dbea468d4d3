"""The cost of measuring: device seconds and joules of a run, a lower bound.

A stored figure counts as if it had been measured now, so that a resumed run comes to the same sum and the
same decisions. Searching and compiling on the host are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices.device import Metering, Timing
from ekc.devices.metering.meter import IDLE_PERIOD_S, WARM_UP_PERIOD_S

MIN_WARM_UP_S = 2 * WARM_UP_PERIOD_S
"""Warm-up seconds of a metering, at least: power must agree over two periods."""


@dataclass
class MeasurementCost:
    """Device time and energy. On a simulated device: the cost on a real one."""

    timing_s: float = 0.0
    """Seconds of kernel execution in timings."""
    metering_s: float = 0.0
    """Seconds of metering: window, warm-up and the measurement of idle power before."""
    joules: float = 0.0
    """Energy of the board in all measurements."""
    idle_w: float = 0.0
    """Idle power in watts of the last metering; 0 before the first."""

    def add_timing(self, timing: Timing, power_w: float) -> None:
        """Add one timing. Its power was not measured: the caller gives an upper bound."""
        seconds = timing.samples * timing.calls * timing.latency_s
        self.timing_s += seconds
        self.joules += seconds * power_w

    def add_metering(self, metering: Metering) -> None:
        """Add one metering: idle, warm-up and window."""
        self.metering_s += estimate_metering_s(metering.window_s)
        self.joules += (
            metering.power_w * (metering.window_s + MIN_WARM_UP_S) + metering.idle_power_w * IDLE_PERIOD_S
        )
        self.idle_w = metering.idle_power_w


def compute_break_even_calls(
    search_energy_j: float, best_j: float | None, other_j: float | None
) -> float | None:
    """Calls of the best kernel instead of another that save the energy of the search; None if it saves
    none."""
    if best_j is None or other_j is None or best_j >= other_j:
        return None
    return search_energy_j / (other_j - best_j)


def estimate_metering_s(window_s: float) -> float:
    """Estimate the device seconds of a metering with a window of `window_s`."""
    return window_s + MIN_WARM_UP_S + IDLE_PERIOD_S
