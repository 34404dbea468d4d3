"""Convolutions as implicit matrix products: pixels fused into one loop; fixed schedules and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ekc.ir.operators as o
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.operators import Choose
from tests.ir.tensor_examples import INSTRUCTIONS, ROW, Cut, tile_fragments

PIXELS = "n_p_q"


def fused_pixels(op: Operator) -> Schedule:
    """A convolution with all pixels of all images in one loop, beside that of the output channels."""
    schedule = Schedule(op)
    if [a.name for a in op.computes[0].spatial_axes] == ["n", "o", "p", "q"]:
        schedule = schedule.reorder("o", "n", "p", "q")
    return schedule.fuse("n", "p").fuse("n_p", "q")


def tensor_conv2d(op: Operator, cut: Cut | None = None) -> Schedule:
    """A convolution on tensor cores. With channels last, pixels are the rows, otherwise the columns."""
    cut = cut or Cut()
    dtype = op.inputs[0].dtype.name
    instruction, depth = INSTRUCTIONS[dtype]
    rows, columns = (PIXELS, "o") if op.computes[0].spatial_axes[-1].name == "o" else ("o", PIXELS)
    order = ("r", "s", "c.0", "c.1") if rows == PIXELS else ("c.0", "r", "s", "c.1")
    at = order[2]
    shared: dict[str, Any] = {"at": at, "vector": cut.vector or ROW[dtype], "pad": cut.pad}
    schedule = (
        tile_fragments(fused_pixels(op), rows, columns, cut, ("c", depth), order)
        .cache_write("Y", "register", vector=cut.write)
        .cache_read("X", "shared", order=cut.order, swizzle=cut.swizzle, **shared)
        .cache_read("W", "shared", swizzle=cut.swizzle, **shared)
        .cache_read("X.shared", "fragment", at="c.1")
        .cache_read("W.shared", "fragment", at="c.1")
    )
    if cut.stages > 1:
        schedule = schedule.pipeline(at, stages=cut.stages, copy=cut.copy)
    return schedule.tensorize("c.2", instruction)


def half_conv2d(**cut: Any) -> Schedule:
    """The example of the docs: float16, channels last, padded rows, asynchronous copies."""
    op = o.conv2d(2, 32, 14, 14, out_channels=64, padding=1, layout="NHWC", dtype="float16")
    return tensor_conv2d(op, Cut(pad=8, stages=3, **cut))


def plain_conv2d(op: Operator, threads: int = 8, tile: int = 4, staged: bool = True) -> Schedule:
    """A convolution without tensor cores: every thread has some pixels by some channels."""
    i, j = [f"{PIXELS}.{n}" for n in range(3)], [f"o.{n}" for n in range(3)]
    schedule = (
        fused_pixels(op)
        .split(PIXELS, (threads, tile)).split("o", (4, 2)).split("c", (4,))
        .reorder(i[0], j[0], i[1], j[1], "r", "s", "c.0", "c.1", i[2], j[2])
        .bind(i[0], "block.x").bind(j[0], "block.x").bind(i[1], "thread.x").bind(j[1], "thread.x")
        .cache_write("Y", "register")
    )  # fmt: skip
    if staged:
        schedule = schedule.cache_read("X", "shared", at="c.0").cache_read("W", "shared", at="c.0")
        schedule = schedule.cache_read("X.shared", "register", at="c.1")
    return schedule


def draw_conv2d(choose: Choose, dtypes: Sequence[str], channels: Sequence[int]) -> Operator:
    """A random small convolution; extents are mostly odd, so that edges are common."""
    kernel = choose((1, 2, 3))
    return o.conv2d(
        choose((1, 2, 3)), choose(channels), choose((5, 6, 9)), choose((5, 7, 8)),
        out_channels=choose(channels), kernel=(kernel, choose((1, 3))), stride=choose((1, 1, 2)),
        padding=choose((0, 1, 2)), dilation=choose((1, 1, 2)), layout=choose(("NHWC", "NHWC", "NCHW")),
        dtype=choose(dtypes),
    )  # fmt: skip


def draw_view(choose: Choose) -> Schedule:
    """A random small convolution with fused pixels."""
    if choose((True, False, False)):
        op = draw_conv2d(choose, ("float32", "float16", "int8"), (3, 8, 10))
        return plain_conv2d(op, choose((4, 8)), choose((1, 3, 4)), choose((True, True, False)))
    op = draw_conv2d(choose, tuple(INSTRUCTIONS), (16, 24, 40))
    dtype, last = op.inputs[0].dtype.name, op.computes[0].spatial_axes[-1].name == "o"
    # A row of channels is copied in vectors; a row of pixels is cut by edges of the image, and is not.
    vector = 1 if not last else choose((8, 8, 4)) if dtype != "tf32" else 4
    flies = last or dtype == "tf32"
    stages, copy = choose(((1, "register"), (2, "register"), *(((2, "async"), (3, "async")) * flies)))
    cut = Cut(
        (choose((1, 2)), choose((1, 2))), (choose((1, 2)), choose((1, 2, 3))), choose((1, 2)), stages, copy,
        vector, choose((0, ROW[dtype])), 1, (0, 2, 3, 1) if not last and choose((True, False)) else (),
        write=2 if last else 1,
    )  # fmt: skip
    return tensor_conv2d(op, cut)
