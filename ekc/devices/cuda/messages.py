"""Requests of the parent and replies of a GPU's worker: frozen values that pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.devices.cuda.library_kernel import LibraryKernel
from ekc.devices.device import OutputSample, OutputSelection
from ekc.ir.compute import TensorSpec
from ekc.ir.random_arrays import InputTensor


@dataclass(frozen=True)
class LoadableKernel:
    """The part of a compiled kernel that a GPU needs."""

    name: str
    cubin: bytes
    launches: tuple[Launch, ...]
    inputs: tuple[TensorSpec, ...]

    @classmethod
    def from_kernel(cls, kernel: CompiledKernel) -> LoadableKernel:
        """The part of a kernel that is sent to the worker."""
        return cls(kernel.name, kernel.cubin, kernel.launches, kernel.inputs)

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs together."""
        return sum(spec.bytes for spec in self.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the output of each launch."""
        return tuple(one.arguments[-1] for one in self.launches)


Work = LoadableKernel | LibraryKernel
"""One of our kernels, or a call of a library."""


def make_work(kernel: CompiledKernel | LibraryKernel) -> Work:
    """The part of a kernel that is sent to the worker."""
    return kernel if isinstance(kernel, LibraryKernel) else LoadableKernel.from_kernel(kernel)


@dataclass(frozen=True)
class TimingRules:
    """Rules for timing a kernel, and for when the samples are enough."""

    is_cold: bool = False
    """Whether the L2 is overwritten before each call; otherwise calls follow each other."""
    target_width: float = 0.01
    """Width of the 95 % interval of the median, relative to the median, at which samples are enough."""
    min_samples: int = 6
    """Samples, at least, however long they take: the range of fewer does not contain the median with 95 %."""
    first_check_samples: int = 8
    """Samples after which the interval is first checked; then after twice as many, and so on."""
    max_samples: int = 192
    max_seconds: float = 0.5
    """Seconds after which no further round of samples begins."""


@dataclass(frozen=True)
class KernelRequest:
    """A request about a kernel."""

    work: Work

    @property
    def moved_bytes(self) -> int:
        """Bytes that go between host and device: all inputs."""
        return self.work.input_bytes


@dataclass(frozen=True)
class DescribeRequest:
    """Asks for the `GpuProperties`."""


@dataclass(frozen=True)
class TimingRequest(KernelRequest):
    """Asks for `TimingSamples`."""

    rules: TimingRules


@dataclass(frozen=True)
class TimingSamples:
    """Samples in seconds of one call each, and the method."""

    samples_s: tuple[float, ...]
    method: str
    """"events" or "graph replay"."""
    calls_per_sample: int
    """Calls between two events; each sample is their mean."""


@dataclass(frozen=True)
class ExecuteRequest(KernelRequest):
    """Asks for the launches' outputs (`ExecuteReply`) on these inputs; outputs start as `blanks`."""

    arrays: tuple[NDArray[Any], ...]
    blanks: tuple[NDArray[Any], ...]
    """Blank outputs, one per launch, of its output's shape and type."""


@dataclass(frozen=True)
class ExecuteReply:
    """Output of each launch."""

    arrays: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class SampleRequest(KernelRequest):
    """Asks for some elements of the output of each launch on these inputs (`SampleReply`)."""

    inputs: tuple[InputTensor, ...]
    selections: tuple[OutputSelection, ...]
    """One per launch."""

    @property
    def moved_bytes(self) -> int:
        """Bytes of inputs and outputs that go between host and device."""
        looked_at = sum(2 * len(one.blank_words) * one.spec.bytes for one in self.selections)
        return self.work.input_bytes + looked_at


@dataclass(frozen=True)
class SampleReply:
    """One per launch."""

    samples: tuple[OutputSample, ...]


@dataclass(frozen=True)
class AlgorithmsRequest:
    """Asks for the algorithms that a library proposes for a call (`AlgorithmsReply`)."""

    kernel: LibraryKernel
    """The call, without an algorithm."""
    count: int


@dataclass(frozen=True)
class AlgorithmsReply:
    """Kernels in the order of the library, or the reason why there are none."""

    kernels: tuple[LibraryKernel, ...]
    reason: str = ""


@dataclass(frozen=True)
class StartCallsRequest(KernelRequest):
    """Asks to call a kernel back to back; answered by `CallsStarted`, ended by `StopCallsRequest`."""


@dataclass(frozen=True)
class CallsStarted:
    """Says that the kernel runs."""

    queued_s: float
    """Seconds of work that is queued at any time, and still runs after a request to stop."""


@dataclass(frozen=True)
class StopCallsRequest:
    """Ends `StartCallsRequest`; the answer is the meter's `CompletedCalls`, in seconds of GPU events."""
