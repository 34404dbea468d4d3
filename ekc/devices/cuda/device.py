"""Real GPUs as a device: kernels are timed, executed and metered in the worker of each.

Of several GPUs, which must be alike, trials are spread over all; what is compared closely (finals, metering,
execution) stays on the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Clocks, Conditions, Metering, Sampled, Timing, Wanted
from ekc.devices.cuda.driver import version_text
from ekc.devices.cuda.gpu import Gpu
from ekc.devices.cuda.median import interval, median
from ekc.devices.cuda.messages import Execute, Outputs, Rules, Sample, Samples, Samplings, Time, Work
from ekc.devices.cuda.watch import Seen
from ekc.devices.digest import identity
from ekc.errors import DeviceError, InvalidInput
from ekc.forks import abandon_in_children
from ekc.ir.evaluation.agreement import DATA_SEED
from ekc.ir.evaluation.drawn import Tensor
from ekc.ir.limits import target_of
from ekc.version import __version__

UNKNOWN_POWER_W = 300.0
"""Assumed as a board's power cap where nobody tells it: a ceiling for predictions, no measurement uses it."""


class CudaDevice:
    """One real GPU, or several of one product."""

    def __init__(self, gpus: Sequence[Gpu], rules: Rules | None = None) -> None:
        check_alike(gpus)
        self._gpus, self._rules = tuple(gpus), rules or Rules()
        self._mhz: int | None = None
        self._threads: tuple[ThreadPoolExecutor, ...] = ()
        self._latencies: dict[str, float] = {}
        """Of kernels timed before, by identity: a meter must know about how long a call takes."""
        self.workers = len(gpus)
        self.uuids = tuple(gpu.facts.uuid for gpu in gpus)
        first = gpus[0].facts
        self.name = first.name
        self.simulated = False
        self.arch = arch_for(first.capability)
        self.limits = first.limits()
        self.memory_bytes = min(gpu.facts.memory_bytes for gpu in gpus)
        sensors = gpus[0].sensors
        self.peaks = first.peaks(first.clock_mhz, sensors.power_cap_w() or UNKNOWN_POWER_W)
        self.driver = f"{sensors.driver()}, CUDA {version_text(first.driver_version)}"
        self.clock_regime = "free"
        self.l2 = "cold" if self._rules.cold else "warm"
        self.data_policy = f"random (floats normal, integers uniform), seed {DATA_SEED}; L2 {self.l2}"
        self.executed_by = f"{self.label}: the machine code itself"
        abandon_in_children(self)

    @property
    def label(self) -> str:
        """The product name, and which of them."""
        return f"{self.name} (cuda:{','.join(str(gpu.index) for gpu in self._gpus)})"

    def time(self, kernel: CompiledKernel, *, draw: int = 0) -> Timing:
        """Median seconds of one call, with a 95 % interval; every measurement is fresh, whatever its `draw`.

        Raises `DeviceError` when the kernel faults or hangs, which costs its worker and nothing else.
        """
        return self._time(self._gpus[0], kernel)

    def submit(self, kernel: Callable[[], CompiledKernel], number: int) -> Future[Timing]:
        """Time a kernel in the background, on the GPU whose turn it is by a running number: which GPU times
        what does not depend on how fast each is."""
        if not self._threads:
            self._threads = tuple(ThreadPoolExecutor(1, f"ekc-cuda-{gpu.index}") for gpu in self._gpus)
        turn = number % len(self._gpus)
        return self._threads[turn].submit(lambda: self._time(self._gpus[turn], kernel()))

    def execute(
        self, kernel: CompiledKernel, arrays: Sequence[NDArray[Any]], blanks: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any], ...]:
        """What each launch leaves in its output, which begins as its blank. Raises `DeviceError`."""
        self._check_arch(kernel)
        outputs: Outputs = self._gpus[0].ask(Execute(Work.of(kernel), tuple(arrays), tuple(blanks)))[0]
        return outputs.arrays

    def sample(
        self, kernel: CompiledKernel, inputs: Sequence[Tensor], wanted: Sequence[Wanted]
    ) -> tuple[Sampled, ...]:
        """Some elements of what each launch leaves in its output; see `Executes`. Raises `DeviceError`."""
        self._check_arch(kernel)
        answer: Samplings = self._gpus[0].ask(Sample(Work.of(kernel), tuple(inputs), tuple(wanted)))[0]
        return answer.found

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, draw: int = 0) -> Metering:
        """Power and energy of back-to-back calls over a window of about `seconds`, warm.

        Raises `DeviceError` as `time` does, and where neither can be read."""
        if not (math.isfinite(seconds) and seconds > 0):
            raise InvalidInput(f"a metering window of {seconds} s cannot be: give a positive number")
        gpu = self._gpus[0]
        call_s = self._latencies.get(identity(kernel)) or self._time(gpu, kernel).latency_s
        window = gpu.meter(kernel, call_s, seconds, self._mhz)
        seen = Seen(window.clock_mhz, window.temperature_c, window.throttle, window.power_cap_w)
        return window.metering(replace(self._conditions(gpu, kernel, seen), l2="warm"))

    def clocks(self) -> Clocks:
        """The clocks that can be set here, or why none can; nothing is tried."""
        return self._gpus[0].clocks.offered()

    def at_clock(self, mhz: int) -> CudaDevice:
        """The same device, its clock held at `mhz` during each measurement and put back after it."""
        if refusal := self.clocks().refusal(mhz):
            raise DeviceError(f"{self.label} cannot be set to {mhz} MHz: {refusal}")
        device = copy(self)
        device._mhz, device._latencies, device._threads = mhz, {}, ()
        abandon_in_children(device)
        device.clock_regime = f"fixed {mhz} MHz"
        device.peaks = self._gpus[0].facts.peaks(mhz, self.peaks.board_power_w)
        return device

    def abandon(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._threads = ()

    def close(self) -> None:
        """End the workers; they also end with this object."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        for gpu in self._gpus:
            gpu.clocks.close()
            gpu.remote.close()

    def _time(self, gpu: Gpu, kernel: CompiledKernel) -> Timing:
        self._check_arch(kernel)
        answer, seen = gpu.ask(Time(Work.of(kernel), self._rules), self._mhz)
        samples: Samples = answer
        self._latencies[identity(kernel)] = median(samples.seconds)
        return Timing(
            latency_s=median(samples.seconds),
            interval_s=interval(samples.seconds),
            samples=len(samples.seconds),
            conditions=self._conditions(gpu, kernel, seen),
            method=f"{samples.method}, {samples.calls} calls a sample",
            samples_s=tuple(float(x) for x in samples.seconds),
            calls=samples.calls,
        )

    def _check_arch(self, kernel: CompiledKernel) -> None:
        if not kernel.inputs:
            raise DeviceError(f"{kernel.name} does not say what its inputs are: compile it from a schedule")
        check_runs(kernel, self._gpus[0].facts.capability, self.label)

    def _conditions(self, gpu: Gpu, kernel: CompiledKernel, seen: Seen) -> Conditions:
        return Conditions(
            device=self.name,
            simulated=False,
            driver=self.driver,
            nvrtc=kernel.nvrtc_version,
            clock_regime=self.clock_regime,
            clock_mhz=seen.clock_mhz,
            temperature_c=seen.temperature_c,
            throttle=seen.throttle,
            data_policy=self.data_policy,
            ekc_version=__version__,
            l2=self.l2,
            gpu=gpu.facts.uuid,
            power_cap_w=seen.power_cap_w,
        )


def check_alike(gpus: Sequence[Gpu]) -> None:
    """Figures of unlike GPUs are not figures of one device."""
    first = gpus[0]
    for other in gpus[1:]:
        if other.facts.attributes != first.facts.attributes or other.facts.name != first.facts.name:
            raise DeviceError(
                f"cuda:{first.index} is a {first.facts.name} and cuda:{other.index} a {other.facts.name}: "
                f"trials can be spread over GPUs of one kind only; choose one, such as cuda:{first.index}"
            )


def check_runs(kernel: CompiledKernel, capability: int, label: str) -> None:
    """Machine code runs on GPUs of its own major version from its own on. `DeviceError` for others."""
    needed = number_of(kernel.arch)
    if needed // 10 != capability // 10 or needed > capability:
        raise DeviceError(
            f"{kernel.name} is compiled for {kernel.arch}, {label} is sm_{capability}: "
            f"compile it for {arch_for(capability)}"
        )


def arch_for(capability: int) -> str:
    """The target to compile for: its own, or the nearest earlier one of its major version in NVRTC."""
    known = [number_of(arch) for arch in nvrtc.supported_archs()]
    fitting = [n for n in known if n // 10 == capability // 10 and n <= capability]
    if not fitting:
        raise DeviceError(
            f"NVRTC {nvrtc.version()} makes no machine code for compute capability {capability / 10:.1f}: "
            f"it knows sm_{min(known)} to sm_{max(known)}"
        )
    return target_of(max(fitting))


def number_of(arch: str) -> int:
    """80 of "sm_80", 90 of "sm_90a"."""
    return int("".join(character for character in arch if character.isdigit()))
