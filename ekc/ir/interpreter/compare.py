"""Does what a launch wrote agree with the float64 reference? Whoever ran it, in whole or some blocks.

What is expected comes from the operator alone; which elements a block owns from its loops.

Which blocks of a large launch to look at, where not all of them can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import evaluate_form
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.interpreter.tolerance import ReferenceEvaluator, list_all_indices
from ekc.ir.lowering.memory_access import find_stored_tensors
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.operator import Operator
from ekc.ir.program import Loop
from ekc.ir.random_arrays import (
    AxisIndices,
    Positions,
    WrittenOutput,
    count_factors,
    find_positions,
    make_random_inputs,
    make_random_tensors,
)

DATA_SEED = 0
INT32_WRAP_NOTE = "int32 results left int32 and wrapped modulo 2**32"


@dataclass(frozen=True)
class OutputComparison:
    """How far the output of one launch lies from the reference, where its blocks own it."""

    max_error: float
    """Largest absolute difference."""
    tolerance: float
    """What rounding alone can explain."""
    complete: bool
    """Whether the blocks that ran wrote every element they own."""
    strays: int
    """Elements written that belong to no block that ran."""
    blocks: int
    total_blocks: int
    wrapped: bool = False
    """Whether int32 sums or products left int32 and wrapped modulo 2**32, as the kernel's do."""

    @property
    def ok(self) -> bool:
        """Whether the result is right."""
        return self.complete and not self.strays and self.max_error <= self.tolerance

    def __str__(self) -> str:
        parts = [f"max error {self.max_error:.3g}, tolerance {self.tolerance:.3g}"]
        if not self.complete:
            parts.append("not every element was written")
        if self.strays:
            parts.append(f"{self.strays} elements written that belong to other blocks")
        if self.wrapped:
            parts.append(INT32_WRAP_NOTE)
        return ", ".join(parts)


def make_random_input_arrays(op: Operator, seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """Arrays of the operator's shapes and dtypes; never all zeros, which flatter everything.

    Their values are those of `drawn.Drawn`.
    """
    return tuple(one.to_array() for one in make_random_inputs(op, seed))


def make_random_arrays(specs: Sequence[TensorSpec], seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """The same for tensors without their operator."""
    return tuple(one.to_array() for one in make_random_tensors(specs, seed))


def describe_input_policy(op: Operator) -> str:
    """What `random_inputs` draws for this operator, in words."""
    factors = count_factors(op)
    integers, floats = ("odd", f"+-exp(normal(0, 1/{factors}))") if factors else ("uniform", "normal(0, 1)")
    words = {t.dtype: f"{t.dtype} {integers}" if t.dtype.is_integer else floats for t in op.inputs}
    return ", ".join(dict.fromkeys(words.values()))


def compare_output(
    expected: ReferenceEvaluator, kernel: LaunchTree, output: WrittenOutput, blocks: NDArray[np.int64]
) -> OutputComparison:
    """Hold what the `blocks` (linear numbers) of a launch left in its output against the reference.

    Of a launch that adds to its output, what its blocks own counts as written: adding 0 leaves no trace.
    """
    compute = _find_output_compute(expected.op, kernel)
    error, allowed, complete, wrapped, owned = 0.0, 0.0, True, False, list[Positions]()
    held = set(expected.op.tensors) - find_stored_tensors(kernel.nest)
    for where, mine in _iterate_output_parts(kernel, compute, blocks):
        places = find_positions(where, compute.output)
        right, (got, written) = expected.evaluate_at(compute, where, held), output.read_at(places)
        got = got.astype(np.float64)
        if kernel.nest.is_atomic:
            written = written | np.isin(places, mine)
        else:
            complete = complete and bool(output.read_at(mine)[1].all())
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(written & ~_are_equal(got, right.values), got - right.values, 0.0))
            difference = np.maximum(difference - right.choice_tolerances, 0.0)
        error = max(error, float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0)))
        allowed, wrapped = max(allowed, right.tolerance), wrapped or right.wrapped
        owned.append(mine)
    strays = output.count_strays(owned)
    return OutputComparison(error, allowed, complete, strays, len(blocks), int(kernel.block_count), wrapped)


def list_compared_positions(op: Operator, kernel: LaunchTree, blocks: NDArray[np.int64]) -> Positions:
    """The linear positions, rising, of all elements that `compare` looks at for these blocks."""
    compute = _find_output_compute(op, kernel)
    found = [
        find_positions(where, compute.output).ravel()
        for where, _ in _iterate_output_parts(kernel, compute, blocks)
    ]
    return np.unique(np.concatenate([*found, np.zeros(0, np.int64)]))


