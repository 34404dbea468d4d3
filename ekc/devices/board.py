"""A virtual board: a clock, a temperature and an energy counter that move as kernels run on it."""

from __future__ import annotations

import math

import numpy as np

from ekc.codegen.compiled import CompiledKernel
from ekc.devices import power
from ekc.devices.counter import EnergyCounter
from ekc.devices.meter import CompletedCalls
from ekc.devices.specs import GpuSpec
from ekc.devices.steady import SteadyState

THERMAL_TIME_CONSTANT_S = 25.0
"""Time constant of die and heat sink (estimate)."""
RELATIVE_READING_NOISE = 0.015
"""Relative noise of one instantaneous power reading."""
MAX_STEP_S = 0.02
"""Longest step over which power counts as constant."""
WARM_START_KELVIN = 8.0
"""A tuning run keeps the board this much above its idle temperature, give or take half (estimate)."""


class VirtualBoard:
    """One board that knows one kernel; made afresh for each measurement, so that none depends on
    what ran before it or on how many workers there are."""

    def __init__(self, spec: GpuSpec, clock_mhz: float, state: SteadyState, rng: np.random.Generator) -> None:
        self._spec = spec
        self._clock_mhz = clock_mhz
        self._state = state
        self._rng = rng
        self._counter = EnergyCounter(rng)
        self._time_s = 0.0
        self._is_running = False
        self._start_time_s = 0.0
        self._true_energy_j = 0.0
        idle = power.compute_idle_power(spec, clock_mhz, spec.power.ambient_c)
        self._temperature_c = spec.power.ambient_c + spec.power.kelvin_per_w * idle
        self._temperature_c += WARM_START_KELVIN * float(rng.uniform(0.5, 1.5))

    averaging_s = 0.0

    def now_s(self) -> float:
        """Seconds of virtual time."""
        return self._time_s

    def counter_mj(self) -> int:
        """The total-energy counter."""
        return self._counter.displayed_mj

    def power_w(self) -> float:
        """One instantaneous reading."""
        return self._compute_power_w() * (1.0 + RELATIVE_READING_NOISE * float(self._rng.standard_normal()))

    def temperature_c(self) -> float:
        """Die temperature."""
        return self._temperature_c

    def clock_mhz(self) -> float:
        """The SM clock now."""
        return self._state.clock_mhz if self._is_running else self._clock_mhz

    def throttle(self) -> tuple[str, ...]:
        """Why the clock is lower than asked."""
        return self._state.throttle if self._is_running else ()

    def start(self, kernel: CompiledKernel) -> None:
        """Run the one kernel this board knows, back to back."""
        self._start_time_s = self._time_s
        self._is_running = True

    def wait(self, seconds: float) -> None:
        """Let virtual time pass, idle or running."""
        steps = max(1, math.ceil(seconds / MAX_STEP_S))
        for _ in range(steps):
            self._advance(seconds / steps)

    def power_cap_w(self) -> float:
        """What the board may draw."""
        return self._spec.power.tdp_w

    def stop(self) -> CompletedCalls:
        """Finish the call under way."""
        passed = self._time_s - self._start_time_s
        calls = max(1, math.ceil(passed / self._state.latency_s))
        self.wait(max(0.0, calls * self._state.latency_s - passed))
        self._is_running = False
        return CompletedCalls(calls, self._time_s - self._start_time_s)

    def get_true_energy_j(self) -> float:
        """What really went into the board since it was made; a meter cannot see it."""
        return self._true_energy_j

    def _compute_power_w(self) -> float:
        idle = power.compute_idle_power(self._spec, self.clock_mhz(), self._temperature_c)
        if not self._is_running:
            return idle
        return self._spec.power.tdp_w if self._state.throttle else idle + self._state.active_power_w

    def _advance(self, seconds: float) -> None:
        watts = self._compute_power_w()
        self._counter.advance(watts, seconds)
        self._true_energy_j += watts * seconds
        self._time_s += seconds
        settled = self._spec.power.ambient_c + self._spec.power.kelvin_per_w * watts
        self._temperature_c += (settled - self._temperature_c) * -math.expm1(
            -seconds / THERMAL_TIME_CONSTANT_S
        )
