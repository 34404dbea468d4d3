"""Some blocks of a compiled kernel run in the PTX machine, without any whole tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.devices.execute import BLANKS, most_instructions
from ekc.devices.pages import BlankPages, OutputPages, OverlaidPages, RightPages, page_tensor
from ekc.emulator import Report, launch
from ekc.emulator.paged import OnDemand
from ekc.ir.evaluation.expected import Expected
from ekc.ir.evaluation.output import Output
from ekc.ir.nodes import Kernel
from ekc.ir.operator import TensorSpec


def execute_parts(
    compiled: CompiledKernel,
    expected: Expected,
    trees: Sequence[Kernel],
    blocks: Sequence[NDArray[np.int64]],
) -> list[tuple[Output, Report]]:
    """The elements that the chosen `blocks` (linear numbers) of each launch leave in its output; the report.

    As `execute` has it: what earlier launches left out is the reference; an output begins as blanks, and is
    written twice where it holds integers.
    """
    op = expected.op
    inputs = zip(op.inputs, expected.arrays, strict=True)
    memory: dict[str, OnDemand] = {spec.name: page_tensor(spec, tensor) for spec, tensor in inputs}
    found = []
    for one, tree, chosen in zip(compiled.launches, trees, blocks, strict=True):
        spec = op.tensors[one.arguments[-1]]
        written, report = _run(compiled, one, memory, spec, chosen)
        found.append((written, report))
        if len(found) < len(trees):
            memory[spec.name] = OverlaidPages(spec, written, RightPages(spec, expected, tree.clears))
    return found


def _run(
    compiled: CompiledKernel,
    one: Launch,
    memory: Mapping[str, OnDemand],
    spec: TensorSpec,
    blocks: NDArray[np.int64],
) -> tuple[Output, Report]:
    known = memory.get(spec.name)
    starts = [BlankPages(spec, word) for word in BLANKS[spec.dtype.name]] if known is None else [known]
    first, *others = (_started(compiled, one, memory, OutputPages(spec, start), blocks) for start in starts)
    written, report = first
    for other, _ in others:
        written = written.joined(other)
    return written, report


def _started(
    compiled: CompiledKernel,
    one: Launch,
    memory: Mapping[str, OnDemand],
    output: OutputPages,
    blocks: NDArray[np.int64],
) -> tuple[Output, Report]:
    report = launch(
        compiled.ptx,
        one.name,
        grid=one.grid,
        block=one.block,
        args=[*(memory[name] for name in one.arguments[:-1]), output],
        dynamic_shared=one.shared_bytes,
        blocks=blocks,
        max_instructions=most_instructions(compiled, one),
    )
    return output.written(), report
