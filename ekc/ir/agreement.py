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
    written = run.written.reshape(-1)
    for where, owned in _owned(last, compute, chosen):
        grid = np.ix_(*where.values())
        want, got = reference_at(compute, tensors, where), run.output[grid].astype(np.float64)
        mine = run.written[grid]
        complete = complete and bool(written[owned].all())
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


def _owned(
    kernel: Kernel, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[Any]]]:
    """For each block the indices it covers along every spatial axis, and the elements that are its own.

    A fused loop may tie two axes: the block then owns part of the product of its indices.
    """
    free = [x for x in kernel.nest.loops if not x.is_block and not x.reduction]
    points = {x.name: np.arange(int(x.extent)).reshape([-1 if y is x else 1 for y in free]) for x in free}
    shape = [int(x.extent) for x in free]
    for block in blocks.tolist():
        env: dict[str, Any] = dict(points)
        for loop in kernel.block_loops:
            env[loop.name] = block % int(loop.extent)
            block //= int(loop.extent)
        index = [np.asarray(value(kernel.nest.index[a.name], env)) for a in compute.spatial]
        inside: Any = True
        element: Any = 0
        for i, axis, stride in zip(index, compute.spatial, compute.output.strides, strict=True):
            inside = inside & (i >= 0) & (i < axis.extent)
            element = element + i * stride
        owned = np.broadcast_to(element, shape)[np.broadcast_to(inside, shape)]
        where = {a.name: _clipped(i, a.extent) for a, i in zip(compute.spatial, index, strict=True)}
        if owned.size:
            yield where, owned


def _clipped(index: NDArray[Any], extent: int) -> NDArray[Any]:
    values = np.unique(index)
    return values[(values >= 0) & (values < extent)]
