"""A virtual board: a clock, a temperature and an energy counter that change while a kernel runs on it.

The counter is a total-energy counter like NVML's, in millijoules that change on ticks only. NVIDIA's counter
ticks about every 100 ms. On A100 and H100 the sensor behind it measures a quarter of the time (arXiv
2312.02741), so that each tick has a small error.
"""

from __future__ import annotations

import math

import numpy as np

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.metering.meter import CompletedCalls
from ekc.devices.simulated import power
from ekc.devices.simulated.operating_point import SteadyState
from ekc.devices.simulated.specs import GpuSpec

TICK_S = 0.1
TICK_ERROR = 0.01
"""Relative error of the energy of one tick, one sigma (estimate from 2312.02741)."""


class EnergyCounter:
    """Integrates power; shows the energy at ticks whose phase the reader does not know."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._displayed_mj = int(rng.integers(10**6, 10**9))
        self._total_mj = float(self._displayed_mj)
        self._energy_since_tick_j = 0.0
        self._time_to_tick_s = float(rng.uniform(0.0, TICK_S))

    @property
    def displayed_mj(self) -> int:
        """Energy in millijoules that a reader gets now."""
        return self._displayed_mj

    def advance(self, power_w: float, seconds: float) -> None:
        """Let `seconds` pass at a power in watts."""
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


THERMAL_TIME_CONSTANT_S = 25.0
"""Time constant of die and heat sink (estimate)."""
RELATIVE_READING_NOISE = 0.015
"""Relative noise of one instantaneous power reading."""
MAX_STEP_S = 0.02
"""Longest step in seconds over which power counts as constant."""
WARM_START_KELVIN = 8.0
"""Kelvin by which a tuning run keeps the board above its idle temperature, give or take half (estimate)."""


class VirtualBoard:
    """A board that runs one kernel at a time. It is made for each measurement but those of a hot board, so
    that no other measurement depends on an earlier one or on the number of workers."""

    def __init__(self, spec: GpuSpec, clock_mhz: float, state: SteadyState, rng: np.random.Generator) -> None:
        self._spec = spec
        self._clock_mhz = clock_mhz
        self._rng = rng
        self._counter = EnergyCounter(rng)
        self._time_s = 0.0
        self._is_running = False
        self._start_time_s = 0.0
        self._idle_power = power.find_idle_power(spec, clock_mhz)
        self.replace_kernel(state)
        idle = self._idle_power.compute_total(spec.power.ambient_c)
        self._temperature_c = float(spec.power.ambient_c + spec.power.kelvin_per_w * idle)
        self._temperature_c += WARM_START_KELVIN * float(rng.uniform(0.5, 1.5))

    averaging_s = 0.0

    def replace_kernel(self, state: SteadyState) -> None:
        """Run another kernel from the next `start` on; temperature and counter go on."""
        self._state = state
        self._running_idle_power = power.find_idle_power(self._spec, state.clock_mhz)

    def now_s(self) -> float:
        """Seconds of virtual time."""
        return self._time_s

    def counter_mj(self) -> int:
        """Total energy in millijoules."""
        return self._counter.displayed_mj

    def power_w(self) -> float:
        """One instantaneous power reading in watts."""
        return self._compute_power_w() * (1.0 + RELATIVE_READING_NOISE * float(self._rng.standard_normal()))

    def temperature_c(self) -> float:
        """Temperature of the die in degrees Celsius."""
        return self._temperature_c

    def clock_mhz(self) -> float:
        """Present SM clock in MHz."""
        return self._state.clock_mhz if self._is_running else self._clock_mhz

    def throttle(self) -> tuple[str, ...]:
        """Reasons why the clock is lower than requested."""
        return self._state.throttle if self._is_running else ()

    def start(self, kernel: CompiledKernel) -> None:
        """Run the kernel of this board back to back."""
        self._start_time_s = self._time_s
        self._is_running = True

    def wait(self, seconds: float) -> None:
        """Let virtual time pass, idle or running."""
        steps = max(1, math.ceil(seconds / MAX_STEP_S))
        for _ in range(steps):
            self._advance(seconds / steps)

    def power_cap_w(self) -> float:
        """Power cap of the board in watts."""
        return self._spec.power.tdp_w

    def stop(self) -> CompletedCalls:
        """Finish the running call."""
        passed = self._time_s - self._start_time_s
        calls = max(1, math.ceil(passed / self._state.latency_s))
        self.wait(max(0.0, calls * self._state.latency_s - passed))
        self._is_running = False
        return CompletedCalls(calls, self._time_s - self._start_time_s)

    def _compute_power_w(self) -> float:
        if not self._is_running:
            return float(self._idle_power.compute_total(self._temperature_c))
        if self._state.throttle:
            return float(self._spec.power.tdp_w)
        idle = self._running_idle_power.compute_total(self._temperature_c)
        return float(idle + self._state.active_power_w)

    def _advance(self, seconds: float) -> None:
        watts = self._compute_power_w()
        self._counter.advance(watts, seconds)
        self._time_s += seconds
        settled = self._spec.power.ambient_c + self._spec.power.kelvin_per_w * watts
        share = -math.expm1(-seconds / THERMAL_TIME_CONSTANT_S)
        self._temperature_c += (settled - self._temperature_c) * share
