"""The meaning of an operator in NumPy, accumulated in float64: what every kernel is held against.

Inputs declared tf32 are rounded to it first. float64 holds every int32, so integer results are exact.

A body that is a product is contracted factor by factor with einsum, so that a full-size product
takes seconds; any other body is evaluated point by point, in slices that fit in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.dtypes import INT8, INT32, TF32, tf32_rounded
from ekc.ir.evaluation.drawn import Drawn, Tensor
from ekc.ir.memory import check_host
from ekc.ir.operator import Compute, Operator

_POINTS_AT_ONCE = 1 << 23
_MOST_SLICES = 1024
_REDUCE: Mapping[str, Callable[..., NDArray[Any]]] = {
    "sum": np.sum,
    "max": partial(np.fmax.reduce, initial=-np.inf),
    "min": partial(np.fmin.reduce, initial=np.inf),
}
_JOIN: Mapping[str, Callable[..., NDArray[Any]]] = {"sum": np.add, "max": np.fmax, "min": np.fmin}


def reference(op: Operator, arrays: tuple[NDArray[Any], ...]) -> NDArray[Any]:
    """The operator's output, cast to its dtype."""
    check_host(op, f"the reference of {op.name}", _held(op))
    tensors = inputs_as_read(op, arrays)
    for compute in op.computes:
        everything = {a.name: np.arange(a.extent) for a in compute.spatial}
        tensors[compute.output.name] = reference_at(compute, tensors, everything)
    with np.errstate(over="ignore"):
        return np.asarray(tensors[op.outputs[0].name].astype(op.outputs[0].dtype.numpy))


def _held(op: Operator) -> dict[str, float]:
    """How often its size each tensor is held: results in float64 and as slices that are joined, factors of
    products in float64."""
    read = {t.name: 8 / t.dtype.bytes for c in op.computes if c.reduction for t in op.inputs}
    return read | {c.output.name: 2 * 8 / c.output.dtype.bytes for c in op.computes}


def inputs_as_read(op: Operator, arrays: tuple[Tensor, ...]) -> dict[str, Any]:
    """The inputs by name, as arithmetic sees them."""
    if any(isinstance(array, Drawn) for array in arrays):
        return {t.name: array for t, array in zip(op.inputs, arrays, strict=True)}
    checked = zip(op.inputs, op.check_arrays(tuple(map(np.asarray, arrays))), strict=True)
    return {t.name: tf32_rounded(a) if t.dtype is TF32 else a for t, a in checked}


def reference_at(
    compute: Compute, tensors: Mapping[str, NDArray[Any]], where: dict[str, NDArray[Any]]
) -> NDArray[Any]:
    """One compute in float64 at the outer product of chosen spatial indices; result in output order.

    Floats are not rounded; integers are what is stored (int8 is clamped). `InvalidInput` where a sum leaves
    int32.
    """
    return as_stored(compute, _summed(compute, tensors, where))


def as_stored(compute: Compute, values: NDArray[Any]) -> NDArray[Any]:
    """Results of a compute as its output holds them; see `reference_at`."""
    if compute.acc_dtype is INT32 and np.max(np.abs(values), initial=0.0) > INT32.limits[1]:
        raise InvalidInput(
            f"{compute.output.name}: a value reaches {np.max(np.abs(values)):.0f}, int32 holds up to "
            f"{INT32.limits[1]}; use smaller inputs or acc_dtype='float32'"
        )
    return np.clip(values, *INT8.limits) if compute.output.dtype is INT8 else values


def _summed(
    compute: Compute, tensors: Mapping[str, NDArray[Any]], where: dict[str, NDArray[Any]]
) -> NDArray[Any]:
    ranges = where | {a.name: np.arange(a.extent) for a in compute.reduction}
    parts = ex.factors(compute.body) if compute.combine == "sum" and compute.reduction else (compute.body,)
    if (
        all(math.prod(len(ranges[v]) for v in ex.variables(p)) <= 16 * _POINTS_AT_ONCE for p in parts)
        and len(parts) > 1
    ):
        return _contract(compute, parts, tensors, ranges)
    return _pointwise(compute, tensors, ranges)


def _contract(compute: Compute, parts: Any, tensors: Any, ranges: dict[str, NDArray[Any]]) -> NDArray[Any]:
    letters = {a.name: chr(ord("a") + i) for i, a in enumerate(compute.axes)}
    operands: list[NDArray[Any]] = []
    names: list[str] = []
    for part in parts:
        axes = [a.name for a in compute.axes if a.name in ex.variables(part)]
        operands.append(_evaluate(part, axes, tensors, ranges))
        names.append("".join(letters[a] for a in axes))
    absent = [a.name for a in compute.axes if not any(letters[a.name] in n for n in names)]
    operands += [np.ones(len(ranges[a])) for a in absent]
    names += [letters[a] for a in absent]
    out = "".join(letters[a.name] for a in compute.spatial)
    return _einsum(names, out, operands)


