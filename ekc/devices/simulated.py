"""A simulated GPU: the same answers for the same kernel and draw, in any order and in any process."""

from __future__ import annotations

import math

import numpy as np

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.devices import meter
from ekc.devices.accesses import Executed, executed
from ekc.devices.base import Clocks, Conditions, Interval, Metering, Timing
from ekc.devices.board import VirtualBoard
from ekc.devices.breakdown import Breakdown, breakdown
from ekc.devices.capacity import check_kernel
from ekc.devices.digest import digest, identity
from ekc.devices.interval import student_t
from ekc.devices.residual import generator
from ekc.devices.specs import Spec
from ekc.devices.steady import Steady, Work, explained, steady, work
from ekc.errors import DeviceError, InvalidInput
from ekc.version import __version__

SIMULATOR = 7
"""Raise it whenever a model or a figure changes: records of another simulator are not reused."""
TIME_NOISE = 0.003
"""Relative noise of one timed call (estimate). A4000 GEMM at a locked clock repeats to 0.02 %
(a4000_gemm_noise), event timers and busy machines do worse."""
TIME_SAMPLES = 20


class SimulatedDevice:
    """Times and meters kernels by the models of this package. Keeps no state between calls but a
    memo of what a kernel does, so results do not depend on their order."""

    def __init__(self, spec: Spec, clock_mhz: int | None = None, residual: bool = True) -> None:
        """Without the `residual`, every kernel does as the models explain. No draw then favours one of two
        alike, but nothing is left to learn for a search that knows the models."""
        self._spec, self._residual = spec, residual
        self._clock_mhz = float(clock_mhz or spec.fixed_mhz)
        self._memo: dict[tuple[str, tuple[Launch, ...]], Work] = {}
        self._counted: dict[tuple[str, tuple[Launch, ...]], tuple[Executed, ...]] = {}
        self.name = spec.name
        self.simulated = True
        self.arch = spec.arch
        self.limits = spec.limits()
        self.peaks = spec.peaks(self._clock_mhz)
        self.memory_bytes = spec.memory_bytes
        self.clock_regime = f"fixed {self._clock_mhz:.0f} MHz"
        self.driver = f"simulator {SIMULATOR}" + ("" if residual else ", no residual")
        self.data_policy = "none (random data assumed)"

    @property
    def label(self) -> str:
        """The name, and that it is simulated."""
        return f"{self.name}{'' if self._residual else ', no residual'} (simulated)"

    def clocks(self) -> Clocks:
        """Every clock of the spec can be set."""
        return Clocks(mhz=self._spec.clocks_mhz(), current_mhz=self._clock_mhz)

    def at_clock(self, mhz: int) -> SimulatedDevice:
        """The same device with its SM clock fixed elsewhere."""
        if refusal := self.clocks().refusal(mhz):
            raise DeviceError(f"{self.label} cannot be set to {mhz} MHz: {refusal}")
        device = SimulatedDevice(self._spec, mhz, self._residual)
        device._memo = self._memo
        return device

    def time(self, kernel: CompiledKernel, *, draw: int = 0) -> Timing:
        """Seconds per call, warm, at the clock the power cap allows."""
        state = self._steady(kernel)
        noise = self._noise(kernel, "time", draw).standard_normal(TIME_SAMPLES)
        samples = state.latency_s * (1.0 + TIME_NOISE * noise)
        mean = float(np.mean(samples))
        half = student_t(TIME_SAMPLES - 1) * float(np.std(samples, ddof=1)) / math.sqrt(TIME_SAMPLES)
        warm = self._board(kernel, state, "time", draw).temperature_c()
        conditions = self._conditions(kernel, state.clock_mhz, warm, state.throttle)
        spread = Interval(mean - half, mean + half)
        return Timing(mean, spread, TIME_SAMPLES, conditions, samples_s=tuple(samples.tolist()))

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, draw: int = 0) -> Metering:
        """Watts and joules per call on a board made for this call alone, over a virtual window."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise InvalidInput(f"a metering window of {seconds} s cannot be: give a positive number")
        state = self._steady(kernel)
        board = self._board(kernel, state, "meter", draw)
        window = meter.meter(board, kernel, state.latency_s, seconds)
        conditions = self._conditions(kernel, window.clock_mhz, window.temperature_c, window.throttle)
        return window.metering(conditions)

    count = staticmethod(executed)

    def learn(self, kernel: CompiledKernel, counted: tuple[Executed, ...]) -> None:
        """See `Counts`."""
        self._counted[identity(kernel), kernel.launches] = counted

    def breakdown(self, kernel: CompiledKernel) -> Breakdown:
        """Where the energy of one call goes, cause by cause."""
        return breakdown(self._spec, self._work(kernel), self._clock_mhz)

    def _steady(self, kernel: CompiledKernel) -> Steady:
        return steady(self._spec, self._work(kernel), self._clock_mhz)

    def _work(self, kernel: CompiledKernel) -> Work:
        self._check_arch(kernel)
        key = (identity(kernel), kernel.launches)
        if key not in self._memo:
            check_kernel(kernel, self.label, self.memory_bytes)
            counted = self._counted.pop(key, None) or executed(kernel)
            self._memo[key] = (work if self._residual else explained)(self._spec, kernel, counted)
        return self._memo[key]

    def _check_arch(self, kernel: CompiledKernel) -> None:
        if _number(kernel.arch) > _number(self.arch):
            raise DeviceError(
                f"{kernel.name} is compiled for {kernel.arch}, {self.label} is {self.arch}: "
                f"compile it for {self.arch}"
            )

    def _board(self, kernel: CompiledKernel, state: Steady, what: str, draw: int) -> VirtualBoard:
        return VirtualBoard(self._spec, self._clock_mhz, state, self._noise(kernel, f"{what} board", draw))

    def _noise(self, kernel: CompiledKernel, what: str, draw: int) -> np.random.Generator:
        return generator(self.name, str(self._clock_mhz), digest(kernel), what, draw)

    def _conditions(
        self, kernel: CompiledKernel, clock_mhz: float, temperature_c: float, throttle: tuple[str, ...]
    ) -> Conditions:
        return Conditions(
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
            power_cap_w=self._spec.power.tdp_w,
        )


def _number(arch: str) -> int:
    """80 of "sm_80", 90 of "sm_90a"."""
    return int("".join(character for character in arch if character.isdigit()))
