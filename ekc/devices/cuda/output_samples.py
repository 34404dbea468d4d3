"""Samples of the outputs of a kernel, read chunk by chunk: outputs may exceed the memory of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.cuda.driver import Driver
from ekc.devices.device import OutputSample, OutputSelection
from ekc.ir.compute import TensorSpec
from ekc.ir.random_arrays import InputTensor, RandomTensor

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