def _einsum(names: list[str], out: str, operands: list[NDArray[Any]]) -> NDArray[Any]:
    """`np.einsum`, by slices of an axis that all operands have: only without one it multiplies matrices."""
    sizes = dict(zip(names[0], operands[0].shape, strict=True))
    shared = next((x for x in out if all(x in n for n in names) and sizes[x] <= _MOST_SLICES), None)
    text = f"{','.join(names)}->{out}"
    if shared is None:
        return np.asarray(np.einsum(text, *operands, optimize=True))
    text, at = text.replace(shared, ""), [n.index(shared) for n in names]
    slices = [
        np.einsum(text, *(x.take(i, axis) for x, axis in zip(operands, at, strict=True)), optimize=True)
        for i in range(sizes[shared])
    ]
    return np.stack(slices, out.index(shared))


def _evaluate(e: ex.Expr, axes: list[str], tensors: Any, ranges: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """An expression as a float64 array over `axes`."""
    grid = {a: ranges[a].reshape([-1 if b == a else 1 for b in axes]) for a in axes}
    shape = tuple(len(ranges[a]) for a in axes)
    # Infinities and NaN are results like others: the kernel has them too.
    with np.errstate(all="ignore"):
        result = ex.evaluate(e, grid, lambda load: read_padded(tensors[load.tensor], load, grid))
    return np.broadcast_to(np.asarray(result, dtype=np.float64), shape)


def _pointwise(compute: Compute, tensors: Any, ranges: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Slice by slice along one axis, the parts of each sum joined where that is a reduction's."""
    axes = [a.name for a in compute.axes]
    over = tuple(i for i, a in enumerate(compute.axes) if a.reduction)
    cut = _cut(axes, ranges)
    rest = math.prod(len(ranges[a]) for a in axes if a != cut)
    step = max(1, _POINTS_AT_ONCE // max(1, rest))
    slices = []
    for start in range(0, len(ranges[cut]), step):
        values = _evaluate(compute.body, axes, tensors, ranges | {cut: ranges[cut][start : start + step]})
        slices.append(_REDUCE[compute.combine](values, axis=over) if over else values)
    at = axes.index(cut)
    return reduce(_JOIN[compute.combine], slices) if at in over else np.concatenate(slices, axis=at)


def _cut(axes: list[str], ranges: Mapping[str, NDArray[Any]]) -> str:
    """The axis to slice along: the first, or the longest where one index of that is too much already."""
    rest = math.prod(len(ranges[a]) for a in axes[1:])
    return axes[0] if rest <= _POINTS_AT_ONCE else max(axes, key=lambda a: len(ranges[a]))


def read_padded(array: Any, load: ex.Load, axes: Mapping[str, Any]) -> NDArray[Any]:
    """tensor[index] with 0 outside, in float64."""
    index = [np.asarray(ex.evaluate(i, axes, _no_load)) for i in load.index]
    inside = [(i >= 0) & (i < extent) for i, extent in zip(index, array.shape, strict=True)]
    if all(one.all() for one in inside):
        return _picked(array, index).astype(np.float64)
    clipped = [np.clip(i, 0, e - 1) for i, e in zip(index, array.shape, strict=True)]
    return np.where(reduce(np.logical_and, inside), _picked(array, clipped).astype(np.float64), 0.0)


def _picked(array: Any, index: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """array[index]; where each index moves along dimensions of its own, in order, an axis at a time, which
    copies rows and not points, and beginning with what leaves least."""
    if not isinstance(array, np.ndarray):
        return np.asarray(array.pick(index))
    moved = [dimension for i in index for dimension, size in enumerate(i.shape) if size != 1]
    if moved != sorted(set(moved)) or len({i.ndim for i in index if i.ndim}) > 1:
        return np.asarray(array[tuple(index)])
    found = array
    for axis in sorted(range(array.ndim), key=lambda k: index[k].size / array.shape[k]):
        flat = index[axis].ravel()
        if not _is_whole(flat, array.shape[axis]):
            found = found.take(flat, axis)
    return found.reshape(np.broadcast_shapes(*(i.shape for i in index)))


def _is_whole(index: NDArray[Any], extent: int) -> bool:
    """Whether an index takes all of a dimension, in order; costs what the index has, not what the dimension
    has."""
    return index.size == extent and index[0] == 0 and bool((index[1:] - index[:-1] == 1).all())


def _no_load(load: ex.Load) -> Any:
    raise ValueError(f"{load}: an index cannot read a tensor")
