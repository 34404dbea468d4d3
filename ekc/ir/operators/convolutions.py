"""Convolutions over one, two and three image dimensions: one expression for all of them.

`groups=c` is a depthwise convolution. Padding is 0 unless given, and may differ between the two ends of a
dimension. Channels-last layouts store the weights
with channels last too (OHWI for NHWC), as PyTorch's `channels_last` and cuDNN do.
"""

from __future__ import annotations

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.checks import whole
from ekc.ir.operator import MAX_ELEMENTS, Operator
from ekc.ir.operators.building import Tensor, compute
from ekc.ir.operators.windows import Channels, Layout, Padding, Window, windows


def conv1d(
    n: int,
    c: int,
    w: int,
    *,
    out_channels: int,
    kernel: int | tuple[int] = 3,
    stride: int | tuple[int] = 1,
    padding: Padding = 0,
    dilation: int | tuple[int] = 1,
    groups: int = 1,
    layout: str = "NCW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y[n, o, q] = sum over c, s of X[n, c, q*stride + s*dilation - padding] * W[o, c, s].

    Weights OIW (I is c / groups), with `layout="NWC"` OWI. Raises `InvalidInput` as `conv2d` does.
    """
    over = windows({"w": w}, kernel, stride, padding, dilation, _pad_same)
    return _convolution(
        "conv1d", n, Channels(c, out_channels, groups), over, layout, dtype, acc_dtype, out_dtype
    )


def conv2d(
    n: int,
    c: int,
    h: int,
    w: int,
    *,
    out_channels: int,
    kernel: int | tuple[int, int] = 3,
    stride: int | tuple[int, int] = 1,
    padding: Padding = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y[n, o, p, q] = sum over c, r, s of X[n, c, p*stride + r*dilation - padding, ...] * W[o, c, r, s].

    Input and output NCHW, weights OIHW (I is c / groups); with `layout="NHWC"` weights OHWI.
    `padding` is a number, or one for each image dimension, or pairs (before, after): ((1, 2), (0, 1)), and
    ((1, 2),) for both. "valid" is 0. "same" pads so that the output has ceil(h / stride) rows, as XLA has it
    (PyTorch knows it for stride 1 alone, and agrees there): an odd row goes behind the image.
    Raises `InvalidInput` for numbers out of range, groups that do not divide the channels, another layout,
    and a filter that spans more than the padded image.
    """
    over = windows({"h": h, "w": w}, kernel, stride, padding, dilation, _pad_same)
    return _convolution(
        "conv2d", n, Channels(c, out_channels, groups), over, layout, dtype, acc_dtype, out_dtype
    )


def conv3d(
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
    dilation: int | tuple[int, int, int] = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
) -> Operator:
    """Y[n, o, z, ...] = sum over c, t, ... of X[n, c, z*stride + t*dilation - padding, ...] * W[o, c, t, ...]

    Weights OIDHW (I is c / groups), with `layout="NDHWC"` ODHWI. Raises `InvalidInput` as `conv2d` does.
    """
    over = windows({"d": d, "h": h, "w": w}, kernel, stride, padding, dilation, _pad_same)
    return _convolution(
        "conv3d", n, Channels(c, out_channels, groups), over, layout, dtype, acc_dtype, out_dtype
    )


def _convolution(
    name: str,
    n: int,
    channels: Channels,
    over: tuple[Window, ...],
    layout: str,
    dtype: str,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Operator:
    whole("n", n, MAX_ELEMENTS)
    order = Layout.of(layout, "".join(x.dim for x in over).upper()).order
    places = [x.out * x.stride + x.tap * x.dilation - x.before for x in over]
    pixel = Tensor("X")[ex.Var("n"), *order(channels.read(), *places)]
    weight = Tensor("W")[ex.Var("o"), *order(ex.Var("c"), *(x.tap for x in over))]
    outs = [(x.out.name, _output_extent(x)) for x in over]
    taps = [(x.tap.name, x.kernel) for x in over]
    return compute(
        name,
        axes=dict([("n", n), *order(("o", channels.out), *outs)]),
        reduce=dict(order(("c", channels.share), *taps)),
        inputs={
            "X": (n, *order(channels.c, *(x.size for x in over))),
            "W": (channels.out, *order(channels.share, *(x.kernel for x in over))),
        },
        body=lambda: pixel * weight,
        output="Y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def _pad_same(x: Window) -> tuple[int, int]:
    """The least padding with ceil(size / stride) outputs; of an odd one the larger half behind."""
    outputs = -(-x.size // x.stride)
    total = max((outputs - 1) * x.stride + x.reach - x.size, 0)
    return total // 2, total - total // 2


def _output_extent(x: Window) -> int:
    padded = x.size + x.padding
    if x.reach > padded:
        near = (x.reach - x.size + 1) // 2
        raise InvalidInput(
            f"kernel: spans {x.reach} elements, the padded {x.dim} has {padded}; "
            f"the nearest legal padding is {near}"
        )
    return (padded - x.reach) // x.stride + 1
