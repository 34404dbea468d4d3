"""One mistake each in steps on loops, with the words that must tell it."""

from __future__ import annotations

from collections.abc import Callable

import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.ir.starts import chain, product, staged, vectored

NAMED_AS_JOINT = o.compute(
    "named",
    axes={"a": 4, "b": 3, "a_b": 4},
    inputs={"A": (4, 3), "B": (4,)},
    body=lambda A, B, a, b, a_b: A[a, b] * B[a_b],
)
"""A third axis is called as the first two are when they are fused."""

Case = tuple[Callable[[], Schedule], str, str, str, str]

LOOP_MISTAKES: dict[str, Case] = {
    # name: (mistake, rule, need, limit, nearest), each of the four a regular expression
    "split unknown loop": (
        lambda: product().split("x", (2,)),
        "split",
        "loop called 'x'",
        "the loops i, j, k",
        "'[ijk]'",
    ),
    "split nearest name": (lambda: staged().split("k.01", (2,)), "split", "'k.01'", "k.0, k.1", "'k.[01]'"),
    "split nothing": (
        lambda: product().split("i", ()),
        "split",
        "at least one factor",
        "0 given",
        r"split\(\"i\", \(1,\)\)",
    ),
    "split by 0": (lambda: product().split("i", (0,)), "split i", "^0 as a factor", "at least 1", "1"),
    "split by -4": (lambda: product().split("i", (2, -4)), "split i", "-4", "at least 1", "1"),
    "split bound": (
        lambda: product().bind("i", "block.x").split("i", (2,)),
        "split",
        "i to be a serial",
        "block.x",
        "split before bind",
    ),
    "split staged": (
        lambda: staged().split("k.0", (2,)),
        "split",
        "k.0 to hold no staging",
        "A.shared",
        "before cache_read",
    ),
    "split unrolled": (
        lambda: product().unroll("k").split("k", (2,)),
        "split",
        "as it was",
        "unrolled",
        "before unroll",
    ),
    "split inner piece": (
        lambda: product().split("i", (12,)).split("i.1", (8,)),
        "split i.1",
        "8",
        "a divisor of 12",
        "6",
    ),
    "split fused": (
        lambda: product().fuse("i", "j").split("i_j", (6,)).split("i_j.1", (4,)),
        "split i_j.1",
        "4",
        "of 6",
        "3",
    ),
    "split named": (
        lambda: Schedule(NAMED_AS_JOINT).split("a_b", (2,)).fuse("a", "b").split("a_b", (4,)),
        "split",
        "a_b.0 to be free",
        "a loop has it",
        "other names",
    ),
    "fuse named": (
        lambda: Schedule(NAMED_AS_JOINT).fuse("a", "b"),
        "fuse",
        "a_b to be free",
        "a loop has it",
        "other names",
    ),
    "fuse unknown": (lambda: product().fuse("i", "jj"), "fuse", "'jj'", "i, j, k", "'j'"),
    "fuse apart": (
        lambda: product().reorder("i", "k", "j").fuse("i", "j"),
        "fuse",
        "j directly inside i",
        "apart",
        "reorder",
    ),
    "fuse kinds": (
        lambda: product().fuse("j", "k"),
        "fuse",
        "two spatial or two reduction",
        "one of each",
        "one kind",
    ),
    "fuse bound": (
        lambda: product().bind("i", "block.x").fuse("i", "j"),
        "fuse",
        "serial",
        "block.x",
        "fuse before bind",
    ),
    "fuse nests": (lambda: chain().fuse("q", "i"), "fuse", "one nest", "q and i are of two", "one compute"),
    "fuse staged": (
        lambda: staged().fuse("k.0", "k.1"),
        "fuse",
        "no staging",
        "A.shared",
        "before cache_read",
    ),
    "reorder unknown": (lambda: product().reorder("i", "z"), "reorder", "'z'", "i, j, k", "'.'"),
    "reorder twice": (
        lambda: product().reorder("i", "i"),
        "reorder",
        "each loop once",
        "i is named twice",
        "second out",
    ),
    "reorder nests": (
        lambda: chain().reorder("p", "i"),
        "reorder",
        "one compute",
        "i belongs to another",
        "each compute",
    ),
    "reorder copies": (
        lambda: staged().reorder("k.1", "k.0"),
        "reorder",
        "k.1 inside k.0",
        "A.shared is filled",
        "before cache_read",
    ),
    "reorder vector": (
        lambda: vectored().reorder("j.1", "j.0"),
        "reorder",
        "j.1 innermost",
        "vectors",
        "before vectorize",
    ),
    "bind unknown loop": (lambda: product().bind("ii", "block.x"), "bind", "'ii'", "i, j, k", "'i'"),
    "bind level": (
        lambda: product().bind("i", "blok.x"),
        "bind",
        "level 'blok.x'",
        "block.x, .* vthread",
        "'block.x'",
    ),
    "bind twice": (
        lambda: product().bind("i", "block.x").bind("i", "block.y"),
        "bind",
        "unbound",
        "bound to block.x",
        "another",
    ),
    "bind reduction": (
        lambda: product().bind("k", "block.x"),
        "bind",
        "reduction loop k",
        "spatial",
        "thread.x",
    ),
    "bind lanes y": (lambda: product().bind("k", "thread.y"), "bind", "k on thread.y", "spatial", "thread.x"),
    "bind staged": (
        lambda: product().cache_read("A", "shared", at="i").bind("i", "block.x"),
        "bind",
        "no staging",
        "sits",
        "before cache_read",
    ),
    "unroll bound": (
        lambda: product().bind("i", "block.x").unroll("i"),
        "unroll",
        "i to be serial",
        "block.x",
        "a serial loop",
    ),
    "unroll 0": (lambda: product().unroll("k", 0), "unroll k", "0", "at least 1", "1"),
    "unroll unknown": (lambda: product().unroll("kk"), "unroll", "'kk'", "i, j, k", "'k'"),
    "vectorize outer": (lambda: product().vectorize("j"), "vectorize", "j innermost", "k lies inside", "'k'"),
    "vectorize reduction": (
        lambda: product().vectorize("k"),
        "vectorize",
        "serial spatial",
        "k is not",
        "innermost spatial",
    ),
    "vectorize 3": (
        lambda: Schedule(o.matmul(8, 3, 8)).reorder("k", "j").vectorize("j"),
        "vectorize j",
        "3",
        "2, 4, 8 or 16",
        "by 4",
    ),
    "vectorize strided": (
        lambda: product().split("i", (4,)).reorder("j", "k", "i.1").vectorize("i.1"),
        "vectorize",
        "neighbours in C",
        "along j",
        "piece of j",
    ),
    "vectorize staged": (
        lambda: (
            product().reorder("k", "j").split("j", (4,)).cache_read("A", "shared", at="j.1").vectorize("j.1")
        ),
        "vectorize",
        "no staging",
        "A.shared",
        "compute_at",
    ),
}
