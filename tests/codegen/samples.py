"""Sample schedules: small ones for every feature, and random ones."""

from __future__ import annotations

import numpy as np

import ekc.ir.operators as o
from ekc.ir import expr as ex
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule


def matmul(m: int, n: int, k: int, *, dtype: str = "float32", pipeline: bool = True) -> Schedule:
    """Tiled matmul: shared tiles, register tiles, vectors, double buffering."""
    return tiled(o.matmul(m, n, k, dtype=dtype), pipeline=pipeline)


def tiled(op: Operator, *, pipeline: bool = True) -> Schedule:
    """A matmul with any epilogue, its sum in registers."""
    (_, n), k = op.tensors["C"].shape, op.tensors["A"].shape[1]
    s = (
        Schedule(op)
        .split("i", (2, 16, 4))
        .split("j", (2, 16, 4))
        .split("k", (8,))
        .reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.2", "thread.y")
        .bind("j.2", "thread.x")
        .bind("i.1", "vthread")
        .bind("j.1", "vthread")
        .cache_write("C", "register", vector=4 if n % 4 == 0 else 1)
        .cache_read("A", "shared", at="k.0", vector=4 if k % 4 == 0 else 1, order=(1, 0), pad=4)
        .cache_read("B", "shared", at="k.0", vector=4 if n % 4 == 0 else 1)
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
        Schedule(o.matmul(m, n, k, dtype=dtype))
        .split("i", (2, 4, 2))
        .split("j", (2, 8, 2))
        .split("k", (4,))
        .reorder("i.0", "j.0", "k.0", "i.2", "j.2", "k.1", "i.1", "i.3", "j.1", "j.3")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.2", "thread.y")
        .bind("j.2", "thread.x")
        .bind("i.1", "vthread")
        .bind("j.1", "vthread")
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
    return (
        Schedule(o.matmul(m, n, k, dtype=dtype, out_dtype=out_dtype))
        .atomic("C")
        .cache_write("C")
        .split("i", (8, 2))
        .split("j", (16, 2))
        .split("k", (32, 8))
        .reorder("k.0", "i.0", "j.0", "i.1", "j.1", "k.1", "k.2", "i.2", "j.2")
        .bind("k.0", "block.z")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_read("A", "shared", at="k.1", vector=4 if k % 4 == 0 else 1)
        .cache_read("B", "shared", at="k.1")
    )


def conv2d(*, stride: int = 1, padding: int = 1, dtype: str = "float32") -> Schedule:
    """A convolution whose tiles exceed the image and the channels."""
    return tiled_conv2d(
        o.conv2d(2, 5, 9, 9, out_channels=6, kernel=3, stride=stride, padding=padding, dtype=dtype)
    )


def conv2d_same() -> Schedule:
    """An even filter: one more element of padding after the image than before it."""
    return tiled_conv2d(o.conv2d(2, 5, 9, 9, out_channels=6, kernel=4, stride=2, padding="same"))


def tiled_conv2d(op: Operator) -> Schedule:
    return (
        Schedule(op)
        .split("o", (2, 2))
        .split("p", (3,))
        .split("q", (3, 2))
        .split("c", (3,))
        .reorder("n", "o.0", "p.0", "q.0", "o.1", "q.1", "c.0", "c.1", "r", "s", "o.2", "p.1", "q.2")
        .bind("n", "block.x")
        .bind("o.0", "block.x")
        .bind("p.0", "block.x")
        .bind("q.0", "block.x")
        .bind("o.1", "thread.x")
        .bind("q.1", "thread.x")
        .cache_write("Y")
        .cache_read("X", "shared", at="c.0", pad=1)
        .cache_read("W", "shared", at="c.0")
        .cache_read("X.shared", "register", at="r")
    )


def matvec(m: int, k: int, *, dtype: str = "float32", lanes: int = 8, rows: int = 4) -> Schedule:
    """Matvec: rows over thread.y, each summed by lanes that read vectors."""
    return (
        Schedule(o.matvec(m, k, dtype=dtype))
        .split("i", (rows,))
        .split("k", (lanes, 4))
        .reorder("i.0", "i.1", "k.1", "k.0", "k.2")
        .bind("i.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("k.1", "thread.x")
        .cache_write("y")
        .cache_read("A", "register", at="k.0", vector=4)
    )


def batch_matmul_transposed() -> Schedule:
    """Batch matmul with both factors transposed, in shared tiles with the layout of the tensor."""
    return (
        Schedule(o.batch_matmul(3, 60, 64, 48, transpose_a=True, transpose_b=True))
        .split("i", (8, 2))
        .split("j", (16, 2))
        .split("k", (8,))
        .reorder("b", "i.0", "j.0", "i.1", "j.1", "k.0", "k.1", "i.2", "j.2")
        .bind("b", "block.z")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("j.1", "thread.x")
        .cache_write("C", vector=2)
        .cache_read("A", "shared", at="k.0", vector=2)
        .cache_read("B", "shared", at="k.0", vector=4)
    )


def product_over_lanes(dtype: str = "float32") -> Schedule:
    """Products of rows in two parts, each by 8 lanes that read vectors; reads beyond the end must not be
    0."""
    return (
        Schedule(o.reduce((5, 100), 1, "prod", dtype=dtype))
        .rfactor("k1", 2)
        .split("i0", (4,))
        .split("k1", (8, 4))
        .reorder("k1_part", "i0.0", "i0.1", "k1.1", "k1.0", "k1.2")
        .bind("k1_part", "block.y")
        .bind("i0.0", "block.x")
        .bind("i0.1", "thread.y")
        .bind("k1.1", "thread.x")
        .cache_write("Y_parts")
        .cache_write("Y")
        .cache_read("X", "register", at="k1.0", vector=2)
    )


def argmax_over_lanes(dtype: str = "float16", how: str = "argmax") -> Schedule:
    """Argmax of rows of 100: the maximum by 32 lanes, its index in two parts by 8 lanes that read vectors."""
    return (
        Schedule(o.reduce((5, 100), 1, how, dtype=dtype))
        .rfactor("q1", 2)
        .split("k1", (32,))
        .reorder("i0", "k1.1", "k1.0")
        .bind("i0", "block.x")
        .bind("k1.1", "thread.x")
        .cache_write("extreme")
        .split("p0", (4,))
        .split("q1", (8, 4))
        .reorder("q1_part", "p0.0", "p0.1", "q1.1", "q1.0", "q1.2")
        .bind("q1_part", "block.y")
        .bind("p0.0", "block.x")
        .bind("p0.1", "thread.y")
        .bind("q1.1", "thread.x")
        .cache_write("Y_parts")
        .cache_read("X", "register", at="q1.0", vector=2)
        .cache_write("Y")
    )


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
    return (
        two_launches(dtype)
        .split("p", (4, 2))
        .split("q", (8,))
        .split("r", (4,))
        .reorder("p.0", "q.0", "p.1", "q.1", "r.0", "r.1", "p.2")
        .bind("p.0", "block.y")
        .bind("q.0", "block.x")
        .bind("p.1", "thread.y")
        .bind("q.1", "thread.x")
        .cache_write("D")
        .compute_at("C", "r.0")
        .cache_read("B", "shared", at="r.0")
    )


def two_launches(dtype: str = "float32") -> Schedule:
    """C = relu(A) + 1, then D = C @ B, each a launch of one thread."""
    op = o.compute(
        "act",
        axes={"i": 13, "j": 10},
        inputs={"A": (13, 10)},
        body=lambda A, i, j: ex.relu(A[i, j]) + 1,
        dtype=dtype,
    )
    return Schedule(
        op.then(
            "D",
            axes={"p": 13, "q": 11},
            reduce={"r": 10},
            inputs={"B": (10, 11)},
            body=lambda C, B, p, q, r: C[p, r] * B[r, q],
        )
    )


def copy(rows: int, columns: int, *, vector: int = 1, name: str = "copy") -> Schedule:
    """Y = X, a row per block, neighbouring elements by neighbouring threads."""
    op = o.compute(
        name,
        axes={"i": rows, "j": columns},
        inputs={"X": (rows, columns)},
        body=lambda X, i, j: X[i, j],
        output="Y",
    )
    s = (
        Schedule(op)
        .split("j", (32, vector) if vector > 1 else (32,))
        .bind("i", "block.y")
        .bind("j.0", "block.x")
        .bind("j.1", "thread.x")
    )
    return s.vectorize("j.2") if vector > 1 else s


def random_schedule(seed: int) -> Schedule:
    """A multi-level tiled matmul, convolution or matrix-vector product with random sizes and choices."""
    rng = np.random.default_rng(seed)
    makers = (_random_matmul, _random_conv2d, _random_matvec)
    return makers[seed % len(makers)](rng)


def _pick(rng: np.random.Generator, *choices: int) -> int:
    return int(rng.choice(choices))


def _dtype(rng: np.random.Generator) -> str:
    return str(rng.choice(["float32", "float16"]))


def _random_matmul(rng: np.random.Generator) -> Schedule:
    m, n, k = (_pick(rng, 4, 8, 12, 17, 24, 33) for _ in range(3))
    op = o.matmul(
        m, n, k, dtype=_dtype(rng), transpose_a=bool(rng.random() < 0.3), transpose_b=bool(rng.random() < 0.3)
    )
    ti, tj = _pick(rng, 1, 2, 4), _pick(rng, 2, 4, 8)
    s = (
        Schedule(op)
        .split("i", (_pick(rng, 1, 2), ti, _pick(rng, 1, 2, 3, 4)))
        .split("j", (_pick(rng, 1, 2), tj, _pick(rng, 1, 2, 4)))
        .split("k", (_pick(rng, 1, 2, 4), _pick(rng, 1, 2)))
    )
    inner = ["i.1", "i.3", "j.1", "j.3"]
    rng.shuffle(inner)
    s = s.reorder("i.0", "j.0", "i.2", "j.2", "k.0", "k.1", "k.2", *inner)
    where = ("block.y", "block.x") if rng.random() < 0.5 else ("block.x", "block.x")
    s = (
        s.bind("i.0", where[0])
        .bind("j.0", where[1])
        .bind("i.2", "thread.y")
        .bind("j.2", "thread.x")
        .cache_write("C", vector=_pick(rng, 1, 1, 2))
    )
    for name in ("i.1", "j.1"):
        s = s.bind(name, "vthread") if rng.random() < 0.6 else s
    for tensor in ("A", "B"):
        s = _random_copies(s, tensor, rng)
    shared = any(x.name.endswith(".shared") for nest in s.program.nests for x in nest.stagings)
    return s.pipeline("k.0") if shared and rng.random() < 0.6 else s.unroll("k.1")


def softmax(m: int, n: int, *, dtype: str = "float32", warps: int = 2) -> Schedule:
    """Softmax in one launch: rows in shared memory, each reduced by two warps."""
    return (
        Schedule(o.softmax((m, n), dtype=dtype))
        .split("p0", (4,))
        .split("p1", (64, 4))
        .reorder("p0.0", "p0.1", "p1.1", "p1.0", "p1.2")
        .bind("p0.0", "block.x")
        .bind("p0.1", "thread.x")
        .bind("p1.1", "thread.x")
        .cache_read("X", "shared", vector=4, reader="Y")
        .compute_at("total", None, warps=warps)
        .compute_at("top", None, warps=warps)
        .cache_read("X.shared", "register", at="p1.0", vector=4)
        .vectorize("p1.2")
    )


def _random_copies(s: Schedule, tensor: str, rng: np.random.Generator) -> Schedule:
    """Random copies of the factors: none, in registers, in shared memory, or both; scalars or vectors."""
    if rng.random() < 0.2:
        return s.cache_read(tensor, "register", at="k.2") if rng.random() < 0.5 else s
    order = (1, 0) if rng.random() < 0.5 else ()
    pad, vector = _pick(rng, 0, 1, 4), _pick(rng, 1, 1, 2, 4)
    s = s.cache_read(tensor, "shared", at="k.0", vector=vector, order=order, pad=pad)
    if rng.random() < 0.4:
        return s
    at = str(rng.choice(["k.1", "k.2"]))
    return s.cache_read(f"{tensor}.shared", "register", at=at, vector=_pick(rng, 1, 1, 2))


def _random_conv2d(rng: np.random.Generator) -> Schedule:
    op = o.conv2d(
        _pick(rng, 1, 2),
        4,
        _pick(rng, 5, 8),
        7,
        out_channels=_pick(rng, 4, 6),
        kernel=(_pick(rng, 1, 3), 3),
        stride=_pick(rng, 1, 2),
        padding=(0, _pick(rng, 0, 1, 2)),
        dilation=_pick(rng, 1, 2),
        groups=_pick(rng, 1, 2),
        dtype=_dtype(rng),
    )
    s = (
        Schedule(op)
        .split("o", (_pick(rng, 1, 2, 4), _pick(rng, 1, 2)))
        .split("p", (_pick(rng, 1, 2),))
        .split("q", (_pick(rng, 2, 4), _pick(rng, 1, 2)))
        .split("c", (_pick(rng, 1, 2),))
        .reorder("n", "o.0", "p.0", "q.0", "o.1", "q.1", "c.0", "r", "c.1", "s", "o.2", "p.1", "q.2")
        .fuse("n", "o.0")
        .bind("n_o.0", "block.y")
        .bind("p.0", "block.x")
        .bind("q.0", "block.x")
        .bind("o.1", "thread.y")
        .bind("q.1", "thread.x")
        .cache_write("Y")
    )
    at = str(rng.choice(["c.0", "r"]))
    s = s.cache_read("W", "shared", at=at) if rng.random() < 0.7 else s
    if op.tensors["W"].shape[1] == 4 and rng.random() < 0.7:
        s = s.cache_read("X", "shared", at=at, pad=_pick(rng, 0, 1))
        s = s.pipeline(at) if rng.random() < 0.5 else s
    return s


def _random_matvec(rng: np.random.Generator) -> Schedule:
    lanes = _pick(rng, 4, 8, 16, 32)
    s = (
        Schedule(o.matvec(_pick(rng, 5, 16, 31), _pick(rng, 20, 64, 101), dtype=_dtype(rng)))
        .split("i", (32 // lanes * _pick(rng, 1, 2), _pick(rng, 1, 2, 3)))
        .split("k", (lanes, _pick(rng, 1, 2, 4)))
        .reorder("i.0", "i.1", "k.1", "k.0", "k.2", "i.2")
        .bind("i.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("k.1", "thread.x")
        .cache_write("y")
    )
    s = s.cache_read("x", str(rng.choice(["shared", "register"])), at="k.0") if rng.random() < 0.6 else s
    return s.cache_read("A", "register", at="k.0") if rng.random() < 0.5 else s.unroll("k.2")
