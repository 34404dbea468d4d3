"""A compiled kernel run in the PTX machine: launch after launch, NumPy in, NumPy out."""

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
"""Who computes a result, wherever a result is shown."""

BLANK_WORDS: dict[str, tuple[int, ...]] = {
    "float32": (0x7FC0E4C5,),
    "float16": (0x7E4C,),
    "bfloat16": (0x7FE5,),
    "int32": (0x9BADF00D, 0x80C0FFEE),
    "int8": (0x95, 0x6A),
}
"""By type, the words that an output starts as, to tell what was never written. Of a float type a NaN that no
arithmetic makes. Every integer can be a result: what holds the first of two after one run and the second
after another was never written."""
_INSTRUCTIONS_PER_OPERATION = 100
"""Instructions that an honest kernel may need for an operation or a byte: addresses, guards, copies."""


@dataclass(frozen=True, eq=False)
class LaunchRun:
    """What one launch wrote, and what the sanitizer and the counters say of it."""

    output: NDArray[Any]
    is_written: NDArray[np.bool_]
    """Which elements of the output were written."""
    report: Report


def execute(op: Operator, compiled: CompiledKernel, arrays: Sequence[NDArray[Any]]) -> tuple[LaunchRun, ...]:
    """Run all launches in order, whole grids, on inputs in the operator's order, under the sanitizer.

    Output buffers start as NaN; launches that write integers run twice, as no integer says that it was never
    written. A launch that adds to what an earlier one wrote starts from that.
    Raises `InvalidInput` for arrays of another shape or dtype than declared, `EkcError` for PTX that the
    machine cannot run.
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
    first, *others = (_run_from_start(compiled, launch_spec, memory, start) for start in blanks)
    return replace(
        first, is_written=np.logical_or.reduce([first.is_written, *(x.is_written for x in others)])
    )


def _run_from_start(
    compiled: CompiledKernel, launch_spec: Launch, memory: Mapping[str, NDArray[Any]], start: NDArray[Any]
) -> LaunchRun:
    """A launch whose output starts as given; an element that stays as it was counts as not written."""
    output = start.copy()
    report = launch(
        compiled.ptx,
        launch_spec.name,
        grid=launch_spec.grid,
        block=launch_spec.block,
        args=[*(_make_read_only(memory[name]) for name in launch_spec.arguments[:-1]), output],
        dynamic_shared=launch_spec.shared_bytes,
        max_instructions=compute_instruction_limit(compiled, launch_spec),
    )
    bits = f"u{start.itemsize}"
    return LaunchRun(output, output.view(bits) != start.view(bits), report)


def make_blank(spec: TensorSpec, word: int) -> NDArray[Any]:
    """An array of a tensor's shape and type whose elements all hold the bits of a word."""
    return np.full(spec.shape, word, f"u{spec.dtype.bytes}").view(spec.dtype.numpy_dtype)


def _make_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The array, protected: the sanitizer reports a store to an input."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def compute_instruction_limit(compiled: CompiledKernel, launch_spec: Launch) -> int:
    """Beyond these a thread must be caught in a loop."""
    threads = float(np.prod(launch_spec.grid, dtype=float) * np.prod(launch_spec.block, dtype=float))
    return max(
        MAX_INSTRUCTIONS, int(_INSTRUCTIONS_PER_OPERATION * (compiled.flops + compiled.min_bytes) / threads)
    )
