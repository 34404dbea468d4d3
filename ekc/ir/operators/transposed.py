"""Transposed convolutions, as PyTorch names them: what the gradient of a convolution's input is.

An input element reaches every stride-th output. Seen from an output p, with u = p + padding before it:
the taps r that reach it satisfy r*dilation = u (mod stride), so they start at some r0 that depends on u
and lie a fixed step apart. Every output then gathers its own taps with quotients and remainders of u,
nothing is computed twice and nothing inserted, and to the rest of ekc it is one more expression.
"""

from __future__ import annotations

import math

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.checks import whole
from ekc.ir.operator import MAX_ELEMENTS, Operator
from ekc.ir.operators.building import Tensor, compute
from ekc.ir.operators.windows import Channels, Layout, Padding, Several, Window, paddings_after, windows


def conv_transpose1d(
    n: int,
    c: int,
    w: int,
    *,
    out_channels: int,
    kernel: int | tuple[int] = 3,
    stride: int | tuple[int] = 1,
    padding: Padding = 0,
    output_padding: int | tuple[int] = 0,
    dilation: int | tuple[int] = 1,
    groups: int = 1,
    layout: str = "NCW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y[n, o, q*stride + s*dilation - padding] += X[n, c, q] * W[c, o, s] for every q and s.

    Weights IOW (O is out_channels / groups), with `layout="NWC"` IWO. See `conv_transpose2d`.
    """
    over = windows({"w": w}, kernel, stride, padding, dilation, _crop_same)
    channels = Channels(c, out_channels, groups)
    return _transposed(
        "conv_transpose1d", n, channels, over, output_padding, layout, dtype, acc_dtype, out_dtype
    )


def conv_transpose2d(
    n: int,
    c: int,
    h: int,
    w: int,
    *,
    out_channels: int,
    kernel: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    padding: Padding = 0,
    output_padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y[n, o, p*stride + r*dilation - padding, ...] += X[n, c, p, ...] * W[c, o, r, s] for every p, q, r, s.

    The output has (h - 1)*stride - 2*padding + (kernel - 1)*dilation + 1 + output_padding rows. Weights
    IOHW (O is out_channels / groups), with `layout="NHWC"` IHWO.
    `padding` takes rows away from the two ends of the output; it has the forms of `conv2d`. "same" makes the
    output h * stride rows: those whose convolution with padding="same" and this stride has h rows, so that
    the one is the gradient of the other, as in XLA. Of an odd number of rows the larger half goes at the end;
    output_padding adds rows there as it does elsewhere.
    Raises `InvalidInput` as `conv2d` does, and for a padding that leaves no output or an output_padding
    that is below neither stride nor dilation.
    """
    over = windows({"h": h, "w": w}, kernel, stride, padding, dilation, _crop_same)
    channels = Channels(c, out_channels, groups)
    return _transposed(
        "conv_transpose2d", n, channels, over, output_padding, layout, dtype, acc_dtype, out_dtype
    )


def conv_transpose3d(
    n: int,
    c: int,
    d: int,
    h: int,
    w: int,
    *,
    out_channels: int,
    kernel: int | tuple[int, int, int] = 3,
    stride: int | tuple[int, int, int] = 1,
    padding: Padding = 0,
    output_padding: int | tuple[int, int, int] = 0,
    dilation: int | tuple[int, int, int] = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """As `conv_transpose2d`, over depth too: weights IODHW, with `layout="NDHWC"` IDHWO."""
    over = windows({"d": d, "h": h, "w": w}, kernel, stride, padding, dilation, _crop_same)
    channels = Channels(c, out_channels, groups)
    return _transposed(
        "conv_transpose3d", n, channels, over, output_padding, layout, dtype, acc_dtype, out_dtype
    )


def _transposed(
    name: str,
    n: int,
    channels: Channels,
    over: tuple[Window, ...],
    output_padding: Several,
    layout: str,
    dtype: str,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Operator:
    whole("n", n, MAX_ELEMENTS)
    order = Layout.of(layout, "".join(x.dim for x in over).upper()).order
    gathers = [_Gather(x) for x in over]
    pixel = Tensor("X")[ex.Var("n"), *order(channels.read(), *(g.source for g in gathers))]
    own = _remainder(ex.Var("o"), channels.per) if channels.groups > 1 else ex.Var("o")
    weight = Tensor("W")[channels.read(), *order(own, *(g.weight for g in gathers))]
    after = paddings_after(output_padding, over)
    outs = [(x.out.name, _output_extent(x, more)) for x, more in zip(over, after, strict=True)]
    taps = [(g.window.tap.name, g.taps) for g in gathers]
    return compute(
        name,
        axes=dict([("n", n), *order(("o", channels.out), *outs)]),
        reduce=dict(order(("c", channels.share), *taps)),
        inputs={
            "X": (n, *order(channels.c, *(x.size for x in over))),
            "W": (channels.c, *order(channels.per, *(x.kernel for x in over))),
        },
        body=lambda: pixel * weight,
        output="Y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


class _Gather:
    """The taps that reach an output along one dimension, and where each comes from.

    Let u = p + padding before and g = gcd(stride, dilation). Unless g divides u no tap fits. Otherwise, with
    v = u/g, s = stride/g, d = dilation/g: r = v * d**-1 (mod s), so r = first + tap*s, and its input lies
    at (v - r*d) / s, which is (v - first*d)/s - tap*d. A tap beyond the filter reads a weight outside of
    it, which is 0; where g does not divide u, every tap is put there.
    """

    def __init__(self, window: Window) -> None:
        g = math.gcd(window.stride, window.dilation)
        stride, dilation = window.stride // g, window.dilation // g
        u = window.out + window.before
        v = _quotient(u, g)
        inverse = pow(dilation, -1, stride) if stride > 1 else 1
        first = _remainder(v * inverse, stride)
        astray = _remainder(u, g) * window.kernel if g > 1 else 0
        # With dilation 1 the quotient drops what `first` would take away.
        whole_part = v if dilation == 1 else v - first * dilation
        self.window = window
        self.taps = -(-window.kernel // stride)
        self.source = _quotient(whole_part, stride) - window.tap * dilation
        self.weight = first + window.tap * stride + astray


def _quotient(e: ex.Expr, by: int) -> ex.Expr:
    return e if by == 1 else e // by


def _remainder(e: ex.Expr, by: int) -> ex.Expr:
    return ex.Const(0) if by == 1 else e % by


def _crop_same(x: Window) -> tuple[int, int]:
    """Elements to take away before and behind, so that size * stride are left; below 0 behind where strides
    leave gaps between the filters."""
    before = max(x.reach - x.stride, 0) // 2
    return before, x.reach - x.stride - before


def _output_extent(x: Window, more: int) -> int:
    extent = (x.size - 1) * x.stride + x.reach + more - x.padding
    if extent < 1:
        near = ((x.size - 1) * x.stride + x.reach + more - 1) // 2
        raise InvalidInput(
            f"padding: {x.before if x.before == x.after else (x.before, x.after)} leaves no output along "
            f"{x.dim}; the nearest legal value is {near}"
        )
    return extent
