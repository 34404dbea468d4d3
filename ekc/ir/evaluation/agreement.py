"""Does what a launch wrote agree with the float64 reference? Whoever ran it, in whole or some blocks.

What is expected comes from the operator alone; which elements a block owns from its loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.dtypes import INT8, DType
from ekc.ir.evaluation.expected import Expected, everything
from ekc.ir.footprint import stored
from ekc.ir.linear import value
from ekc.ir.nodes import Kernel
from ekc.ir.operator import Compute, Operator, TensorSpec

DATA_SEED = 0
WRAPPED = "int32 results left int32 and wrapped modulo 2**32"
_INT32_INPUT = 1000
"""Largest magnitude of a random int32 input: a bias, a count."""


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
        told = [f"max error {self.max_error:.3g}, tolerance {self.tolerance:.3g}"]
        if not self.complete:
            told.append("not every element was written")
        if self.strays:
            told.append(f"{self.strays} elements written that belong to other blocks")
        if self.wrapped:
            told.append(WRAPPED)
        return ", ".join(told)


def random_inputs(op: Operator, seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """Arrays of the operator's shapes and dtypes; never all zeros, which flatter everything.

    Floats are standard normal; int8 is uniform over its whole range, int32 over +-1000, so that most sums
    stay within int32. Of a product over n factors floats are near 1 or -1, exp(normal / sqrt(n)), and
    integers odd: the product of many others is 0, whatever a kernel leaves out.
    """
    factors, arrays = _count_factors(op), random_arrays(op.inputs, seed)
    return tuple(_move_near_one(a, factors) for a in arrays) if factors else arrays


def _count_factors(op: Operator) -> int:
    """The factors of the longest product that an operator reduces to; 0 where there is none."""
    products = [c for c in op.computes if c.combine == "prod" and c.reduction]
    return max((math.prod(a.extent for a in c.reduction) for c in products), default=0)


def _move_near_one(array: NDArray[Any], factors: int) -> NDArray[Any]:
    if np.issubdtype(array.dtype, np.integer):
        return np.asarray(np.bitwise_or(array, array.dtype.type(1)))
    values = np.asarray(array, np.float32)
    sized = np.exp(values / np.float32(math.sqrt(factors)))
    return np.asarray(np.copysign(sized, values), array.dtype)


def random_arrays(specs: Sequence[TensorSpec], seed: int = DATA_SEED) -> tuple[NDArray[Any], ...]:
    """The same for tensors without their operator."""
    random = np.random.default_rng(seed)
    return tuple(_drawn(random, t.shape, t.dtype) for t in specs)


def input_policy(op: Operator) -> str:
    """What `random_inputs` draws for this operator, in words."""
    factors = _count_factors(op)
    integers, floats = ("odd", f"+-exp(normal(0, 1/{factors}))") if factors else ("uniform", "normal(0, 1)")
    words = {t.dtype: f"{t.dtype} {integers}" if t.dtype.integer else floats for t in op.inputs}
    return ", ".join(dict.fromkeys(words.values()))


def _drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    if dtype.integer:
        low, high = dtype.limits if dtype is INT8 else (-_INT32_INPUT, _INT32_INPUT)
        return random.integers(low, high + 1, shape, dtype.numpy)
    return random.standard_normal(shape, dtype=np.float32).astype(dtype.numpy)


def compare(
    expected: Expected,
    kernel: Kernel,
    output: NDArray[Any],
    written: NDArray[np.bool_],
    blocks: NDArray[np.int64],
) -> Agreement:
    """Hold what the `blocks` (linear numbers) of a launch wrote against the reference.

    `output` and `written` (which of its elements were written) have as many elements as the launch's output.
    Of a launch that adds to its output, what its blocks own counts as written: adding 0 leaves no trace.
    """
    compute = _judged(expected.op, kernel)
    output, written = (x.reshape(compute.output.shape) for x in (output, written.copy()))
    error, allowed, complete, wrapped = 0.0, 0.0, True, False
    held = set(expected.op.tensors) - stored(kernel.nest)
    foreign, flat = written.copy().reshape(-1), written.reshape(-1)
    for where, owned in _parts(kernel, compute, blocks):
        if kernel.nest.atomic:
            flat[owned] = True
        grid = np.ix_(*where.values())
        right, got = expected.at(compute, where, held), output[grid].astype(np.float64)
        complete = complete and bool(flat[owned].all())
        foreign[owned] = False
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(written[grid] & ~_alike(got, right.value), got - right.value, 0.0))
        error = max(error, float(np.max(np.where(np.isnan(difference), np.inf, difference), initial=0.0)))
        allowed, wrapped = max(allowed, right.slack), wrapped or right.wrapped
    strays = int(np.count_nonzero(foreign))
    return Agreement(error, allowed, complete, strays, len(blocks), int(kernel.blocks), wrapped)


def _judged(op: Operator, kernel: Kernel) -> Compute:
    """The compute that says what a launch must leave in its output."""
    if kernel.clears:
        return kernel.nest.compute
    return next(c for c in op.computes if c.output.name == kernel.nest.output.name)


def _alike(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Equal, infinities too; NaN where NaN is right."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _parts(
    kernel: Kernel, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[dict[str, NDArray[Any]], Any]]:
    """The output in parts: indices along every spatial axis, and the elements owned in their product.
    All blocks together own everything, in one part."""
    if len(blocks) == int(kernel.blocks):
        yield everything(compute), slice(None)
    else:
        yield from _owned(kernel, compute, blocks)


def _owned(
    kernel: Kernel, compute: Compute, blocks: NDArray[np.int64]
) -> Iterator[tuple[dict[str, NDArray[Any]], Any]]:
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
