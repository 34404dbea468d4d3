"""Convolutions of random numbers, against windows of a padded image and against scattering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc.ir.operators as o
from ekc.ir.operator import Operator
from tests.drawn.checks import make_inputs
from tests.ir.test_operators import Array, close

FORWARD = {1: o.conv1d, 2: o.conv2d, 3: o.conv3d}
TRANSPOSED = {1: o.conv_transpose1d, 2: o.conv_transpose2d, 3: o.conv_transpose3d}
Several = tuple[int, ...]
Ends = tuple[tuple[int, int], ...]
"""Padding before and after each image dimension."""


def convolved(x: Array, w: Array, stride: Several, padding: Ends, dilation: Several, groups: int) -> Array:
    """Convolution in NumPy, channels first, by windows of a padded image."""
    image = tuple(range(2, x.ndim))
    padded = np.pad(x, [(0, 0), (0, 0), *padding])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    cut = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=image)
    cut = cut[(slice(None),) * 2 + tuple(slice(None, None, s) for s in stride)]
    cut = cut[(Ellipsis, *(slice(None, None, d) for d in dilation))]
    parts = []
    for rows, weights in zip(np.split(cut, groups, axis=1), np.split(w, groups, axis=0), strict=True):
        over = [1, *range(x.ndim, 2 * x.ndim - 2)]
        parts.append(np.moveaxis(np.tensordot(rows, weights, (over, range(1, w.ndim))), -1, 1))
    return np.concatenate(parts, axis=1)


def scattered(
    x: Array, w: Array, stride: Several, padding: Ends, dilation: Several, groups: int, more: Several
) -> Array:
    """Transposed convolution in NumPy, channels first: every input adds its multiples of the filter."""
    kernel, image = w.shape[2:], x.shape[2:]
    sizes = [
        (e - 1) * s + d * (k - 1) + 1 for e, s, d, k in zip(image, stride, dilation, kernel, strict=True)
    ]
    full = np.zeros((x.shape[0], w.shape[1] * groups, *(e + m for e, m in zip(sizes, more, strict=True))))
    share, per = x.shape[1] // groups, w.shape[1]
    for channel, place in itertools.product(range(x.shape[1]), np.ndindex(*image)):
        first = channel // share * per
        where = tuple(
            slice(at * s, at * s + d * (k - 1) + 1, d)
            for at, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        full[(slice(None), slice(first, first + per), *where)] += np.multiply.outer(
            x[(slice(None), channel, *place)], w[channel]
        )
    kept = (slice(a, e - b) for (a, b), e in zip(padding, full.shape[2:], strict=True))
    return full[(Ellipsis, *kept)]


def drawn(data: st.DataObject, rank: int, least: int, most: int) -> Several:
    return tuple(data.draw(st.integers(least, most)) for _ in range(rank))


def draw_ends(data: st.DataObject, most: Several) -> tuple[Any, Ends]:
    """Padding as an operator takes it, and as pairs: numbers for both ends of a dimension, or pairs."""
    pairs = tuple((data.draw(st.integers(0, m)), data.draw(st.integers(0, m))) for m in most)
    if data.draw(st.booleans()):
        return pairs, pairs
    return tuple(a for a, _ in pairs), tuple((a, a) for a, _ in pairs)


def first(op: Operator) -> list[Array]:
    """The operator's arrays in float64, channels moved to where NCHW and OIHW have them."""
    return [np.moveaxis(a.astype(np.float64), -1, 1) for a in make_inputs(op)]


