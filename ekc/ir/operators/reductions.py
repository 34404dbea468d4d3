"""Reductions of one tensor over some of its axes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ekc.argument_checks import check_choice, check_flag, format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute_builder import Tensor, check_shape
from ekc.ir.dtypes import INT32, parse_dtype
from ekc.ir.operator import Operator, compute
from ekc.ir.validate import to_tuple

Axes = int | tuple[int, ...] | None
"""One axis, several, or all; negative ones count from the last."""
_COMBINE_ALIASES = {"avg": "mean", "average": "mean"}
"""Names of other libraries that are spelled far from ours."""
_ARG_COMBINES = {"argmax": "max", "argmin": "min"}
_MAX_INDEXED_ELEMENTS = INT32.integer_limits[1]
"""Most elements that int32 can count."""
_COMBINES = ("sum", "prod", "max", "min", "mean", "argmax", "argmin")


def reduce(
    shape: tuple[int, ...],
    axes: Axes = None,
    combine: str = "sum",
    *,
    keepdims: bool = False,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y = "sum", "prod", "max", "min", "mean", "argmax" or "argmin" of X over `axes` (None: all), as NumPy's.

    Negative axes count from the last. With `keepdims` a reduced axis stays with extent 1; without, a
    reduction over all axes has the shape (1,). A mean adds up elements times 1/count, so that it cannot
    overflow where its result does not. NaN is kept, by "max" and "min" too. Sums and products of int32 wrap
    modulo 2**32; a product of more than four int8 might leave int32, and is refused.

    "argmax" and "argmin" give int32: where the extreme is along the axis; of several axes, its number when
    their elements are counted in order, the last axis fastest (None: in all of X). Of equal elements the
    first counts, and the first NaN before all numbers. They are two computes, the extreme and the least index
    that has it, and so exact in parts and over lanes too.
    Raises `InvalidInput` for an axis outside the shape or given twice, an unknown combine, and an argmax that
    is to be stored as another type than int32 or goes over 2**31 elements or more.
    """
    shape = check_shape("X", shape)
    check_choice("combine", combine, _COMBINES, _COMBINE_ALIASES)
    check_flag("keepdims", keepdims)
    over = normalize_axes(axes, shape)
    if combine in _ARG_COMBINES:
        return _build_arg_reduction(shape, over, combine, keepdims, dtype, acc_dtype, out_dtype)
    index = tuple(ex.Var(f"k{d}" if d in over else f"i{d}") for d in range(len(shape)))
    element: ex.Expr = Tensor("X")[index]
    if combine == "mean":
        element = element * (1 / prod(shape[d] for d in over))
    kept = {f"i{d}": 1 if d in over else e for d, e in enumerate(shape) if keepdims or d not in over}
    return compute(
        f"reduce_{combine}",
        axes=kept or {"one": 1},
        reduce={f"k{d}": shape[d] for d in over},
        inputs={"X": shape},
        body=lambda: element,
        combine="sum" if combine == "mean" else combine,
        output="Y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def _build_arg_reduction(
    shape: tuple[int, ...],
    reduced_dims: tuple[int, ...],
    combine: str,
    keepdims: bool,
    dtype: str,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Operator:
    """The extreme of each row, then the least index of an element that equals it or, as it, is NaN."""
    if out_dtype not in (None, "int32", INT32) or acc_dtype is not None:
        name = "acc_dtype" if acc_dtype is not None else "out_dtype"
        raise InvalidInput(f"{name}: {combine} compares elements as they are and gives int32; leave it out")
    count = prod(shape[d] for d in reduced_dims)
    if count > _MAX_INDEXED_ELEMENTS:
        raise InvalidInput(
            f"{combine}: {count} elements, at most {_MAX_INDEXED_ELEMENTS}, as int32 counts; take fewer axes"
        )
    kept = [d for d in range(len(shape)) if keepdims or d not in reduced_dims]

    def name_axes(spatial: str, summed: str) -> tuple[dict[str, int], dict[str, int], tuple[ex.Expr, ...]]:
        """The axes of a compute, those it goes along, and the index of an element of X."""
        places = {f"{spatial}{d}": 1 if d in reduced_dims else shape[d] for d in kept} or {spatial: 1}
        along = {f"{summed}{d}": shape[d] for d in reduced_dims}
        index = tuple(ex.Var(f"{summed if d in reduced_dims else spatial}{d}") for d in range(len(shape)))
        return places, along, index

    element = parse_dtype(dtype)
    places, along, first = name_axes("i", "k")
    op = compute(
        f"reduce_{combine}",
        axes=places,
        reduce=along,
        inputs={"X": shape},
        body=lambda: Tensor("X")[first],
        combine=_ARG_COMBINES[combine],
        output="extreme",
        dtype=dtype,
        out_dtype=element.default_result,
    )
    places, along, again = name_axes("p", "q")
    x, extreme = Tensor("X")[again], Tensor("extreme")[tuple(map(ex.Var, places))]
    number: ex.Expr = ex.Const(0)
    for d in reduced_dims:
        number = number * shape[d] + ex.Var(f"q{d}") if d != reduced_dims[0] else ex.Var(f"q{d}")
    # NaN equals nothing: where the extreme is NaN, elements that do not equal themselves have it.
    # An element that is not the extreme counts as the number of all, which is greater than each index.
    nan = count if element.is_integer else ex.where(ex.equal(x, x), count, number)
    found = op.then(
        "Y",
        axes=places,
        reduce=along,
        body=lambda: ex.where(ex.equal(x, extreme), number, nan),
        combine="min",
        acc_dtype="int32",
        out_dtype="int32",
    )
    return replace(found, name=op.name)


def normalize_axes(axes: Axes, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Positions in a shape, each from 0 and in order; negative ones count from the last, None is all."""
    rank = len(shape)
    if axes is None:
        return tuple(range(rank))
    given = to_tuple(axes)
    if given is None:
        given = (axes,)
    if not given:
        raise InvalidInput("axes: names no axis; leave it out to reduce over all")
    found = [_normalize_axis(a, rank) for a in given]
    for a in found:
        if found.count(a) > 1:
            raise InvalidInput(f"axes: {given} names axis {a} twice; leave the second out")
    return tuple(sorted(found))


def _normalize_axis(axis: Any, rank: int) -> int:
    number = axis.item() if isinstance(axis, np.generic) else axis
    if not isinstance(number, int) or isinstance(number, bool) or not -rank <= number < rank:
        near = min(max(number if isinstance(number, int) else -1, -rank), rank - 1)
        raise InvalidInput(f"axis: {format_value(axis)} is not from {-rank} to {rank - 1}; use {near}")
    return number % rank
