"""A virtual board: a clock, a temperature and an energy counter that move as kernels run on it."""

from __future__ import annotations

import math

import numpy as np

from ekc.codegen.compiled import CompiledKernel
from ekc.devices import power
from ekc.devices.counter import EnergyCounter
from ekc.devices.meter import Calls
from ekc.devices.specs import Spec
from ekc.devices.steady import Steady

THERMAL_S = 25.0
"""Time constant of die and heat sink (estimate)."""
READING_NOISE = 0.015
"""Relative noise of one instantaneous power reading."""
STEP_S = 0.02
"""Longest step over which power counts as constant."""
WARM_START_K = 8.0
"""A tuning run keeps the board this much above its idle temperature, give or take half (estimate)."""


class VirtualBoard:
    """One board that knows one kernel; made afresh for each measurement, so that none depends on
    what ran before it or on how many workers there are."""

    def __init__(self, spec: Spec, clock_mhz: float, state: Steady, rng: np.random.Generator) -> None:
        self._spec = spec
        self._clock_mhz = clock_mhz
        self._state = state
        self._rng = rng
        self._counter = EnergyCounter(rng)
        self._now_s = 0.0
        self._running = False
        self._started_s = 0.0
        self._true_j = 0.0
        idle = power.idle_power(spec, clock_mhz, spec.power.ambient_c)
        self._temperature_c = spec.power.ambient_c + spec.power.kelvin_per_w * idle
        self._temperature_c += WARM_START_K * float(rng.uniform(0.5, 1.5))

    averaging_s = 0.0

    def now_s(self) -> float:
        """Seconds of virtual time."""
        return self._now_s

    def counter_mj(self) -> int:
        """The total-energy counter."""
        return self._counter.shown_mj

    def power_w(self) -> float:
        """One instantaneous reading."""
        return self._true_power() * (1.0 + READING_NOISE * float(self._rng.standard_normal()))

    def temperature_c(self) -> float:
        """Die temperature."""
        return self._temperature_c

    def clock_mhz(self) -> float:
        """The SM clock now."""
        return self._state.clock_mhz if self._running else self._clock_mhz

    def throttle(self) -> tuple[str, ...]:
        """Why the clock is lower than asked."""
        return self._state.throttle if self._running else ()

    def start(self, kernel: CompiledKernel) -> None:
        """Run the one kernel this board knows, back to back."""
        self._started_s = self._now_s
        self._running = True

    def wait(self, seconds: float) -> None:
        """Let virtual time pass, idle or running."""
        steps = max(1, math.ceil(seconds / STEP_S))
        for _ in range(steps):
            self._step(seconds / steps)

    def power_cap_w(self) -> float:
        """What the board may draw."""
        return self._spec.power.tdp_w

    def stop(self) -> Calls:
        """Finish the call under way."""
        passed = self._now_s - self._started_s
        calls = max(1, math.ceil(passed / self._state.latency_s))
        self.wait(max(0.0, calls * self._state.latency_s - passed))
        self._running = False
        return Calls(calls, self._now_s - self._started_s)

    def true_energy_j(self) -> float:
        """What really went into the board since it was made; a meter cannot see it."""
        return self._true_j

    def _true_power(self) -> float:
        idle = power.idle_power(self._spec, self.clock_mhz(), self._temperature_c)
        if not self._running:
            return idle
        return self._spec.power.tdp_w if self._state.throttle else idle + self._state.busy_w

    def _step(self, seconds: float) -> None:
        watts = self._true_power()
        self._counter.add(watts, seconds)
        self._true_j += watts * seconds
        self._now_s += seconds
        settled = self._spec.power.ambient_c + self._spec.power.kelvin_per_w * watts
        self._temperature_c += (settled - self._temperature_c) * -math.expm1(-seconds / THERMAL_S)
