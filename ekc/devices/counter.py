"""A total-energy counter like NVML's: millijoules that only move on a tick.

NVIDIA's counter moves about every 100 ms, and on A100 and H100 the sensor behind it looks at the
board a quarter of the time (arXiv 2312.02741), so that each tick is off by a little.
"""

from __future__ import annotations

import numpy as np

TICK_S = 0.1
TICK_ERROR = 0.01
"""Relative error of the energy of one tick, one sigma (estimate from 2312.02741)."""


class EnergyCounter:
    """Integrates power; shows it at ticks whose phase the reader does not know."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._displayed_mj = int(rng.integers(10**6, 10**9))
        self._total_mj = float(self._displayed_mj)
        self._energy_since_tick_j = 0.0
        self._time_to_tick_s = float(rng.uniform(0.0, TICK_S))

    @property
    def displayed_mj(self) -> int:
        """What a reader sees now."""
        return self._displayed_mj

    def advance(self, power_w: float, seconds: float) -> None:
        """Let `seconds` pass at a power."""
        while seconds >= self._time_to_tick_s:
            self._energy_since_tick_j += power_w * self._time_to_tick_s
            seconds -= self._time_to_tick_s
            self._tick()
        self._energy_since_tick_j += power_w * seconds
        self._time_to_tick_s -= seconds

    def _tick(self) -> None:
        error = 1.0 + TICK_ERROR * float(self._rng.standard_normal())
        self._total_mj += 1000.0 * self._energy_since_tick_j * error
        self._displayed_mj = int(self._total_mj)
        self._energy_since_tick_j = 0.0
        self._time_to_tick_s = TICK_S
