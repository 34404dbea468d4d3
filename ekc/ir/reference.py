"""Reference of an operator in NumPy, accumulated in float64: every kernel is compared with it.

Inputs of type tf32 are rounded to it first. Sums of int8 are exact: extents keep them within int32. A compute
that reads int32 is evaluated in int32, where every result wraps modulo 2**32 as in a kernel.

A sum of products is contracted with einsum, so that a full-size matmul takes seconds. Any other body is
evaluated point by point, in slices that fit in memory. Where a factor is infinite or NaN, factors are
multiplied before anything is summed: (2 - 1) * inf is not 2 * inf - 1 * inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.compute import Compute
from ekc.ir.dtypes import INT8, INT32, TF32, find_reduction_identity, round_to_tf32
from ekc.ir.graph import OperatorGraph
from ekc.ir.random_arrays import InputTensor, RandomTensor
from ekc.ir.tensor_memory import check_host_memory

_POINTS_AT_ONCE = 1 << 23
"""Points that are evaluated in one array."""
_MAX_SLICES = 1024
"""Longest axis along which an einsum is done by slices."""
_MAX_EXACT_INTEGER = 2.0**53
"""Every integer below this is exact in float64."""
Array = NDArray[Any]
Arrays = Mapping[str, Array]
FLOAT64 = np.dtype(np.float64)
COMBINE_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
"""Functions that combine two values, by kind of reduction."""


@dataclass(frozen=True, eq=False)
class ComputeResult:
    """Results of one compute."""

    values: NDArray[np.float64]
    wrapped: bool = False
    """Whether some result is not exact, because int32 wrapped modulo 2**32."""


def evaluate_reference(op: OperatorGraph, arrays: tuple[Array, ...]) -> Array:
    """The operator's output, cast to its dtype."""
    check_host_memory(op, f"the reference of {op.name}", _estimate_memory_factors(op))
    tensors = convert_inputs(op, arrays)
    for compute in op.computes:
        all_indices = {a.name: np.arange(a.extent) for a in compute.spatial_axes}
        values = evaluate_compute_at(compute, tensors, all_indices).values
        tensors[compute.output.name] = convert_results(compute, values)
    with np.errstate(over="ignore"):
        return np.asarray(tensors[op.outputs[0].name].astype(op.outputs[0].dtype.numpy_dtype))


def _estimate_memory_factors(op: OperatorGraph) -> dict[str, float]:
    """Memory by tensor, in multiples of its size: results twice in float64, factors once."""
    read = {t.name: 8 / t.dtype.bytes for c in op.computes if c.reduction_axes for t in op.inputs}
    return read | {c.output.name: 2 * 8 / c.output.dtype.bytes for c in op.computes}


def convert_inputs(op: OperatorGraph, arrays: tuple[InputTensor, ...]) -> dict[str, Any]:
    """The inputs by name, tf32 rounded."""
    if any(isinstance(array, RandomTensor) for array in arrays):
        return {t.name: array for t, array in zip(op.inputs, arrays, strict=True)}
    pairs = zip(op.inputs, op.check_arrays(arrays), strict=True)
    return {t.name: round_to_tf32(a) if t.dtype is TF32 else a for t, a in pairs}


def convert_results(compute: Compute, values: Array) -> Array:
    """Results of a compute as other computes read them: integers in their type, floats in float64."""
    return values.astype(compute.output.dtype.numpy_dtype) if compute.output.dtype.is_integer else values


def list_float_tensors(tensors: Arrays) -> frozenset[str]:
    """Names of the tensors that are not integers."""
    return frozenset(name for name, a in tensors.items() if not np.issubdtype(a.dtype, np.integer))


def evaluate_compute_at(compute: Compute, tensors: Arrays, where: Arrays) -> ComputeResult:
    """One compute at the outer product of chosen spatial indices; values in float64, in output order.

    Floats are not rounded to the output type; integers are as stored (int8 is clamped).
    """
    read = (tensors[load.tensor] for load in ex.find_loads(compute.body))
    may_wrap = compute.acc_dtype is INT32 and any(array.dtype == INT32.numpy_dtype for array in read)
    return evaluate_as_stored(
        compute, lambda kind: _evaluate_compute(compute, tensors, where, kind), may_wrap
    )


