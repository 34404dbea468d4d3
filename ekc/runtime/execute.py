"""Run a compiled kernel in the PTX machine: launch after launch, NumPy in, NumPy out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.emulator import Report, launch
from ekc.emulator.launch import MAX_INSTRUCTIONS
from ekc.ir.compute import TensorSpec
from ekc.ir.operator import Operator

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
    report = launch(
        compiled.ptx,
        launch_spec.name,
        grid=launch_spec.grid,
        block=launch_spec.block,
        args=[*(_make_read_only(memory[name]) for name in launch_spec.arguments[:-1]), output],
        dynamic_shared=launch_spec.shared_bytes,
        max_instructions=compute_instruction_limit(compiled, launch_spec),
        argument_names=launch_spec.arguments,
    )
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
