"""One mistake each in cutting an axis where a quotient of it turns over, with the words that must tell it."""

from __future__ import annotations

import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.starts import product


def grouped() -> Schedule:
    """Two groups of four channels: o // 4."""
    return Schedule(o.conv2d(1, 8, 5, 6, out_channels=8, groups=2))


DIVIDE_MISTAKES: dict[str, Case] = {
    # name: (mistake, rule, need, limit, nearest), each of the four a regular expression
    "divide unknown": (lambda: grouped().divide("x", 4), "divide", "loop called 'x'", "n, o, p, q", r"'\w'"),
    "divide what nothing divides": (
        lambda: product().divide("i", 4),
        "divide",
        "a quotient or remainder of i",
        "C reads none",
        r'split\("i", \(4,\)\)',
    ),
    "divide within a group": (
        lambda: grouped().divide("o", 3),
        "divide",
        "o by 3",
        "multiples of 4 below 8",
        "^4$",
    ),
    "divide by 0": (lambda: grouped().divide("o", 0), "divide", "o by 0", "multiples of 4 below 8", "^4$"),
    "divide the whole": (
        lambda: grouped().divide("o", 8),
        "divide",
        "o by 8",
        "multiples of 4 below 8",
        "^4$",
    ),
    "divide by far too much": (
        lambda: Schedule(o.conv2d(1, 24, 5, 6, out_channels=24, groups=6)).divide("o", 40),
        "divide",
        "o by 40",
        "multiples of 4 below 24",
        "^20$",
    ),
    "divide less than a quotient": (
        lambda: Schedule(
            o.compute("half", axes={"i": 3}, inputs={"x": (3,)}, body=lambda x, i: x[i // 4] + x[i % 2])
        ).divide("i", 2),
        "divide",
        "i by 2",
        "multiples of 4 below 3",
        "leave it out",
    ),
    "divide late": (
        lambda: grouped().split("p", (2,)).divide("o", 4),
        "divide",
        "the axes of Y whole",
        "p is cut",
        "divide first",
    ),
    "divide after a cut": (
        lambda: (
            Schedule(o.conv_transpose2d(1, 2, 5, 5, out_channels=2, kernel=3, stride=2))
            .divide("p", 4)
            .split("p.1", (2,))
            .divide("q", 2)
        ),
        "divide",
        "the axes of Y whole",
        "p is cut",
        "divide first",
    ),
    "divide twice": (
        lambda: grouped().divide("o", 4).divide("o.1", 2),
        "divide",
        "o.1 to be an axis of Y",
        "a piece of one",
        r'split\("o.1", \(2,\)\)',
    ),
    "divide a bound axis": (
        lambda: grouped().bind("o", "block.x").divide("o", 4),
        "divide",
        "o to be a serial loop",
        "bound to block.x",
        "divide before bind",
    ),
    "split across a group": (
        lambda: grouped().divide("o", 4).split("o.1", (3,)),
        "split o.1",
        "3 as product of factors",
        "a divisor of 4",
        "2",
    ),
}