def evaluate_as_stored(
    compute: Compute, evaluate_in: Callable[[np.dtype[Any]], Array], may_wrap: bool
) -> ComputeResult:
    """Results of a compute as stored, from a function that evaluates it in float64 or int32."""
    # Infinities and NaN are valid results; the kernel has them too.
    with np.errstate(all="ignore"):
        exact = values = evaluate_in(FLOAT64)
        if may_wrap:
            values = evaluate_in(INT32.numpy_dtype).astype(np.float64)
    stored = np.clip(values, *INT8.integer_limits) if compute.output.dtype is INT8 else values
    return ComputeResult(stored, may_wrap and not np.array_equal(values, exact))


def _evaluate_compute(compute: Compute, tensors: Arrays, where: Arrays, dtype: np.dtype[Any]) -> Array:
    """The compute in float64, or in int32 that wraps."""
    ranges = {**where, **{a.name: np.arange(a.extent) for a in compute.reduction_axes}}
    is_sum = compute.combine == "sum" and compute.reduction_axes
    parts = ex.list_factors(compute.body) if is_sum else (compute.body,)
    points = [math.prod(len(ranges[v]) for v in ex.find_variables(p)) for p in parts]
    if len(parts) > 1 and max(points) <= 16 * _POINTS_AT_ONCE:
        axes = [[a.name for a in compute.axes if a.name in ex.find_variables(p)] for p in parts]
        operands = [_evaluate(p, own, tensors, ranges, dtype) for p, own in zip(parts, axes, strict=True)]
        sums = {a.name for a in compute.reduction_axes}
        if all(sums <= {*own} for own in axes) or all(np.isfinite(x).all() for x in operands):
            return _contract(compute, axes, operands, ranges)
    return evaluate_pointwise(compute, tensors, ranges, dtype)


def _contract(compute: Compute, axes: list[list[str]], operands: list[Array], ranges: Arrays) -> Array:
    """Sum of the product of operands, each over its own axes."""
    letters = {a.name: chr(ord("a") + i) for i, a in enumerate(compute.axes)}
    names = ["".join(letters[a] for a in own) for own in axes]
    absent = [a.name for a in compute.axes if not any(letters[a.name] in n for n in names)]
    operands = [*operands, *(np.ones(len(ranges[a]), operands[0].dtype) for a in absent)]
    names += [letters[a] for a in absent]
    out = "".join(letters[a.name] for a in compute.spatial_axes)
    kind, terms = operands[0].dtype, math.prod(a.extent for a in compute.reduction_axes)
    if kind != FLOAT64:
        floats = [x.astype(FLOAT64) for x in operands]
        # float64 products are much faster than integer ones, and exact below this limit.
        if terms * math.prod(float(np.max(np.abs(x))) for x in floats) < _MAX_EXACT_INTEGER:
            return _einsum_by_slices(names, out, floats).astype(np.int64).astype(kind)
    return _einsum_by_slices(names, out, operands)


def _einsum_by_slices(names: list[str], out: str, operands: list[Array]) -> Array:
    """`np.einsum`, by slices of an axis that all operands have: einsum uses BLAS only without one."""
    sizes = dict(zip(names[0], operands[0].shape, strict=True))
    shared = next((x for x in out if all(x in n for n in names) and sizes[x] <= _MAX_SLICES), None)
    text = f"{','.join(names)}->{out}"
    if shared is None:
        return np.asarray(np.einsum(text, *operands, optimize=True))
    text, positions = text.replace(shared, ""), [n.index(shared) for n in names]
    slices = []
    for i in range(sizes[shared]):
        part = (x.take(i, axis) for x, axis in zip(operands, positions, strict=True))
        slices.append(np.einsum(text, *part, optimize=True))
    return np.stack(slices, out.index(shared))


def _evaluate(e: ex.Expr, axes: list[str], tensors: Any, ranges: Arrays, dtype: np.dtype[Any]) -> Array:
    """An expression as an array over `axes`, in float64 or int32."""
    grid = {a: ranges[a].reshape([-1 if b == a else 1 for b in axes]) for a in axes}
    shape = tuple(len(ranges[a]) for a in axes)

    def read(load: ex.Load) -> Array:
        return read_padded(tensors[load.tensor], load, grid)

    return np.broadcast_to(evaluate_body(e, grid, read, dtype, list_float_tensors(tensors)), shape)


