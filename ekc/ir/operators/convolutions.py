"""Convolutions over one, two and three image dimensions: one expression for all of them.

`groups=c` is a depthwise convolution. Padding is 0 unless given, and may differ between the two ends of a
dimension. Channels-last layouts store the weights
with channels last too (OHWI for NHWC), as PyTorch's `channels_last` and cuDNN do.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ekc.argument_checks import check_choice, format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import MAX_ELEMENTS
from ekc.ir.compute_builder import Tensor
from ekc.ir.operator import Operator, compute
from ekc.ir.validate import check_int, to_tuple

PerDimension = int | tuple[int, ...]
"""One number for every image dimension, or one for each."""
Padding = int | str | tuple[int | tuple[int, int], ...]
"""One number for both ends of every image dimension; for each dimension a number or the pair (before, after);
`((before, after),)` for every dimension; "same" or "valid"."""
Filters = tuple[PerDimension, PerDimension, Padding, PerDimension]
"""`kernel`, `stride`, `padding` and `dilation` of a convolution."""
ElementTypes = tuple[str, str | None, str | None]
"""`dtype`, `acc_dtype` and `out_dtype` of an operator."""
_PADDING_WORDS = ("same", "valid")
_AXES_BY_DIM = {"d": ("z", "t"), "h": ("p", "r"), "w": ("q", "s")}
"""The output axis and the filter axis of each image dimension: depth, height, width."""


@dataclass(frozen=True)
class FilterWindow:
    """The filter along one image dimension."""

    dim: str
    """"d", "h" or "w"."""
    size: int
    kernel: int
    stride: int
    dilation: int
    before: int = 0
    """Padding at the start of the dimension."""
    after: int = 0
    """Padding at its end."""

    @property
    def span(self) -> int:
        """Elements from the filter's first tap to its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def total_padding(self) -> int:
        """Padding at both ends together."""
        return self.before + self.after

    @property
    def output_axis(self) -> ex.Var:
        """The axis that the output runs along."""
        return ex.Var(_AXES_BY_DIM[self.dim][0])

    @property
    def filter_axis(self) -> ex.Var:
        """The axis that the filter runs along."""
        return ex.Var(_AXES_BY_DIM[self.dim][1])


def make_windows(
    image_extents: dict[str, int],
    filters: Filters,
    pad_same: Callable[[FilterWindow], tuple[int, int]],
) -> tuple[FilterWindow, ...]:
    """One window for each image dimension, checked; `pad_same`: padding of both ends for padding="same"."""
    count, (kernel, stride, padding, dilation) = len(image_extents), filters
    columns = zip(
        _expand_per_dimension("kernel", kernel, count),
        _expand_per_dimension("stride", stride, count),
        _expand_per_dimension("dilation", dilation, count),
        strict=True,
    )
    over = [
        FilterWindow(dim, check_int(dim, size, MAX_ELEMENTS), *numbers)
        for (dim, size), numbers in zip(image_extents.items(), columns, strict=True)
    ]
    if isinstance(padding, str):
        ends = [pad_same(x) if _check_padding_word(padding) == "same" else (0, 0) for x in over]
    else:
        ends = _read_ends(padding, count)
    return tuple(replace(x, before=a, after=b) for x, (a, b) in zip(over, ends, strict=True))


def _check_padding_word(padding: str) -> str:
    if padding in _PADDING_WORDS:
        return padding
    near = difflib.get_close_matches(padding, _PADDING_WORDS, n=1, cutoff=0.0)[0]
    raise InvalidInput(
        f"padding: {format_value(padding)} is neither a number, nor pairs (before, after), nor one of "
        f"{', '.join(_PADDING_WORDS)}; use {near!r}"
    )


def _read_ends(padding: Any, count: int) -> list[tuple[int, int]]:
    """Padding before and after each image dimension."""
    given = to_tuple(padding)
    if given is None:
        given = (padding,) * count
    elif len(given) == 1 and to_tuple(given[0]) is not None:
        given *= count
    if len(given) != count:
        pairs = ", ".join(["(1, 2)"] * count)
        first = format_value(padding[0]) if given else 0
        raise InvalidInput(
            f"padding: {format_value(padding)} has {len(given)} entries for {count} image "
            f"dimension{'s' * (count > 1)}; try {first}, or (before, after) of each: "
            f"({pairs}{',' * (count == 1)})"
        )
    return [_read_pair(one) for one in given]


def _read_pair(entry: Any) -> tuple[int, int]:
    both = to_tuple(entry)
    if both is None:
        both = (entry, entry)
    if len(both) != 2:
        raise InvalidInput(f"padding: {format_value(entry)} is no pair (before, after); try (1, 2)")
    before, after = (check_int("padding", v, MAX_ELEMENTS, 0) for v in both)
    return before, after


def _expand_per_dimension(name: str, value: PerDimension, count: int, minimum: int = 1) -> tuple[int, ...]:
    each = to_tuple(value)
    if each is None:
        each = (value,) * count
    if len(each) != count:
        other = {1: "nor a tuple of one", 2: "nor a pair"}.get(count, "nor a triple")
        raise InvalidInput(f"{name}: {format_value(value)} is neither one whole number {other}")
    return tuple(check_int(name, v, MAX_ELEMENTS, minimum) for v in each)


