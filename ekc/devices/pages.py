"""Tensors as the PTX machine asks for them: the pages that a launch touches, made where they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.memory import Index
from ekc.emulator.paged import PAGE, Held, OnDemand, Pages
from ekc.ir.evaluation.drawn import Drawn, Tensor
from ekc.ir.evaluation.expected import Expected
from ekc.ir.evaluation.output import Output
from ekc.ir.operator import TensorSpec


@dataclass(frozen=True)
class _Source:
    """The tensors that a launch may not write."""

    spec: TensorSpec

    @property
    def nbytes(self) -> int:
        """See `OnDemand`."""
        return self.spec.bytes

    @property
    def writable(self) -> bool:
        """See `OnDemand`."""
        return False

    def write_pages(self, pages: Index, content: Pages) -> None:
        """See `OnDemand`."""
        raise AssertionError(f"{self.spec.name} is only read")

    def _elements(self) -> int:
        """Bytes of a page."""
        return PAGE // self.spec.dtype.bytes


@dataclass(frozen=True)
class DrawnPages(_Source):
    """A random input."""

    drawn: Drawn

    def read_pages(self, pages: Index) -> Pages:
        """See `OnDemand`."""
        return self.drawn.runs(pages * self._elements(), self._elements()).view(np.uint8)


@dataclass(frozen=True)
class BlankPages(_Source):
    """An output before anything is written: every element holds the bits of a word."""

    word: int

    def read_pages(self, pages: Index) -> Pages:
        """See `OnDemand`."""
        shape = len(pages), self._elements()
        return np.full(shape, self.word, f"u{self.spec.dtype.bytes}").view(np.uint8)


@dataclass(frozen=True)
class RightPages(_Source):
    """The elements that all blocks of a launch leave in its output, by the reference."""

    expected: Expected
    cleared: bool
    """They leave zeros."""

    def read_pages(self, pages: Index) -> Pages:
        """See `OnDemand`."""
        found = np.zeros((len(pages), self._elements()), self.spec.dtype.numpy)
        for row, page in zip(found, () if self.cleared else pages.tolist(), strict=not self.cleared):
            start = page * self._elements()
            stop = min(start + self._elements(), self.spec.elements)
            values = [self._values(box) for box in boxes(start, stop, self.spec.shape)]
            row[: stop - start] = np.concatenate(values).astype(row.dtype)
        return found.view(np.uint8)

    def _values(self, box: Sequence[range]) -> NDArray[Any]:
        maker = self.expected.makers[self.spec.name]
        where = {a.name: np.arange(r.start, r.stop) for a, r in zip(maker.spatial, box, strict=True)}
        return self.expected.at(maker, where).value.reshape(-1)


@dataclass(frozen=True, eq=False)
class OutputPages:
    """An output of a launch: it begins as another source has it, and keeps the pages that were touched."""

    spec: TensorSpec
    start: OnDemand
    _kept: list[tuple[Index, Pages]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """See `OnDemand`."""
        return self.spec.bytes

    @property
    def writable(self) -> bool:
        """See `OnDemand`."""
        return True

    def read_pages(self, pages: Index) -> Pages:
        """See `OnDemand`."""
        return self.start.read_pages(pages)

    def write_pages(self, pages: Index, content: Pages) -> None:
        """See `OnDemand`."""
        self._kept.append((pages, content))

    def written(self) -> Output:
        """The elements that are not as they began."""
        word, size = f"u{self.spec.dtype.bytes}", PAGE // self.spec.dtype.bytes
        places, values = [np.zeros(0, np.int64)], [np.zeros(0, self.spec.dtype.numpy)]
        for pages, content in self._kept:
            changed = content.view(word) != self.start.read_pages(pages).view(word)
            places.append((pages[:, None] * size + np.arange(size))[changed])
            values.append(content.view(self.spec.dtype.numpy)[changed])
        return Output(self.spec, np.concatenate(places), np.concatenate(values))


@dataclass(frozen=True, eq=False)
class OverlaidPages(_Source):
    """A tensor between two launches: what the blocks that ran wrote, elsewhere what all would have."""

    written: Output
    elsewhere: OnDemand

    def read_pages(self, pages: Index) -> Pages:
        """See `OnDemand`."""
        found = self.elsewhere.read_pages(pages).view(self.spec.dtype.numpy)
        size = self._elements()
        for row, page in zip(found, pages.tolist(), strict=True):
            first, last = np.searchsorted(self.written.places, (page * size, (page + 1) * size))
            row[self.written.places[first:last] - page * size] = self.written.values[first:last]
        return found.view(np.uint8)


def page_tensor(spec: TensorSpec, tensor: Tensor) -> OnDemand:
    """An input by pages."""
    if isinstance(tensor, Drawn):
        return DrawnPages(spec, tensor)
    return Held(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8), writable=False)


def boxes(start: int, stop: int, shape: Sequence[int]) -> Iterator[list[range]]:
    """Neighbours in memory, from one linear position up to another, as boxes of the tensor in order."""
    if len(shape) == 1:
        yield [range(start, stop)]
        return
    inner = int(np.prod(shape[1:], dtype=object))
    while start < stop:
        row, begin = divmod(start, inner)
        whole = (stop - start) // inner
        if begin == 0 and whole:
            yield [range(row, row + whole), *(range(extent) for extent in shape[1:])]
            start += whole * inner
            continue
        end = min(inner, begin + stop - start)
        yield from ([range(row, row + 1), *box] for box in boxes(begin, end, shape[1:]))
        start += end - begin
