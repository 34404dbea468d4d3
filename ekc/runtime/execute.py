"""Run a compiled kernel in the PTX machine, launch after launch: whole grids, NumPy in and NumPy out, or some
blocks of each launch, for which a tensor's page is made when it is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.emulator import Report, launch
from ekc.emulator.launch import MAX_INSTRUCTIONS
from ekc.emulator.memory import Index
from ekc.emulator.paged_memory import PAGE_BYTES, LoadedArray, PagedSource, Pages
from ekc.ir.comparison.tolerance import ReferenceEvaluator
from ekc.ir.compute import TensorSpec
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import InputTensor, RandomTensor, WrittenOutput

EXECUTED_BY = "ekc.emulator: the compiled PTX, on the CPU"
"""Description of what computes the results, shown with each result."""

BLANK_WORDS: dict[str, tuple[int, ...]] = {
    "float32": (0x7FC0E4C5,),
    "float16": (0x7E4C,),
    "bfloat16": (0x7FE5,),
    "int32": (0x9BADF00D, 0x80C0FFEE),
    "int8": (0x95, 0x6A),
}
"""Words that an output starts as, by type, to detect elements that are never written. A float type has a NaN
that no arithmetic produces. Each integer can be a result: an element that has the first of two words after
one run and the second after another was never written."""
_INSTRUCTIONS_PER_OPERATION = 100
"""Instructions that a correct kernel may need per operation or byte, at most: addresses, guards, copies."""


@dataclass(frozen=True, eq=False)
class LaunchRun:
    """Output of one launch, and the report of the sanitizer and the counters."""

    output: NDArray[Any]
    is_written: NDArray[np.bool_]
    report: Report


def execute(op: Operator, compiled: CompiledKernel, arrays: Sequence[NDArray[Any]]) -> tuple[LaunchRun, ...]:
    """Run all launches in order, whole grids, on inputs in the operator's order, under the sanitizer.

    Output buffers start as NaN. Launches that write integers run twice, because no integer marks an element
    as never written. A launch that adds to the output of an earlier one starts from that output. Raises
    `InvalidInput` for arrays of another shape or dtype than declared, `EkcError` for PTX that the machine
    cannot run.
    """
    memory = dict(zip((t.name for t in op.inputs), op.check_arrays(tuple(arrays)), strict=True))
    runs = []
    for one in compiled.launches:
        spec = op.tensors[one.arguments[-1]]
        run = _run_launch(compiled, one, memory, spec)
        runs.append(run)
        memory[spec.name] = run.output
    return tuple(runs)


def _run_launch(
    compiled: CompiledKernel, launch_spec: Launch, memory: Mapping[str, NDArray[Any]], spec: TensorSpec
) -> LaunchRun:
    if spec.name in memory:
        return _run_from_start(compiled, launch_spec, memory, memory[spec.name])
    blanks = (make_blank(spec, word) for word in BLANK_WORDS[spec.dtype.name])
    runs = [_run_from_start(compiled, launch_spec, memory, start) for start in blanks]
    return replace(runs[0], is_written=np.logical_or.reduce([run.is_written for run in runs]))


def _run_from_start(
    compiled: CompiledKernel, launch_spec: Launch, memory: Mapping[str, NDArray[Any]], start: NDArray[Any]
) -> LaunchRun:
    """Run a launch whose output starts as given; an element that does not change counts as not written."""
    output = start.copy()
    inputs = [_make_read_only(memory[name]) for name in launch_spec.arguments[:-1]]
    report = _launch(compiled, launch_spec, [*inputs, output])
    bits = f"u{start.itemsize}"
    return LaunchRun(output, output.view(bits) != start.view(bits), report)


def make_blank(spec: TensorSpec, word: int) -> NDArray[Any]:
    """An array of a tensor's shape and type whose elements all have the bits of a word."""
    return np.full(spec.shape, word, f"u{spec.dtype.bytes}").view(spec.dtype.numpy_dtype)