def check_output_padding(value: PerDimension, filter_windows: Sequence[FilterWindow]) -> tuple[int, ...]:
    """`output_padding` for each window: less than its stride or its dilation, as PyTorch has it."""
    extra = _expand_per_dimension("output_padding", value, len(filter_windows), minimum=0)
    for e, window in zip(extra, filter_windows, strict=True):
        most = max(window.stride, window.dilation) - 1
        if e > most:
            raise InvalidInput(
                f"output_padding: {e} along {window.dim} is not below its stride or dilation; use {most}"
            )
    return extra


@dataclass(frozen=True)
class Channels:
    """Input and output channels, in groups that do not mix."""

    input_count: int
    output_count: int
    group_count: int

    def __post_init__(self) -> None:
        sides = (("c", self.input_count), ("out_channels", self.output_count))
        for name, value in (*sides, ("groups", self.group_count)):
            check_int(name, value, MAX_ELEMENTS)
        for name, count in sides:
            if count % self.group_count:
                common = math.gcd(self.input_count, self.output_count)
                near = next(g for g in range(min(self.group_count, common), 0, -1) if common % g == 0)
                raise InvalidInput(f"groups: {self.group_count} does not divide {name}={count}; use {near}")

    @property
    def inputs_per_group(self) -> int:
        """Number of input channels that one output channel sums over."""
        return self.input_count // self.group_count

    @property
    def outputs_per_group(self) -> int:
        """Number of output channels of a group."""
        return self.output_count // self.group_count

    def make_input_index(self) -> ex.Expr:
        """The input channel: axis c within the group of output channel o."""
        if self.group_count == 1:
            return ex.Var("c")
        group = ex.Var("o") if self.outputs_per_group == 1 else ex.Var("o") // self.outputs_per_group
        return group * self.inputs_per_group + ex.Var("c")


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
    return _build_convolution(
        n,
        {"w": w},
        (c, out_channels, groups),
        (kernel, stride, padding, dilation),
        layout,
        (dtype, acc_dtype, out_dtype),
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
    return _build_convolution(
        n,
        {"h": h, "w": w},
        (c, out_channels, groups),
        (kernel, stride, padding, dilation),
        layout,
        (dtype, acc_dtype, out_dtype),
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
    return _build_convolution(
        n,
        {"d": d, "h": h, "w": w},
        (c, out_channels, groups),
        (kernel, stride, padding, dilation),
        layout,
        (dtype, acc_dtype, out_dtype),
    )


def _build_convolution(
    n: int,
    image_extents: dict[str, int],
    channel_counts: tuple[int, int, int],
    filters: Filters,
    layout: str,
    types: ElementTypes,
) -> Operator:
    filter_windows = make_windows(image_extents, filters, _compute_same_padding)
    channels = Channels(*channel_counts)
    check_int("n", n, MAX_ELEMENTS)
    reads = []
    for x in filter_windows:
        place = x.output_axis * x.stride + x.filter_axis * x.dilation - x.before
        reads.append(DimensionReads(x, _compute_output_extent(x), x.kernel, place, x.filter_axis))
    weight_channels = (ex.Var("o"), channels.output_count), (ex.Var("c"), channels.inputs_per_group)
    return multiply_by_filter(f"conv{len(reads)}d", n, channels, weight_channels, reads, layout, types)


class DimensionReads(NamedTuple):
    """The elements that an output reads along one image dimension."""

    window: FilterWindow
    output_extent: int
    tap_count: int
    input_index: ex.Expr
    weight_index: ex.Expr


def multiply_by_filter(
    name: str,
    n: int,
    channels: Channels,
    weight_channels: Sequence[tuple[ex.Expr, int]],
    reads: Sequence[DimensionReads],
    layout: str,
    types: ElementTypes,
) -> Operator:
    """The sum of pixel times weight over channels and taps; `weight_channels`: index and extent of the first
    dimension of the weights, and of their channel dimension."""
    windows = [r.window for r in reads]
    dims = "".join(x.dim for x in windows).upper()
    channels_first, channels_last = f"NC{dims}", f"N{dims}C"
    check_choice("layout", layout, (channels_first, channels_last))

    def order(channel: Any, *image: Any) -> tuple[Any, ...]:
        """The values for the channels and for each image dimension, in the order of memory."""
        return (*image, channel) if layout == channels_last else (channel, *image)

    (outer, outer_extent), (inner, inner_extent) = weight_channels
    pixel = Tensor("X")[ex.Var("n"), *order(channels.make_input_index(), *(r.input_index for r in reads))]
    weight = Tensor("W")[outer, *order(inner, *(r.weight_index for r in reads))]
    outs = [(r.window.output_axis.name, r.output_extent) for r in reads]
    taps = [(r.window.filter_axis.name, r.tap_count) for r in reads]
    dtype, acc_dtype, out_dtype = types
    return compute(
        name,
        axes=dict([("n", n), *order(("o", channels.output_count), *outs)]),
        reduce=dict(order(("c", channels.inputs_per_group), *taps)),
        inputs={
            "X": (n, *order(channels.input_count, *(x.size for x in windows))),
            "W": (outer_extent, *order(inner_extent, *(x.kernel for x in windows))),
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
            f"kernel: spans {window.span} elements, the padded {window.dim} has {padded}; use padding={near}"
        )
    return (padded - window.span) // window.stride + 1
