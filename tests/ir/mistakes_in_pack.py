"""One mistake each in packing an input, with the words that must tell it."""

from __future__ import annotations

import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.starts import chain, product

PACK_MISTAKES: dict[str, Case] = {
    # name: (mistake, rule, need, limit, nearest), each of the four a regular expression
    "pack unknown": (
        lambda: product().pack("AA", (1, 0)),
        "pack",
        "an input called 'AA'",
        "those read: A, B",
        "'A'",
    ),
    "pack no input": (
        lambda: chain().pack("T", (1, 0)),
        "pack",
        "an input called 'T'",
        "those read: X, B",
        "'[XB]'",
    ),
    "pack as it is": (
        lambda: product().pack("A", (0, 1)),
        "pack",
        r"the dimensions of A in the order \(0, 1\)",
        r"another order of \(0, 1\)",
        r"\(1, 0\)",
    ),
    "pack one twice": (
        lambda: product().pack("A", (0, 0)),
        "pack",
        r"the order \(0, 0\)",
        "another order",
        r"\(1, 0\)",
    ),
    "pack too few": (
        lambda: Schedule(o.conv2d(1, 4, 5, 5, out_channels=4, kernel=3)).pack("X", (1, 0)),
        "pack",
        r"the order \(1, 0\)",
        r"another order of \(0, 1, 2, 3\)",
        r"\(0, 1, 3, 2\)",
    ),
    "pack a vector": (
        lambda: Schedule(o.matvec(4, 8)).pack("x", (0,)),
        "pack",
        r"the order \(0,\)",
        "another order",
        "leave it out",
    ),
    "pack late": (
        lambda: product().bind("i", "block.x").pack("A", (1, 0)),
        "pack",
        "loops of C to be as they were",
        "a step taken",
        "pack first",
    ),
    "pack late and as it is": (
        lambda: product().bind("i", "block.x").pack("A", (0, 1)),
        "pack",
        "loops of C to be as they were",
        "a step taken",
        "pack first",
    ),
    "pack inlined into": (
        lambda: chain().compute_inline("T").pack(chain().op.inputs[0].name, (1, 0)),
        "pack",
        "to be as they were",
        "a step taken",
        "pack first",
    ),
    "pack tf32": (
        lambda: Schedule(o.matmul(4, 4, 8, dtype="tf32")).pack("A", (1, 0)),
        "pack",
        "a tensor of tf32 stored",
        "tf32 is only read",
        "leave it out",
    ),
    "pack tf32 as it is": (
        lambda: Schedule(o.matmul(4, 4, 8, dtype="tf32")).pack("A", (0, 1)),
        "pack",
        "a tensor of tf32 stored",
        "tf32 is only read",
        "leave it out",
    ),
}