def evaluate_body(
    e: ex.Expr,
    axes: Mapping[str, Any],
    load: Callable[[ex.Load], Array],
    dtype: np.dtype[Any],
    float_tensors: frozenset[str],
) -> Array:
    """An expression in float64, int32 or a smaller float. `load` reads float64, in which every int32 is
    exact. Int32 arithmetic only compares elements of `float_tensors`."""
    if dtype != FLOAT64:
        axes = {name: np.asarray(index).astype(dtype) for name, index in axes.items()}

    def read(x: ex.Load) -> Array:
        is_compared = x.tensor in float_tensors and np.issubdtype(dtype, np.integer)
        return load(x) if is_compared else load(x).astype(dtype, copy=False)

    return np.asarray(ex.evaluate(e, axes, read), dtype)


def evaluate_pointwise(compute: Compute, tensors: Any, ranges: Arrays, dtype: np.dtype[Any]) -> Array:
    """The compute over ranges of all its axes, in a type and in their order, slice by slice along one axis;
    partial results are combined if it is a reduction axis."""
    axes = [a.name for a in compute.axes]
    over = tuple(i for i, a in enumerate(compute.axes) if a.is_reduction)
    sliced = _choose_sliced_axis(axes, ranges)
    points = math.prod(len(ranges[a]) for a in axes if a != sliced)
    step = max(1, _POINTS_AT_ONCE // max(1, points))
    combine = COMBINE_UFUNCS[compute.combine]
    identity = find_reduction_identity(compute.combine, compute.acc_dtype)
    slices = []
    for start in range(0, len(ranges[sliced]), step):
        part = {**ranges, sliced: ranges[sliced][start : start + step]}
        values = _evaluate(compute.body, axes, tensors, part, dtype)
        slices.append(combine.reduce(values, axis=over, dtype=dtype, initial=identity) if over else values)
    position = axes.index(sliced)
    return reduce(combine, slices) if position in over else np.concatenate(slices, axis=position)


def _choose_sliced_axis(axes: list[str], ranges: Arrays) -> str:
    """The axis to slice along: the first, or the longest where a slice of the first is too large."""
    rest = math.prod(len(ranges[a]) for a in axes[1:])
    return axes[0] if rest <= _POINTS_AT_ONCE else max(axes, key=lambda a: len(ranges[a]))


def read_padded(array: Any, load: ex.Load, axes: Mapping[str, Any]) -> Array:
    """Elements of a tensor in float64, 0 outside of it."""
    index = [np.asarray(ex.evaluate(i, axes, refuse_load)) for i in load.index]
    inside = [(i >= 0) & (i < extent) for i, extent in zip(index, array.shape, strict=True)]
    if all(mask.all() for mask in inside):
        return _gather_elements(array, index).astype(np.float64)
    clipped = [np.clip(i, 0, e - 1) for i, e in zip(index, array.shape, strict=True)]
    return np.where(reduce(np.logical_and, inside), _gather_elements(array, clipped).astype(np.float64), 0.0)


def _gather_elements(array: Any, index: Sequence[Array]) -> Array:
    """array[index], one axis at a time where possible, which copies rows instead of single elements.

    That is possible where the indices vary along different dimensions, in order. The axis that leaves the
    fewest elements comes first.
    """
    if not isinstance(array, np.ndarray):
        return np.asarray(array.pick(index))
    varying = [dimension for i in index for dimension, size in enumerate(i.shape) if size != 1]
    if varying != sorted(set(varying)) or len({i.ndim for i in index if i.ndim}) > 1:
        return np.asarray(array[tuple(index)])
    found = array
    for axis in sorted(range(array.ndim), key=lambda k: index[k].size / array.shape[k]):
        flat = index[axis].ravel()
        if not _is_full_range(flat, array.shape[axis]):
            found = found.take(flat, axis)
    return found.reshape(np.broadcast_shapes(*(i.shape for i in index)))


def _is_full_range(index: Array, extent: int) -> bool:
    """Whether an index is 0, 1, ... over a whole dimension; the cost depends on the index alone."""
    return index.size == extent and index[0] == 0 and bool((index[1:] - index[:-1] == 1).all())


def refuse_load(load: ex.Load) -> Any:
    """Refuse a tensor that is read in an index: raises `ValueError`."""
    raise ValueError(f"{load}: an index cannot read a tensor")
