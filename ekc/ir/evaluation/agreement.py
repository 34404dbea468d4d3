"""Does what a launch wrote agree with the float64 reference? Whoever ran it, in whole or some blocks.

What is expected comes from the operator alone; which elements a block owns from its loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.evaluation.drawn import Places, count_factors, draw_inputs, draw_tensors
from ekc.ir.evaluation.expected import Expected, everything
from ekc.ir.evaluation.output import Output, Where, find_places
from ekc.ir.footprint import stored
from ekc.ir.linear import value
from ekc.ir.nodes import Kernel
from ekc.ir.operator import Compute, Operator, TensorSpec

DATA_SEED = 0
WRAPPED = "int32 results left int32 and wrapped modulo 2**32"


@dataclass(frozen=True)
class Agreement:
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
            parts.append(WRAPPED)
        return ", ".join(parts)


def random_inputs(op: Operator, seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """Arrays of the operator's shapes and dtypes; never all zeros, which flatter everything.

    Their values are those of `drawn.Drawn`.
    """
    return tuple(one.whole() for one in draw_inputs(op, seed))


def random_arrays(specs: Sequence[TensorSpec], seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """The same for tensors without their operator."""
    return tuple(one.whole() for one in draw_tensors(specs, seed))


def input_policy(op: Operator) -> str:
    """What `random_inputs` draws for this operator, in words."""
    factors = count_factors(op)
    integers, floats = ("odd", f"+-exp(normal(0, 1/{factors}))") if factors else ("uniform", "normal(0, 1)")
    words = {t.dtype: f"{t.dtype} {integers}" if t.dtype.integer else floats for t in op.inputs}
    return ", ".join(dict.fromkeys(words.values()))


def compare(expected: Expected, kernel: Kernel, output: Output, blocks: NDArray[np.int64]) -> Agreement:
    """Hold what the `blocks` (linear numbers) of a launch left in its output against the reference.

    Of a launch that adds to its output, what its blocks own counts as written: adding 0 leaves no trace.
    """
    compute = _judged(expected.op, kernel)
    error, allowed, complete, wrapped, owned = 0.0, 0.0, True, False, list[Places]()
    held = set(expected.op.tensors) - stored(kernel.nest)
    for where, mine in _parts(kernel, compute, blocks):
        places = find_places(where, compute.output)
        right, (got, written) = expected.at(compute, where, held), output.at(places)
        got = got.astype(np.float64)
        if kernel.nest.atomic:
            written = written | np.isin(places, mine)
        else:
            complete = complete and bool(output.at(mine)[1].all())
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(written & ~_alike(got, right.value), got - right.value, 0.0))
            difference = np.maximum(difference - right.choice, 0.0)
        error = max(error, float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0)))
        allowed, wrapped = max(allowed, right.slack), wrapped or right.wrapped
        owned.append(mine)
    strays = output.count_elsewhere(owned)
    return Agreement(error, allowed, complete, strays, len(blocks), int(kernel.blocks), wrapped)


def compared_places(op: Operator, kernel: Kernel, blocks: NDArray[np.int64]) -> Places:
    """The linear positions, rising, of all elements that `compare` looks at for these blocks."""
    compute = _judged(op, kernel)
    found = [find_places(where, compute.output).ravel() for where, _ in _parts(kernel, compute, blocks)]
    return np.unique(np.concatenate([*found, np.zeros(0, np.int64)]))


def _judged(op: Operator, kernel: Kernel) -> Compute:
    """The compute that says what a launch must leave in its output."""
    if kernel.clears:
        return kernel.nest.compute
    return next(c for c in op.computes if c.output.name == kernel.nest.output.name)


def _alike(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Equal, infinities too; NaN where NaN is right."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _parts(kernel: Kernel, compute: Compute, blocks: NDArray[np.int64]) -> Iterator[tuple[Where, Places]]:
    """The output in parts: indices along every spatial axis, and the elements owned in their product.
    All blocks together own everything, in one part."""
    if len(blocks) == int(kernel.blocks):
        yield everything(compute), np.arange(compute.output.elements)
    else:
        yield from _owned(kernel, compute, blocks)


def _owned(kernel: Kernel, compute: Compute, blocks: NDArray[np.int64]) -> Iterator[tuple[Where, Places]]:
    """For each block the indices it covers along every spatial axis, and the elements that are its own.

    A fused loop may tie two axes: the block then owns part of the product of its indices.
    """
    free = [x for x in kernel.nest.loops if not x.is_block and not x.reduction]
    points = {x.name: np.arange(int(x.extent)).reshape([-1 if y is x else 1 for y in free]) for x in free}
    shape = [int(x.extent) for x in free]
    seen = set()
    for block in blocks.tolist():
        env: dict[str, Any] = dict(points)
        place = []
        for loop in kernel.block_loops:
            env[loop.name] = block % int(loop.extent)
            block //= int(loop.extent)
            place += [] if loop.reduction else [env[loop.name]]
        # Blocks that share their sums own the same elements.
        if tuple(place) in seen:
            continue
        seen.add(tuple(place))
        # The loops are those of the compute that sums; one put behind it runs over the same elements.
        index = [np.asarray(value(kernel.nest.index[a.name], env)) for a in kernel.nest.compute.spatial]
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
