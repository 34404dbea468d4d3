"""The functions of the CUDA driver that ekc uses, as a small protocol, so that tests can script a driver.

Handles (modules, functions, streams, events, graphs) and device addresses are plain integers, as in the
driver. A method that fails raises `DriverError` with CUDA's own name of the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ekc.errors import DeviceError

Shape = tuple[int, int, int]


class DriverError(DeviceError):
    """A call of the driver failed. `call` is the driver's function, `name` CUDA's name of the error."""

    def __init__(self, call: str, name: str, meaning: str = "") -> None:
        super().__init__(f"{call}: {name}{f' ({meaning})' if meaning else ''}")
        self.call, self.name, self.meaning = call, name, meaning


class Driver(Protocol):
    """The driver, one GPU at a time (`push_context`); errors of queued work come where it is waited for."""

    def get_version(self) -> int:
        """Highest CUDA version that this driver supports: 13000 is 13.0."""

    def count_gpus(self) -> int:
        """Number of GPUs."""

    def get_name(self, index: int) -> str:
        """Product name."""

    def get_uuid(self, index: int) -> str:
        """UUID in hexadecimal, five groups of digits; NVML writes "GPU-" or "MIG-" before them."""

    def get_memory_bytes(self, index: int) -> int:
        """Bytes of memory of the device."""

    def get_attribute(self, index: int, name: str) -> int:
        """An attribute by CUDA's name without its prefix, such as "MULTIPROCESSOR_COUNT"."""

    def push_context(self, index: int) -> None:
        """Make a GPU's primary context current in this thread, until `pop_context` restores the last one."""

    def pop_context(self) -> None:
        """Undo the last `push_context`."""

    def find_owner_gpu(self, address: int) -> int:
        """Index of the GPU whose memory contains an address."""

    def load(self, cubin: bytes) -> int:
        """Load machine code as a module."""

    def unload(self, module: int) -> None:
        """Unload a module."""

    def get_function(self, module: int, name: str, shared_bytes: int) -> int:
        """A kernel of a module, allowed to use so much dynamic shared memory."""

    def launch(
        self, function: int, grid: Shape, block: Shape, shared: int, stream: int, pointers: Sequence[int]
    ) -> None:
        """Queue a kernel whose parameters are all device addresses."""

    def allocate(self, size: int) -> int:
        """Device memory of `size` bytes."""

    def free(self, address: int) -> None:
        """Free device memory."""

    def allocate_async(self, size: int, stream: int) -> int:
        """Allocate device memory in the order of a stream: usable for work that is queued later."""

    def free_async(self, address: int, stream: int) -> None:
        """Free device memory in the order of a stream: after the work that is queued before."""

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the device, and wait."""

    def download(self, array: NDArray[Any], address: int) -> None:
        """Copy from the device into a contiguous array, and wait for all that was queued."""

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Queue a fill of memory with one byte."""

    def create_stream(self) -> int:
        """A new stream that does not wait for the default one."""

    def wait_for_stream(self, stream: int, other: int) -> None:
        """Make later work of a stream wait for the present work of another stream."""

    def create_event(self) -> int:
        """A new event that records its time."""

    def record_event(self, event: int, stream: int) -> None:
        """Queue the event."""

    def wait_for_event(self, event: int) -> None:
        """Wait until the event has happened; errors of work queued before it are raised here."""

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two events that have happened, to about half a microsecond."""

    def begin_capture(self, stream: int) -> None:
        """Start to capture the work queued on the stream instead of running it."""

    def end_capture(self, stream: int) -> int:
        """End the capture; returns a graph that can be replayed."""

    def launch_graph(self, graph: int, stream: int) -> None:
        """Queue a graph."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""


def format_cuda_version(version: int) -> str:
    """Text of a CUDA version: "13.0" of 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"