def check(op: Operator, layout: str, want: Callable[..., Array], *numbers: Any) -> None:
    last = layout.endswith("C")
    x, w = first(op) if last else (a.astype(np.float64) for a in make_inputs(op))
    expected = want(x, w, *numbers)
    close(op, op.reference(*make_inputs(op)), np.moveaxis(expected, 1, -1) if last else expected)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_convolutions_match_reference(data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from((1, 2, 2, 3)))
    kernel, dilation = drawn(data, rank, 1, 3), drawn(data, rank, 1, 2)
    stride, groups = drawn(data, rank, 1, 3), data.draw(st.integers(1, 3))
    padding, ends = draw_ends(data, (2,) * rank)
    image = tuple(max(1, d * (k - 1) + 1 - sum(p)) for d, k, p in zip(dilation, kernel, ends, strict=True))
    image = tuple(e + data.draw(st.integers(0, 4)) for e in image)
    layout = data.draw(st.sampled_from(("NC" + "DHW"[-rank:], "N" + "DHW"[-rank:] + "C")))
    op = FORWARD[rank](
        data.draw(st.integers(1, 2)),
        groups * data.draw(st.integers(1, 2)),
        *image,
        out_channels=groups * data.draw(st.integers(1, 2)),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        layout=layout,
    )
    check(op, layout, convolved, stride, ends, dilation, groups)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_transposed_convolutions_match_reference(data: st.DataObject) -> None:
    rank = data.draw(st.sampled_from((1, 2, 2, 3)))
    kernel, dilation = drawn(data, rank, 1, 4 if rank < 3 else 2), drawn(data, rank, 1, 6 if rank == 1 else 3)
    stride, image, groups = drawn(data, rank, 1, 4), drawn(data, rank, 1, 3), data.draw(st.integers(1, 2))
    sizes = [
        (e - 1) * s + d * (k - 1) + 1 for e, s, d, k in zip(image, stride, dilation, kernel, strict=True)
    ]
    padding, ends = draw_ends(data, tuple(min(2, (e - 1) // 2) for e in sizes))
    more = tuple(data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    layout = data.draw(st.sampled_from(("NC" + "DHW"[-rank:], "N" + "DHW"[-rank:] + "C")))
    op = TRANSPOSED[rank](
        data.draw(st.integers(1, 2)),
        groups * data.draw(st.integers(1, 2)),
        *image,
        out_channels=groups * data.draw(st.integers(1, 2)),
        kernel=kernel,
        stride=stride,
        padding=padding,
        output_padding=more,
        dilation=dilation,
        groups=groups,
        layout=layout,
    )
    check(op, layout, scattered, stride, ends, dilation, groups, more)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_padding_same_output_extents(data: st.DataObject) -> None:
    """ceil(size / stride) outputs of the least padding, the odd element behind."""
    rank = data.draw(st.sampled_from((1, 2, 3)))
    kernel, stride, dilation = drawn(data, rank, 1, 5), drawn(data, rank, 1, 4), drawn(data, rank, 1, 2)
    image = drawn(data, rank, 1, 8)
    numbers = {"kernel": kernel, "stride": stride, "dilation": dilation}
    op = FORWARD[rank](1, 1, *image, out_channels=2, padding="same", **numbers)
    outputs = tuple(math.ceil(e / s) for e, s in zip(image, stride, strict=True))
    assert op.outputs[0].shape == (1, 2, *outputs)
    short = [
        max(0, (o - 1) * s + d * (k - 1) + 1 - e)
        for o, s, d, k, e in zip(outputs, stride, dilation, kernel, image, strict=True)
    ]
    ends = tuple((total // 2, math.ceil(total / 2)) for total in short)
    assert op == FORWARD[rank](1, 1, *image, out_channels=2, padding=ends, **numbers)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_transposed_padding_same_is_gradient(data: st.DataObject) -> None:
    """<conv(x), y> = <x, conv_transpose(y)>, with stride times as many outputs as inputs."""
    rank = data.draw(st.sampled_from((1, 2)))
    kernel, stride, dilation = drawn(data, rank, 1, 5), drawn(data, rank, 1, 4), drawn(data, rank, 1, 2)
    image = drawn(data, rank, 1, 4)
    numbers = {"kernel": kernel, "stride": stride, "dilation": dilation, "padding": "same"}
    back = TRANSPOSED[rank](1, 3, *image, out_channels=2, **numbers)
    large = tuple(e * s for e, s in zip(image, stride, strict=True))
    assert back.outputs[0].shape == (1, 2, *large)
    forward = FORWARD[rank](1, 2, *large, out_channels=3, **numbers)
    x, w = make_inputs(forward)
    y = make_inputs(back)[0]
    there, here = forward.reference(x, w).astype(float), back.reference(y, w).astype(float)
    np.testing.assert_allclose(np.sum(there * y), np.sum(here * x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("padding", "ends"), [(2, ((2, 2), (2, 2))), ("valid", ((0, 0), (0, 0))), (((1, 0),), ((1, 0), (1, 0)))]
)
def test_padding_short_forms(padding: Any, ends: Ends) -> None:
    for make in (o.conv2d, o.conv_transpose2d):
        assert make(1, 2, 7, 6, out_channels=2, padding=padding) == make(
            1, 2, 7, 6, out_channels=2, padding=ends
        )


def test_depthwise_convolution_reads_one_channel() -> None:
    op = o.conv2d(1, 6, 5, 5, out_channels=6, kernel=3, groups=6)
    assert op.inputs[1].shape == (6, 1, 3, 3)
    assert op.flops == 2 * 6 * 9 * 9


def test_transposed_convolution_inserts_no_zeros() -> None:
    """Stride 2, kernel 4: each output has 2 x 2 of the 16 taps for each channel."""
    op = o.conv_transpose2d(1, 8, 8, 8, out_channels=4, kernel=4, stride=2, padding=1)
    assert op.outputs[0].shape == (1, 4, 16, 16)
    assert op.flops == 2 * (4 * 16 * 16) * 8 * 4
