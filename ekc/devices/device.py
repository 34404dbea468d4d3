"""The protocol of devices, real, simulated or recorded, and the measurements that they return.

Checks that an operator fits into the memory of a device, and a call of a kernel into that of this host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Resources
from ekc.devices.statistics import Interval
from ekc.display import format_line, shorten
from ekc.errors import DeviceError
from ekc.host_memory import format_bytes
from ekc.ir.compute import TensorSpec
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import InputTensor
from ekc.ir.tensor_memory import check_host_memory, check_memory_fits, format_byte_total
from ekc.tables import format_rounded

POWER_CAP = "power cap"
"""Throttle reason of a board at its power cap."""
UNREPORTED = "unreported"
"""Throttle reason where the driver does not report any."""
ENERGY_COUNTER, POWER_READINGS = "energy counter", "power readings"


@dataclass(frozen=True)
class MeasurementConditions:
    """Conditions of a measurement: the device, its clock and temperature, and the software."""

    device: str
    simulated: bool
    driver: str
    nvrtc: str
    clock_regime: str
    """"fixed 1275 MHz" or "free"."""
    clock_mhz: float
    """SM clock in MHz while measured; lower than the regime's where the power cap throttled it."""
    temperature_c: float
    throttle: tuple[str, ...]
    """Throttle reasons in force, e.g. (POWER_CAP,); (UNREPORTED,) where the driver does not report them."""
    data_policy: str
    """How the inputs were filled, e.g. "normal(0,1) seed 0"."""
    ekc_version: str
    l2: str = ""
    """"warm" (calls follow each other, as metered ones do) or "cold" (the L2 is overwritten before each)."""
    gpu: str = ""
    """UUID of the GPU."""
    power_cap_w: float | None = None
    """Power cap of the board in watts; None where it has none or does not report it."""

    def __repr__(self) -> str:
        return format_line(self, f"{self.label}, {self.clock_regime}, {self.driver}, NVRTC {self.nvrtc}")

    @property
    def label(self) -> str:
        """Name of the device, marked where it is simulated."""
        return shorten(self.device) + " (simulated)" * self.simulated


@dataclass(frozen=True)
class Timing:
    """Latency of one call of a kernel (all its launches)."""

    latency_s: float
    interval_s: Interval
    samples: int
    conditions: MeasurementConditions
    method: str = ""
    """"events" or "graph replay" on a real GPU."""
    samples_s: tuple[float, ...] = ()
    """Samples in seconds from which the latency is computed, in the order they were taken."""
    calls: int = 1
    """Calls per sample; each sample is their mean."""
    resources: tuple[Resources, ...] = ()
    """Registers, shared memory and spills by ptxas, one entry per launch, if the caller added them. A tuning
    run does, and learns from them which schedules spill."""
    readings: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Readings of observers by their names (`ekc.devices.observer`)."""

    def __repr__(self) -> str:
        latency = f"{format_rounded(self.latency_s * 1e6, 4)} us"
        return format_line(self, f"{latency}, {self.samples} samples, {self.conditions.label}")


@dataclass(frozen=True)
class Metering:
    """Board power and energy of one call, from a window of back-to-back calls."""

    power_w: float
    power_interval_w: Interval
    energy_j: float
    energy_interval_j: Interval
    counter_energy_j: float
    """First estimator: difference of the energy counter between two ticks, per call; NaN if none moved."""
    sampled_energy_j: float
    """Second estimator: mean of the power readings times time."""
    idle_power_w: float
    window_s: float
    samples: int
    conditions: MeasurementConditions
    estimator: str = ENERGY_COUNTER
    """Source of `energy_j`: `ENERGY_COUNTER`, or `POWER_READINGS` where no counter moved."""
    notes: tuple[str, ...] = ()
    samples_w: tuple[float, ...] = ()
    """Samples in watts from which the power is computed, in order: means from tick to tick of the counter."""
    readings: Mapping[str, float] = field(default_factory=dict, hash=False)
    """As `Timing.readings`."""

    def __repr__(self) -> str:
        energy = f"{format_rounded(self.energy_j * 1e3, 4)} mJ, {self.power_w:.1f} W"
        return format_line(self, f"{energy}, a window of {self.window_s:.2f} s, {self.conditions.label}")


Measurement = Timing | Metering
MeasurementT = TypeVar("MeasurementT", Timing, Metering)
FactCollector = Callable[[CompiledKernel], Mapping[str, Any]]


@dataclass(frozen=True)
class Peaks:
    """Ceilings of the roofline, at the clock of the device."""

    fp32_flops: float
    flops_by_type: Mapping[str, float]
    """Operations per second by element type of the inputs, on the fastest unit for that type."""
    dram_bytes_per_s: float
    board_power_w: float
    """Power cap of the board in watts."""
    mma_share: float = 1.0
    """Share of the rate of the tensor cores that `mma.sync` reaches, where only `wgmma` reaches all of it."""
    source: str = ""
    """Source of the rates per clock; "" in recordings made before this was kept."""


Quantities = Mapping[str, NDArray[np.float64]]
"""Name -> value for each schedule, of the quantities of the analysis (`ekc.ir.analysis.analysis`)."""


@dataclass(frozen=True, eq=False)
class Prior:
    """Expected figures of schedules, from their analysis alone: arrays with one entry per schedule."""

    latency_s: NDArray[np.float64]
    """Seconds of a call."""
    power_w: NDArray[np.float64]
    """Board power in watts at that latency, not limited by the power cap."""
    standby_w: NDArray[np.float64]
    """Part of the power in watts that stays the same if the same work takes longer."""
    resource_times_s: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Resource -> seconds that it needs for the work if it is the only limit; empty where that is unknown."""


