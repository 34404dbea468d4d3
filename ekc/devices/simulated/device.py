"""A simulated GPU: the same figures for the same kernel and repeat, in any order and in any process.

It meters on a virtual board: a clock, a temperature and an energy counter that change while a kernel runs on
it. The counter is a total-energy counter like NVML's, in millijoules that change on ticks only. NVIDIA's
counter ticks about every 100 ms. On A100 and H100 the sensor behind it measures a quarter of the time (arXiv
2312.02741), so that each tick has a small error.

The device also breaks the energy of one call down by cause: each joule of the model, for a warm board that
calls the kernel over and over. A meter adds noise to the sum, and a short window sees a cooler board that
leaks less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ekc.codegen.compiled import CompiledKernel, Launch, digest_kernel, identify_kernel
from ekc.devices.analytic_prior import predict_prior
from ekc.devices.device import (
    MeasurementConditions,
    Metering,
    OfferedClocks,
    Prior,
    Quantities,
    Timing,
    check_kernel_memory,
)
from ekc.devices.metering import meter
from ekc.devices.metering.meter import CompletedCalls, MeteringWindow
from ekc.devices.simulated import power
from ekc.devices.simulated.launch_counts import collect_facts, get_launch_profiles
from ekc.devices.simulated.operating_point import (
    KernelWork,
    SteadyState,
    compute_settled_temperature,
    compute_steady_state,
    compute_work,
    estimate_saving_interval,
)
from ekc.devices.simulated.residual import make_generator
from ekc.devices.simulated.specs import GpuSpec
from ekc.devices.statistics import Interval, student_t
from ekc.display import format_line
from ekc.errors import DeviceError
from ekc.ir.hardware.target import parse_arch_number
from ekc.version import __version__

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
        self._idle_power = power.compute_idle_parts(spec, clock_mhz)
        self.replace_kernel(state)
        idle = self._idle_power.compute_total(spec.power.ambient_c)
        self._temperature_c = float(spec.power.ambient_c + spec.power.kelvin_per_w * idle)
        self._temperature_c += WARM_START_KELVIN * float(rng.uniform(0.5, 1.5))

    averaging_s = 0.0

    def replace_kernel(self, state: SteadyState) -> None:
        """Run another kernel from the next `start` on; temperature and counter go on."""
        self._state = state
        self._running_idle_power = power.compute_idle_parts(self._spec, state.clock_mhz)

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


@dataclass(frozen=True)
class EnergyCause:
    """A cause of energy: events of one kind with their joules."""

    name: str
    count: float
    unit: str
    joules: float


@dataclass(frozen=True)
class EnergyBreakdown:
    """Energy of one call. The causes add up to power x latency; every kernel has the same causes."""

    latency_s: float
    power_w: float
    clock_mhz: float
    causes: tuple[EnergyCause, ...]

    @property
    def energy_j(self) -> float:
        """Joules per call."""
        return sum(cause.joules for cause in self.causes)


def break_down_energy(spec: GpuSpec, kernel_work: KernelWork, requested_mhz: float) -> EnergyBreakdown:
    """Energy of one call at the requested clock, or at the highest clock that the power cap allows."""
    state = compute_steady_state(spec, kernel_work, requested_mhz)
    settled = compute_settled_temperature(spec, state)
    idle = power.compute_idle_power(spec, state.clock_mhz, settled)
    causes = (
        *_list_dynamic_causes(spec, kernel_work, state.clock_mhz),
        *_list_static_causes(spec, kernel_work, state, settled),
    )
    return EnergyBreakdown(state.latency_s, idle + state.active_power_w, state.clock_mhz, causes)


def _list_dynamic_causes(spec: GpuSpec, kernel_work: KernelWork, clock_mhz: float) -> tuple[EnergyCause, ...]:
    """Joules of all launches by kind of event, and those of the seeded residuals, which no event explains."""
    voltage = spec.voltage.at_clock(clock_mhz)
    launches = [power.compute_event_energies(spec, events) for events, _ in kernel_work.launches]
    causes = []
    for same in zip(*launches, strict=True):
        scale = voltage**2 if same[0].is_core else 1.0
        joules = scale * sum(part.joules for part in same)
        causes.append(EnergyCause(same[0].kind, sum(part.count for part in same), same[0].unit, joules))
    total, explained = kernel_work.dynamic_energy.at_voltage(voltage), sum(cause.joules for cause in causes)
    # The two sums add in different orders, so without a residual they may differ by rounding.
    residual = 0.0 if math.isclose(total, explained, rel_tol=1e-12) else total - explained
    return (*causes, EnergyCause("unexplained by events", 0.0, "", residual))


def _list_static_causes(
    spec: GpuSpec, kernel_work: KernelWork, state: SteadyState, temperature_c: float
) -> tuple[EnergyCause, ...]:
    """Joules that grow with time, for any kernel."""
    seconds, clock = state.latency_s, state.clock_mhz
    static = power.compute_idle_parts(spec, clock).compute_static(temperature_c)
    constant = spec.power.constant_w
    tree = power.compute_idle_power(spec, clock, temperature_c) - static - constant
    dynamic_j = kernel_work.dynamic_energy.at_voltage(spec.voltage.at_clock(clock))
    active = state.active_power_w - dynamic_j / seconds
    watts = (("constant power", constant), ("leakage", static), ("clock tree", tree + active))
    return tuple(EnergyCause(f"{name} x time", seconds, "s", w * seconds) for name, w in watts)


SIMULATOR_VERSION = 12
"""Version of the simulator; raise it when a model or figure changes, so that no older record is reused."""
RELATIVE_TIME_NOISE = 0.003
"""Relative noise of one timed call (estimate). A4000 GEMM at a locked clock repeats to 0.02 %
(a4000_gemm_noise), event timers and busy machines do worse."""
TIME_SAMPLE_COUNT = 20


class SimulatedDevice:
    """Times and meters kernels by the models of this package. Keeps no state between calls but a memo of the
    work of each kernel, so results do not depend on their order. Only `run_hot` has a board that stays."""

    def __init__(
        self, spec: GpuSpec, clock_mhz: int | None = None, has_residual: bool = True, l2: str = "warm"
    ) -> None:
        """Without the residual each kernel takes the time and energy of the models. No seeded factor then
        favours one of two similar kernels, but a search that knows the models has nothing left to learn.

        `l2`: "warm" or "cold", what a timed call finds; metered calls always follow each other, warm."""
        self._spec, self._has_residual, self.l2 = spec, has_residual, l2
        self._clock_mhz = float(clock_mhz or spec.fixed_mhz)
        self._work_by_kernel: dict[tuple[str, tuple[Launch, ...], str], KernelWork] = {}
        self._hot_board: VirtualBoard | None = None
        self._hot_noise = make_generator(self._spec.name, str(self._clock_mhz), "hot board")
        self.name = spec.name
        self.simulated = True
        self.arch = spec.arch
        self.limits = spec.limits()
        self.peaks = spec.peaks(self._clock_mhz)
        self.memory_bytes = spec.memory_bytes
        self.clock_regime = f"fixed {self._clock_mhz:.0f} MHz"
        self.driver = f"simulator {SIMULATOR_VERSION}" + ("" if has_residual else ", no residual")
        self.data_policy = f"none (random data assumed); L2 {l2}"
        self.collect_facts = collect_facts

    @property
    def label(self) -> str:
        """Name of the device, marked as simulated."""
        return f"{self.name}{'' if self._has_residual else ', no residual'} (simulated)"

    def __repr__(self) -> str:
        return format_line(self, f"{self.label}, {self.clock_regime}")

    def prior(self, quantities: Quantities) -> Prior:
        """The analytic prior: the models of this package would know what they are asked to find."""
        return predict_prior(quantities, self.peaks)

    def clocks(self) -> OfferedClocks:
        """All clocks of the spec."""
        return OfferedClocks(mhz=self._spec.list_clocks_mhz(), current_mhz=self._clock_mhz)

    def at_clock(self, mhz: int) -> SimulatedDevice:
        """The same device with its SM clock fixed at another value."""
        if refusal := self.clocks().explain_refusal(mhz):
            raise DeviceError(f"{self.label} cannot be set to {mhz} MHz: {refusal}")
        device = SimulatedDevice(self._spec, mhz, self._has_residual, self.l2)
        device._work_by_kernel = self._work_by_kernel
        return device

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """Latency of a call at the highest clock that the power cap allows."""
        state = self._find_steady_state(kernel, self.l2)
        noise = self._make_noise_generator(kernel, "time", repeat).standard_normal(TIME_SAMPLE_COUNT)
        samples = state.latency_s * (1.0 + RELATIVE_TIME_NOISE * noise)
        mean, std = float(np.mean(samples)), float(np.std(samples, ddof=1))
        half = student_t(TIME_SAMPLE_COUNT - 1) * std / math.sqrt(TIME_SAMPLE_COUNT)
        warm = self._make_board(kernel, state, "time", repeat).temperature_c()
        conditions = self._make_conditions(kernel, state.clock_mhz, warm, state.throttle, self.l2)
        spread = Interval(mean - half, mean + half)
        return Timing(mean, spread, TIME_SAMPLE_COUNT, conditions, samples_s=tuple(samples.tolist()))

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """Power and energy of a call over a virtual window, on a board made for this measurement."""
        meter.check_window_length(seconds)
        state = self._find_steady_state(kernel, "warm")
        board = self._make_board(kernel, state, "meter", repeat)
        window = meter.meter_kernel(board, kernel, state.latency_s, seconds)
        conditions = self._make_conditions(
            kernel, window.clock_mhz, window.temperature_c, window.throttle, "warm"
        )
        return window.to_metering(conditions)

    def run_hot(self, kernel: CompiledKernel, *, seconds: float = 0.5) -> MeteringWindow:
        """A virtual window on one board that stays hot from call to call: temperature, energy counter and
        noise go on, so that figures depend on the calls before. The time of a call has one error in each
        window, as that of one timing."""
        meter.check_window_length(seconds)
        state = self._find_steady_state(kernel, "warm")
        if self._hot_board is None:
            self._hot_board = VirtualBoard(self._spec, self._clock_mhz, state, self._hot_noise)
        error = 1.0 + RELATIVE_TIME_NOISE * float(self._hot_noise.standard_normal())
        self._hot_board.replace_kernel(replace(state, latency_s=state.latency_s * error))
        return meter.run_hot(self._hot_board, kernel, state.latency_s, seconds)

    def break_down_energy(self, kernel: CompiledKernel) -> EnergyBreakdown:
        """Energy of one metered call by cause."""
        return break_down_energy(self._spec, self._compute_work(kernel, "warm"), self._clock_mhz)

    def estimate_saving_interval(self, kernel: CompiledKernel, other: CompiledKernel) -> Interval:
        """95 % interval of the share of energy that a kernel saves against another, over event energies and
        residuals that the recordings allow as well as those of this device."""
        works = [
            compute_work(self._spec, one, get_launch_profiles(one), has_residual=False)
            for one in (kernel, other)
        ]
        random = make_generator(self.name, "saving", digest_kernel(kernel), digest_kernel(other))
        return estimate_saving_interval(self._spec, works[0], works[1], self._clock_mhz, random)

    def _find_steady_state(self, kernel: CompiledKernel, l2: str) -> SteadyState:
        return compute_steady_state(self._spec, self._compute_work(kernel, l2), self._clock_mhz)

    def _compute_work(self, kernel: CompiledKernel, l2: str) -> KernelWork:
        self._check_arch(kernel)
        key = (identify_kernel(kernel), kernel.launches, l2)
        if key not in self._work_by_kernel:
            check_kernel_memory(kernel, self.label, self.memory_bytes)
            profiles, is_cold = get_launch_profiles(kernel), l2 == "cold"
            work = compute_work(self._spec, kernel, profiles, is_cold, self._has_residual)
            self._work_by_kernel[key] = work
        return self._work_by_kernel[key]

    def _check_arch(self, kernel: CompiledKernel) -> None:
        if parse_arch_number(kernel.arch) > parse_arch_number(self.arch):
            raise DeviceError(
                f"{kernel.name} is compiled for {kernel.arch}, {self.label} is {self.arch}: "
                f"compile it for {self.arch}"
            )

    def _make_board(
        self, kernel: CompiledKernel, state: SteadyState, purpose: str, repeat: int
    ) -> VirtualBoard:
        rng = self._make_noise_generator(kernel, f"{purpose} board", repeat)
        return VirtualBoard(self._spec, self._clock_mhz, state, rng)

    def _make_noise_generator(self, kernel: CompiledKernel, purpose: str, repeat: int) -> np.random.Generator:
        return make_generator(self.name, str(self._clock_mhz), digest_kernel(kernel), purpose, repeat)

    def _make_conditions(
        self,
        kernel: CompiledKernel,
        clock_mhz: float,
        temperature_c: float,
        throttle: tuple[str, ...],
        l2: str,
    ) -> MeasurementConditions:
        return MeasurementConditions(
            device=self.name,
            simulated=True,
            driver=self.driver,
            nvrtc=kernel.nvrtc_version,
            clock_regime=self.clock_regime,
            clock_mhz=clock_mhz,
            temperature_c=temperature_c,
            throttle=throttle,
            data_policy=self.data_policy,
            ekc_version=__version__,
            l2=l2,
            power_cap_w=self._spec.power.tdp_w,
        )
