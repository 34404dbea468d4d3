"""ONNX operators that move elements: views, slices, joins, gathers and padding."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ekc.models.node_writer import NotExpressible
from ekc.models.onnx_reader.operation import Operation


def read_reshape(op: Operation) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze: the shape is that of the output."""
    op.finish_as(op.input(0))


def read_transpose(op: Operation) -> None:
    """Transpose."""
    order = [int(a) for a in op.get("perm", range(op.rank())[::-1])]
    op.alias(op.permute(op.input(0), order))


def read_expand(op: Operation) -> None:
    """Expand."""
    op.alias(op.expand(op.input(0), op.output_shape()))


def read_slice(op: Operation) -> None:
    """Slice; steps below 0 gather."""
    starts, ends = (op.require_constant(i, "a bound") for i in (1, 2))
    axes = op.require_constant(3, "an axis") if op.has(3) else np.arange(len(starts))
    steps = op.require_constant(4, "a step") if op.has(4) else np.ones(len(starts), int)
    value = op.input(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis, step = int(axis) % op.rank(), int(step)
        rows = range(op.shape()[axis])[slice(int(start), _open_end(int(end), step, op.shape()[axis]), step)]
        if step > 0:
            value = op.slice(value, axis, rows.start, max(rows.stop, rows.start), step)
        else:
            op.reserve(len(rows))
            value = op.take_rows(value, axis, np.array(rows))
    op.alias(value)


def _open_end(end: int, step: int, size: int) -> int | None:
    """The end as Python counts it: one before the first row is no end."""
    return None if step < 0 and end < -size else end


def read_split(op: Operation) -> None:
    """Split: a slice for each output."""
    axis, start = op.axis(0), 0
    for index in range(len(op.proto.output)):
        if not op.proto.output[index]:
            raise NotExpressible("a split with an output that is left out")
        stop = start + op.output_shape(index)[axis]
        op.alias(op.slice(op.input(0), axis, start, stop), index)
        start = stop


def read_concat(op: Operation) -> None:
    """Concat; parts without elements are left out."""
    axis = op.axis(0, len(op.output_shape()))
    names = [op.input(i) for i in range(len(op.proto.input)) if op.shape(i)[axis]]
    if len(names) == 1:
        op.alias(names[0])
    else:
        op.finish("concat", names, axis=axis)


def read_gather(op: Operation) -> None:
    """Gather; one constant row is a slice."""
    axis, indices = op.axis(0), op.constant(1)
    size = op.shape()[axis]
    if indices is None:
        op.finish("gather", [op.input(0), op.input(1)], axis=axis)
        return
    rows = np.where(indices < 0, indices + size, indices)
    if rows.size == 1:
        row = int(rows.reshape(()))
        op.finish_as(op.slice(op.input(0), axis, row, row + 1))
    elif rows.ndim == 1 and np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
        op.alias(op.slice(op.input(0), axis, int(rows[0]), int(rows[0]) + rows.size))
    else:
        op.finish("gather", [op.input(0), op.add_constant(rows.astype(indices.dtype))], axis=axis)


def read_gather_elements(op: Operation) -> None:
    """GatherElements: a gather of the elements by their places in memory."""
    axis, shape, indices = op.axis(0), op.shape(), op.cast(op.input(1), np.dtype(np.int64))
    strides = [prod(shape[a + 1 :]) for a in range(len(shape))]
    below = op.call("less", indices, op.add_constant(np.array(0)), dtype=np.dtype(bool))
    wrapped = op.call("add", indices, op.add_constant(np.array(shape[axis])))
    rows = op.call("where", below, wrapped, indices, dtype=np.dtype(np.int64))
    op.reserve(prod(op.output_shape()) * (len(shape) + 2))
    places = np.indices(op.output_shape())
    others = sum(places[a] * strides[a] for a in range(len(shape)) if a != axis) + 0 * places[axis]
    rows = op.call("mul", rows, op.add_constant(np.array(strides[axis])))
    rows = op.call("add", rows, op.add_constant(np.asarray(others)))
    op.finish("gather", [op.reshape(op.input(0), (prod(shape),)), rows], axis=0)


def read_pad(op: Operation) -> None:
    """Pad with a constant; below 0 it cuts."""
    mode = op.get("mode", "constant")
    if mode != "constant":
        raise NotExpressible(f"padding of mode {mode}")
    pads = [int(p) for p in op.require_constant(1, "the padding")]
    axes = [int(a) % op.rank() for a in op.require_constant(3, "an axis")] if op.has(3) else range(op.rank())
    fill = op.require_constant(2, "the value of the padding").reshape(()).item() if op.has(2) else 0
    padding = [(0, 0)] * op.rank()
    for index, axis in enumerate(axes):
        padding[axis] = pads[index], pads[len(pads) // 2 + index]
    op.alias(op.pad(op.input(0), padding, fill))


def read_tile(op: Operation) -> None:
    """Tile: expand and reshape."""
    repeats = [int(r) for r in op.require_constant(1, "the number of repeats")]
    value = op.input(0)
    split = [n for size in op.shape() for n in (1, size)]
    wide = [n for size, times in zip(op.shape(), repeats, strict=True) for n in (times, size)]
    if all(times == 1 for times in repeats):
        op.alias(value)
    elif all(size == 1 or times == 1 for size, times in zip(op.shape(), repeats, strict=True)):
        op.finish("expand", [value])
    else:
        op.finish_as(op.expand(op.reshape(value, split), wide))


def read_depth_to_space(op: Operation) -> None:
    """DepthToSpace: reshape, permute, reshape."""
    b, (n, c, h, w) = int(op.get("blocksize")), op.shape()
    if op.get("mode", "DCR") == "DCR":
        shape, order = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        shape, order = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    op.finish_as(op.permute(op.reshape(op.input(0), shape), order))


def read_space_to_depth(op: Operation) -> None:
    """SpaceToDepth: reshape, permute, reshape."""
    b, (n, c, h, w) = int(op.get("blocksize")), op.shape()
    value = op.reshape(op.input(0), (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if op.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    op.finish_as(op.permute(value, order))


def read_shape(op: Operation) -> None:
    """Shape: a constant, as shapes are fixed."""
    part = op.shape()[slice(op.get("start", 0), op.get("end", op.rank()))]
    op.state.set_constant(op.output, np.array(part, np.int64))


def read_size(op: Operation) -> None:
    """Size: a constant, as shapes are fixed."""
    op.state.set_constant(op.output, np.array(prod(op.shape()), np.int64))


HANDLERS: dict[str, Callable[[Operation], Any]] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), read_reshape),
    **{"Transpose": read_transpose, "Expand": read_expand, "Slice": read_slice, "Split": read_split},
    **{"Concat": read_concat, "Gather": read_gather, "Pad": read_pad, "Tile": read_tile},
    "GatherElements": read_gather_elements,
    **{"DepthToSpace": read_depth_to_space, "SpaceToDepth": read_space_to_depth},
    **{"Shape": read_shape, "Size": read_size},
}
