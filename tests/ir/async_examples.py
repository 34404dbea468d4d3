"""Schedules with asynchronous copies: a product, a convolution and nested pipelines."""

from __future__ import annotations

import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.drawn.operators import Choose
from tests.ir.tilings import bind_loops, tile_matmul


def async_matmul(
    m: int,
    n: int,
    k: int,
    *,
    stages: int = 3,
    dtype: str = "float32",
    vector: int = 4,
    turned: bool = False,
    swizzle: int = 1,
    depth: int = 8,
) -> Schedule:
    """A product with both tiles in shared memory, `depth` elements deep; with `turned` the first is copied
    transposed, element by element."""
    order, alone = ((1, 0), 1) if turned else ((), vector)
    pad = max(alone, 4) if swizzle == 1 else 0
    return (
        tile_matmul(o.matmul(m, n, k, dtype=dtype), (2, 4, 2), (2, 8, 2), depth)
        .cache_write("C")
        .cache_read("A", "shared", at="k.0", vector=alone, order=order, pad=pad, swizzle=swizzle)
        .cache_read("B", "shared", at="k.0", vector=vector, swizzle=swizzle)
        .pipeline("k.0", stages=stages, copy="async")
        .unroll("k.1", 4)
    )


def async_conv2d(stages: int, padding: int = 1) -> Schedule:
    """A convolution with padding, tails in every axis, and a pipelined loop inside other serial loops."""
    op = o.conv2d(1, 5, 9, 8, out_channels=6, kernel=3, padding=padding)
    s = Schedule(op).split("o", (2,)).split("q", (4,)).split("c", (2,))
    s = s.reorder("o.0", "n", "o.1", "q.1", "p", "q.0", "c.0", "c.1", "r", "s")
    s = bind_loops(s, {"o.0": "block.x", "o.1": "thread.y", "q.1": "thread.x"}).cache_write("Y")
    s = s.cache_read("X", "shared", at="c.0", pad=1).cache_read("W", "shared", at="c.0")
    return s.pipeline("c.0", stages=stages, copy="async")


def async_twice(inner: str, stages: int = 3) -> Schedule:
    """A product with a pipelined loop inside another; their groups are counted together."""
    return (
        Schedule(o.matmul(12, 16, 30))
        .split("k", (6, 2))
        .reorder("i", "k.0", "k.1", "k.2", "j")
        .bind("i", "thread.x")
        .cache_write("C")
        .cache_read("A", "shared", at="k.0")
        .cache_read("B", "shared", at="k.1", vector=4)
        .pipeline("k.0", stages=stages, copy="async")
        .pipeline("k.1", stages=2, copy=inner)
    )


def draw_async(choose: Choose) -> Schedule:
    """A random one of these schedules, in a random small shape."""
    kind = choose(("matmul", "matmul", "matmul", "conv2d", "twice"))
    if kind == "conv2d":
        return async_conv2d(choose((2, 3, 4)), choose((0, 1)))
    if kind == "twice":
        return async_twice(choose(("async", "register")), choose((2, 3, 6)))
    dtype, vector = choose((("float32", 1), ("float32", 2), ("float32", 4), ("float16", 2), ("float16", 8)))
    # No axis has one element: its tile could not show a difference between tail and element.
    m, n, k = choose((5, 16, 33)), vector * choose((2, 3, 8)), vector * choose((2, 5, 9))
    turned, swizzle = dtype == "float32" and choose((True, False)), choose((1, 2, 8))
    return async_matmul(
        m, n, k, stages=choose((2, 3, 4, 6)), dtype=dtype, vector=vector, turned=turned, swizzle=swizzle
    )
