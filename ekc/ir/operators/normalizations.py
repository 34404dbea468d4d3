"""softmax, layer_norm and rms_norm: graphs of computes that pass over the rows of a tensor several times.

A row runs along one axis or several. Each operator first reduces every row to one or two numbers in float32,
and then computes the elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ekc.argument_checks import format_value, is_number
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute_builder import Tensor, check_shape
from ekc.ir.dtypes import parse_dtype
from ekc.ir.operator import Operator, compute
from ekc.ir.operators.reductions import Axes, normalize_axes


@dataclass(frozen=True)
class _RowPass:
    """One pass over all rows of X, with axes named after its own letter."""

    letter: str
    shape: tuple[int, ...]
    row_dims: tuple[int, ...]
    """The dimensions that a row runs along."""

    @property
    def all_axes(self) -> dict[str, int]:
        """Every axis."""
        return {f"{self.letter}{d}": e for d, e in enumerate(self.shape)}

    @property
    def row_axes(self) -> dict[str, int]:
        """The axes that a row runs along."""
        return {f"{self.letter}{d}": self.shape[d] for d in self.row_dims}

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return tuple(self.row_axes.values())

    @property
    def outer_axes(self) -> dict[str, int]:
        """The axes that number the rows; one of extent 1 where there is a single row."""
        return {a: e for a, e in self.all_axes.items() if a not in self.row_axes} or {self.letter: 1}

    @property
    def element(self) -> ex.Load:
        """The element of X at this point."""
        return Tensor("X")[tuple(ex.Var(a) for a in self.all_axes)]

    def read_row_value(self, tensor: str) -> ex.Load:
        """The value of `tensor` for this row."""
        return Tensor(tensor)[tuple(ex.Var(a) for a in self.outer_axes if a in self.all_axes) or (0,)]

    def read_column_value(self, tensor: str) -> ex.Load:
        """The value of `tensor` for this place, the same in every row."""
        return Tensor(tensor)[tuple(ex.Var(a) for a in self.row_axes)]


def _make_passes(shape: tuple[int, ...], axes: Axes, letters: str, dtype: str) -> tuple[_RowPass, ...]:
    if parse_dtype(dtype).is_integer:
        raise InvalidInput(f"dtype: {dtype} has no fractions, which these need; use 'float16'")
    shape = check_shape("X", shape)
    return tuple(_RowPass(letter, shape, normalize_axes(axes, shape)) for letter in letters)


def _reduce_rows(
    name: str,
    rows: _RowPass,
    output: str,
    value: ex.Expr,
    combine: str,
    dtype: str,
    acc_dtype: str | None,
) -> Operator:
    """The first pass: one float32 number of each row."""
    return compute(
        name,
        axes=rows.outer_axes,
        reduce=rows.row_axes,
        inputs={"X": rows.shape},
        body=lambda: value,
        combine=combine,
        output=output,
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype="float32",
    )


def softmax(
    shape: tuple[int, ...],
    axis: Axes = -1,
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y = exp(X - top) / total along `axis`: top is the largest of a row, total the sum of its exp(X - top).

    `axis` is one axis, or a tuple of some that are normalised together; None is all of them. Nothing
    overflows: no exponent is above 0, and a total is at least 1.
    Raises `InvalidInput` for an axis that the shape lacks.
    """
    i, j, p = _make_passes(shape, axis, "ijp", dtype)
    op = _reduce_rows("softmax", i, "top", i.element, "max", dtype, acc_dtype)
    op = op.then(
        "total",
        axes=j.outer_axes,
        reduce=j.row_axes,
        body=lambda: ex.exp(j.element - j.read_row_value("top")),
        out_dtype="float32",
    )
    op = op.then(
        "Y",
        axes=p.all_axes,
        body=lambda: ex.exp(p.element - p.read_row_value("top")) / p.read_row_value("total"),
        out_dtype=out_dtype,
    )
    return replace(op, name="softmax")


def layer_norm(
    shape: tuple[int, ...],
    eps: float = 1e-5,
    *,
    axes: Axes = -1,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y = (X - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over `axes`.

    `axes` is one axis (the last, unless given), a tuple of any, or None for all, as in `reduce`. gamma and
    beta have the extents of these axes, in the order of X: (c,) for `axes=1` of (n, c, h, w). The variance is
    the mean of (X - mean)**2, in a pass of its own: the mean of X**2 less the square of the mean would lose
    the digits of a small spread.
    Elements may differ from the mean of their row by at most 1.8e19. The square of a larger difference is
    infinite in float32, and the row of Y is then beta, without NaN.
    Raises `InvalidInput` for an eps that is no number of at least 0, and axes that `reduce` refuses.
    """
    i, j, p = _make_passes(shape, axes, "ijp", dtype)
    share, eps = 1 / math.prod(i.row_shape), _check_eps(eps)
    op = _reduce_rows("layer_norm", i, "mean", i.element * share, "sum", dtype, acc_dtype)
    off = j.element - j.read_row_value("mean")
    op = op.then(
        "variance", axes=j.outer_axes, reduce=j.row_axes, body=lambda: off * off * share, out_dtype="float32"
    )
    op = op.then(
        "Y",
        axes=p.all_axes,
        inputs={"gamma": i.row_shape, "beta": i.row_shape},
        body=lambda: (
            (p.element - p.read_row_value("mean"))
            * ex.rsqrt(p.read_row_value("variance") + eps)
            * p.read_column_value("gamma")
            + p.read_column_value("beta")
        ),
        out_dtype=out_dtype,
    )
    return replace(op, name="layer_norm")


def rms_norm(
    shape: tuple[int, ...],
    eps: float = 1e-5,
    *,
    axes: Axes = -1,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y = X / sqrt(square + eps) * gamma, square the mean of X**2 over `axes`.

    `axes` as in `layer_norm`; gamma has their extents. Elements may be at most 1.8e19 from 0: a larger
    square is infinite in float32, and the row of Y is then 0. Raises `InvalidInput` as `layer_norm` does.
    """
    i, p = _make_passes(shape, axes, "ip", dtype)
    share, eps = 1 / math.prod(i.row_shape), _check_eps(eps)
    op = _reduce_rows("rms_norm", i, "square", i.element * i.element * share, "sum", dtype, acc_dtype)
    op = op.then(
        "Y",
        axes=p.all_axes,
        inputs={"gamma": i.row_shape},
        body=lambda: p.element * ex.rsqrt(p.read_row_value("square") + eps) * p.read_column_value("gamma"),
        out_dtype=out_dtype,
    )
    return replace(op, name="rms_norm")


def _check_eps(eps: float) -> float:
    number = eps.item() if isinstance(eps, np.generic) else eps
    if not is_number(number) or not 0 <= number < math.inf:
        raise InvalidInput(f"eps: {format_value(eps)} is not a number of at least 0; try 1e-5")
    return float(number)
