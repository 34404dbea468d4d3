"""Requests of the parent to a GPU's worker, and its figures: frozen values that pickle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.cuda.library_kernel import LibraryKernel
from ekc.devices.device import OutputSelection
from ekc.ir.random_arrays import InputTensor

Work = CompiledKernel | LibraryKernel
"""One of our kernels, or a call of a library."""


def make_work(kernel: Work) -> Work:
    """The part of a kernel that is sent to the worker: without its texts and facts."""
    if isinstance(kernel, LibraryKernel):
        return kernel
    return replace(kernel, cuda_source="", ptx="", log="", facts={})


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
class TimingSamples:
    """Samples in seconds of one call each, and the method."""

    samples_s: tuple[float, ...]
    method: str
    """"events" or "graph replay"."""
    calls_per_sample: int
    """Calls between two events; each sample is their mean."""


@dataclass(frozen=True)
class WorkerRequest:
    """Asks for the result of a method of `GpuWorker`, by its name."""

    method: str
    arguments: tuple[Any, ...] = ()
    moved_bytes: int = 0
    """Bytes that go between host and device."""


STOP_CALLS = WorkerRequest("stop")
"""Ends `call_until_stopped`, which answers it."""


def make_request(method: str, kernel: Work, *arguments: Any, output_bytes: int = 0) -> WorkerRequest:
    """A request about a kernel, whose inputs go to the device. `output_bytes`: those of outputs that move."""
    moved_bytes = sum(spec.bytes for spec in kernel.inputs) + output_bytes
    return WorkerRequest(method, (make_work(kernel), *arguments), moved_bytes)


def make_sample_request(
    kernel: Work, inputs: Sequence[InputTensor], selections: Sequence[OutputSelection]
) -> WorkerRequest:
    """Asks for some elements of the output of each launch; each blank is written and read back as a whole."""
    looked_at = sum(2 * len(one.blank_words) * one.spec.bytes for one in selections)
    return make_request("sample", kernel, tuple(inputs), tuple(selections), output_bytes=looked_at)
