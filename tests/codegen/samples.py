"""Sample schedules: small ones for every feature."""

from __future__ import annotations

from collections.abc import Sequence

import ekc.ir.operators as o
from ekc.ir import expr as ex
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.ir.tilings import TILES, bind_loops, reduce_over_lanes, tile_matmul

ONE_DIMENSION = (*["block.x"] * 4, *["thread.x"] * 2)


def matmul(m: int, n: int, k: int, *, dtype: str = "float32", pipeline: bool = True) -> Schedule:
    """Tiled matmul: shared tiles, register tiles, vectors, double buffering."""
    return tiled(o.matmul(m, n, k, dtype=dtype), pipeline=pipeline)


def tiled(op: Operator, *, pipeline: bool = True, vector: int | None = None) -> Schedule:
    """A matmul with any epilogue, its sum in registers; vectors as wide as its rows allow, or as given."""
    (_, n), k = op.tensors["C"].shape, op.tensors["A"].shape[1]
    along_n, along_k = (vector or (4 if extent % 4 == 0 else 1) for extent in (n, k))
    s = (
        tile_matmul(op, (2, 16, 4), (2, 16, 4), 8)
        .cache_write("C", "register", vector=along_n)
        .cache_read("A", "shared", at="k.0", vector=along_k, order=(1, 0), pad=4)
        .cache_read("B", "shared", at="k.0", vector=along_n)
        .cache_read("A.shared", "register", at="k.1", vector=4)
        .cache_read("B.shared", "register", at="k.1", vector=4)
        .unroll("k.1")
    )
    return s.pipeline("k.0", stages=2) if pipeline else s


def small_matmul(
    m: int, n: int, k: int, *, dtype: str = "float32", pipeline: bool = True, vector: int = 1
) -> Schedule:
    """A tiled matmul with 4 x 8 threads and 2 x 2 x 2 tiles, so that a run on the CPU is quick."""
    s = (
        tile_matmul(o.matmul(m, n, k, dtype=dtype), (2, 4, 2), (2, 8, 2), 4)
        .cache_write("C", "register", vector=min(2, vector))
        .cache_read("A", "shared", at="k.0", vector=vector, order=(1, 0), pad=2)
        .cache_read("B", "shared", at="k.0", vector=vector)
        .cache_read("A.shared", "register", at="k.1", vector=2)
        .cache_read("B.shared", "register", at="k.1", vector=2)
        .unroll("k.1", 2)
    )
    return s.pipeline("k.0", stages=2) if pipeline else s


def shared_sum(m: int, n: int, k: int, *, dtype: str = "float32", out_dtype: str = "float32") -> Schedule:
    """A matmul of few outputs: blocks of 256 terms each, which add to the result atomically."""
    s = Schedule(o.matmul(m, n, k, dtype=dtype, out_dtype=out_dtype)).atomic("C").cache_write("C")
    s = s.split("i", (8, 2)).split("j", (16, 2)).split("k", (32, 8))
    s = s.reorder("k.0", "i.0", "j.0", "i.1", "j.1", "k.1", "k.2", "i.2", "j.2")
    s = bind_loops(s, {"k.0": "block.z"} | TILES)
    s = s.cache_read("A", "shared", at="k.1", vector=4 if k % 4 == 0 else 1)
    return s.cache_read("B", "shared", at="k.1")


def conv2d(*, stride: int = 1, padding: int = 1, dtype: str = "float32") -> Schedule:
    """A convolution whose tiles exceed the image and the channels."""
    return tiled_conv2d(
        o.conv2d(2, 5, 9, 9, out_channels=6, kernel=3, stride=stride, padding=padding, dtype=dtype)
    )


def conv2d_same() -> Schedule:
    """An even filter: one more element of padding after the image than before it."""
    return tiled_conv2d(o.conv2d(2, 5, 9, 9, out_channels=6, kernel=4, stride=2, padding="same"))


