"""One mistake each in cutting a sum into parts, with the words that must tell it."""

from __future__ import annotations

import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.starts import chain, product

RFACTOR_MISTAKES: dict[str, Case] = {
    # name: (mistake, rule, need, limit, nearest), each of the four a regular expression
    "rfactor unknown": (
        lambda: product().rfactor("x", 2),
        "rfactor",
        "loop called 'x'",
        "i, j, k",
        "'[ijk]'",
    ),
    "rfactor output": (
        lambda: product().rfactor("i", 2),
        "rfactor",
        "a reduction axis",
        "i, which C is indexed by",
        r'rfactor\("k"',
    ),
    "rfactor no sum": (
        lambda: chain().rfactor("p", 2),
        "rfactor",
        "a reduction axis",
        "p, which T is indexed by",
        "leave it out",
    ),
    "rfactor tail": (lambda: product().rfactor("k", 7), "rfactor", "7 parts of k", "divisors of", "8"),
    "rfactor whole": (lambda: product().rfactor("k", 1), "rfactor", "1 parts of k", "divisors of", "2"),
    "rfactor prime": (
        lambda: Schedule(o.matmul(4, 4, 13)).rfactor("k", 13),
        "rfactor",
        "13 parts",
        "divisors of 13",
        "leave it out",
    ),
    "rfactor late": (
        lambda: product().bind("i", "block.x").rfactor("k", 2),
        "rfactor",
        "loops of C to be as they were",
        "a step taken",
        "rfactor first",
    ),
    "rfactor inlined into": (
        lambda: chain().compute_inline("T").rfactor("k", 2),
        "rfactor",
        "loops of C to be as they were",
        "a step taken",
        "rfactor first",
    ),
}