PriorFunction = Callable[[Quantities], Prior]


class Device(Protocol):
    """A device that times and meters compiled kernels."""

    name: str
    simulated: bool
    arch: str
    limits: LaunchLimits
    peaks: Peaks
    driver: str
    """Version of the driver; for a simulated device, version of the simulator."""
    clock_regime: str
    data_policy: str

    @property
    def collect_facts(self) -> FactCollector | None:
        """Function for the compile job, which returns the `facts` of a kernel on which the figures of this
        device rest, e.g. what a launch executes. It pickles by its module and name, asks nothing of the
        device and raises `EkcError` where it fails. None for a device that needs no facts."""

    @property
    def memory_bytes(self) -> int | None:
        """Memory of the device in bytes; None where it is unknown."""

    @property
    def label(self) -> str:
        """Name that is printed with all figures of the device: `a100 (simulated)` or the product name."""

    def prior(self, quantities: Quantities) -> Prior:
        """Expected latency and power of schedules, before anything is compiled or measured."""

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """Measure the latency. `repeat` numbers the measurements of one kernel: each has its own seed."""

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """Measure power and energy over a window of about `seconds`."""

    def clocks(self) -> OfferedClocks:
        """Clocks that can be set here, or the reason why none can."""

    def at_clock(self, mhz: int) -> Device:
        """The same device with its SM clock fixed at one of `clocks().mhz`; `DeviceError` for others."""


@dataclass(frozen=True, eq=False)
class OutputSelection:
    """Selected elements of the output of a launch."""

    spec: TensorSpec
    blank_words: tuple[int, ...]
    """Bits of all elements before a run; there is one run for each word."""
    positions: NDArray[np.int64]
    """Linear positions, ascending."""


@dataclass(frozen=True, eq=False)
class OutputSample:
    """Values of selected elements after the last run."""

    values: NDArray[Any]
    is_written: NDArray[np.bool_]
    """Whether each element differed from its blank after any run."""
    unwritten_count: int
    """Elements of the whole output that kept their blank in all runs."""


@runtime_checkable
class ExecutionDevice(Protocol):
    """A device that executes kernels and returns their results."""

    executed_by: str
    """Description of what computes the results, shown with each result."""

    @property
    def label(self) -> str:
        """See `Device`."""

    def execute(
        self, kernel: CompiledKernel, arrays: Sequence[NDArray[Any]], blanks: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any], ...]:
        """Output of each launch, which starts as its blank; inputs in the order of the operator."""

    def sample(
        self, kernel: CompiledKernel, inputs: Sequence[InputTensor], selections: Sequence[OutputSelection]
    ) -> tuple[OutputSample, ...]:
        """Some elements of the output of each launch; no whole tensor is made in this process."""


@runtime_checkable
class LibraryDevice(Device, ExecutionDevice, Protocol):
    """A device on which libraries of its maker run: it times, meters and samples their kernels as ours."""

    def list_library_kernels(self, op: Operator, count: int) -> tuple[Any, ...]:
        """At most so many algorithms that a library proposes for an operator, in the library's order. Raises
        `DeviceError` with the reason where there are none."""


