"""Reductions of one tensor over some of its axes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.arguments import check_choice, check_flag, show
from ekc.ir.checks import several
from ekc.ir.operator import Operator
from ekc.ir.operators.building import Tensor, compute, shape_of

_COMBINES = ("sum", "max", "min", "mean")


def reduce(
    shape: tuple[int, ...],
    axes: int | tuple[int, ...] | None = None,
    combine: str = "sum",
    *,
    keepdims: bool = False,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y = "sum", "max", "min" or "mean" of X over `axes` (None: all), as NumPy's reductions have it.

    Negative axes count from the last. With `keepdims` a reduced axis stays with extent 1; without, a
    reduction over all axes has the shape (1,). A mean adds up elements times 1/count, so that it cannot
    overflow where its result does not.
    Raises `InvalidInput` for an axis outside the shape or given twice, and an unknown combine.
    """
    shape = shape_of("X", shape)
    check_choice("combine", combine, _COMBINES)
    check_flag("keepdims", keepdims)
    over = axes_of(axes, shape)
    element: ex.Expr = Tensor("X")[
        tuple(ex.Var(f"k{d}" if d in over else f"i{d}") for d in range(len(shape)))
    ]
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


def axes_of(axes: int | tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Positions in a shape, each from 0 and in order; negative ones count from the last, None is all."""
    rank = len(shape)
    if axes is None:
        return tuple(range(rank))
    given = several(axes)
    if given is None:
        given = (axes,)
    if not given:
        raise InvalidInput("axes: names no axis; leave it out to reduce over all")
    found = [_axis(a, rank) for a in given]
    for a in found:
        if found.count(a) > 1:
            raise InvalidInput(f"axes: {given} names axis {a} twice; leave the second out")
    return tuple(sorted(found))


def _axis(axis: Any, rank: int) -> int:
    number = axis.item() if isinstance(axis, np.generic) else axis
    if not isinstance(number, int) or isinstance(number, bool) or not -rank <= number < rank:
        near = min(max(number if isinstance(number, int) else -1, -rank), rank - 1)
        raise InvalidInput(
            f"axis: {show(axis)} is not from {-rank} to {rank - 1}; the nearest legal value is {near}"
        )
    return number % rank
