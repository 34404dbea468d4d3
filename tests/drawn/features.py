"""Random schedules of special features: those that the search would breed, fused graphs, swizzled tiles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.space.space import Space
from tests.drawn.operators import FIRST, FLIP, Choose, band, biased_matmul, draw_operator
from tests.drawn.schedules import draw_atomic, draw_in_parts, draw_schedule, keep_legal
from tests.ir.tilings import bind_loops


def _gated() -> Operator:
    """Two epilogues behind a convolution: a bias per channel and an activation, then a residual."""
    first = o.conv2d(1, 4, 9, 9, out_channels=8, kernel=3, stride=2, padding=1).epilogue(
        lambda y, bias: ex.gelu(y + bias), bias=(8, 1, 1)
    )
    return first.epilogue(lambda y, before: y + before, before=(1, 8, 5, 5))


BRED: dict[str, Operator] = {
    "matmul": o.matmul(48, 40, 24),
    "matmul 64": o.matmul(64, 64, 32),
    "primes": o.matmul(31, 29, 23),
    "fp16": o.matmul(32, 24, 40, dtype="float16"),
    "fp16 primes": o.matmul(19, 23, 17, dtype="float16"),
    "transposed": o.matmul(24, 33, 20, transpose_a=True, transpose_b=True),
    "batch": o.batch_matmul(3, 17, 16, 12),
    "matvec": o.matvec(64, 96),
    "matvec odd": o.matvec(37, 61),
    "matvec fp16": o.matvec(40, 64, dtype="float16"),
    "conv": o.conv2d(1, 8, 8, 8, out_channels=8, kernel=3, padding=1),
    "conv stride": o.conv2d(1, 4, 9, 9, out_channels=8, kernel=3, stride=2, padding=1),
    "conv groups": o.conv2d(2, 8, 7, 7, out_channels=8, kernel=3, padding=1, groups=4),
    "conv groups fp16": o.conv2d(
        1, 32, 4, 5, out_channels=16, kernel=3, padding=1, groups=2, layout="NHWC", dtype="float16"
    ),
    "conv transposed fp16": o.conv_transpose2d(
        1, 16, 4, 5, out_channels=8, kernel=3, stride=2, padding=1, dtype="float16"
    ),
    "conv depthwise": o.conv2d(1, 16, 7, 7, out_channels=16, kernel=3, padding=1, groups=16),
    "conv fp16": o.conv2d(1, 4, 6, 10, out_channels=4, kernel=(3, 1), padding=(1, 0), dtype="float16"),
    "einsum": o.einsum("abc,cd->dba", (3, 7, 16), (16, 12)),
    "band": band(20, 33, 5),
    "soft": o.compute(
        "soft", axes={"i": 25, "j": 24}, inputs={"x": (25, 24)}, body=lambda x, i, j: ex.relu(x[i, j]) + 1
    ),
    "furthest": o.reduce((19, 40), 1, "max"),
    "two computes": biased_matmul(16, 24, 12),
    "two computes fp16": biased_matmul(16, 24, 12, "float16"),
    "gelu and residual": _gated(),
    "silu fp16": o.matvec(40, 64, dtype="float16").epilogue(lambda y, gate: ex.silu(y) * gate, gate=(40,)),
}
"""Operators whose spaces the tuner would search; small, so that whole grids run."""
MORE: dict[str, Operator] = {
    "tf32": o.matmul(32, 24, 40, dtype="tf32"),
    "bf16": o.matmul(48, 40, 24, dtype="bfloat16"),
    "bf16 out fp32": o.matmul(19, 23, 17, dtype="bfloat16", out_dtype="float32"),
    "matvec bf16": o.matvec(40, 64, dtype="bfloat16"),
    "conv bf16": o.conv2d(1, 4, 6, 10, out_channels=4, kernel=3, padding=1, dtype="bfloat16"),
    "int8": o.matmul(64, 64, 32, dtype="int8"),
    "int8 primes": o.matmul(31, 29, 23, dtype="int8", out_dtype="float32"),
    "int8 transposed": o.matmul(48, 32, 64, dtype="int8", transpose_b=True, out_dtype="int8"),
    "matvec int8": o.matvec(64, 128, dtype="int8"),
    "conv int8": o.conv2d(1, 16, 7, 7, out_channels=8, kernel=3, padding=1, dtype="int8"),
    "columns": o.einsum("km,k->m", (96, 64), (96,)),
    "columns odd": o.reduce((61, 37), 0, "max"),
    "columns fp16": o.einsum("km,k->m", (64, 40), (64,), dtype="float16"),
    "columns between": o.reduce((3, 40, 24), 1, "mean"),
}
"""Operators of other element types and orders. `breed_schedules` leaves them out, because distances were
measured without them."""
_POPULATION = 64


@cache
def space(name: str) -> Space:
    return Space((BRED | MORE)[name], LaunchLimits())


def breed_schedule(name: str, seed: int) -> Schedule:
    """A schedule as the search makes it: drawn, repaired, and one of those that are legal."""
    here, rng = space(name), np.random.default_rng(seed)
    legal = here.repair(rng, here.sample(rng, _POPULATION))[0]
    return here.build_schedule(legal, int(rng.integers(len(legal))))


def step_schedule(choose: Choose, kinds: Sequence[Callable[[Choose], Operator]] = ()) -> Schedule:
    """Any small operator (or one of some kinds), with those of the drawn steps that leave it legal."""
    return keep_legal(draw_schedule(choose, draw_operator(choose, kinds)))


def step_in_parts(choose: Choose) -> Schedule | None:
    """`step_schedule` after a split-K; None where the operator has no sum to split."""
    schedule = draw_in_parts(choose, draw_operator(choose))
    return schedule and keep_legal(schedule)


def step_atomic(choose: Choose) -> Schedule | None:
    """`step_schedule` with a sum that blocks share by atomics; None where the operator has none."""
    schedule = draw_atomic(choose, draw_operator(choose))
    return schedule and keep_legal(schedule)


def breed_schedules(count: int) -> list[Schedule]:
    """The same bred schedules every time."""
    names = sorted(BRED)
    return [breed_schedule(names[i % len(names)], i) for i in range(count)]


def step_schedules(count: int) -> list[Schedule]:
    """The same stepped schedules every time."""
    return [step_schedule(random.Random(i).choice, FIRST) for i in range(count)]


FLOAT = "float32"
Sizes = tuple[int, int, str]


def _spread(sizes: Sizes) -> Operator:
    """Rows of planes scaled by their range: two reductions over two axes each."""
    m, n, dtype = sizes
    kind = {"output": "low", "dtype": dtype, "out_dtype": FLOAT}
    body = lambda X, i, a, b: X[a, i, b]  # noqa: E731
    inputs, reduce = {"X": (3, m, n)}, {"a": 3, "b": n}
    op = o.compute("spread", axes={"i": m}, reduce=reduce, inputs=inputs, body=body, combine="min", **kind)
    body = lambda X, low, j, c, d: X[c, j, d] - low[j]  # noqa: E731
    op = op.then("high", axes={"j": m}, reduce={"c": 3, "d": n}, body=body, combine="max", out_dtype=FLOAT)
    body = lambda X, low, high, p, q: (X[1, p, q] - low[p]) * high[p]  # noqa: E731
    return op.then("Y", axes={"p": m, "q": n}, body=body)


def _shifted(sizes: Sizes) -> Operator:
    """Each row less the sum of the row above, which the first row does not have."""
    m, n, dtype = sizes
    body = lambda X, i, k: ex.exp(X[i, k])  # noqa: E731
    kind = {"output": "sums", "dtype": dtype}
    op = o.compute("shifted", axes={"i": m}, reduce={"k": n}, inputs={"X": (m, n)}, body=body, **kind)
    return op.then("Y", axes={"p": m, "q": n}, body=lambda X, sums, p, q: X[p, q] - sums[p - 1] + sums[p])


def _product(sizes: Sizes) -> Operator:
    """A matrix product whose sums are left to warps: poor, but right."""
    m, n, dtype = sizes
    op = o.matmul(m, n, 40, dtype=dtype)
    return op.then("Y", axes={"p": m, "q": n}, body=lambda C, p, q: ex.relu(C[p, q]))


GRAPHS: dict[str, Callable[[Sizes], Operator]] = {
    "softmax": lambda s: o.softmax(s[:2], dtype=s[2]),
    "layer_norm": lambda s: o.layer_norm(s[:2], dtype=s[2]),
    "rms_norm": lambda s: o.rms_norm(s[:2], dtype=s[2]),
    "spread": _spread,
    "shifted": _shifted,
    "product": _product,
}


def draw_fused(name: str, choose: Choose) -> Schedule:
    """A graph as one launch: any tile of rows and columns, X through shared memory or not, any share of
    warps."""
    vector = choose((1, 2, 4))
    columns = vector * choose(range(1, 130 // vector + 1))
    op = GRAPHS[name]((choose(range(1, 10)), columns, choose(("float32", "float16"))))
    rows, across = choose(((1, 32), (1, 64), (2, 32), (4, 32), (4, 8), (3, 32)))
    p, q = (a.name for a in op.computes[-1].spatial_axes)
    s = Schedule(op).split(p, (rows,)).split(q, (across, vector))
    s = s.reorder(f"{p}.0", f"{p}.1", f"{q}.1", f"{q}.0", f"{q}.2").bind(f"{p}.0", "block.x")
    s = s.bind(f"{p}.1", "thread.x").bind(f"{q}.1", "thread.x")
    copied = "X" in op.tensors and choose(FLIP)
    if copied:
        s = s.cache_read("X", "shared", vector=vector, pad=choose((0, 4)), reader="Y")
    warps = rows * across // 32
    share = choose([w for w in (1, 2, 3, 4) if warps % w == 0])
    at = choose((None, None, f"{q}.0"))
    for compute in reversed(op.computes[:-1]):
        s = s.compute_at(compute.output.name, at, share)
    if copied and choose(FLIP):
        s = s.cache_read("X.shared", "register", at=f"{q}.0", vector=vector)
    return s.vectorize(f"{q}.2") if vector > 1 else s


def transpose_tile(
    dtype: str, tile: tuple[int, int], lanes: int, order: tuple[int, int], **layout: Any
) -> Schedule:
    """Y = X transposed: a tile written along its rows by vectors, read down its columns by scalars."""
    rows, columns = tile
    op = o.compute(
        "turned",
        axes={"i": 2 * columns, "j": 2 * rows},
        inputs={"X": (2 * rows, 2 * columns)},
        body=lambda X, i, j: X[j, i],
        output="Y",
        dtype=dtype,
    )
    s = Schedule(op).split("i", (columns,)).split("j", (rows // lanes, lanes))
    s = s.reorder("i.0", "j.0", "j.1", "i.1", "j.2")
    s = bind_loops(s, {"i.0": "block.y", "j.0": "block.x", "j.2": "thread.x"})
    return s.cache_read("X", "shared", order=order, **layout)


def draw_swizzled(choose: Choose) -> Schedule:
    """Any layout of `transpose_tile`."""
    dtype = choose(("float32", "float16"))
    # Whole warps, which start at multiples of the elements of a row.
    tile, lanes = choose([((32, 32), 32), ((64, 16), 32), ((64, 32), 64), ((32, 8), 32)])
    vector = choose([1, 2, 4] if dtype == "float32" else [1, 2, 4, 8])
    order, pad, swizzle = choose(((0, 1), (1, 0))), choose((0, 0, 8, 32)), choose((1, 2, 4, 8, 8))
    return transpose_tile(dtype, tile, lanes, order, vector=vector, pad=pad, swizzle=swizzle)
