"""Some blocks of a compiled kernel run in the PTX machine, without any whole tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.devices.execute import BLANK_WORDS, compute_instruction_limit
from ekc.devices.pages import BlankPages, OutputPages, OverlaidPages, ReferencePages, make_input_pages
from ekc.emulator import Report, launch
from ekc.emulator.paged_memory import PagedSource
from ekc.ir.interpreter.random_arrays import WrittenOutput
from ekc.ir.interpreter.tolerance import ReferenceEvaluator
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.operator import TensorSpec


def execute_blocks(
    compiled: CompiledKernel,
    expected: ReferenceEvaluator,
    trees: Sequence[LaunchTree],
    blocks: Sequence[NDArray[np.int64]],
) -> list[tuple[WrittenOutput, Report]]:
    """The elements that the chosen `blocks` (linear numbers) of each launch leave in its output; the report.

    As `execute` has it: what earlier launches left out is the reference; an output begins as blanks, and is
    written twice where it holds integers.
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
    known = memory.get(spec.name)
    starts = [BlankPages(spec, word) for word in BLANK_WORDS[spec.dtype.name]] if known is None else [known]
    first, *others = (
        _run_from_start(compiled, launch_spec, memory, OutputPages(spec, start), blocks) for start in starts
    )
    written, report = first
    for other, _ in others:
        written = written.merge(other)
    return written, report


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
    )
    return output.collect_written(), report
