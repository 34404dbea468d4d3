"""A kernel loaded into the worker's context: module, functions, inputs, and buffers for its outputs.

A call of a library takes its place, on the same stream and the same buffers. Samples of the outputs are read
chunk by chunk: outputs may exceed the memory of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import Launch
from ekc.devices.cuda.driver import Driver
from ekc.devices.cuda.library_kernel import LibraryKernel
from ekc.devices.cuda.messages import Work
from ekc.devices.cuda.nvidia_libraries import NvidiaLibrary, open_library
from ekc.devices.device import OutputSample, OutputSelection
from ekc.ir.comparison.compare import DATA_SEED
from ekc.ir.compute import TensorSpec
from ekc.ir.random_arrays import InputTensor, RandomTensor, make_random_tensors

CHUNK_BYTES = 1 << 26
"""Bytes of a tensor that are on the host at once."""


def split_into_chunks(spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """Start and end of each chunk of a tensor, in elements."""
    each = CHUNK_BYTES // spec.dtype.bytes
    for start in range(0, spec.elements, each):
        yield start, min(start + each, spec.elements)


def upload_tensor(driver: Driver, address: int, spec: TensorSpec, tensor: InputTensor) -> None:
    """Fill a tensor of the device."""
    if not isinstance(tensor, RandomTensor):
        driver.upload(address, np.ascontiguousarray(tensor))
        return
    for start, stop in split_into_chunks(spec):
        driver.upload(address + start * spec.dtype.bytes, tensor.make_span(start, stop))


@dataclass
class OutputSampler:
    """Selected elements of one output, updated after each run."""

    driver: Driver
    address: int
    selection: OutputSelection
    _kept_blank_bits: list[NDArray[np.uint8]] = field(default_factory=list)
    """Bits by chunk, one for each element: whether it kept the blank of every run so far."""

    def __post_init__(self) -> None:
        places, dtype = self.selection.positions, self.selection.spec.dtype.numpy_dtype
        self._values, self._is_written = np.zeros(places.shape, dtype), np.zeros(places.shape, np.bool_)
        self._unwritten_count = 0

    def write_blanks(self, run_number: int) -> None:
        """Fill the output with the blank of a run."""
        spec = self.selection.spec
        for start, stop in split_into_chunks(spec):
            words = np.full(stop - start, self._find_blank_word(run_number), f"u{spec.dtype.bytes}")
            self.driver.upload(self.address + start * spec.dtype.bytes, words)

    def read_output(self, run_number: int) -> None:
        """Read all elements after a run."""
        spec, self._unwritten_count = self.selection.spec, 0
        for number, (start, stop) in enumerate(split_into_chunks(spec)):
            found = np.empty(stop - start, spec.dtype.numpy_dtype)
            self.driver.download(found, self.address + start * spec.dtype.bytes)
            is_blank = found.view(f"u{spec.dtype.bytes}") == self._find_blank_word(run_number)
            self._pick_selected(found, is_blank, start, stop)
            self._unwritten_count += self._count_unwritten(number, is_blank)

    def make_sample(self) -> OutputSample:
        """The selected elements."""
        return OutputSample(self._values, self._is_written, self._unwritten_count)

    def _find_blank_word(self, run_number: int) -> int:
        return self.selection.blank_words[run_number % len(self.selection.blank_words)]

    def _pick_selected(self, found: NDArray[Any], is_blank: NDArray[np.bool_], start: int, stop: int) -> None:
        first, last = np.searchsorted(self.selection.positions, (start, stop))
        here = self.selection.positions[first:last] - start
        self._values[first:last] = found[here]
        self._is_written[first:last] |= ~is_blank[here]

    def _count_unwritten(self, number: int, is_blank: NDArray[np.bool_]) -> int:
        """Number of elements of a chunk that kept every blank."""
        if len(self.selection.blank_words) == 1:
            return int(np.count_nonzero(is_blank))
        bits = np.packbits(is_blank)
        if number == len(self._kept_blank_bits):
            self._kept_blank_bits.append(bits)
        else:
            self._kept_blank_bits[number] &= bits
        return int(np.bitwise_count(self._kept_blank_bits[number]).sum(dtype=np.int64))


WORKSPACE = "workspace of a library"
"""Name of the buffer that an algorithm of a library writes to; no tensor has a space in its name."""


class LoadedKernel:
    """One kernel and one operator's inputs at a time; inputs are filled once for an operator's kernels."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.stream = driver.create_stream()
        self._inputs: tuple[TensorSpec, ...] = ()
        self._buffers: dict[str, tuple[int, int]] = {}
        """Address and size of each buffer, by tensor."""
        self._cubin = b""
        self._module: int | None = None
        self._prepared_launches: tuple[Callable[[], None], ...] = ()
        """Functions that queue the launches, or the call of a library."""
        self._libraries: dict[type, NvidiaLibrary] = {}
        """Libraries that were opened, by the kind of their calls."""
        self._events: list[int] = []

    def get_events(self, number: int) -> list[int]:
        """So many events, made once and reused."""
        while len(self._events) < number:
            self._events.append(self.driver.create_event())
        return self._events[:number]

    def get_library(self, kernel: LibraryKernel) -> NvidiaLibrary:
        """The library of a kernel, opened once. Raises `DeviceError` where it cannot be used."""
        kind = type(kernel.call)
        if kind not in self._libraries:
            self._libraries[kind] = open_library(kernel, self.stream)
        return self._libraries[kind]

    def load_kernel(self, work: Work) -> None:
        """Load a kernel, with the random inputs of its operator."""
        if work.inputs != self._inputs:
            self._replace_inputs(work, make_random_tensors(work.inputs, DATA_SEED))
            self._inputs = work.inputs
        self._prepare_launches(work)

    def execute(
        self, work: Work, arrays: Sequence[NDArray[Any]], blanks: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[Any], ...]:
        """One call on inputs of the caller; returns the output of each launch, which starts as its blank."""
        self._replace_inputs(work, arrays)
        self._prepare_launches(work)
        outputs = self._list_outputs(work)
        for address, blank in zip(outputs, blanks, strict=True):
            self.driver.upload(address, blank)
        self.queue_launches()
        found = tuple(blank.copy() for blank in blanks)
        for address, array in zip(outputs, found, strict=True):
            self.driver.download(array, address)
        return found

    def sample(
        self, work: Work, inputs: Sequence[InputTensor], selections: Sequence[OutputSelection]
    ) -> tuple[OutputSample, ...]:
        """Calls on inputs of the caller, one per blank; some elements of the output of each launch."""
        self._replace_inputs(work, inputs)
        self._prepare_launches(work)
        pairs = zip(self._list_outputs(work), selections, strict=True)
        looks = [OutputSampler(self.driver, buffer, selection) for buffer, selection in pairs]
        for turn in range(max(len(selection.blank_words) for selection in selections)):
            for look in looks:
                look.write_blanks(turn)
            self.queue_launches()
            for look in looks:
                look.read_output(turn)
        return tuple(look.make_sample() for look in looks)

    def _list_outputs(self, work: Work) -> list[int]:
        """Address of the output of each launch, or of the result of a library."""
        if isinstance(work, LibraryKernel):
            return [self._buffers[work.output.name][0]]
        return [self._buffers[one.arguments[-1]][0] for one in work.launches]

    def queue_launches(self) -> None:
        """Queue all launches of the kernel once."""
        for queue in self._prepared_launches:
            queue()

    @contextmanager
    def capture_graph(self, calls: int) -> Iterator[Callable[[], None]]:
        """Capture calls as a graph that exists during the block; yields the function that queues it."""
        self.driver.begin_capture(self.stream)
        for _ in range(calls):
            self.queue_launches()
        graph = self.driver.end_capture(self.stream)
        yield lambda: self.driver.launch_graph(graph, self.stream)
        self.driver.destroy_graph(graph)

    def _replace_inputs(self, work: Work, tensors: Sequence[InputTensor]) -> None:
        """Free all buffers, since another operator may need the memory, and upload the inputs."""
        for address, _ in self._buffers.values():
            self.driver.free(address)
        self._buffers, self._inputs = {}, ()
        for spec, tensor in zip(work.inputs, tensors, strict=True):
            upload_tensor(self.driver, self._allocate_buffer(spec.name, spec.bytes), spec, tensor)

    def _allocate_buffer(self, tensor: str, size: int) -> int:
        """Buffer of a tensor: the present one if it has this size."""
        buffer = self._buffers.get(tensor)
        if buffer is not None and buffer[1] == size:
            return buffer[0]
        if buffer is not None:
            self.driver.free(self._buffers.pop(tensor)[0])
        address = self.driver.allocate(size)
        self._buffers[tensor] = address, size
        return address

    def _prepare_launches(self, work: Work) -> None:
        if isinstance(work, LibraryKernel):
            self._prepared_launches = (self._prepare_call(work),)
            return
        if self._module is None or work.cubin != self._cubin:
            if self._module is not None:
                self.driver.unload(self._module)
            self._module = self.driver.load(work.cubin)
            self._cubin = work.cubin
        module = self._module
        self._prepared_launches = tuple(self._prepare_launch(module, one) for one in work.launches)

    def _prepare_launch(self, module: int, one: Launch) -> Callable[[], None]:
        pointers = tuple(map(self._allocate_buffer, one.arguments, one.argument_bytes))
        function = self.driver.get_function(module, one.name, one.shared_bytes)
        sizes = one.grid, one.block, one.shared_bytes
        return partial(self.driver.launch, function, *sizes, self.stream, pointers)

    def _prepare_call(self, kernel: LibraryKernel) -> Callable[[], None]:
        specs, size = (*kernel.inputs, kernel.output), kernel.workspace_bytes
        places = {spec.name: self._allocate_buffer(spec.name, spec.bytes) for spec in specs}
        workspace = self._allocate_buffer(WORKSPACE, size) if size else 0
        return self.get_library(kernel).prepare(kernel, places, workspace)
