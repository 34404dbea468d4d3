"""softmax, layer_norm and rms_norm: graphs of computes that go over the rows of a tensor again and again.

A row runs along one axis or several. Each operator first reduces every row to a number or two, kept in
float32, then finishes its elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.arguments import is_number, show
from ekc.ir.dtypes import dtype_of
from ekc.ir.operator import Operator
from ekc.ir.operators.building import Tensor, compute, shape_of
from ekc.ir.operators.reductions import Axes, axes_of


@dataclass(frozen=True)
class _Pass:
    """One walk over all rows of X, its axes named after a letter of its own."""

    letter: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """The dimensions that a row runs along."""

    @property
    def whole(self) -> dict[str, int]:
        """Every axis."""
        return {f"{self.letter}{d}": e for d, e in enumerate(self.shape)}

    @property
    def along(self) -> dict[str, int]:
        """The axes that a row runs along."""
        return {f"{self.letter}{d}": self.shape[d] for d in self.axes}

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of a row."""
        return tuple(self.along.values())

    @property
    def rows(self) -> dict[str, int]:
        """The axes that number the rows; one of extent 1 where there is a single row."""
        return {a: e for a, e in self.whole.items() if a not in self.along} or {self.letter: 1}

    @property
    def x(self) -> ex.Load:
        """The element of X at this point."""
        return Tensor("X")[tuple(ex.Var(a) for a in self.whole)]

    def of_row(self, tensor: str) -> ex.Load:
        """What `tensor` holds for this row."""
        return Tensor(tensor)[tuple(ex.Var(a) for a in self.rows if a in self.whole) or (0,)]

    def of_column(self, tensor: str) -> ex.Load:
        """What `tensor` holds for this place in every row."""
        return Tensor(tensor)[tuple(ex.Var(a) for a in self.along)]


def _passes(shape: tuple[int, ...], axes: Axes, letters: str, dtype: str) -> tuple[_Pass, ...]:
    if dtype_of(dtype).integer:
        raise InvalidInput(f"dtype: {dtype} has no fractions, which these need; the nearest is 'float16'")
    shape = shape_of("X", shape)
    return tuple(_Pass(letter, shape, axes_of(axes, shape)) for letter in letters)


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
    i, j, p = _passes(shape, axis, "ijp", dtype)
    op = compute(
        "softmax",
        axes=i.rows,
        reduce=i.along,
        inputs={"X": i.shape},
        body=lambda: i.x,
        combine="max",
        output="top",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype="float32",
    )
    op = op.then(
        "total",
        axes=j.rows,
        reduce=j.along,
        body=lambda: ex.exp(j.x - j.of_row("top")),
        out_dtype="float32",
    )
    op = op.then(
        "Y",
        axes=p.whole,
        body=lambda: ex.exp(p.x - p.of_row("top")) / p.of_row("total"),
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
    Raises `InvalidInput` for an eps that is no number of at least 0, and axes that `reduce` refuses.
    """
    i, j, p = _passes(shape, axes, "ijp", dtype)
    share, eps = 1 / math.prod(i.row), _not_negative(eps)
    op = compute(
        "layer_norm",
        axes=i.rows,
        reduce=i.along,
        inputs={"X": i.shape},
        body=lambda: i.x * share,
        output="mean",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype="float32",
    )
    off = j.x - j.of_row("mean")
    op = op.then("variance", axes=j.rows, reduce=j.along, body=lambda: off * off * share, out_dtype="float32")
    op = op.then(
        "Y",
        axes=p.whole,
        inputs={"gamma": i.row, "beta": i.row},
        body=lambda: (
            (p.x - p.of_row("mean")) * ex.rsqrt(p.of_row("variance") + eps) * p.of_column("gamma")
            + p.of_column("beta")
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

    `axes` as in `layer_norm`; gamma has their extents. Raises `InvalidInput` as `layer_norm` does.
    """
    i, p = _passes(shape, axes, "ip", dtype)
    share, eps = 1 / math.prod(i.row), _not_negative(eps)
    op = compute(
        "rms_norm",
        axes=i.rows,
        reduce=i.along,
        inputs={"X": i.shape},
        body=lambda: i.x * i.x * share,
        output="square",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype="float32",
    )
    op = op.then(
        "Y",
        axes=p.whole,
        inputs={"gamma": i.row},
        body=lambda: p.x * ex.rsqrt(p.of_row("square") + eps) * p.of_column("gamma"),
        out_dtype=out_dtype,
    )
    return replace(op, name="rms_norm")


def _not_negative(eps: float) -> float:
    number = eps.item() if isinstance(eps, np.generic) else eps
    if not is_number(number) or not 0 <= number < math.inf:
        raise InvalidInput(f"eps: {show(eps)} is not a number of at least 0; try 1e-5")
    return float(number)
