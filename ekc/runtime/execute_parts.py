"""Run some blocks of a compiled kernel in the PTX machine; a tensor's page is made when it is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.emulator import Report, launch
from ekc.emulator.memory import Index
from ekc.emulator.paged_memory import PAGE_BYTES, LoadedArray, PagedSource, Pages
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.compute import TensorSpec
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.random_arrays import InputTensor, RandomTensor, WrittenOutput
from ekc.runtime.execute import BLANK_WORDS, compute_instruction_limit


@dataclass(frozen=True)
class _ReadOnlyPages:
    """A tensor that a launch must not write."""

    spec: TensorSpec

    @property
    def nbytes(self) -> int:
        return self.spec.bytes

    @property
    def writable(self) -> bool:
        return False

    def write_pages(self, pages: Index, content: Pages) -> None:
        raise AssertionError(f"{self.spec.name} is only read")

    def _count_page_elements(self) -> int:
        """Elements in a page."""
        return PAGE_BYTES // self.spec.dtype.bytes


@dataclass(frozen=True)
class RandomInputPages(_ReadOnlyPages):
    """A random input."""

    random_tensor: RandomTensor

    def read_pages(self, pages: Index) -> Pages:
        size = self._count_page_elements()
        return self.random_tensor.make_runs(pages * size, size).view(np.uint8)


@dataclass(frozen=True)
class BlankPages(_ReadOnlyPages):
    """An output before any write: every element has the bits of a word."""

    word: int

    def read_pages(self, pages: Index) -> Pages:
        shape = len(pages), self._count_page_elements()
        return np.full(shape, self.word, f"u{self.spec.dtype.bytes}").view(np.uint8)


@dataclass(frozen=True)
class ReferencePages(_ReadOnlyPages):
    """Output of all blocks of a launch, by the reference."""

    expected: ReferenceEvaluator
    is_cleared: bool
    """Whether the launch leaves zeros."""

    def read_pages(self, pages: Index) -> Pages:
        size = self._count_page_elements()
        found = np.zeros((len(pages), size), self.spec.dtype.numpy_dtype)
        for row, page in zip(found, () if self.is_cleared else pages.tolist(), strict=not self.is_cleared):
            start, stop = page * size, min((page + 1) * size, self.spec.elements)
            values = [self._compute_values(box) for box in split_into_boxes(start, stop, self.spec.shape)]
            row[: stop - start] = np.concatenate(values).astype(row.dtype)
        return found.view(np.uint8)

    def _compute_values(self, box: Sequence[range]) -> NDArray[Any]:
        maker = self.expected.producers[self.spec.name]
        where = {a.name: np.arange(r.start, r.stop) for a, r in zip(maker.spatial_axes, box, strict=True)}
        return self.expected.evaluate_at(maker, where).values.reshape(-1)


@dataclass(frozen=True, eq=False)
class OutputPages:
    """An output of a launch: it starts as another source, and keeps the pages that were touched."""

    spec: TensorSpec
    initial_pages: PagedSource
    _written_pages: list[tuple[Index, Pages]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.spec.bytes

    @property
    def writable(self) -> bool:
        return True

    def read_pages(self, pages: Index) -> Pages:
        return self.initial_pages.read_pages(pages)

    def write_pages(self, pages: Index, content: Pages) -> None:
        self._written_pages.append((pages, content))

    def collect_written(self) -> WrittenOutput:
        """Elements that differ from their start."""
        word, size = f"u{self.spec.dtype.bytes}", PAGE_BYTES // self.spec.dtype.bytes
        places, values = [np.zeros(0, np.int64)], [np.zeros(0, self.spec.dtype.numpy_dtype)]
        for pages, content in self._written_pages:
            changed = content.view(word) != self.initial_pages.read_pages(pages).view(word)
            places.append((pages[:, None] * size + np.arange(size))[changed])
            values.append(content.view(self.spec.dtype.numpy_dtype)[changed])
        return WrittenOutput(self.spec, np.concatenate(places), np.concatenate(values))


@dataclass(frozen=True, eq=False)
class OverlaidPages(_ReadOnlyPages):
    """A tensor between two launches: the output of blocks that ran, elsewhere the output by the reference."""

    output: WrittenOutput
    fallback_pages: PagedSource

    def read_pages(self, pages: Index) -> Pages:
        found = self.fallback_pages.read_pages(pages).view(self.spec.dtype.numpy_dtype)
        size = self._count_page_elements()
        for row, page in zip(found, pages.tolist(), strict=True):
            first, last = np.searchsorted(self.output.positions, (page * size, (page + 1) * size))
            row[self.output.positions[first:last] - page * size] = self.output.values[first:last]
        return found.view(np.uint8)


def make_input_pages(spec: TensorSpec, tensor: InputTensor) -> PagedSource:
    """Pages of an input."""
    if isinstance(tensor, RandomTensor):
        return RandomInputPages(spec, tensor)
    return LoadedArray(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8), writable=False)


def split_into_boxes(start: int, stop: int, shape: Sequence[int]) -> Iterator[list[range]]:
    """The range of linear positions from `start` to `stop`, as boxes of the tensor in order."""
    if len(shape) == 1:
        yield [range(start, stop)]
        return
    inner = int(np.prod(shape[1:], dtype=object))
    while start < stop:
        row, begin = divmod(start, inner)
        row_count = (stop - start) // inner
        if begin == 0 and row_count:
            yield [range(row, row + row_count), *(range(extent) for extent in shape[1:])]
            start += row_count * inner
            continue
        end = min(inner, begin + stop - start)
        yield from ([range(row, row + 1), *box] for box in split_into_boxes(begin, end, shape[1:]))
        start += end - begin


def execute_blocks(
    compiled: CompiledKernel,
    expected: ReferenceEvaluator,
    trees: Sequence[LaunchTree],
    blocks: Sequence[NDArray[np.int64]],
) -> list[tuple[WrittenOutput, Report]]:
    """Elements that the chosen `blocks` (linear numbers) of each launch write to its output, and the report.

    As in `execute`: the reference replaces the output of earlier blocks that did not run; an output starts as
    blanks, and is written twice where it has integers.
    """
    op = expected.op
    inputs = zip(op.inputs, expected.arrays, strict=True)
    memory: dict[str, PagedSource] = {spec.name: make_input_pages(spec, tensor) for spec, tensor in inputs}
    found = []
    for one, tree, chosen in zip(compiled.launches, trees, blocks, strict=True):
        spec = op.tensors[one.arguments[-1]]
        written, report = _run_launch(compiled, one, memory, spec, chosen)
        found.append((written, report))
        if len(found) < len(trees):
            memory[spec.name] = OverlaidPages(
                spec, written, ReferencePages(spec, expected, tree.is_zero_fill)
            )
    return found


def _run_launch(
    compiled: CompiledKernel,
    launch_spec: Launch,
    memory: Mapping[str, PagedSource],
    spec: TensorSpec,
    blocks: NDArray[np.int64],
) -> tuple[WrittenOutput, Report]:
    earlier_output = memory.get(spec.name)
    blanks: list[PagedSource] = [BlankPages(spec, word) for word in BLANK_WORDS[spec.dtype.name]]
    outputs = [OutputPages(spec, start) for start in (blanks if earlier_output is None else [earlier_output])]
    runs = [_run_from_start(compiled, launch_spec, memory, output, blocks) for output in outputs]
    written = reduce(WrittenOutput.merge, (output for output, _ in runs))
    return written, runs[0][1]


def _run_from_start(
    compiled: CompiledKernel,
    launch_spec: Launch,
    memory: Mapping[str, PagedSource],
    output: OutputPages,
    blocks: NDArray[np.int64],
) -> tuple[WrittenOutput, Report]:
    report = launch(
        compiled.ptx,
        launch_spec.name,
        grid=launch_spec.grid,
        block=launch_spec.block,
        args=[*(memory[name] for name in launch_spec.arguments[:-1]), output],
        dynamic_shared=launch_spec.shared_bytes,
        blocks=blocks,
        max_instructions=compute_instruction_limit(compiled, launch_spec),
        argument_names=launch_spec.arguments,
    )
    return output.collect_written(), report