def _find_output_compute(op: Operator, kernel: LaunchTree) -> Compute:
    """The compute that says what a launch must leave in its output."""
    if kernel.is_zero_fill:
        return kernel.nest.compute
    return next(c for c in op.computes if c.output.name == kernel.nest.output.name)


def _are_equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Equal, infinities too; NaN where NaN is right."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _iterate_output_parts(
    kernel: LaunchTree, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[AxisIndices, Positions]]:
    """The output in parts: indices along every spatial axis, and the elements owned in their product.
    All blocks together own everything, in one part."""
    if len(blocks) == int(kernel.block_count):
        yield list_all_indices(compute), np.arange(compute.output.elements)
    else:
        yield from _iterate_owned_parts(kernel, compute, blocks)


def _iterate_owned_parts(
    kernel: LaunchTree, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[AxisIndices, Positions]]:
    """For each block the indices it covers along every spatial axis, and the elements that are its own.

    A fused loop may tie two axes: the block then owns part of the product of its indices.
    """
    free = [x for x in kernel.nest.loops if not x.is_block and not x.is_reduction]
    points = {x.name: np.arange(int(x.extent)).reshape([-1 if y is x else 1 for y in free]) for x in free}
    shape = [int(x.extent) for x in free]
    seen = set()
    for block in blocks.tolist():
        env: dict[str, Any] = dict(points)
        place = []
        for loop in kernel.block_loops:
            env[loop.name] = block % int(loop.extent)
            block //= int(loop.extent)
            place += [] if loop.is_reduction else [env[loop.name]]
        # Blocks that share their sums own the same elements.
        if tuple(place) in seen:
            continue
        seen.add(tuple(place))
        # The loops are those of the compute that sums; one put behind it runs over the same elements.
        index = [
            np.asarray(evaluate_form(kernel.nest.axis_forms[a.name], env))
            for a in kernel.nest.compute.spatial_axes
        ]
        inside: Any = True
        element: Any = 0
        for i, axis, stride in zip(index, compute.spatial_axes, compute.output.strides, strict=True):
            inside = inside & (i >= 0) & (i < axis.extent)
            element = element + i * stride
        owned = np.broadcast_to(element, shape)[np.broadcast_to(inside, shape)]
        where = {a.name: _clip_indices(i, a.extent) for a, i in zip(compute.spatial_axes, index, strict=True)}
        if owned.size:
            yield where, owned


def _clip_indices(index: NDArray[Any], extent: int) -> NDArray[Any]:
    values = np.unique(index)
    return values[(values >= 0) & (values < extent)]


def count_output_tiles(kernel: LaunchTree) -> int:
    """How many blocks there are, those that share their sums counted once."""
    return math.prod(int(x.extent) for x in _list_output_loops(kernel))


def sample_blocks(kernel: LaunchTree, count: int, seed: int) -> NDArray[np.int64]:
    """The first and last block, corners of the grid of block loops, and random others: at most `count`.
    Blocks that share their sums count as one, for one alone has no result."""
    loops, total = _list_output_loops(kernel), count_output_tiles(kernel)
    if count >= total:
        return np.arange(int(kernel.block_count), dtype=np.int64)
    corners = [0]
    below = 1
    for loop in loops:
        corners += [c + below * (int(loop.extent) - 1) for c in corners[: count // 4]]
        below *= int(loop.extent)
    drawn = np.random.default_rng(seed).integers(0, total, size=2 * count).tolist()
    edges = list(dict.fromkeys([0, total - 1, *corners]))[: max(2, count * 3 // 4)]
    return _expand_to_blocks(kernel, np.array(list(dict.fromkeys([*edges, *drawn]))[:count], dtype=np.int64))


def _list_output_loops(kernel: LaunchTree) -> list[Loop]:
    """The loops whose blocks have outputs of their own, fastest first."""
    return [x for x in kernel.block_loops if not x.is_reduction]


def _expand_to_blocks(kernel: LaunchTree, tiles: NDArray[np.int64]) -> NDArray[np.int64]:
    """The linear numbers of blocks, from their numbers among loops that sum nothing, with those of every part
    of their sums."""
    blocks, parts, below = np.zeros_like(tiles), np.zeros(1, np.int64), 1
    for loop in kernel.block_loops:
        extent = int(loop.extent)
        if loop.is_reduction:
            parts = np.add.outer(np.arange(extent) * below, parts).ravel()
        else:
            blocks, tiles = blocks + tiles % extent * below, tiles // extent
        below *= extent
    return np.add.outer(blocks, parts).ravel()
