"""Transposed convolutions, as PyTorch names them: the gradient of a convolution with respect to its input.

An input element reaches every stride-th output. Seen from an output p, with u = p + padding before it:
the taps r that reach it satisfy r*dilation = u (mod stride), so they start at some r0 that depends on u
and have a constant distance. Every output gathers its own taps with quotients and remainders of u. Nothing is
computed twice, no zeros are inserted, and the operator is an ordinary expression.
"""

from __future__ import annotations

import math

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import MAX_ELEMENTS
from ekc.ir.operator import Operator
from ekc.ir.operators.convolutions import (
    Channels,
    DimensionReads,
    ElementTypes,
    Filters,
    FilterWindow,
    Padding,
    PerDimension,
    check_output_padding,
    make_windows,
    multiply_by_filter,
)
from ekc.ir.validate import check_int


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
    return _build_conv_transpose(
        n,
        {"w": w},
        (c, out_channels, groups),
        (kernel, stride, padding, dilation),
        output_padding,
        layout,
        (dtype, acc_dtype, out_dtype),
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
    return _build_conv_transpose(
        n,
        {"h": h, "w": w},
        (c, out_channels, groups),
        (kernel, stride, padding, dilation),
        output_padding,
        layout,
        (dtype, acc_dtype, out_dtype),
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
    return _build_conv_transpose(
        n,
        {"d": d, "h": h, "w": w},
        (c, out_channels, groups),
        (kernel, stride, padding, dilation),
        output_padding,
        layout,
        (dtype, acc_dtype, out_dtype),
    )


def _build_conv_transpose(
    n: int,
    image_extents: dict[str, int],
    channel_counts: tuple[int, int, int],
    filters: Filters,
    output_padding: PerDimension,
    layout: str,
    types: ElementTypes,
) -> Operator:
    filter_windows = make_windows(image_extents, filters, _compute_same_cropping)
    channels = Channels(*channel_counts)
    check_int("n", n, MAX_ELEMENTS)
    after = check_output_padding(output_padding, filter_windows)
    reads = [_gather_taps(x, more) for x, more in zip(filter_windows, after, strict=True)]
    own: ex.Expr = ex.Var("o")
    if channels.group_count > 1:
        own = _take_remainder(own, channels.outputs_per_group)
    weight_channels = (
        (channels.make_input_index(), channels.input_count),
        (own, channels.outputs_per_group),
    )
    name = f"conv_transpose{len(reads)}d"
    return multiply_by_filter(name, n, channels, weight_channels, reads, layout, types)


def _gather_taps(window: FilterWindow, output_padding: int) -> DimensionReads:
    """The taps that reach an output along one dimension, and the input of each.

    Let u = p + padding before and g = gcd(stride, dilation). Unless g divides u no tap fits. Otherwise, with
    v = u/g, s = stride/g, d = dilation/g: r = v * d**-1 (mod s), so r = first + tap*s, and its input is
    at (v - r*d) / s, which is (v - first*d)/s - tap*d. A tap beyond the filter reads a weight outside of
    it, which is 0; where g does not divide u, every tap is put there.
    """
    g = math.gcd(window.stride, window.dilation)
    stride, dilation = window.stride // g, window.dilation // g
    u = window.output_axis + window.before
    v = _divide(u, g)
    inverse = pow(dilation, -1, stride) if stride > 1 else 1
    first = _take_remainder(v * inverse, stride)
    astray = _take_remainder(u, g) * window.kernel if g > 1 else 0
    # With dilation 1 the quotient drops what `first` would take away.
    whole_part = v if dilation == 1 else v - first * dilation
    return DimensionReads(
        window,
        output_extent=_compute_output_extent(window, output_padding),
        tap_count=-(-window.kernel // stride),
        input_index=_divide(whole_part, stride) - window.filter_axis * dilation,
        weight_index=first + window.filter_axis * stride + astray,
    )


def _divide(e: ex.Expr, divisor: int) -> ex.Expr:
    return e if divisor == 1 else e // divisor


def _take_remainder(e: ex.Expr, divisor: int) -> ex.Expr:
    return ex.Const(0) if divisor == 1 else e % divisor


def _compute_same_cropping(window: FilterWindow) -> tuple[int, int]:
    """Elements to take away before and behind for size * stride outputs; below 0 where filters have gaps."""
    before = max(window.span - window.stride, 0) // 2
    return before, window.span - window.stride - before


def _compute_output_extent(window: FilterWindow, output_padding: int) -> int:
    extent = (window.size - 1) * window.stride + window.span + output_padding - window.total_padding
    if extent < 1:
        near = ((window.size - 1) * window.stride + window.span + output_padding - 1) // 2
        padding = window.before if window.before == window.after else (window.before, window.after)
        raise InvalidInput(f"padding: {padding} leaves no output along {window.dim}; use {near}")
    return extent
