"""A CUDA driver without a GPU: the PTX machine executes its launches, and its clock is virtual.

The PTX of a module is found beside its CUBIN in the compile cache. A launch whose tensors have not changed
since it last ran would write the same again, so only its time passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ekc.codegen import cache
from ekc.devices.cuda.device_attributes import ATTRIBUTES
from ekc.devices.cuda.driver import DriverError, Shape
from ekc.emulator import launch
from ekc.ptx.parser import parse_module

FACTS = dict(
    zip(ATTRIBUTES, (8, 0, 108, 1024, 64, 65536, 166912, 167936, 2048, 32, 2**31 - 1, 65535), strict=False),
    L2_CACHE_SIZE=40 * 2**20,
    CLOCK_RATE=1410000,
    MEMORY_CLOCK_RATE=1215000,
    GLOBAL_MEMORY_BUS_WIDTH=5120,
)
"""An A100-SXM4-40GB."""
THREAD_S = 2e-10
FILL_BYTES_PER_S = 1e12


@dataclass
class Memory:
    """One allocation; `version` counts what was written."""

    data: np.ndarray
    version: int = 0


@dataclass
class ScriptedDriver:
    """See `ekc.devices.cuda.driver.Driver`."""

    gpus: int = 1
    cuda: int = 13000
    facts: dict[str, int] = field(default_factory=lambda: dict(FACTS))
    product: str = "Scripted A100"
    now_s: float = 0.0
    memory: dict[int, Memory] = field(default_factory=dict)
    handles: dict[int, Any] = field(default_factory=dict)
    done: dict[tuple, tuple] = field(default_factory=dict)
    taping: list[Any] | None = None
    opened: bool = False
    launch_s: float = 3e-6
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    last: int = 0x1000
    streams: list[int] = field(default_factory=list)
    """Streams of the launches, in order."""
    followed: list[tuple[int, int]] = field(default_factory=list)

    def get_version(self) -> int:
        return self.cuda

    def count_gpus(self) -> int:
        return self.gpus

    def get_name(self, index: int) -> str:
        self._gpu("cuDeviceGetName", index)
        return self.product

    def get_uuid(self, index: int) -> str:
        self._gpu("cuDeviceGetUuid", index)
        return f"00000000-0000-0000-0000-{index:012d}"

    def get_memory_bytes(self, index: int) -> int:
        self._gpu("cuDeviceTotalMem", index)
        return 40 * 2**30

    def get_attribute(self, index: int, name: str) -> int:
        self._gpu("cuDeviceGetAttribute", index)
        return self.facts[name]

    def push_context(self, index: int) -> None:
        self._gpu("cuDevicePrimaryCtxRetain", index)
        self.opened = True

    def pop_context(self) -> None:
        assert self.opened
        self.opened = False

    def find_owner_gpu(self, address: int) -> int:
        if address not in self.memory:
            raise DriverError("cuPointerGetAttribute", "CUDA_ERROR_INVALID_VALUE", "invalid argument")
        return 0

    def load(self, cubin: bytes) -> int:
        for entry in cache.find_folder().glob("*/*.nvrtc"):
            # Reading all files of a large cache would take half a minute.
            if not _may_end_with(entry, cubin):
                continue
            found = entry.read_bytes()
            if found.endswith(cubin):
                payload = found.split(b"\n", 2)[2]
                return self._handle(payload[: -len(cubin)].decode())
        raise DriverError("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid")

    def unload(self, module: int) -> None:
        del self.handles[module]

    def get_function(self, module: int, name: str, shared_bytes: int) -> int:
        if name not in parse_module(self.handles[module]).kernels:
            raise DriverError("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND", "named symbol not found")
        return self._handle((self.handles[module], name))

    def launch(
        self, function: int, grid: Shape, block: Shape, shared: int, stream: int, pointers: Sequence[int]
    ) -> None:
        self.streams.append(stream)
        self._queue(lambda: self._run(function, grid, block, shared, tuple(pointers)))

    def allocate(self, size: int) -> int:
        assert self.opened
        address = self._next(size)
        self.memory[address] = Memory(np.empty(size, np.uint8))
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def allocate_async(self, size: int, stream: int) -> int:
        return self.allocate(size)

    def free_async(self, address: int, stream: int) -> None:
        self.free(address)

    def upload(self, address: int, array: np.ndarray) -> None:
        assert array.flags.c_contiguous, "the driver copies bytes in memory order"
        memory, offset = self._held(address)
        memory.data[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        memory.version += 1

    def download(self, array: np.ndarray, address: int) -> None:
        memory, offset = self._held(address)
        array.reshape(-1).view(np.uint8)[:] = memory.data[offset : offset + array.nbytes]

    def _held(self, address: int) -> tuple[Memory, int]:
        """The allocation that contains an address, and the offset in it."""
        start = max(start for start in self.memory if start <= address)
        assert address - start < self.memory[start].data.size, "an address of no allocation"
        return self.memory[start], address - start

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        self.memory[address].data[:size] = byte
        self.memory[address].version += 1
        self.now_s += size / FILL_BYTES_PER_S

    def create_stream(self) -> int:
        return self._handle("stream")

    def wait_for_stream(self, stream: int, other: int) -> None:
        self.followed.append((stream, other))

    def create_event(self) -> int:
        return self._handle(None)

    def record_event(self, event: int, stream: int) -> None:
        self.handles[event] = self.now_s

    def wait_for_event(self, event: int) -> None:
        assert self.handles[event] is not None

    def elapsed_s(self, start: int, end: int) -> float:
        return self.handles[end] - self.handles[start]

    def begin_capture(self, stream: int) -> None:
        self.taping = []

    def end_capture(self, stream: int) -> int:
        tape, self.taping = self.taping, None
        return self._handle(tape)

    def launch_graph(self, graph: int, stream: int) -> None:
        for work in self.handles[graph]:
            work()

    def destroy_graph(self, graph: int) -> None:
        del self.handles[graph]

    def _gpu(self, call: str, index: int) -> None:
        if index >= self.gpus:
            raise DriverError(call, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")

    def _next(self, size: int = 1) -> int:
        """A new address or handle. Values are never used twice, so that a stale one is noticed."""
        self.last += -(-size // 256) * 256
        return self.last

    def _handle(self, value: Any) -> int:
        handle = self._next()
        self.handles[handle] = value
        return handle

    def _queue(self, work: Any) -> None:
        if self.taping is None:
            work()
        else:
            self.taping.append(work)

    def _run(self, function: int, grid: Shape, block: Shape, shared: int, pointers: tuple[int, ...]) -> None:
        ptx, name = self.handles[function]
        threads = int(np.prod(grid)) * int(np.prod(block))
        jitter = 1.0 + 0.003 * float(self.noise.standard_normal())
        self.now_s += (self.launch_s + THREAD_S * threads) * jitter
        versions = tuple(self.memory[p].version for p in pointers)
        if self.done.get((ptx, name, pointers)) == versions:
            return
        report = launch(
            ptx,
            name,
            grid=grid,
            block=block,
            args=[self.memory[p].data for p in pointers],
            dynamic_shared=shared,
        )
        if any("outside" in str(f) or "bounds" in str(f) for f in report.findings):
            raise DriverError("cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access")
        self.memory[pointers[-1]].version += 1
        self.done[ptx, name, pointers] = tuple(self.memory[p].version for p in pointers)


def _may_end_with(entry: Path, content: bytes) -> bool:
    """Whether the first bytes of the content are where they would be, if the file ended with it."""
    with entry.open("rb") as file:
        start = entry.stat().st_size - len(content)
        file.seek(max(start, 0))
        return start >= 0 and file.read(16) == content[:16]