def tiled_conv2d(op: Operator, levels: Sequence[str] = ONE_DIMENSION, pad: int = 1) -> Schedule:
    """A convolution by tiles; `levels` are those of images, then of channels and pixels."""
    s = Schedule(op).split("o", (2, 2)).split("p", (3,)).split("q", (3, 2)).split("c", (3,))
    outer = ("n", "o.0", "p.0", "q.0", "o.1", "q.1")
    s = s.reorder(*outer, "c.0", "c.1", "r", "s", "o.2", "p.1", "q.2")
    s = bind_loops(s, dict(zip(outer, levels, strict=True))).cache_write("Y")
    s = s.cache_read("X", "shared", at="c.0", pad=pad).cache_read("W", "shared", at="c.0")
    return s.cache_read("X.shared", "register", at="r")


def matvec(m: int, k: int, *, dtype: str = "float32", lanes: int = 8, rows: int = 4) -> Schedule:
    """Matvec: rows over thread.y, each summed by lanes that read vectors."""
    s = reduce_over_lanes(Schedule(o.matvec(m, k, dtype=dtype)), "y", "i", "k", (lanes, 4), rows=rows)
    return s.cache_read("A", "register", at="k.0", vector=4)


def batch_matmul_transposed() -> Schedule:
    """Batch matmul with both factors transposed, in shared tiles with the layout of the tensor."""
    s = Schedule(o.batch_matmul(3, 60, 64, 48, transpose_a=True, transpose_b=True))
    s = s.split("i", (8, 2)).split("j", (16, 2)).split("k", (8,))
    s = s.reorder("b", "i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
    s = bind_loops(s, {"b": "block.z"} | TILES).cache_write("C", vector=2)
    return s.cache_read("A", "shared", at="k.0", vector=2).cache_read("B", "shared", at="k.0", vector=4)


def product_over_lanes(dtype: str = "float32") -> Schedule:
    """Products of rows in two parts, each by 8 lanes that read vectors; reads beyond the end must not be
    0."""
    s = Schedule(o.reduce((5, 100), 1, "prod", dtype=dtype)).rfactor("k1", 2)
    s = reduce_over_lanes(s, "Y_parts", "i0", "k1", outer="k1_part")
    return s.cache_write("Y").cache_read("X", "register", at="k1.0", vector=2)


def argmax_over_lanes(dtype: str = "float16", how: str = "argmax") -> Schedule:
    """Argmax of rows of 100: the maximum by 32 lanes, its index in two parts by 8 lanes that read vectors."""
    s = Schedule(o.reduce((5, 100), 1, how, dtype=dtype)).rfactor("q1", 2).split("k1", (32,))
    s = bind_loops(s.reorder("i0", "k1.1", "k1.0"), {"i0": "block.x", "k1.1": "thread.x"})
    s = reduce_over_lanes(s.cache_write("extreme"), "Y_parts", "p0", "q1", outer="q1_part")
    return s.cache_read("X", "register", at="q1.0", vector=2).cache_write("Y")


def matmul_gelu() -> Schedule:
    """Matmul with bias, activation and residual as epilogue; the last block exceeds the rows."""
    op = o.matmul(250, 128, 64).epilogue(lambda c, bias: ex.gelu(c + bias), bias=(128,))
    op = op.epilogue(lambda d, before: d + before, before=(250, 128))
    return tiled(op, pipeline=False).compute_inline("C").compute_inline("C_out")


def conv2d_bias() -> Schedule:
    """Convolution with a bias per channel, not read by vectors, and a scale, stored as float32."""
    op = o.conv2d(2, 5, 9, 9, out_channels=6, kernel=3, padding=1, dtype="float16")
    op = op.epilogue(lambda y, bias: ex.relu(y + bias) * 0.5, bias=(6, 1, 1), out_dtype="float32")
    s = Schedule(op).split("o", (2, 2)).split("q", (3,)).reorder("n", "o.0", "p", "q.0", "o.1", "q.1", "o.2")
    s = s.bind("n", "block.x").bind("o.0", "block.x").bind("o.1", "thread.x").bind("q.1", "thread.x")
    return s.cache_write("Y").compute_inline("Y")


def relu_matmul(dtype: str = "float32") -> Schedule:
    """Two computes, the first fused into the second in shared memory."""
    s = two_launches(dtype).split("p", (4, 2)).split("q", (8,)).split("r", (4,))
    s = s.reorder("p.0", "q.0", "p.1", "q.1", "r.0", "r.1", "p.2")
    s = bind_loops(s, {"p.0": "block.y", "q.0": "block.x", "p.1": "thread.y", "q.1": "thread.x"})
    return s.cache_write("D").compute_at("C", "r.0").cache_read("B", "shared", at="r.0")


def two_launches(dtype: str = "float32") -> Schedule:
    """C = relu(A) + 1, then D = C @ B, each a launch of one thread."""
    body = lambda A, i, j: ex.relu(A[i, j]) + 1  # noqa: E731
    op = o.compute("act", axes={"i": 13, "j": 10}, inputs={"A": (13, 10)}, body=body, dtype=dtype)
    body = lambda C, B, p, q, r: C[p, r] * B[r, q]  # noqa: E731
    axes = {"p": 13, "q": 11}
    return Schedule(op.then("D", axes=axes, reduce={"r": 10}, inputs={"B": (10, 11)}, body=body))


def copy(rows: int, columns: int, *, vector: int = 1, name: str = "copy") -> Schedule:
    """Y = X, a row per block, neighbouring elements by neighbouring threads."""
    axes, inputs = {"i": rows, "j": columns}, {"X": (rows, columns)}
    op = o.compute(name, axes=axes, inputs=inputs, body=lambda X, i, j: X[i, j], output="Y")
    s = Schedule(op).split("j", (32, vector) if vector > 1 else (32,))
    s = bind_loops(s, {"i": "block.y", "j.0": "block.x", "j.1": "thread.x"})
    return s.vectorize("j.2") if vector > 1 else s


def softmax(m: int, n: int, *, dtype: str = "float32", warps: int = 2) -> Schedule:
    """Softmax in one launch: rows in shared memory, each reduced by two warps."""
    s = Schedule(o.softmax((m, n), dtype=dtype)).split("p0", (4,)).split("p1", (64, 4))
    s = s.reorder("p0.0", "p0.1", "p1.1", "p1.0", "p1.2")
    s = bind_loops(s, {"p0.0": "block.x", "p0.1": "thread.x", "p1.1": "thread.x"})
    s = s.cache_read("X", "shared", vector=4, reader="Y")
    s = s.compute_at("total", None, warps=warps).compute_at("top", None, warps=warps)
    return s.cache_read("X.shared", "register", at="p1.0", vector=4).vectorize("p1.2")


def int8_pairs(*, register: bool = True, columns: int = 2, rows: int = 1, vector: int = 1) -> Schedule:
    """An int8 matmul that sums two rows of B at once, each of `columns` bytes in shared memory."""
    op = o.matmul(8, 2 * columns + 1, 16, dtype="int8", out_dtype="int32")
    s = Schedule(op).split("i", (4, rows)).split("j", (1, columns)).split("k", (8,))
    s = s.reorder("i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2").cache_write("C")
    s = s.bind("i.0", "block.x").bind("j.0", "block.x").bind("i.1", "thread.x").bind("j.1", "thread.x")
    s = s.cache_read("A", "shared", at="k.0").cache_read("B", "shared", at="k.0")
    if register:
        s = s.cache_read("B.shared", "register", at="k.1", vector=vector)
    return s.unroll("k.1", factor=2)


def int8_steps(step: int) -> Schedule:
    """int8 sums over every `step`-th element of a row of A, two at once, straight from global memory."""
    op = o.compute(
        "steps", axes={"i": 8}, reduce={"k": 16}, inputs={"A": (8, 16 * step), "B": (16, step)},
        body=lambda A, B, i, k: A[i, step * k] * B[k, 0] + A[i, step * k + step - 1], output="C",
        dtype="int8", out_dtype="int32",
    )  # fmt: skip
    return Schedule(op).bind("i", "thread.x").cache_write("C").unroll("k", factor=2)
