"""Reference values of an operator's computes in float64, with the error that rounding can explain.

An intermediate tensor is computed only where it is read. So a few blocks of a large product with a bias and
an activation cost no more than those of the product.
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
    Array,
    ComputeResult,
    convert_inputs,
    convert_results,
    evaluate_as_stored,
    evaluate_body,
    evaluate_compute_at,
    list_float_tensors,
    read_padded,
    refuse_load,
)

Indices = tuple[NDArray[Any], ...]
"""Indices of a part of a tensor along each dimension, ascending; the part is their outer product."""


@dataclass(frozen=True, eq=False)
class TensorPart:
    """A part of a tensor of this shape; only its elements may be read."""

    shape: tuple[int, ...]
    indices: Indices
    values: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, as of an array."""
        return self.values.dtype

    def pick(self, index: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The elements at the broadcast of an index for each dimension."""
        pairs = zip(self.indices, index, strict=True)
        return np.asarray(self.values[tuple(np.searchsorted(own, i) for own, i in pairs)])


def compute_read_indices(compute: Compute, spec: TensorSpec, where: Mapping[str, NDArray[Any]]) -> Indices:
    """Indices of a tensor that a compute reads at chosen indices of its own, clipped to the tensor."""
    ranges = dict(where) | {a.name: np.arange(a.extent) for a in compute.reduction_axes}
    loads = [load for load in ex.find_loads(compute.body) if load.tensor == spec.name]
    return tuple(
        reduce(np.union1d, (_evaluate_index(load.index[d], extent, ranges) for load in loads))
        for d, extent in enumerate(spec.shape)
    )


def _evaluate_index(index: ex.Expr, extent: int, ranges: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Values of an index expression, clipped to the tensor, each once."""
    names = sorted(ex.find_variables(index))
    grid = dict(zip(names, np.ix_(*(ranges[name] for name in names)), strict=True))
    return np.unique(np.clip(np.asarray(ex.evaluate(index, grid, refuse_load)), 0, extent - 1))


@dataclass(frozen=True, eq=False)
class ReferenceValues:
    """Reference values, and the difference from them that rounding can explain."""

    values: Array
    tolerance: float
    wrapped: bool = False
    """Whether some int32 result in their computation wrapped."""
    indices: Indices | None = None
    """Indices of the values in their tensor; None for the whole tensor."""

    choice_tolerances: Array | float = 0.0
    """Further tolerance of each element, where rounding may change which of two values a `where` chooses."""

    def shift_by_error(self, error: Array | float) -> tuple[Array, ...]:
        """The values with an error added: to all, subtracted from all, and with random signs."""
        signs = np.random.default_rng(0).choice((-1.0, 1.0), self.values.shape)
        return tuple(self.values + sign * error for sign in (1.0, -1.0, signs))


@dataclass(frozen=True, eq=False)
class ReferenceEvaluator:
    """Evaluates the computes of an operator on given inputs."""

    op: Operator
    arrays: tuple[InputTensor, ...]
    _full_tensors: dict[str, ReferenceValues] = field(default_factory=dict, repr=False)
    _evaluators_by_digest: dict[str, ReferenceEvaluator] = field(default_factory=dict, repr=False)

    @classmethod
    def from_seed(cls, op: Operator, seed: int) -> ReferenceEvaluator:
        """An evaluator on random inputs, whose elements are computed where they are read."""
        return cls(op, make_random_inputs(op, seed))

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """The inputs by name."""
        return convert_inputs(self.op, self.arrays)

    @cached_property
    def producers(self) -> dict[str, Compute]:
        """Compute of each tensor that is not an input, by its name."""
        return {c.output.name: c for c in self.op.computes}

    def for_operator(self, op: Operator) -> ReferenceEvaluator:
        """An evaluator of `op` on the same inputs; a schedule step may have split a compute in two."""
        if op == self.op:
            return self
        return self._evaluators_by_digest.setdefault(op.digest, ReferenceEvaluator(op, self.arrays))

    def evaluate_tensor(self, name: str) -> ReferenceValues:
        """All elements of the output of a compute; evaluated once."""
        if name not in self._full_tensors:
            producer = self.producers[name]
            self._full_tensors[name] = self.evaluate_at(producer, list_all_indices(producer))
        return self._full_tensors[name]

    def evaluate_at(
        self, compute: Compute, where: AxisIndices, unstored: Collection[str] = ()
    ) -> ReferenceValues:
        """One compute at chosen indices; tensors in `unstored` are never stored, so not rounded to their
        dtype.

        The tolerance has two parts: the rounding of the compute's own arithmetic, and the effect of the
        tolerance of each tensor that it reads, found by perturbing that tensor. Where the body has a
        comparison, the second part is a tolerance of each element (`choice_tolerances`), so that it excuses
        no other element.
        """
        produced = dict.fromkeys(x.tensor for x in compute.loads if x.tensor in self.producers)
        read = {name: self._evaluate_read(compute, name, where, unstored) for name in produced}
        results = {name: convert_results(self.producers[name], one.values) for name, one in read.items()}
        values = {name: self._place_values(name, one, results[name]) for name, one in read.items()}
        result, stored = self._evaluate_compute(compute, where, values), compute.output.name not in unstored
        value, wrapped = result.values, result.wrapped or any(r.wrapped for r in read.values())
        if stored:
            value = overflow_to_infinity(value, compute.output.dtype)
        scale = float(np.max(np.abs(value[np.isfinite(value)]), initial=0.0))
        tolerance = 0.0 if self._is_exact(compute, unstored) else estimate_rounding(compute, scale, stored)
        choice: Array | float = 0.0
        for name, reference in read.items():
            # With a comparison, an error changes a few elements by much and most not at all.
            has_where = ex.has_where(compute.body)
            for error, chooses in ((reference.tolerance, has_where), (reference.choice_tolerances, True)):
                if not np.any(error):
                    continue
                shifted = reference.shift_by_error(error)
                inputs = (values | {name: self._place_values(name, reference, v)} for v in shifted)
                changed = (self._evaluate_compute(compute, where, v).values for v in inputs)
                furthest = np.maximum.reduce([_compute_distances(c, value) for c in changed])
                if chooses:
                    choice = choice + furthest
                else:
                    tolerance += float(np.max(furthest, initial=0.0))
        return ReferenceValues(value, tolerance, wrapped, choice_tolerances=choice)

    def _is_exact(self, compute: Compute, unstored: Collection[str]) -> bool:
        """Whether a compute only copies stored elements, or selects the largest or smallest of some."""
        body = compute.body
        if not isinstance(body, ex.Load) or body.tensor in unstored:
            return False
        if compute.reduction_axes and compute.combine not in ("max", "min"):
            return False
        read, out = self.op.tensors[body.tensor].dtype, compute.output.dtype
        return read is out or (out is FLOAT32 and not read.is_integer)

    def _evaluate_read(
        self, reader: Compute, name: str, where: AxisIndices, unstored: Collection[str]
    ) -> ReferenceValues:
        """A tensor as a reader needs it: the reader's own elements if it is elementwise, else the elements
        that it reads, or all elements where those are at least half of them."""
        producer = self.producers[name]
        if not is_elementwise(reader, producer.output):
            indices = compute_read_indices(reader, producer.output, where)
            if name in self._full_tensors or 2 * math.prod(map(len, indices)) >= producer.output.elements:
                return self.evaluate_tensor(name)
            part = dict(zip((a.name for a in producer.spatial_axes), indices, strict=True))
            return replace(self.evaluate_at(producer, part), indices=indices)
        own = dict(zip((a.name for a in producer.spatial_axes), where.values(), strict=True))
        return self.evaluate_at(producer, own, unstored)

    def _place_values(self, name: str, reference: ReferenceValues, values: Array) -> Any:
        """Values of a tensor, as a `TensorPart` where they are not the whole tensor."""
        if reference.indices is None:
            return values
        return TensorPart(self.op.tensors[name].shape, reference.indices, values)

    def _evaluate_compute(
        self, compute: Compute, where: AxisIndices, produced: dict[str, Any]
    ) -> ComputeResult:
        tensors, outputs = self.inputs | produced, {n: self.producers[n].output for n in produced}
        own = {n: values for n, values in produced.items() if is_elementwise(compute, outputs[n])}
        if not own:
            return evaluate_compute_at(compute, tensors, where)
        grid = {a: where[a].reshape([-1 if b == a else 1 for b in where]) for a in where}

        def load(x: ex.Load) -> Array:
            return own[x.tensor] if x.tensor in own else read_padded(tensors[x.tensor], x, grid)

        shape, floats = tuple(len(index) for index in where.values()), list_float_tensors(tensors)

        def evaluate_in(kind: np.dtype[Any]) -> Array:
            return np.broadcast_to(evaluate_body(compute.body, grid, load, kind, floats), shape)

        return evaluate_as_stored(compute, evaluate_in, compute.acc_dtype is INT32)


def estimate_rounding(compute: Compute, scale: float, stored: bool = True) -> float:
    """Error that a compute's own arithmetic can explain in results of size `scale`.

    It grows with the square root of the number of terms, as random rounding errors do, with a margin of 8. It
    is 0 for integers.
    """
    terms = math.prod(float(a.extent) for a in compute.reduction_axes)
    epsilon = 0.0 if compute.acc_dtype.is_integer else FLOAT32.epsilon * math.sqrt(terms + 1) * 8
    if stored and compute.output.dtype is not compute.acc_dtype:
        epsilon += compute.output.dtype.epsilon
    return epsilon * max(scale, 1e-3)


def overflow_to_infinity(values: Array, dtype: DType) -> Array:
    """The values, with infinities in place of those that overflow a float type when stored."""
    if dtype.is_integer:
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype.numpy_dtype).astype(np.float64)
    return np.where(np.isinf(stored), stored, values)


def list_all_indices(compute: Compute) -> AxisIndices:
    """All indices of a compute along every spatial axis."""
    return {a.name: np.arange(a.extent) for a in compute.spatial_axes}


def _compute_distances(values: Array, reference_values: Array) -> Array:
    """Absolute difference of each element where both are finite, else 0: an infinity explains no error."""
    both = np.isfinite(values) & np.isfinite(reference_values)
    with np.errstate(invalid="ignore"):
        return np.where(both, np.abs(values - reference_values), 0.0)
