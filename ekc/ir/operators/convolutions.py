"""Convolutions over one, two and three image dimensions: one expression for all of them.

`groups=c` is a depthwise convolution. Padding is 0 unless given, and may differ between the two ends of a
dimension. Channels-last layouts store the weights
with channels last too (OHWI for NHWC), as PyTorch's `channels_last` and cuDNN do.
"""

from __future__ import annotations

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.checks import check_int
from ekc.ir.operator import MAX_ELEMENTS, Operator
from ekc.ir.operators.building import Tensor, compute
from ekc.ir.operators.windows import Channels, FilterWindow, ImageLayout, Padding, make_windows


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
    over = make_windows({"w": w}, kernel, stride, padding, dilation, _compute_same_padding)
    return _build_convolution(
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
    over = make_windows({"h": h, "w": w}, kernel, stride, padding, dilation, _compute_same_padding)
    return _build_convolution(
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
    over = make_windows({"d": d, "h": h, "w": w}, kernel, stride, padding, dilation, _compute_same_padding)
    return _build_convolution(
        "conv3d", n, Channels(c, out_channels, groups), over, layout, dtype, acc_dtype, out_dtype
    )


def _build_convolution(
    name: str,
    n: int,
    channels: Channels,
    filter_windows: tuple[FilterWindow, ...],
    layout: str,
    dtype: str,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Operator:
    check_int("n", n, MAX_ELEMENTS)
    order = ImageLayout.from_name(layout, "".join(x.dim for x in filter_windows).upper()).order_dims
    places = [x.output_axis * x.stride + x.filter_axis * x.dilation - x.before for x in filter_windows]
    pixel = Tensor("X")[ex.Var("n"), *order(channels.make_input_index(), *places)]
    weight = Tensor("W")[ex.Var("o"), *order(ex.Var("c"), *(x.filter_axis for x in filter_windows))]
    outs = [(x.output_axis.name, _compute_output_extent(x)) for x in filter_windows]
    taps = [(x.filter_axis.name, x.kernel) for x in filter_windows]
    return compute(
        name,
        axes=dict([("n", n), *order(("o", channels.output_count), *outs)]),
        reduce=dict(order(("c", channels.inputs_per_group), *taps)),
        inputs={
            "X": (n, *order(channels.input_count, *(x.size for x in filter_windows))),
            "W": (
                channels.output_count,
                *order(channels.inputs_per_group, *(x.kernel for x in filter_windows)),
            ),
        },
        body=lambda: pixel * weight,
        output="Y",
        dtype=dtype,
        acc_dtype=acc_dtype,
        out_dtype=out_dtype,
    )


def _compute_same_padding(window: FilterWindow) -> tuple[int, int]:
    """The least padding with ceil(size / stride) outputs; of an odd one the larger half behind."""
    outputs = -(-window.size // window.stride)
    total = max((outputs - 1) * window.stride + window.span - window.size, 0)
    return total // 2, total - total // 2


def _compute_output_extent(window: FilterWindow) -> int:
    padded = window.size + window.total_padding
    if window.span > padded:
        near = (window.span - window.size + 1) // 2
        raise InvalidInput(
            f"kernel: spans {window.span} elements, the padded {window.dim} has {padded}; "
            f"the nearest legal padding is {near}"
        )
    return (padded - window.span) // window.stride + 1
