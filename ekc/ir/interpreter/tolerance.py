"""What the computes of an operator make of its inputs in float64, and the error that rounding can explain.

A tensor between two computes is worked out only where it is asked for, so that a few blocks of a large
product behind a bias and an activation cost no more than those of the product alone.

A part of a tensor: its elements at the outer product of some indices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.dtypes import FLOAT32, INT32, DType
from ekc.ir.lowering.fusion import is_elementwise
from ekc.ir.operator import Operator
from ekc.ir.random_arrays import AxisIndices, InputTensor, make_random_inputs
from ekc.ir.reference import (
    ComputeResult,
    convert_inputs,
    convert_results,
    evaluate_as_stored,
    evaluate_body,
    evaluate_compute_at,
    list_float_tensors,
    read_padded,
)

Indices = tuple[NDArray[Any], ...]
"""For each dimension of a tensor the indices of a part, rising."""


@dataclass(frozen=True, eq=False)
class TensorPart:
    """Elements of a tensor of this shape; nothing else of it may be read."""

    shape: tuple[int, ...]
    indices: Indices
    values: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array."""
        return self.values.dtype

    def pick(self, index: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The elements at an index for each dimension, broadcast."""
        found = zip(self.indices, index, strict=True)
        return np.asarray(self.values[tuple(np.searchsorted(known, wanted) for known, wanted in found)])


def find_read_indices(compute: Compute, spec: TensorSpec, where: Mapping[str, NDArray[Any]]) -> Indices:
    """The indices of a tensor that a compute reads at chosen indices of its own; those outside the tensor are
    read as the nearest inside."""
    ranges = dict(where) | {a.name: np.arange(a.extent) for a in compute.reduction_axes}
    loads = [load for load in ex.find_loads(compute.body) if load.tensor == spec.name]
    return tuple(
        reduce(np.union1d, (_evaluate_index(load.index[d], extent, ranges) for load in loads))
        for d, extent in enumerate(spec.shape)
    )


def _evaluate_index(index: ex.Expr, extent: int, ranges: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The values of an index expression, each once."""
    names = sorted(ex.find_variables(index))
    grid = dict(zip(names, np.ix_(*(ranges[name] for name in names)), strict=True))
    return np.unique(np.clip(np.asarray(ex.evaluate(index, grid, _refuse_load)), 0, extent - 1))


def _refuse_load(load: ex.Load) -> Any:
    raise ValueError(f"{load}: an index cannot read a tensor")


Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class ReferenceValues:
    """Right values, and how far rounding alone may take a kernel from them."""

    values: Array
    tolerance: float
    wrapped: bool = False
    """Whether some int32 that leads to them wrapped."""
    indices: Indices | None = None
    """Where they stand in their tensor, if that is not whole."""

    choice_tolerances: Array | float = 0.0
    """How much further each element may be, because rounding may change which of two values is chosen."""

    def shift_by_error(self, error: Array | float) -> tuple[Array, ...]:
        """The values with an error: all up, all down, each up or down."""
        signs = np.random.default_rng(0).choice((-1.0, 1.0), self.values.shape)
        return tuple(self.values + sign * error for sign in (1.0, -1.0, signs))


@dataclass(frozen=True, eq=False)
class ReferenceEvaluator:
    """Inputs of an operator, and what its computes make of them."""

    op: Operator
    arrays: tuple[InputTensor, ...]
    _full_tensors: dict[str, ReferenceValues] = field(default_factory=dict, repr=False)
    _evaluators_by_digest: dict[str, ReferenceEvaluator] = field(default_factory=dict, repr=False)

    @classmethod
    def from_seed(cls, op: Operator, seed: int) -> ReferenceEvaluator:
        """On random inputs, made where they are read."""
        return cls(op, make_random_inputs(op, seed))

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name."""
        return convert_inputs(self.op, self.arrays)

    @cached_property
    def producers(self) -> dict[str, Compute]:
        """The compute that makes each tensor that is no input."""
        return {c.output.name: c for c in self.op.computes}

    def for_operator(self, op: Operator) -> ReferenceEvaluator:
        """What the same inputs come to over the computes of `op`, which a step may have made two of one."""
        if op == self.op:
            return self
        return self._evaluators_by_digest.setdefault(op.digest, ReferenceEvaluator(op, self.arrays))

    def evaluate_tensor(self, name: str) -> ReferenceValues:
        """All of a tensor that some compute makes; worked out once."""
        if name not in self._full_tensors:
            self._full_tensors[name] = self.evaluate_at(
                self.producers[name], list_all_indices(self.producers[name])
            )
        return self._full_tensors[name]

    def evaluate_at(
        self, compute: Compute, where: AxisIndices, unstored: Collection[str] = ()
    ) -> ReferenceValues:
        """One compute at chosen indices; `held` are tensors that are never stored, so not rounded to their
        dtype.

        Its slack is what rounding does in its own arithmetic, and what the slack of each tensor that it
        reads does to its result, found by moving that tensor. Where the body chooses by a comparison, that is
        an allowance of each element: one that rounding may turn over excuses no other.
        """
        read = {
            name: self._evaluate_read(compute, name, where, unstored)
            for name in self._find_produced_reads(compute)
        }
        values = {
            n: self._place_values(n, r, convert_results(self.producers[n], r.values)) for n, r in read.items()
        }
        found, stored = self._evaluate_compute(compute, where, values), compute.output.name not in unstored
        value, wrapped = found.values, found.wrapped or any(right.wrapped for right in read.values())
        if stored:
            value = overflow_to_infinity(value, compute.output.dtype)
        scale = float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0))
        slack = 0.0 if self._is_exact(compute, unstored) else rounding(compute, scale, stored)
        choice: Array | float = 0.0
        for name, right in read.items():
            # Where a comparison chooses, an error moves some elements by far and most not at all.
            for error, chooses in (
                (right.tolerance, ex.has_where(compute.body)),
                (right.choice_tolerances, True),
            ):
                if not np.any(error):
                    continue
                moved = ({name: self._place_values(name, right, m)} for m in right.shift_by_error(error))
                changed = (self._evaluate_compute(compute, where, values | m).values for m in moved)
                furthest = np.maximum.reduce([_compute_distances(c, value) for c in changed])
                if chooses:
                    choice = choice + furthest
                else:
                    slack += float(np.max(furthest, initial=0.0))
        return ReferenceValues(value, slack, wrapped, choice_tolerances=choice)

    def _is_exact(self, compute: Compute, unstored: Collection[str]) -> bool:
        """Whether it only brings stored elements elsewhere, or picks the largest or smallest of some."""
        body = compute.body
        if not isinstance(body, ex.Load) or body.tensor in unstored:
            return False
        if compute.reduction_axes and compute.combine not in ("max", "min"):
            return False
        read, out = self.op.tensors[body.tensor].dtype, compute.output.dtype
        return read is out or (out is FLOAT32 and not read.is_integer)

    def _find_produced_reads(self, compute: Compute) -> dict[str, None]:
        """The tensors it reads that are no inputs."""
        return dict.fromkeys(x.tensor for x in ex.find_loads(compute.body) if x.tensor in self.producers)

    def _evaluate_read(
        self, reader: Compute, name: str, where: AxisIndices, unstored: Collection[str]
    ) -> ReferenceValues:
        """A tensor as a compute needs it: the same elements where it reads no others, else those that it
        reads, or all of it where that is not much more."""
        maker = self.producers[name]
        if not is_elementwise(reader, maker.output):
            indices = find_read_indices(reader, maker.output, where)
            if name in self._full_tensors or 2 * math.prod(map(len, indices)) >= maker.output.elements:
                return self.evaluate_tensor(name)
            part = dict(zip((a.name for a in maker.spatial_axes), indices, strict=True))
            return replace(self.evaluate_at(maker, part), indices=indices)
        there = dict(zip((a.name for a in maker.spatial_axes), where.values(), strict=True))
        return self.evaluate_at(maker, there, unstored)

    def _place_values(self, name: str, right: ReferenceValues, values: Array) -> Any:
        """Values of a tensor, to be found by their indices in it."""
        return (
            values
            if right.indices is None
            else TensorPart(self.op.tensors[name].shape, right.indices, values)
        )

    def _evaluate_compute(
        self, compute: Compute, where: AxisIndices, produced: dict[str, Any]
    ) -> ComputeResult:
        own = {
            n: values for n, values in produced.items() if is_elementwise(compute, self.producers[n].output)
        }
        if not own:
            return evaluate_compute_at(compute, self.inputs | produced, where)
        grid = {a: where[a].reshape([-1 if b == a else 1 for b in where]) for a in where}
        tensors = self.inputs | produced

        def load(x: ex.Load) -> Array:
            return own[x.tensor] if x.tensor in own else read_padded(tensors[x.tensor], x, grid)

        shape = tuple(len(index) for index in where.values())

        def computed(kind: np.dtype[Any]) -> Array:
            return np.broadcast_to(
                evaluate_body(compute.body, grid, load, kind, list_float_tensors(tensors)), shape
            )

        return evaluate_as_stored(compute, computed, compute.acc_dtype is INT32)


def rounding(compute: Compute, scale: float, stored: bool = True) -> float:
    """The error that a compute's own arithmetic can explain in results of size `scale`: grows with the square
    root of the number of terms, as random rounding errors do, with a margin of 8. Integers allow none."""
    terms = math.prod(float(a.extent) for a in compute.reduction_axes)
    epsilon = 0.0 if compute.acc_dtype.is_integer else FLOAT32.epsilon * math.sqrt(terms + 1) * 8
    if stored and compute.output.dtype is not compute.acc_dtype:
        epsilon += compute.output.dtype.epsilon
    return epsilon * max(scale, 1e-3)


def overflow_to_infinity(values: Array, dtype: DType) -> Array:
    """Values with those that a float type cannot hold as the infinities that storing makes of them."""
    if dtype.is_integer:
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype.numpy_dtype).astype(np.float64)
    return np.where(np.isinf(stored), stored, values)


def list_all_indices(compute: Compute) -> AxisIndices:
    """All indices of a compute."""
    return {a.name: np.arange(a.extent) for a in compute.spatial_axes}


def _compute_distances(values: Array, reference_values: Array) -> Array:
    """The distance of each element where both are finite, else 0. An infinity explains no error: beside it
    there is none that rounding allows."""
    both = np.isfinite(values) & np.isfinite(reference_values)
    with np.errstate(invalid="ignore"):
        return np.where(both, np.abs(values - reference_values), 0.0)
