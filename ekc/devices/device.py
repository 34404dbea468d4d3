"""The protocol every device keeps: real, simulated or recorded. The tuner never asks which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Resources
from ekc.devices.statistics import Interval
from ekc.ir.hardware.limits import Limits
from ekc.ir.interpreter.random_arrays import InputTensor
from ekc.ir.operator import TensorSpec

POWER_CAP = "power cap"
"""The throttle reason of a board that draws all it may."""
UNREPORTED = "not told"
"""In place of throttle reasons, where the driver does not say whether there are any."""
ENERGY_COUNTER, POWER_READINGS = "energy counter", "power readings"
"""The two estimators of energy."""


@dataclass(frozen=True)
class MeasurementConditions:
    """What a measurement is evidence about."""

    device: str
    simulated: bool
    driver: str
    nvrtc: str
    clock_regime: str
    """"fixed 1275 MHz" or "free"."""
    clock_mhz: float
    """What the clock was: lower than the regime's where the power cap throttled it."""
    temperature_c: float
    throttle: tuple[str, ...]
    """Throttle reasons in force, e.g. (POWER_CAP,); (NOT_TOLD,) where nobody knows."""
    data_policy: str
    """How the inputs were filled, e.g. "normal(0,1) seed 0"."""
    ekc_version: str
    l2: str = ""
    """"warm" (calls follow each other, as metered ones do) or "cold" (the L2 is overwritten before)."""
    gpu: str = ""
    """Which of several GPUs, by its UUID."""
    power_cap_w: float | None = None
    """What the board may draw; None where it has no cap or did not tell."""


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
    """Every sample that the latency is made of, in the order they were taken."""
    calls: int = 1
    """So many calls each sample is the mean of."""
    resources: tuple[Resources, ...] = ()
    """What ptxas gave the kernel, one per launch, if who had it timed said so. A tuning run does, and learns
    from it what will spill."""


@dataclass(frozen=True)
class Metering:
    """Board power and energy of one call, from a window of back-to-back calls."""

    power_w: float
    power_interval_w: Interval
    energy_j: float
    energy_interval_j: Interval
    counter_energy_j: float
    """First estimator: difference of the total-energy counter between two of its ticks; NaN where none
    moved."""
    sampled_energy_j: float
    """Second estimator: mean of the power readings times time."""
    idle_power_w: float
    window_s: float
    samples: int
    conditions: MeasurementConditions
    estimator: str = ENERGY_COUNTER
    """Which of the two `energy_j` is: `COUNTER`, or `READINGS` where no counter moved."""
    notes: tuple[str, ...] = ()
    """What else a reader of the figures must know, in words."""
    samples_w: tuple[float, ...] = ()
    """Every sample that the power is made of, in order: its mean from tick to tick of the counter."""


Measurement = Timing | Metering
FactCollector = Callable[[CompiledKernel], Mapping[str, Any]]


@dataclass(frozen=True)
class Peaks:
    """Ceilings of the roofline, at the clock the device runs at."""

    fp32_flops: float
    flops_by_type: Mapping[str, float]
    """By element type of the inputs: operations per second on the fastest unit that takes it."""
    dram_bytes_per_s: float
    board_power_w: float
    """The power cap of the board."""
    mma_share: float = 1.0
    """Of what tensor cores do, what products of a warp get, where only those of a warpgroup get all."""
    source: str = ""
    """Who says what the device does a clock; "" in recordings of before this was kept."""


class Device(Protocol):
    """A thing that times and meters compiled kernels."""

    name: str
    simulated: bool
    arch: str
    limits: Limits
    peaks: Peaks
    driver: str
    """Of the GPU; a simulated device says which simulator it is."""
    clock_regime: str
    data_policy: str

    @property
    def collect_facts(self) -> FactCollector | None:
        """Function for the compile job, which returns the `facts` of a kernel on which the figures of this
        device rest, e.g. what a launch executes. It pickles by its module and name, asks nothing of the
        device and raises `EkcError` where it fails. None for a device that needs no facts."""

    @property
    def memory_bytes(self) -> int | None:
        """Memory of the device in bytes; None where that is not known."""

    @property
    def label(self) -> str:
        """`a100 (simulated)` or the product name: what is printed wherever its numbers are."""

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """Latency. `draw` numbers repeated measurements of one kernel, so that each is seeded."""

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """Power and energy over a window of about `seconds`."""

    def clocks(self) -> Clocks:
        """The graphics clocks that can be set here, or why none can."""

    def at_clock(self, mhz: int) -> Device:
        """The same device with its SM clock fixed at one of `clocks().mhz`; `DeviceError` otherwise."""


@dataclass(frozen=True, eq=False)
class OutputSelection:
    """Elements of a launch's output to look at."""

    spec: TensorSpec
    blank_words: tuple[int, ...]
    """Bits that all elements hold before a run, of which there is one for each."""
    positions: NDArray[np.int64]
    """Linear positions, rising."""


@dataclass(frozen=True, eq=False)
class OutputSample:
    """The elements seen there after the last run."""

    values: NDArray[Any]
    is_written: NDArray[np.bool_]
    """Whether the elements differed from what they began as, after any run."""
    unwritten_count: int
    """Elements of the whole output that never did."""


@runtime_checkable
class ExecutionDevice(Protocol):
    """What a device can do that really runs kernels: give their results."""

    executed_by: str
    """Who computes, wherever a result is shown."""

    @property
    def label(self) -> str:
        """As of `Device`."""

    def execute(
        self, kernel: CompiledKernel, arrays: Sequence[NDArray[Any]], blanks: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any], ...]:
        """What each launch leaves in its output, which begins as its blank; inputs as the operator's."""

    def sample(
        self, kernel: CompiledKernel, inputs: Sequence[InputTensor], selections: Sequence[OutputSelection]
    ) -> tuple[OutputSample, ...]:
        """Some elements of what each launch leaves in its output; of no tensor the whole is made here."""


@runtime_checkable
class ParallelDevice(Protocol):
    """What a device can do that has several GPUs: time kernels side by side."""

    workers: int

    def submit(self, kernel: Callable[[], CompiledKernel], number: int) -> Future[Timing]:
        """Time a kernel in the background; a running number says on which GPU."""


@runtime_checkable
class PhysicalDevice(Protocol):
    """What a device can do that is made of real GPUs: say which, for two of one kind differ."""

    uuids: tuple[str, ...]


@dataclass(frozen=True)
class Clocks:
    """Settable SM clocks in MHz, or an empty tuple and the reason."""

    mhz: tuple[int, ...] = ()
    reason: str = ""
    current_mhz: float = field(default=0.0)

    def explain_refusal(self, mhz: object) -> str:
        """Why a clock cannot be set, and the nearest that can; "" for one that can."""
        if isinstance(mhz, bool) or not isinstance(mhz, Integral):
            return f"a clock is a whole number of MHz, not {mhz!r:.40}"
        if mhz in self.mhz:
            return ""
        if not self.mhz:
            return self.reason
        nearest = min(self.mhz, key=lambda clock: abs(clock - int(mhz)))
        return f"it offers {self.mhz[0]} to {self.mhz[-1]} MHz; nearest: {nearest}"