@runtime_checkable
class ParallelDevice(Protocol):
    """A device with several GPUs, which times kernels in parallel."""

    workers: int

    def submit(self, kernel: Callable[[], CompiledKernel], number: int) -> Future[Timing]:
        """Time a kernel in the background; a running number chooses the GPU."""


@runtime_checkable
class ModelledDevice(Protocol):
    """A device whose figures are claims of a model, which says how sure a saving is."""

    def estimate_saving_interval(self, kernel: CompiledKernel, other: CompiledKernel) -> Interval:
        """95 % interval of the share of energy that a kernel saves against another."""


@runtime_checkable
class PhysicalDevice(Protocol):
    """A device of real GPUs, which have UUIDs: two GPUs of one kind differ."""

    uuids: tuple[str, ...]


@dataclass(frozen=True)
class OfferedClocks:
    """Settable SM clocks in MHz, or an empty tuple and the reason."""

    mhz: tuple[int, ...] = ()
    reason: str = ""
    current_mhz: float = field(default=0.0)

    def __repr__(self) -> str:
        ends = f"{len(self.mhz)} from {min(self.mhz)} to {max(self.mhz)} MHz" if self.mhz else self.reason
        return format_line(self, ends)

    def explain_refusal(self, mhz: object) -> str:
        """Why a clock cannot be set, and the nearest one that can; "" for a clock that can be set."""
        if isinstance(mhz, bool) or not isinstance(mhz, Integral):
            return f"a clock is a whole number of MHz, not {mhz!r:.40}"
        if mhz in self.mhz:
            return ""
        if not self.mhz:
            return self.reason
        nearest = min(self.mhz, key=lambda clock: abs(clock - int(mhz)))
        return f"it offers {self.mhz[0]} to {self.mhz[-1]} MHz; nearest: {nearest}"


_SHADOW_BYTES_PER_CELL = 10
"""Bytes that the sanitizer keeps per cell: last writer, last reader, and the state of the cache."""
_MAX_CELL_BYTES = 4
"""Bytes of a cell at most; fewer where the smallest element is smaller."""
_OUTPUT_COPIES = 4
"""Copies of an output on the host: blank, start, result and mask of written elements."""


def check_device_memory(op: Operator, device: Device) -> None:
    """Raises `InvalidInput` for an operator whose inputs and result do not fit the device."""
    if device.memory_bytes is not None:
        needed = {spec.name: spec.bytes for spec in (*op.inputs, *op.outputs)}
        available = f"{device.label} has {format_bytes(device.memory_bytes)}"
        check_memory_fits(op, op.name, needed, device.memory_bytes, available)


def check_kernel_memory(kernel: CompiledKernel, label: str, memory_bytes: int) -> None:
    """Raises `DeviceError` for a kernel whose tensors, those between its launches included, do not fit."""
    sizes = {n: s for one in kernel.launches for n, s in zip(one.arguments, one.argument_bytes, strict=True)}
    if sum(sizes.values()) > memory_bytes:
        raise DeviceError(
            f"memory: {kernel.name} needs {format_byte_total(sizes)}, "
            f"{label} has {format_bytes(memory_bytes)}; keep less between its launches"
        )


def check_emulation_memory(op: Operator, kernel: CompiledKernel) -> None:
    """Raises `InvalidInput` where this host has too little memory for a call of the PTX machine: every tensor
    once more, the cells of the sanitizer, and outputs several times."""
    specs = {name: op.tensors[name] for one in kernel.launches for name in one.arguments}
    cell_bytes = min(_MAX_CELL_BYTES, *(spec.dtype.bytes for spec in specs.values()))
    written, each = {one.arguments[-1] for one in kernel.launches}, 1 + _SHADOW_BYTES_PER_CELL / cell_bytes
    times = {name: each + _OUTPUT_COPIES * (name in written) for name in specs}
    check_host_memory(op, f"a call of {op.name} on the CPU", times, ", or `ekc run`, which runs some blocks")


def check_transfer_memory(op: Operator) -> None:
    """Raises `InvalidInput` where this host has too little memory for the arrays of a call on a GPU."""
    times = dict.fromkeys((t.name for t in op.inputs), 2.0) | dict.fromkeys((t.name for t in op.outputs), 3.0)
    subject = f"a call of {op.name} with arrays of the host"
    check_host_memory(op, subject, times, ", or pass arrays on the GPU")
