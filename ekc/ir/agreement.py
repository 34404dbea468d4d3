"""Does a Program compute its operator? Its tree, run in NumPy, against the float64 reference.

For large problems only some blocks run (first, last, corners, random) and only their outputs are
compared. This checks the schedule; it says nothing about the CUDA text made from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.evaluate import evaluate, sample_blocks
from ekc.ir.linear import value
from ekc.ir.operator import Compute, Operator
from ekc.ir.program import Program
from ekc.ir.reference import reference_at
from ekc.ir.tree import Kernel, kernels

DATA_SEED = 0


@dataclass(frozen=True)
class Agreement:
    """How far a Program's result lies from the reference."""

    max_error: float
    """Largest absolute difference."""
    tolerance: float
    """What rounding alone can explain."""
    complete: bool
    """Whether the blocks that ran wrote every element they own."""
    blocks: int
    total_blocks: int

    @property
    def ok(self) -> bool:
        """Whether the result is right."""
        return self.complete and self.max_error <= self.tolerance

    def __str__(self) -> str:
        where = (
            "all blocks"
            if self.blocks == self.total_blocks
            else f"{self.blocks} of {self.total_blocks} blocks"
        )
        return (
            f"schedule evaluated in NumPy on {where}: max error {self.max_error:.3g}, "
            f"tolerance {self.tolerance:.3g}; the CUDA itself was not executed"
        )


def random_inputs(op: Operator, seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """Standard normal arrays of the operator's shapes and dtypes; never zeros, which flatter everything."""
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(t.shape, dtype=np.float32).astype(t.dtype.numpy) for t in op.inputs)


def agreement(
    program: Program, arrays: tuple[NDArray[Any], ...], blocks: int = 8, seed: int = 0
) -> Agreement:
    """Run at most `blocks` blocks of the last launch (earlier launches whole) and compare what they wrote."""
    launches = kernels(program)
    last, compute = launches[-1], launches[-1].nest.compute
    chosen = sample_blocks(last, blocks, seed)
    run = evaluate(program, arrays, chosen)
    tensors = _tensors(program.op, arrays)
    error, scale, complete = 0.0, 0.0, True
    for where in _owned(last, compute, chosen):
        grid = np.ix_(*where.values())
        want, got = reference_at(compute, tensors, where), run.output[grid].astype(np.float64)
        mine = run.written[grid]
        complete = complete and (bool(mine.all()) or len(launches) > 1 or _ragged(last))
        difference = np.abs(np.where(mine, got - want, 0.0))
        error = max(error, float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0)))
        scale = max(scale, float(np.max(np.abs(want), initial=0.0)))
    return Agreement(error, tolerance(program.op, scale), complete, len(chosen), int(last.blocks))


def tolerance(op: Operator, scale: float) -> float:
    """The error that rounding can explain for results of size `scale`: grows with the square root of
    the number of terms, as random rounding errors do, with a margin of 8."""
    terms = max(math.prod(float(a.extent) for a in c.reduction) for c in op.computes)
    epsilon = np.finfo(np.float32).eps * math.sqrt(terms + 1) * 8
    for spec in (*op.intermediates, *op.outputs):
        if spec.dtype.name == "float16":
            epsilon += float(np.finfo(np.float16).eps)
    return float(epsilon) * max(scale, 1e-3)


def _tensors(op: Operator, arrays: tuple[NDArray[Any], ...]) -> dict[str, NDArray[Any]]:
    """Inputs and, for a graph of computes, the reference of everything before the last."""
    tensors = dict(zip((t.name for t in op.inputs), arrays, strict=True))
    for compute in op.computes[:-1]:
        everything = {a.name: np.arange(a.extent) for a in compute.spatial}
        tensors[compute.output.name] = reference_at(compute, tensors, everything)
    return tensors


def _owned(kernel: Kernel, compute: Compute, blocks: NDArray[np.int64]) -> Iterator[dict[str, NDArray[Any]]]:
    """For each block the indices it covers along every spatial axis, clipped to the tensor."""
    for block in blocks.tolist():
        digits: dict[str, Any] = {}
        for loop in kernel.block_loops:
            digits[loop.name] = block % int(loop.extent)
            block //= int(loop.extent)
        where = {a.name: _values(kernel, a.name, digits, a.extent) for a in compute.spatial}
        if all(len(v) for v in where.values()):
            yield where


def _values(kernel: Kernel, axis: str, digits: dict[str, Any], extent: int) -> NDArray[Any]:
    form = kernel.nest.index[axis]
    free = [x for x in kernel.nest.loops if x.name in form.variables() and x.name not in digits]
    env = dict(digits)
    for i, loop in enumerate(free):
        env[loop.name] = np.arange(int(loop.extent)).reshape([-1 if j == i else 1 for j in range(len(free))])
    values = np.unique(np.asarray(value(form, env)))
    return values[(values >= 0) & (values < extent)]


def _ragged(kernel: Kernel) -> bool:
    """Whether a fused loop ties a block's indices along two axes: it then owns part of their product."""
    return any("+" in loop.axis for loop in kernel.nest.loops)
