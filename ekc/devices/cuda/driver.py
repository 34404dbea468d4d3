"""The functions of the CUDA driver that ekc uses, over `cuda.bindings.driver`, which is imported when the
first object is made.

Handles (modules, functions, streams, events, graphs) and device addresses are plain integers, as in the
driver. A method that fails raises `DriverError` with CUDA's own name of the error. Tests script a class with
the same methods.

This module also knows which drivers load the machine code that NVRTC makes, and the remedy where one does
not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from numpy.typing import NDArray

from ekc.errors import DeviceError

Shape = tuple[int, int, int]
_DEFAULT_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory above this must be requested (CUDA C++ Programming Guide)."""


class DriverError(DeviceError):
    """A call of the driver failed. `call` is the driver's function, `name` CUDA's name of the error."""

    def __init__(self, call: str, name: str, meaning: str = "") -> None:
        super().__init__(f"{call}: {name}{f' ({meaning})' if meaning else ''}")
        self.call, self.name, self.meaning = call, name, meaning


class Driver:
    """The driver, one GPU at a time (`push_context`); errors of queued work come where it is waited for.
    Raises `DriverError` where there is none."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise DriverError("cuda.bindings", str(error), "pip install cuda-python") from error
        self._cuda = driver
        self._contexts: dict[int, Any] = {}
        self._call("cuInit", 0)

    def get_version(self) -> int:
        """Highest CUDA version that this driver supports: 13000 is 13.0."""
        return int(self._call("cuDriverGetVersion"))

    def count_gpus(self) -> int:
        """Number of GPUs."""
        return int(self._call("cuDeviceGetCount"))

    def get_name(self, index: int) -> str:
        """Product name."""
        name: bytes = self._call("cuDeviceGetName", 256, self._device(index))
        return name.split(b"\0")[0].decode(errors="replace")

    def get_uuid(self, index: int) -> str:
        """UUID in hexadecimal, five groups of digits; NVML writes "GPU-" or "MIG-" before them."""
        return str(UUID(bytes=bytes(self._call("cuDeviceGetUuid", self._device(index)).bytes)))

    def get_memory_bytes(self, index: int) -> int:
        """Bytes of memory of the device."""
        return int(self._call("cuDeviceTotalMem", self._device(index)))

    def get_attribute(self, index: int, name: str) -> int:
        """An attribute by CUDA's name without its prefix, such as "MULTIPROCESSOR_COUNT"."""
        which = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", which, self._device(index)))

    def push_context(self, index: int) -> None:
        """Make a GPU's primary context current in this thread, until `pop_context` restores the last one."""
        if index not in self._contexts:
            self._contexts[index] = self._call("cuDevicePrimaryCtxRetain", self._device(index))
        self._call("cuCtxPushCurrent", self._contexts[index])

    def pop_context(self) -> None:
        """Undo the last `push_context`."""
        self._call("cuCtxPopCurrent")

    def find_owner_gpu(self, address: int) -> int:
        """Index of the GPU whose memory contains an address."""
        which = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._call("cuPointerGetAttribute", which, address))

    def load(self, cubin: bytes) -> int:
        """Load machine code as a module."""
        return int(self._call("cuModuleLoadData", cubin))

    def unload(self, module: int) -> None:
        """Unload a module."""
        self._call("cuModuleUnload", self._cuda.CUmodule(module))

    def get_function(self, module: int, name: str, shared_bytes: int) -> int:
        """A kernel of a module, allowed to use so much dynamic shared memory."""
        found = self._call("cuModuleGetFunction", self._cuda.CUmodule(module), name.encode())
        if shared_bytes > _DEFAULT_SHARED_BYTES:
            which = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call("cuFuncSetAttribute", found, which, shared_bytes)
        return int(found)

    def launch(
        self, function: int, grid: Shape, block: Shape, shared: int, stream: int, pointers: Sequence[int]
    ) -> None:
        """Queue a kernel whose parameters are all device addresses. The driver copies these at once."""
        number = len(pointers)
        values = (ctypes.c_uint64 * number)(*pointers)
        first = ctypes.addressof(values)
        places = (ctypes.c_void_p * number)(*range(first, first + 8 * number, 8))
        queue = self._cuda.CUstream(stream)
        start = self._cuda.CUfunction(function)
        self._call("cuLaunchKernel", start, *grid, *block, shared, queue, ctypes.addressof(places), 0)

    def allocate(self, size: int) -> int:
        """Device memory of `size` bytes."""
        return int(self._call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        """Free device memory."""
        self._call("cuMemFree", address)

    def allocate_async(self, size: int, stream: int) -> int:
        """Allocate device memory in the order of a stream: usable for work that is queued later."""
        return int(self._call("cuMemAllocAsync", size, self._cuda.CUstream(stream)))

    def free_async(self, address: int, stream: int) -> None:
        """Free device memory in the order of a stream: after the work that is queued before."""
        self._call("cuMemFreeAsync", address, self._cuda.CUstream(stream))

    def upload(self, address: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the device, and wait. The driver returns once it has staged pageable
        memory; the rest goes over the default stream, for which our streams do not wait."""
        self._call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
        self._call("cuStreamSynchronize", self._cuda.CUstream(0))

    def download(self, array: NDArray[Any], address: int) -> None:
        """Copy from the device into a contiguous array, and wait for all that was queued: our streams do not
        wait for the default one."""
        self._call("cuCtxSynchronize")
        self._call("cuMemcpyDtoH", array.ctypes.data, address, array.nbytes)

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Queue a fill of memory with one byte."""
        self._call("cuMemsetD8Async", address, byte, size, self._cuda.CUstream(stream))

    def create_stream(self) -> int:
        """A new stream that does not wait for the default one."""
        return int(self._call("cuStreamCreate", self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def wait_for_stream(self, stream: int, other: int) -> None:
        """Make later work of a stream wait for the present work of another stream."""
        event = self._call("cuEventCreate", self._cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._call("cuEventRecord", event, self._cuda.CUstream(other))
        self._call("cuStreamWaitEvent", self._cuda.CUstream(stream), event, 0)
        self._call("cuEventDestroy", event)

    def create_event(self) -> int:
        """A new event that records its time. A thread that waits for it sleeps: a spinning core would heat
        the machine that is measured."""
        return int(self._call("cuEventCreate", self._cuda.CUevent_flags.CU_EVENT_BLOCKING_SYNC))

    def record_event(self, event: int, stream: int) -> None:
        """Queue the event."""
        self._call("cuEventRecord", self._cuda.CUevent(event), self._cuda.CUstream(stream))

    def wait_for_event(self, event: int) -> None:
        """Wait until the event has happened; errors of work queued before it are raised here."""
        self._call("cuEventSynchronize", self._cuda.CUevent(event))

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two events that have happened, to about half a microsecond; CUDA counts in
        milliseconds."""
        milliseconds = self._call("cuEventElapsedTime", self._cuda.CUevent(start), self._cuda.CUevent(end))
        return float(milliseconds) / 1000.0

    def begin_capture(self, stream: int) -> None:
        """Start to capture the work queued on the stream instead of running it."""
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._cuda.CUstream(stream), mode)

    def end_capture(self, stream: int) -> int:
        """End the capture; returns a graph that can be replayed. The captured template is destroyed; the
        executable graph stays."""
        template = self._call("cuStreamEndCapture", self._cuda.CUstream(stream))
        graph = self._call("cuGraphInstantiate", template, 0)
        self._call("cuGraphDestroy", template)
        return int(graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        """Queue a graph."""
        self._call("cuGraphLaunch", self._cuda.CUgraphExec(graph), self._cuda.CUstream(stream))

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""
        self._call("cuGraphExecDestroy", self._cuda.CUgraphExec(graph))

    def _device(self, index: int) -> Any:
        return self._call("cuDeviceGet", index)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; returns its results without the status."""
        try:
            status, *results = getattr(self._cuda, name)(*arguments)
        except RuntimeError as missing:
            # The shared library, or this function of it, is missing.
            raise DriverError(name, "not available", str(missing).splitlines()[0]) from missing
        except (ValueError, KeyError) as unknown:
            # A driver newer than the bindings may have an error that these cannot name.
            raise DriverError(name, "unknown error", str(unknown)) from unknown
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            raise DriverError(name, status.name, self._describe_error(status))
        return results[0] if results else None

    def _describe_error(self, status: Any) -> str:
        if status == self._cuda.CUresult.CUDA_ERROR_NOT_INITIALIZED:
            return "a process that used CUDA was forked; start its children with the spawn method"
        text: bytes | None = self._cuda.cuGetErrorString(status)[1]
        return text.decode(errors="replace") if text else ""


def format_cuda_version(version: int) -> str:
    """Text of a CUDA version: "13.0" of 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


CUDA_12_INSTALL_COMMAND = (
    "pip uninstall -y nvidia-cuda-nvrtc && pip install 'cuda-python>=12.9,<13' nvidia-cuda-nvrtc-cu12"
)
"""Installs NVRTC of CUDA 12, whose drivers are common; the bindings load the other one if it stays."""


def explain_old_driver(driver: int, nvrtc: str) -> str | None:
    """Why a driver for CUDA `driver` (13000 is 13.0) does not load machine code of this NVRTC ("13.5"); None
    where it does: machine code of a major version runs on each driver of that version or a later one."""
    needed = int(nvrtc.split(".")[0])
    if driver >= 1000 * needed:
        return None
    other = f", or {CUDA_12_INSTALL_COMMAND}" if driver // 1000 == 12 else ""
    return (
        f"for CUDA {format_cuda_version(driver)}, too old for the machine code of NVRTC {nvrtc}: "
        f"update the driver to one for CUDA {needed}.0 or later{other}"
    )
