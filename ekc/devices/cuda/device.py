"""Real GPUs as a device: each GPU has a worker process that times, executes and meters kernels.

With several GPUs, which must be alike, trials are spread over all. Measurements that are compared closely
(finals, metering, execution) stay on the first.

A target says which GPUs, and whether timed calls find the L2 warm or cold:

    cuda, cuda:0        one GPU
    cuda:0,2  cuda:all  several GPUs of one kind: trials are spread over them
    cuda:0@cold         the L2 is overwritten before each timed call (default: warm)

Numbers are the driver's, so CUDA_VISIBLE_DEVICES applies.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel, identify_kernel
from ekc.devices import analytic_prior
from ekc.devices.cuda.driver import format_cuda_version
from ekc.devices.cuda.gpu import Gpu, SensorState
from ekc.devices.cuda.library_kernel import LibraryKernel, derive_library_call
from ekc.devices.cuda.messages import (
    TimingRules,
    TimingSamples,
    Work,
    WorkerRequest,
    make_request,
    make_sample_request,
)
from ekc.devices.device import (
    MeasurementConditions,
    Metering,
    OfferedClocks,
    OutputSample,
    OutputSelection,
    Prior,
    Quantities,
    Timing,
)
from ekc.devices.metering.meter import Board, MeteringWindow, check_window_length, meter_kernel, run_hot
from ekc.devices.nvml.sensors import GpuSensors
from ekc.devices.simulated import data_sheet_prior
from ekc.devices.statistics import compute_median, compute_median_interval
from ekc.display import format_line
from ekc.errors import DeviceError
from ekc.forks import detach_in_children
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.hardware.target import make_arch, parse_arch_number
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import InputTensor
from ekc.processes.child import ChildProcess, RemoteWorker
from ekc.version import __version__

WORKER_MODULE = "ekc.devices.cuda.worker"
"""Module that the worker process of a GPU runs."""
ASSUMED_POWER_CAP_W = 300.0
"""Watts assumed as power cap of a board that reports none: a ceiling for predictions, not measurements."""


class CudaDevice:
    """One real GPU, or several of one product."""

    def __init__(self, gpus: Sequence[Gpu], rules: TimingRules | None = None) -> None:
        check_same_model(gpus)
        self._gpus, self._rules = tuple(gpus), rules or TimingRules()
        self._fixed_mhz: int | None = None
        self._executors: tuple[ThreadPoolExecutor, ...] = ()
        self._latency_by_kernel_s: dict[str | LibraryKernel, float] = {}
        """Seconds of a call by kernel identity: the meter needs an estimate of a call's duration."""
        self.workers = len(gpus)
        self.uuids = tuple(gpu.properties.uuid for gpu in gpus)
        first = gpus[0].properties
        self.name = first.name
        self.simulated = False
        self.arch = choose_arch(first.capability)
        self.limits = first.limits()
        self.memory_bytes = min(gpu.properties.memory_bytes for gpu in gpus)
        sensors = gpus[0].sensors
        self._clock_mhz, self._spec = first.clock_mhz, first.find_spec()
        self.peaks = first.peaks(first.clock_mhz, sensors.power_cap_w() or ASSUMED_POWER_CAP_W)
        self.driver = f"{sensors.read_driver_version()}, CUDA {format_cuda_version(first.driver_version)}"
        self.clock_regime = "free"
        self.l2 = "cold" if self._rules.is_cold else "warm"
        self.data_policy = f"random (floats normal, integers uniform), seed {DATA_SEED}; L2 {self.l2}"
        self.collect_facts = None
        self.executed_by = f"{self.label}: the machine code itself"
        detach_in_children(self)

    @property
    def label(self) -> str:
        """Product name and indices of the GPUs."""
        return f"{self.name} (cuda:{','.join(str(gpu.index) for gpu in self._gpus)})"

    def __repr__(self) -> str:
        return format_line(self, f"{self.label}, {self.clock_regime}")

    def prior(self, quantities: Quantities) -> Prior:
        """The model of the simulator at the highest clock or the fixed one, where the data sheet of this GPU
        is known; else the analytic prior."""
        if self._spec is None:
            return analytic_prior.predict_prior(quantities, self.peaks)
        return data_sheet_prior.predict_prior(self._spec, quantities, self._clock_mhz)

    def time(self, kernel: Work, *, repeat: int = 0) -> Timing:
        """Median latency of a call, with a 95 % interval, measured again whatever `repeat` is. Raises
        `DeviceError` when the kernel faults or hangs, which costs its worker alone."""
        return self._time_on_gpu(self._gpus[0], kernel)

    def submit(self, kernel: Callable[[], CompiledKernel], number: int) -> Future[Timing]:
        """Time a kernel in the background, on the GPU that a running number chooses: the choice does not
        depend on the speed of the GPUs."""
        if not self._executors:
            self._executors = tuple(ThreadPoolExecutor(1, f"ekc-cuda-{gpu.index}") for gpu in self._gpus)
        turn = number % len(self._gpus)
        return self._executors[turn].submit(lambda: self._time_on_gpu(self._gpus[turn], kernel()))

    def execute(
        self,
        kernel: Work,
        arrays: Sequence[NDArray[Any]],
        blanks: Sequence[NDArray[Any]],
    ) -> tuple[NDArray[Any], ...]:
        """Output of each launch, which starts as its blank. Raises `DeviceError`."""
        self._check_arch(kernel)
        request = make_request("execute", kernel, tuple(arrays), tuple(blanks))
        outputs: tuple[NDArray[Any], ...] = self._gpus[0].query(request)[0]
        return outputs

    def sample(
        self,
        kernel: Work,
        inputs: Sequence[InputTensor],
        selections: Sequence[OutputSelection],
    ) -> tuple[OutputSample, ...]:
        """Some elements of the output of each launch; see `ExecutionDevice`. Raises `DeviceError`."""
        self._check_arch(kernel)
        request = make_sample_request(kernel, inputs, selections)
        samples: tuple[OutputSample, ...] = self._gpus[0].query(request)[0]
        return samples

    def list_library_kernels(self, op: Operator, count: int) -> tuple[LibraryKernel, ...]:
        """See `LibraryDevice`."""
        call = derive_library_call(op)
        if call is None:
            raise DeviceError(f"cuBLASLt and cuDNN have no call for {op.name} as it is")
        kernel = LibraryKernel(op.name, call, op.inputs, op.outputs[0])
        request = WorkerRequest("list_algorithms", (kernel, count))
        found: tuple[LibraryKernel, ...] | str = self._gpus[0].query(request)[0]
        if isinstance(found, str):
            raise DeviceError(found)
        return found

    def meter(self, kernel: Work, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """Power and energy of back-to-back calls over a window of about `seconds`, warm.

        Raises `DeviceError` as `time` does, and where neither can be read."""
        window = self._meter_on_gpu(kernel, seconds, meter_kernel)
        state = SensorState(window.clock_mhz, window.temperature_c, window.throttle, window.power_cap_w)
        return window.to_metering(replace(self._make_conditions(self._gpus[0], kernel, state), l2="warm"))

    def run_hot(self, kernel: Work, *, seconds: float = 0.5) -> MeteringWindow:
        """As `meter`, on a GPU that is hot from the kernel before; `ekc.devices.metering.meter.run_hot`."""
        return self._meter_on_gpu(kernel, seconds, run_hot)

    def clocks(self) -> OfferedClocks:
        """Clocks that can be set here, or the reason why none can; nothing is tried."""
        return self._gpus[0].clocks.list_clocks()

    def at_clock(self, mhz: int) -> CudaDevice:
        """The same device, its clock fixed at `mhz` during each measurement and restored after it."""
        if refusal := self.clocks().explain_refusal(mhz):
            raise DeviceError(f"{self.label} cannot be set to {mhz} MHz: {refusal}")
        device = copy(self)
        device._fixed_mhz, device._latency_by_kernel_s, device._executors = mhz, {}, ()
        detach_in_children(device)
        device.clock_regime, device._clock_mhz = f"fixed {mhz} MHz", float(mhz)
        device.peaks = self._gpus[0].properties.peaks(mhz, self.peaks.board_power_w)
        return device

    def detach(self) -> None:
        """In a forked child: the threads belong to the parent."""
        self._executors = ()

    def close(self) -> None:
        """End the workers; they also end with this object."""
        for thread in self._executors:
            thread.shutdown(cancel_futures=True)
        for gpu in self._gpus:
            gpu.clocks.close()
            gpu.remote.close()

    def _meter_on_gpu(
        self,
        kernel: Work,
        seconds: float,
        measure: Callable[[Board, Any, float, float], MeteringWindow],
    ) -> MeteringWindow:
        check_window_length(seconds)
        gpu = self._gpus[0]
        known_s = self._latency_by_kernel_s.get(_identify(kernel))
        call_s = known_s or self._time_on_gpu(gpu, kernel).latency_s
        return gpu.meter(kernel, call_s, seconds, self._fixed_mhz, measure)

    def _time_on_gpu(self, gpu: Gpu, kernel: Work) -> Timing:
        self._check_arch(kernel)
        answer, state = gpu.query(make_request("time", kernel, self._rules), self._fixed_mhz)
        samples: TimingSamples = answer
        latency_s = self._latency_by_kernel_s[_identify(kernel)] = compute_median(samples.samples_s)
        return Timing(
            latency_s=latency_s,
            interval_s=compute_median_interval(samples.samples_s),
            samples=len(samples.samples_s),
            conditions=self._make_conditions(gpu, kernel, state),
            method=f"{samples.method}, {samples.calls_per_sample} calls a sample",
            samples_s=tuple(float(x) for x in samples.samples_s),
            calls=samples.calls_per_sample,
        )

    def _check_arch(self, kernel: Work) -> None:
        if isinstance(kernel, LibraryKernel):
            return
        if not kernel.inputs:
            raise DeviceError(f"{kernel.name} has no input specifications: compile it from a schedule")
        check_compatible(kernel, self._gpus[0].properties.capability, self.label)

    def _make_conditions(self, gpu: Gpu, kernel: Work, state: SensorState) -> MeasurementConditions:
        return MeasurementConditions(
            device=self.name,
            simulated=False,
            driver=self.driver,
            nvrtc=kernel.nvrtc_version,
            clock_regime=self.clock_regime,
            **vars(state),
            data_policy=self.data_policy,
            ekc_version=__version__,
            l2=self.l2,
            gpu=gpu.properties.uuid,
        )


def _identify(kernel: Work) -> str | LibraryKernel:
    """The key under which figures of a kernel are kept."""
    return kernel if isinstance(kernel, LibraryKernel) else identify_kernel(kernel)


_TARGET_PATTERN = re.compile(r"cuda(?::(?P<which>all|\d+(?:,\d+)*))?(?:@(?P<l2>warm|cold))?")


@dataclass(frozen=True)
class CudaTarget:
    """A target, parsed."""

    indices: tuple[int, ...] | None
    """Indices of GPUs; None for all."""
    is_cold: bool

    def choose_gpus(self, count: int, text: str) -> tuple[int, ...]:
        """Indices of the chosen GPUs among `count`. `DeviceError` for a GPU that does not exist."""
        chosen = tuple(range(count)) if self.indices is None else self.indices
        absent = [index for index in chosen if index >= count]
        if absent:
            there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise DeviceError(f"no device {text!r} here: there are {count} GPU(s), {there}")
        return chosen


def parse_target(text: str) -> CudaTarget:
    """Parse a target. `DeviceError` for any other form."""
    found = _TARGET_PATTERN.fullmatch(text)
    if found is None:
        raise DeviceError(
            f"no device {text!r}: write cuda:0, cuda:0,1 or cuda:all (the index must be a number), "
            "with @cold for a cold L2"
        )
    which = found["which"] or "0"
    indices = None if which == "all" else tuple(dict.fromkeys(map(int, which.split(","))))
    return CudaTarget(indices, found["l2"] == "cold")


def check_same_model(gpus: Sequence[Gpu]) -> None:
    """Raises `DeviceError` for GPUs that differ: figures of unlike GPUs are not figures of one device."""
    index, first = gpus[0].index, gpus[0].properties
    for gpu in gpus[1:]:
        other = gpu.properties
        if (other.attributes, other.name) != (first.attributes, first.name):
            raise DeviceError(
                f"cuda:{index} is a {first.name}, cuda:{gpu.index} a {other.name}: "
                f"trials can be spread over GPUs of one kind only; choose one, such as cuda:{index}"
            )


def check_compatible(kernel: CompiledKernel, capability: int, label: str) -> None:
    """Raises `DeviceError` unless machine code is of a GPU's major version, and of no later minor one."""
    needed = parse_arch_number(kernel.arch)
    if needed // 10 != capability // 10 or needed > capability:
        raise DeviceError(
            f"{kernel.name} is compiled for {kernel.arch}, {label} is sm_{capability}: "
            f"compile it for {choose_arch(capability)}"
        )


def choose_arch(capability: int) -> str:
    """Architecture to compile for: the GPU's own, or the latest earlier one of its major version in NVRTC."""
    supported = [parse_arch_number(arch) for arch in nvrtc.list_supported_archs()]
    fitting = [n for n in supported if n // 10 == capability // 10 and n <= capability]
    if not fitting:
        raise DeviceError(
            f"NVRTC {nvrtc.version()} makes no machine code for compute capability {capability / 10:.1f}: "
            f"it supports sm_{min(supported)} to sm_{max(supported)}"
        )
    return make_arch(max(fitting))


def start_gpu_worker(index: int) -> ChildProcess:
    """Start the worker process of a GPU."""
    return ChildProcess(WORKER_MODULE, index)


def open_cuda(
    text: str,
    start_worker: Callable[[int], ChildProcess] = start_gpu_worker,
    open_sensors: Callable[[str], GpuSensors] = GpuSensors,
) -> CudaDevice:
    """The device of a target such as "cuda:0". `start_worker` starts the worker of a GPU, `open_sensors`
    finds the sensors of a UUID. Raises `DeviceError`."""
    target = parse_target(text)
    first = _connect_gpu(target.indices[0] if target.indices else 0, start_worker, open_sensors)
    chosen = target.choose_gpus(first.properties.gpu_count, text)
    gpus = [first, *(_connect_gpu(index, start_worker, open_sensors) for index in chosen[1:])]
    if first.properties.assumptions:
        warnings.warn(f"{first.properties.assumptions}; no measurement uses it", stacklevel=2)
    return CudaDevice(gpus, TimingRules(is_cold=target.is_cold))


def _connect_gpu(
    index: int, start_worker: Callable[[int], ChildProcess], open_sensors: Callable[[str], GpuSensors]
) -> Gpu:
    remote = RemoteWorker(f"cuda:{index}", partial(start_worker, index))
    return Gpu.connect(index, remote, open_sensors, nvrtc.version())
