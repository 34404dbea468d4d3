"""Comparison of the output of a launch with the float64 reference, for all blocks or a sample.

Expected values follow from the operator only; the elements that a block owns follow from its loops. It does
not matter whether a GPU, the PTX machine or the interpreter ran the launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import evaluate_form, split_digits
from ekc.ir.comparison.tolerance import ReferenceEvaluator, list_all_indices
from ekc.ir.compute import Compute
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
)

DATA_SEED = 0
"""Default seed of random inputs."""
INT32_WRAP_NOTE = "int32 results left int32 and wrapped modulo 2**32"


@dataclass(frozen=True)
class OutputComparison:
    """Difference of the output of one launch from the reference, in the elements that its blocks own."""

    max_error: float
    """Largest absolute difference."""
    tolerance: float
    """Largest difference that rounding can explain."""
    complete: bool
    """Whether the blocks that ran wrote every element they own."""
    strays: int
    """Number of elements written that belong to no block that ran."""
    blocks: int
    """Blocks that ran."""
    total_blocks: int
    """Blocks of the launch."""
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
    """Arrays of the operator's inputs with the values of `RandomTensor`."""
    return tuple(one.to_array() for one in make_random_inputs(op, seed))


def describe_input_policy(op: Operator) -> str:
    """Distributions of the random inputs of an operator, in words."""
    factors = count_factors(op)
    integers, floats = ("odd", f"+-exp(normal(0, 1/{factors}))") if factors else ("uniform", "normal(0, 1)")
    words = {t.dtype: f"{t.dtype} {integers}" if t.dtype.is_integer else floats for t in op.inputs}
    return ", ".join(dict.fromkeys(words.values()))


def compare_output(
    expected: ReferenceEvaluator, kernel: LaunchTree, output: WrittenOutput, blocks: NDArray[np.int64]
) -> OutputComparison:
    """Compare the output of the `blocks` (linear numbers) of a launch with the reference.

    In a launch that adds to its output, all elements of its blocks count as written, as adding 0 changes
    nothing.
    """
    compute = find_output_compute(expected.op, kernel)
    error, tolerance, complete, wrapped, owned = 0.0, 0.0, True, False, list[Positions]()
    unstored = set(expected.op.tensors) - find_stored_tensors(kernel.nest)
    for where, block_positions in _iterate_output_parts(kernel, compute, blocks):
        positions = find_positions(where, compute.output)
        reference = expected.evaluate_at(compute, where, unstored)
        values, written = output.read_at(positions)
        values = values.astype(np.float64)
        if kernel.nest.is_atomic:
            written = written | np.isin(positions, block_positions)
        else:
            complete = complete and bool(output.read_at(block_positions)[1].all())
        with np.errstate(invalid="ignore"):
            is_different = written & ~_are_equal(values, reference.values)
            difference = np.abs(np.where(is_different, values - reference.values, 0.0))
            difference = np.maximum(difference - reference.choice_tolerances, 0.0)
        error = max(error, float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0)))
        tolerance, wrapped = max(tolerance, reference.tolerance), wrapped or reference.wrapped
        owned.append(block_positions)
    strays = output.count_strays(owned)
    return OutputComparison(error, tolerance, complete, strays, len(blocks), int(kernel.block_count), wrapped)


def list_compared_positions(op: Operator, kernel: LaunchTree, blocks: NDArray[np.int64]) -> Positions:
    """Linear positions, ascending, of all elements that `compare_output` reads for these blocks."""
    compute = find_output_compute(op, kernel)
    wheres = (where for where, _ in _iterate_output_parts(kernel, compute, blocks))
    parts = [find_positions(where, compute.output).ravel() for where in wheres]
    return np.unique(np.concatenate([*parts, np.zeros(0, np.int64)]))


def find_output_compute(op: Operator, kernel: LaunchTree) -> Compute:
    """The compute that gives the expected output of a launch."""
    if kernel.is_zero_fill:
        return kernel.nest.compute
    return next(c for c in op.computes if c.output.name == kernel.nest.output.name)


def _are_equal(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Element-wise equality, in which infinities and NaN equal themselves."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _iterate_output_parts(
    kernel: LaunchTree, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[AxisIndices, Positions]]:
    """Parts of the output: (indices along every spatial axis, positions in their product that the blocks
    own).

    All blocks together own the whole output, in one part.
    """
    if len(blocks) == int(kernel.block_count):
        yield list_all_indices(compute), np.arange(compute.output.elements)
    else:
        yield from iterate_owned_parts(kernel, compute, blocks)


def iterate_owned_parts(
    kernel: LaunchTree, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[AxisIndices, Positions]]:
    """(indices along every spatial axis, positions that the block owns) of each block.

    With a fused loop over two axes a block owns only part of the product of its indices.
    """
    free = [x for x in kernel.nest.loops if not x.is_block and not x.is_reduction]
    points = {x.name: np.arange(int(x.extent)).reshape([-1 if y is x else 1 for y in free]) for x in free}
    shape = [int(x.extent) for x in free]
    visited = set()
    for block in blocks.tolist():
        place = split_digits(block, {x.name: int(x.extent) for x in kernel.block_loops})
        # Blocks that split a reduction own the same elements.
        tile = tuple(place[x.name] for x in _list_output_loops(kernel))
        if tile in visited:
            continue
        visited.add(tile)
        # The loops are those of the main compute; its epilogue runs over the same elements.
        forms = (kernel.nest.axis_forms[a.name] for a in kernel.nest.compute.spatial_axes)
        index = [np.asarray(evaluate_form(form, points | place)) for form in forms]
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
    """Number of blocks, where blocks that split a reduction count as one."""
    return math.prod(int(x.extent) for x in _list_output_loops(kernel))


def sample_blocks(kernel: LaunchTree, count: int, seed: int) -> NDArray[np.int64]:
    """Linear numbers of the first and last block, corners of the grid of block loops, and random others.

    At most `count` blocks; blocks that split a reduction count as one, as a single one has no result.
    """
    loops, total = _list_output_loops(kernel), count_output_tiles(kernel)
    if count >= total:
        return np.arange(int(kernel.block_count), dtype=np.int64)
    corners = [0]
    below = 1
    for loop in loops:
        corners += [c + below * (int(loop.extent) - 1) for c in corners[: count // 4]]
        below *= int(loop.extent)
    random = np.random.default_rng(seed).integers(0, total, size=2 * count).tolist()
    edges = list(dict.fromkeys([0, total - 1, *corners]))[: max(2, count * 3 // 4)]
    return expand_to_blocks(kernel, np.array(list(dict.fromkeys([*edges, *random]))[:count], dtype=np.int64))


def _list_output_loops(kernel: LaunchTree) -> list[Loop]:
    """Block loops that are not reductions, fastest first."""
    return [x for x in kernel.block_loops if not x.is_reduction]


def expand_to_blocks(kernel: LaunchTree, tiles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Linear numbers of all blocks of output tiles, by their numbers among `_list_output_loops`."""
    blocks, parts, below = np.zeros_like(tiles), np.zeros(1, np.int64), 1
    for loop in kernel.block_loops:
        extent = int(loop.extent)
        if loop.is_reduction:
            parts = np.add.outer(np.arange(extent) * below, parts).ravel()
        else:
            blocks, tiles = blocks + tiles % extent * below, tiles // extent
        below *= extent
    return np.add.outer(blocks, parts).ravel()
