"""The outputs of a kernel, looked at chunk by chunk: they may exceed the memory of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Sampled, Wanted
from ekc.devices.cuda.driver import Driver
from ekc.ir.evaluation.drawn import Drawn, Tensor
from ekc.ir.operator import TensorSpec

CHUNK_BYTES = 1 << 26
"""Bytes of a tensor that are on the host at once."""


def chunks(spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """Where each chunk of a tensor begins and ends, in elements."""
    each = CHUNK_BYTES // spec.dtype.bytes
    for start in range(0, spec.elements, each):
        yield start, min(start + each, spec.elements)


def upload(driver: Driver, address: int, spec: TensorSpec, tensor: Tensor) -> None:
    """Fill a tensor of the device."""
    if not isinstance(tensor, Drawn):
        driver.upload(address, np.ascontiguousarray(tensor))
        return
    for start, stop in chunks(spec):
        driver.upload(address + start * spec.dtype.bytes, tensor.span(start, stop))


@dataclass
class Look:
    """Elements of one output, as known after each of its runs."""

    driver: Driver
    address: int
    wanted: Wanted
    _left: list[NDArray[np.uint8]] = field(default_factory=list)
    """By chunk, a bit for each element: whether it kept the blank of every run so far."""

    def __post_init__(self) -> None:
        places, dtype = self.wanted.places, self.wanted.spec.dtype.numpy
        self._values, self._written = np.zeros(places.shape, dtype), np.zeros(places.shape, np.bool_)
        self._unwritten = 0

    def blank(self, turn: int) -> None:
        """Make every element the blank of a run."""
        spec = self.wanted.spec
        for start, stop in chunks(spec):
            words = np.full(stop - start, self._word(turn), f"u{spec.dtype.bytes}")
            self.driver.upload(self.address + start * spec.dtype.bytes, words)

    def look(self, turn: int) -> None:
        """Look at all elements after a run."""
        spec, self._unwritten = self.wanted.spec, 0
        for number, (start, stop) in enumerate(chunks(spec)):
            found = np.empty(stop - start, spec.dtype.numpy)
            self.driver.download(found, self.address + start * spec.dtype.bytes)
            kept = found.view(f"u{spec.dtype.bytes}") == self._word(turn)
            self._pick(found, kept, start, stop)
            self._unwritten += self._count(number, kept)

    def answer(self) -> Sampled:
        """The elements that were asked for."""
        return Sampled(self._values, self._written, self._unwritten)

    def _word(self, turn: int) -> int:
        return self.wanted.words[turn % len(self.wanted.words)]

    def _pick(self, found: NDArray[Any], kept: NDArray[np.bool_], start: int, stop: int) -> None:
        first, last = np.searchsorted(self.wanted.places, (start, stop))
        here = self.wanted.places[first:last] - start
        self._values[first:last] = found[here]
        self._written[first:last] |= ~kept[here]

    def _count(self, number: int, kept: NDArray[np.bool_]) -> int:
        """How many elements of a chunk kept every blank."""
        if len(self.wanted.words) == 1:
            return int(np.count_nonzero(kept))
        bits = np.packbits(kept)
        if number == len(self._left):
            self._left.append(bits)
        else:
            self._left[number] &= bits
        return int(np.bitwise_count(self._left[number]).sum(dtype=np.int64))
