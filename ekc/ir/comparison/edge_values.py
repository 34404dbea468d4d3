"""Edge values: inputs that are huge, tiny, equal, NaN or infinite, and what a kernel must make of them.

In float32 the result may depend on the order of operations, which is the schedule's choice. So an element is
judged where the reference in float64 agrees with an evaluation in the type of the accumulator, with one in
the reverse order of the sums, and with inputs that have errors of the size of rounding.

NaN and infinities must be at the same positions, where the element depends on the infinite inputs: 0 x
infinity is NaN, and a kernel may skip what is multiplied by 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.comparison.tolerance import (
    ReferenceEvaluator,
    TensorPart,
    compute_read_indices,
    estimate_rounding,
    overflow_to_infinity,
)
from ekc.ir.compute import Compute, list_operations
from ekc.ir.dtypes import FLOAT32, DType
from ekc.ir.graph import OperatorGraph
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import (
    AxisIndices,
    Positions,
    RandomTensor,
    WrittenOutput,
    count_factors,
    find_positions,
)
from ekc.ir.reference import FLOAT64, evaluate_pointwise

Array = NDArray[Any]

_SPECIAL_COUNT = 0.25
"""Special values among the elements of a tensor that one element of a result reads, on average."""
_REPLACEMENTS = (0.75, -1.5)
"""Finite values in place of NaN and infinities, which show whether a result depends on these."""
_ROW_KINDS = 8
"""Kinds of rows of the last dimension, equally frequent: one has equal elements, one huge and one tiny ones;
in the rest the elements are as drawn."""
_AGREEMENT, _MARGIN = 0.01, 32.0
"""Relative difference of evaluations up to which an element is judged; the tolerance in multiples of it."""
_MIN_COMPARED, _MAX_COMPARED, _MAX_TERMS = 16, 256, 1 << 22
"""Bounds of the elements of a block that are compared, by the terms that all of them sum."""


@dataclass(frozen=True)
class EdgeTensor(RandomTensor):
    """A random input with edge values among its elements, if these are floats."""

    read_count: int = 1
    """Elements that one element of a result reads."""
    replacement: float | None = None
    """A value in place of NaN and infinities."""
    is_inexact: bool = False
    """Whether the elements have errors of the size that rounding has in a sum of `read_count` terms. They are
    then not rounded to the type of the tensor."""

    def read_at(self, positions: Positions) -> Array:
        """The elements at some linear positions."""
        return self._place_edges(super().read_at(positions), np.asarray(positions))

    def make_runs(self, starts: Positions, length: int) -> Array:
        """`length` elements from each start, a row each; starts and length are multiples of 8."""
        return self._place_edges(super().make_runs(starts, length), starts[:, None] + np.arange(length))

    def _place_edges(self, values: Array, positions: Positions) -> Array:
        if self.spec.dtype.is_integer:
            return values  # They take their whole range anyway.
        width = self.spec.shape[-1] if self.spec.shape else 1
        # Hashes that the elements do not use: of inverted positions, and of numbers beyond all positions.
        own = self._hash_numbers(~positions.astype(np.uint64))
        rows = self._hash_numbers((positions // width + self.spec.elements).astype(np.uint64))
        kinds = rows % _ROW_KINDS
        is_special = (own >> np.uint64(32)) < _SPECIAL_COUNT / self.read_count * 2.0**32
        found = np.where(kinds == 0, _to_unit(rows), values.astype(np.float64))
        if not self.factor_count:
            found = found * _list_row_scales(self.spec.dtype)[kinds]
        specials = self._list_specials()
        found = np.where(is_special, specials[own % np.uint64(len(specials))], found)
        if self.replacement is not None:
            found = np.where(np.isfinite(found), found, self.replacement)
        with np.errstate(over="ignore"):
            stored = found.astype(self.spec.dtype.numpy_dtype)
        if not self.is_inexact:
            return stored
        # Errors between once and twice as large, so that no element is without one.
        errors = np.where(own & np.uint64(1), 1.0, -1.0) * (1.5 + 0.25 * _to_unit(own))
        return stored * (1 + FLOAT32.epsilon * math.sqrt(self.read_count) * errors)

    def _list_specials(self) -> Array:
        """The special values; a product gets none that could overflow in one order of its factors alone."""
        special = [math.nan, math.inf, -math.inf]
        if not self.factor_count:
            huge = min(1e30, 0.5 * _largest(self.spec.dtype))
            special += [huge, -huge, 100.0, -100.0, 1e-40, 0.0]
        return np.array(special)


def _to_unit(hashed: NDArray[np.uint64]) -> Array:
    """Numbers from -2 to 2 by hashes."""
    return (hashed >> np.uint64(11)).astype(np.float64) * 2.0**-51 - 2.0


def _largest(dtype: DType) -> float:
    return float(np.finfo(np.float16).max) if dtype.name == "float16" else float(np.finfo(np.float32).max)


def _list_row_scales(dtype: DType) -> Array:
    """Factor of each kind of row. The huge ones are small enough for sums of products of two of them."""
    scales = np.ones(_ROW_KINDS)
    scales[2:4] = (2.0**8, 2.0**-12) if dtype.name == "float16" else (2.0**40, 2.0**-100)
    return scales


def make_edge_inputs(op: OperatorGraph, seed: int) -> tuple[EdgeTensor, ...]:
    """Inputs of an operator with edge values."""
    factors = count_factors(op)
    return tuple(
        EdgeTensor(spec, seed, number, factors, _count_reads(op, spec.name))
        for number, spec in enumerate(op.inputs)
    )


def _count_reads(op: OperatorGraph, tensor: str) -> int:
    """Elements of a tensor that one element of a compute reads, at most."""
    counts = (math.prod(a.extent for a in axes if a.is_reduction) for axes in op.list_read_axes(tensor))
    return max(counts, default=1)


def needs_edge_values(op: OperatorGraph) -> bool:
    """Whether edge values may show what random inputs do not. Integers have none. A sum of products of
    float32 values executes the same instructions for every value, so random inputs show its faults."""
    has_floats = not all(spec.dtype.is_integer for spec in op.inputs)
    return has_floats and not all(_sums_float32_products(op, compute) for compute in op.computes)


def _sums_float32_products(op: OperatorGraph, compute: Compute) -> bool:
    names = {ex.name_operation(one) for one in list_operations(compute.body)}
    tensors = [op.tensors[load.tensor] for load in compute.loads]
    is_float32 = all(spec.dtype == FLOAT32 for spec in (*tensors, compute.output))
    is_sum = bool(compute.reduction_axes) and compute.combine == "sum"
    return is_sum and is_float32 and compute.acc_dtype == FLOAT32 and names <= {"*"}


@dataclass(frozen=True)
class EdgeComparison:
    """Elements of one launch on edge values, compared with the reference."""

    judged: int
    compared: int
    wrong: int
    example: str
    """The first wrong element; empty where none is wrong."""

    @property
    def ok(self) -> bool:
        """Whether all judged elements are right."""
        return not self.wrong

    def __str__(self) -> str:
        if self.wrong:
            return f"edge values: {self.wrong} of {self.judged} elements wrong, first {self.example}"
        return f"edge values: {self.judged} of {self.compared} elements judged, right"


@dataclass(frozen=True, eq=False)
class EdgeReference:
    """Reference of an operator on edge values."""

    op: Operator
    seed: int

    @cached_property
    def exact(self) -> ReferenceEvaluator:
        """Evaluator of the edge values."""
        return ReferenceEvaluator(self.op, make_edge_inputs(self.op, self.seed))

    @cached_property
    def _inexact(self) -> ReferenceEvaluator:
        """Evaluator of the edge values with errors of the size that rounding has."""
        return self._change_inputs(is_inexact=True)

    @cached_property
    def _replaced(self) -> tuple[ReferenceEvaluator, ...]:
        return tuple(self._change_inputs(replacement=value) for value in _REPLACEMENTS)

    def _change_inputs(
        self, replacement: float | None = None, is_inexact: bool = False
    ) -> ReferenceEvaluator:
        inputs = make_edge_inputs(self.op, self.seed)
        changed = (replace(one, replacement=replacement, is_inexact=is_inexact) for one in inputs)
        return ReferenceEvaluator(self.op, tuple(changed))

    def compare(
        self,
        compute: Compute,
        where: AxisIndices,
        output: WrittenOutput,
        owned: Positions,
        unstored: set[str],
    ) -> EdgeComparison:
        """Compare some of the `owned` elements of a compute's output at chosen indices."""
        where = _thin_out(where, math.prod(a.extent for a in compute.reduction_axes))
        positions = find_positions(where, compute.output)
        found, written = output.read_at(positions)
        found = found.astype(np.float64)
        with np.errstate(all="ignore"):
            right, tolerance, is_judged = self._judge(compute, where, unstored)
            is_judged &= written & np.isin(positions, owned)
            is_right = (
                (found == right) | (np.isnan(found) & np.isnan(right)) | (np.abs(found - right) <= tolerance)
            )
        wrong = np.flatnonzero(is_judged & ~is_right)
        example = ""
        if wrong.size:
            at, value = positions.ravel()[wrong[0]], found.ravel()[wrong[0]]
            index = ", ".join(str(int(i)) for i in np.unravel_index(at, compute.output.shape))
            example = f"{compute.output.name}[{index}]: {value:.6g}, right is {right.ravel()[wrong[0]]:.6g}"
        return EdgeComparison(int(is_judged.sum()), positions.size, int(wrong.size), example)

    def _judge(self, compute: Compute, where: AxisIndices, unstored: set[str]) -> tuple[Array, Array, Array]:
        """Right values, the tolerance of each, and whether it is judged."""
        reference = self.exact.evaluate_at(compute, where, unstored)
        right = reference.values
        if compute.output.dtype.is_integer:
            # Integers are exact; where a float decides one, an edge value may change it by much.
            is_exact = np.full(right.shape, reference.tolerance == 0)
            return right, np.asarray(0.5 + reference.choice_tolerances), is_exact
        low = [
            _evaluate_in_order(self.exact, compute, where, unstored, 1),
            _evaluate_in_order(self._inexact, compute, where, unstored, -1),
            _evaluate_in_order(self._inexact, compute, where, unstored, 1, FLOAT64),
        ]
        spread = np.maximum.reduce([np.abs(one - right) for one in low])
        smallest = 16 * float(np.finfo(np.float32).tiny)
        is_near = np.isfinite(right) & (spread <= _AGREEMENT * np.abs(right) + smallest)
        is_near &= np.abs(right) < (1 - _AGREEMENT) * _largest(compute.output.dtype)
        same = [(one == right) | (np.isnan(one) & np.isnan(right)) for one in low]
        is_same = ~np.isfinite(right) & np.logical_and.reduce(same) & self._depends(compute, where, unstored)
        rounding = estimate_rounding(compute, 1.0) * np.maximum(np.abs(right), 1e-3)
        tolerance = np.where(is_near, _MARGIN * spread + 8 * rounding + reference.choice_tolerances, 0.0)
        return right, tolerance, is_near | is_same

    def _depends(self, compute: Compute, where: AxisIndices, unstored: set[str]) -> Array:
        """Whether each element depends on the infinite inputs, or is infinite without them."""
        one, other = (_evaluate_in_order(e, compute, where, unstored, 1, FLOAT64) for e in self._replaced)
        return np.asarray((one != other) | (np.isinf(one) & np.isinf(other)))


