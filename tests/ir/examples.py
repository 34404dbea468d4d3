"""Schedules that several tests use."""

from __future__ import annotations

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.codegen import samples
from tests.ir.async_examples import async_conv2d, async_matmul
from tests.ir.tensor_examples import half_matmul
from tests.ir.tilings import bind_loops, reduce_over_lanes


def tiled_matmul(m: int, n: int, k: int, dtype: str = "float32") -> Schedule:
    """A product with shared and register tiles, vthreads, and two copies of each shared tile."""
    return samples.tiled(o.matmul(m, n, k, dtype=dtype), vector=4)


def tiled_conv2d() -> Schedule:
    """A convolution with padding, stride 2, tails, and a register copy of a shared tile."""
    op = o.conv2d(2, 8, 9, 9, out_channels=6, kernel=3, stride=2, padding=1)
    levels = ("block.z", "block.y", "block.x", "block.x", "thread.y", "thread.x")
    return samples.tiled_conv2d(op, levels, pad=0)


def lanes_matvec() -> Schedule:
    """A sum across lanes, with tails in both axes."""
    return samples.matvec(41, 100)


def column_lanes() -> Schedule:
    """Columns summed across every fourth lane, four of them side by side; tails in both axes."""
    s = Schedule(o.einsum("km,k->m", (100, 41), (100,))).split("m", (2, 4, 2)).split("k", (8, 3))
    s = s.reorder("m.0", "m.1", "k.1", "m.2", "k.0", "k.2", "m.3")
    s = bind_loops(s, {"m.0": "block.x", "m.1": "thread.x", "k.1": "thread.x", "m.2": "thread.x"})
    return s.cache_write("C").cache_read("A", "register", at="k.0")


def depth_lanes(m: int = 40, n: int = 30, k: int = 50) -> Schedule:
    """A product whose lanes share the depth: eight lanes by two rows by two columns."""
    s = Schedule(o.matmul(m, n, k, transpose_a=True)).cache_write("C")
    s = s.split("i", (4, 2, 4)).split("j", (2, 2, 4)).split("k", (4, 8))
    s = s.reorder("i.0", "j.0", "k.2", "i.2", "j.2", "k.0", "k.1", "i.1", "i.3", "j.1", "j.3")
    s = bind_loops(s, {"i.0": "block.y", "j.0": "block.x"} | dict.fromkeys(("k.2", "i.2", "j.2"), "thread.x"))
    for tensor in "AB":
        s = s.cache_read(tensor, "shared", at="k.0", pad=8)
    for tensor in "AB":
        s = s.cache_read(f"{tensor}.shared", "register", at="k.1", vector=4)
    return s


def two_launches() -> Schedule:
    """A chain, each compute a launch of its own; a maximum that starts at minus infinity."""
    body = lambda X, p, q: ex.relu(X[p, q - 1] + X[p, q] * 2)  # noqa: E731
    first = o.compute("chain", axes={"p": 20, "q": 18}, inputs={"X": (20, 18)}, body=body, output="T")
    body = lambda T, B, i, j, k: T[i, k] * B[k, j]  # noqa: E731
    axes, reduce, inputs = {"i": 20, "j": 24}, {"k": 18}, {"B": (18, 24)}
    s = Schedule(first.then("C", axes=axes, reduce=reduce, inputs=inputs, body=body, combine="max"))
    return s.split("q", (4,)).vectorize("q.1").bind("p", "block.x").split("k", (4,)).split("i", (5,))


def fused_on_the_spot() -> Schedule:
    """The chain in one launch, with the first compute in shared memory."""
    s = Schedule(two_launches().op).split("k", (4,)).split("i", (5,)).reorder("i.0", "j", "k.0", "k.1", "i.1")
    s = s.bind("i.0", "block.x").bind("j", "thread.x").compute_at("T", "k.0")
    return s.cache_write("C").unroll("k.1", 2)


def fused_loops() -> Schedule:
    """A fused loop on threads, with quotients and remainders in indices and one staged input."""
    s = Schedule(o.matmul(6, 10, 12)).fuse("i", "j").split("k", (3,)).bind("i_j", "thread.x")
    return s.cache_read("A", "shared", at="k.0", pad=1).cache_write("C")


def behind_the_sum() -> Schedule:
    """A sum across lanes with a bias and an activation behind it, written by lane 0."""
    op = o.matvec(41, 100, dtype="float16")
    op = op.epilogue(lambda y, bias: ex.silu(y + bias), bias=(41,), out_dtype="float32")
    s = reduce_over_lanes(Schedule(op), "y", "i", "k").cache_read("A", "register", at="k.0", vector=4)
    return s.compute_inline("y")


def put_into_its_reader() -> Schedule:
    """relu in the body of a product, whose tail then needs a guard."""
    body = lambda X, p, q: ex.relu(X[p, q])  # noqa: E731
    first = o.compute("act", axes={"p": 9, "q": 10}, inputs={"X": (9, 10)}, body=body, output="T")
    body = lambda T, B, i, j, k: T[i - 1, k] * B[k, j]  # noqa: E731
    op = first.then("C", axes={"i": 9, "j": 8}, reduce={"k": 10}, inputs={"B": (10, 8)}, body=body)
    s = Schedule(op).compute_inline("T").split("k", (4,)).cache_write("C")
    return s.cache_read("X", "shared", at="k.0")


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
