"""One mistake each in letting blocks share a sum, with the words that must tell it."""

from __future__ import annotations

import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.starts import chain, product, summed_first

ATOMIC_MISTAKES: dict[str, Case] = {
    # name: (mistake, rule, need, limit, nearest), each of the four a regular expression
    "atomic unknown": (lambda: product().atomic("D"), "atomic", "output called 'D'", "outputs C", "'C'"),
    "atomic twice": (lambda: product().atomic("C").atomic("C"), "atomic", "once", "is atomic", "leave the"),
    "atomic no sum": (lambda: chain().atomic("T"), "atomic", "T to be a sum", "sums nothing", "leave it out"),
    "atomic greatest": (
        lambda: Schedule(o.reduce((8, 32), 1, "max")).atomic("Y"),
        "atomic",
        "Y to be a sum",
        "parts are added, and it is a max",
        r'rfactor\("k1"',
    ),
    "atomic half": (
        lambda: Schedule(o.matmul(8, 8, 32, dtype="float16")).atomic("C"),
        "atomic",
        "C as float32, as it is summed",
        "kept as float16, which would round each part",
        r'out_dtype="float32", or rfactor\("k"',
    ),
    "atomic bytes": (
        lambda: Schedule(o.matmul(8, 8, 32, dtype="int8", out_dtype="int8")).atomic("C"),
        "atomic",
        "C as int32",
        "kept as int8",
        r'out_dtype="int32", or rfactor\("k"',
    ),
    "atomic behind": (
        lambda: summed_first().cache_write("C").compute_inline("C").atomic("C"),
        "atomic",
        "C written as it is summed",
        "D is put behind it",
        r'leave compute_inline\("C"\) out, or rfactor\("k"',
    ),
    "compute_inline of an atomic": (
        lambda: summed_first().cache_write("C").atomic("C").compute_inline("C"),
        "compute_inline",
        "C whole in one block",
        "add their parts of it by atomics",
        r'leave atomic\("C"\) out',
    ),
    "compute_at of an atomic": (
        lambda: summed_first().atomic("C").compute_at("C", "p"),
        "compute_at",
        "C not yet scheduled",
        "it was changed",
        "compute_at first",
    ),
    "rfactor of an atomic": (
        lambda: product().atomic("C").rfactor("k", 2),
        "rfactor",
        "loops of C to be as they were",
        "a step taken",
        "rfactor first",
    ),
    "bind a sum to blocks": (
        lambda: product().bind("k", "block.x"),
        "bind",
        "reduction loop k on block.x",
        "spatial loops",
        r'thread.x, or leave it serial, or atomic\("C"\) first',
    ),
    "bind an atomic sum to warps": (
        lambda: product().atomic("C").bind("k", "thread.y"),
        "bind",
        "reduction loop k on thread.y",
        "spatial loops",
        "thread.x, or leave it serial$",
    ),
}