def _evaluate_in_order(
    evaluator: ReferenceEvaluator,
    compute: Compute,
    where: AxisIndices,
    unstored: set[str],
    step: int,
    dtype: np.dtype[Any] | None = None,
) -> Array:
    """A compute in a type, results not rounded to that in which they are stored; without one in that of its
    accumulator, and rounded. The sums are in the order of their axes, or for a `step` of -1 in reverse."""
    tensors = dict(evaluator.inputs)
    for name in dict.fromkeys(x.tensor for x in ex.find_loads(compute.body)):
        if name in evaluator.producers:
            producer = evaluator.producers[name]
            indices = compute_read_indices(compute, producer.output, where)
            part = dict(zip((a.name for a in producer.spatial_axes), indices, strict=True))
            values = _evaluate_in_order(evaluator, producer, part, unstored, step, dtype)
            tensors[name] = TensorPart(producer.output.shape, indices, values)
    ranges = {**where, **{a.name: np.arange(a.extent)[::step] for a in compute.reduction_axes}}
    acc = compute.acc_dtype
    kind = dtype or (FLOAT64 if acc.is_integer else np.dtype(acc.numpy_dtype))
    values = evaluate_pointwise(compute, tensors, ranges, kind)
    if compute.output.name not in unstored and not compute.output.dtype.is_integer:
        stored = compute.output.dtype
        values = overflow_to_infinity(values, stored) if dtype else values.astype(stored.numpy_dtype)
    return values.astype(np.float64)


def _thin_out(where: AxisIndices, terms: int) -> AxisIndices:
    """Some indices of each axis, the first and the last among them; an element sums so many terms."""
    wanted = min(max(_MAX_TERMS // terms, _MIN_COMPARED), _MAX_COMPARED)
    count = max(2, int(wanted ** (1 / max(1, sum(len(index) > 1 for index in where.values())))))
    return {
        name: index[np.unique(np.linspace(0, len(index) - 1, min(count, len(index))).round().astype(int))]
        for name, index in where.items()
    }
