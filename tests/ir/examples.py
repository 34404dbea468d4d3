"""Schedules that several tests use."""

from __future__ import annotations

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from tests.ir.async_examples import async_conv2d, async_matmul
from tests.ir.tensor_examples import half_matmul


def tiled_matmul(m: int, n: int, k: int, dtype: str = "float32") -> Schedule:
    """A product with shared and register tiles, vthreads, and two copies of each shared tile."""
    return (
        Schedule(o.matmul(m, n, k, dtype=dtype))
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
        .cache_write("C", "register", vector=4)
        .cache_read("A", "shared", at="k.0", vector=4, order=(1, 0), pad=4)
        .cache_read("B", "shared", at="k.0", vector=4)
        .cache_read("A.shared", "register", at="k.1", vector=4)
        .cache_read("B.shared", "register", at="k.1", vector=4)
        .pipeline("k.0", stages=2)
        .unroll("k.1")
    )


def tiled_conv2d() -> Schedule:
    """A convolution with padding, stride 2, tails, and a register copy of a shared tile."""
    return (
        Schedule(o.conv2d(2, 8, 9, 9, out_channels=6, kernel=3, stride=2, padding=1))
        .split("o", (2, 2))
        .split("p", (3,))
        .split("q", (3, 2))
        .split("c", (3,))
        .reorder("n", "o.0", "p.0", "q.0", "o.1", "q.1", "c.0", "c.1", "r", "s", "o.2", "p.1", "q.2")
        .bind("n", "block.z")
        .bind("o.0", "block.y")
        .bind("p.0", "block.x")
        .bind("q.0", "block.x")
        .bind("o.1", "thread.y")
        .bind("q.1", "thread.x")
        .cache_write("Y")
        .cache_read("X", "shared", at="c.0")
        .cache_read("W", "shared", at="c.0")
        .cache_read("X.shared", "register", at="r")
    )


def lanes_matvec() -> Schedule:
    """A sum across lanes, with tails in both axes."""
    return _over_lanes(o.matvec(41, 100))


def column_lanes() -> Schedule:
    """Columns summed across every fourth lane, four of them side by side; tails in both axes."""
    return (
        Schedule(o.einsum("km,k->m", (100, 41), (100,)))
        .split("m", (2, 4, 2))
        .split("k", (8, 3))
        .reorder("m.0", "m.1", "k.1", "m.2", "k.0", "k.2", "m.3")
        .bind("m.0", "block.x")
        .bind("m.1", "thread.x")
        .bind("k.1", "thread.x")
        .bind("m.2", "thread.x")
        .cache_write("C")
        .cache_read("A", "register", at="k.0")
    )


def depth_lanes(m: int = 40, n: int = 30, k: int = 50) -> Schedule:
    """A product whose lanes share the depth: eight lanes by two rows by two columns."""
    return (
        Schedule(o.matmul(m, n, k, transpose_a=True))
        .cache_write("C")
        .split("i", (4, 2, 4))
        .split("j", (2, 2, 4))
        .split("k", (4, 8))
        .reorder("i.0", "j.0", "k.2", "i.2", "j.2", "k.0", "k.1", "i.1", "i.3", "j.1", "j.3")
        .bind("i.0", "block.y")
        .bind("j.0", "block.x")
        .bind("k.2", "thread.x")
        .bind("i.2", "thread.x")
        .bind("j.2", "thread.x")
        .cache_read("A", "shared", at="k.0", pad=8)
        .cache_read("B", "shared", at="k.0", pad=8)
        .cache_read("A.shared", "register", at="k.1", vector=4)
        .cache_read("B.shared", "register", at="k.1", vector=4)
    )


def _over_lanes(op: Operator) -> Schedule:
    return (
        Schedule(op)
        .split("i", (4,))
        .split("k", (8, 4))
        .reorder("i.0", "i.1", "k.1", "k.0", "k.2")
        .bind("i.0", "block.x")
        .bind("i.1", "thread.y")
        .bind("k.1", "thread.x")
        .cache_write("y")
        .cache_read("A", "register", at="k.0", vector=4)
    )


def two_launches() -> Schedule:
    """A chain, each compute a launch of its own; a maximum that starts at minus infinity."""
    first = o.compute(
        "chain",
        axes={"p": 20, "q": 18},
        inputs={"X": (20, 18)},
        body=lambda X, p, q: ex.relu(X[p, q - 1] + X[p, q] * 2),
        output="T",
    )
    op = first.then(
        "C",
        axes={"i": 20, "j": 24},
        reduce={"k": 18},
        inputs={"B": (18, 24)},
        body=lambda T, B, i, j, k: T[i, k] * B[k, j],
        combine="max",
    )
    return (
        Schedule(op).split("q", (4,)).vectorize("q.1").bind("p", "block.x").split("k", (4,)).split("i", (5,))
    )


def fused_on_the_spot() -> Schedule:
    """The chain in one launch, with the first compute in shared memory."""
    s = Schedule(two_launches().op).split("k", (4,)).split("i", (5,)).reorder("i.0", "j", "k.0", "k.1", "i.1")
    return (
        s.bind("i.0", "block.x")
        .bind("j", "thread.x")
        .compute_at("T", "k.0")
        .cache_write("C")
        .unroll("k.1", 2)
    )


def fused_loops() -> Schedule:
    """A fused loop on threads, with quotients and remainders in indices and one staged input."""
    s = Schedule(o.matmul(6, 10, 12)).fuse("i", "j").split("k", (3,)).bind("i_j", "thread.x")
    return s.cache_read("A", "shared", at="k.0", pad=1).cache_write("C")


def behind_the_sum() -> Schedule:
    """A sum across lanes with a bias and an activation behind it, written by lane 0."""
    op = o.matvec(41, 100, dtype="float16")
    op = op.epilogue(lambda y, bias: ex.silu(y + bias), bias=(41,), out_dtype="float32")
    return _over_lanes(op).compute_inline("y")


def put_into_its_reader() -> Schedule:
    """relu in the body of a product, whose tail then needs a guard."""
    first = o.compute(
        "act",
        axes={"p": 9, "q": 10},
        inputs={"X": (9, 10)},
        body=lambda X, p, q: ex.relu(X[p, q]),
        output="T",
    )
    op = first.then(
        "C",
        axes={"i": 9, "j": 8},
        reduce={"k": 10},
        inputs={"B": (10, 8)},
        body=lambda T, B, i, j, k: T[i - 1, k] * B[k, j],
    )
    return (
        Schedule(op).compute_inline("T").split("k", (4,)).cache_write("C").cache_read("X", "shared", at="k.0")
    )


EXAMPLES = {
    "matmul": lambda: tiled_matmul(4096, 4096, 4096),
    "matmul_tails": lambda: tiled_matmul(200, 130, 33, "float16"),
    "matmul_async": lambda: async_matmul(33, 44, 36),
    "matmul_swizzled": lambda: async_matmul(32, 64, 32, dtype="float16", vector=8, swizzle=8),
    "matmul_tensor": half_matmul,
    "conv2d_async": lambda: async_conv2d(4),
    "conv2d": tiled_conv2d,
    "matvec_lanes": lanes_matvec,
    "column_lanes": column_lanes,
    "depth_lanes": depth_lanes,
    "two_launches": two_launches,
    "on_the_spot": fused_on_the_spot,
    "fused_loops": fused_loops,
    "behind_the_sum": behind_the_sum,
    "into_its_reader": put_into_its_reader,
    "plain": lambda: Schedule(o.matvec(4, 5)),
}