def _make_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: the sanitizer reports a store to an input."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def compute_instruction_limit(compiled: CompiledKernel, launch_spec: Launch) -> int:
    """Instructions above which a thread counts as caught in a loop."""
    threads = float(np.prod(launch_spec.grid, dtype=float) * np.prod(launch_spec.block, dtype=float))
    work = compiled.flops + compiled.min_bytes
    return max(MAX_INSTRUCTIONS, int(_INSTRUCTIONS_PER_OPERATION * work / threads))


@dataclass(frozen=True)
class _TensorPages:
    """The pages of a tensor. A launch may write those of `OutputPages` alone."""

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
class RandomInputPages(_TensorPages):
    """A random input."""

    random_tensor: RandomTensor

    def read_pages(self, pages: Index) -> Pages:
        size = self._count_page_elements()
        return self.random_tensor.make_runs(pages * size, size).view(np.uint8)


@dataclass(frozen=True)
class BlankPages(_TensorPages):
    """An output before any write: every element has the bits of a word."""

    word: int

    def read_pages(self, pages: Index) -> Pages:
        shape = len(pages), self._count_page_elements()
        return np.full(shape, self.word, f"u{self.spec.dtype.bytes}").view(np.uint8)


@dataclass(frozen=True)
class ReferencePages(_TensorPages):
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
class OutputPages(_TensorPages):
    """An output of a launch: it starts as another source, and keeps the pages that were touched."""

    initial_pages: PagedSource
    _written_pages: list[tuple[Index, Pages]] = field(default_factory=list)

    @property
    def writable(self) -> bool:
        return True

    def read_pages(self, pages: Index) -> Pages:
        return self.initial_pages.read_pages(pages)

    def write_pages(self, pages: Index, content: Pages) -> None:
        self._written_pages.append((pages, content))

    def collect_written(self) -> WrittenOutput:
        """Elements that differ from their start."""
        word, size = f"u{self.spec.dtype.bytes}", self._count_page_elements()
        places, values = [np.zeros(0, np.int64)], [np.zeros(0, self.spec.dtype.numpy_dtype)]
        for pages, content in self._written_pages:
            changed = content.view(word) != self.initial_pages.read_pages(pages).view(word)
            places.append((pages[:, None] * size + np.arange(size))[changed])
            values.append(content.view(self.spec.dtype.numpy_dtype)[changed])
        return WrittenOutput(self.spec, np.concatenate(places), np.concatenate(values))


@dataclass(frozen=True, eq=False)
class OverlaidPages(_TensorPages):
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
        written, report = _run_blocks(compiled, one, memory, spec, chosen)
        found.append((written, report))
        if len(found) < len(trees):
            memory[spec.name] = OverlaidPages(
                spec, written, ReferencePages(spec, expected, tree.is_zero_fill)
            )
    return found


def _run_blocks(
    compiled: CompiledKernel,
    launch_spec: Launch,
    memory: Mapping[str, PagedSource],
    spec: TensorSpec,
    blocks: NDArray[np.int64],
) -> tuple[WrittenOutput, Report]:
    blanks: list[PagedSource] = [BlankPages(spec, word) for word in BLANK_WORDS[spec.dtype.name]]
    starts = [memory[spec.name]] if spec.name in memory else blanks
    inputs = [memory[name] for name in launch_spec.arguments[:-1]]
    outputs = [OutputPages(spec, start) for start in starts]
    reports = [_launch(compiled, launch_spec, [*inputs, output], blocks) for output in outputs]
    return reduce(WrittenOutput.merge, (output.collect_written() for output in outputs)), reports[0]


def _launch(
    compiled: CompiledKernel,
    launch_spec: Launch,
    arguments: Sequence[Any],
    blocks: Sequence[int] | NDArray[np.int64] | None = None,
) -> Report:
    """Run a launch, whose last argument is its output; all blocks, or some."""
    return launch(
        compiled.ptx,
        launch_spec.name,
        grid=launch_spec.grid,
        block=launch_spec.block,
        args=arguments,
        dynamic_shared=launch_spec.shared_bytes,
        blocks=blocks,
        max_instructions=compute_instruction_limit(compiled, launch_spec),
        argument_names=launch_spec.arguments,
    )
