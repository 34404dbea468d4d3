"""One mistake each in compute_inline, with the words that must tell it."""

from __future__ import annotations

from collections.abc import Callable

import ekc.ir.expr as ex
import ekc.ir.operators as o
from ekc.ir.schedule.schedule import Schedule
from tests.ir.mistakes_in_loops import Case
from tests.ir.starts import chain, product, read_twice, summed_first


def behind(body: Callable[..., ex.Expr], reduce: dict[str, int] | None = None) -> Schedule:
    """A product held in registers, and a reader of it."""
    op = o.matmul(8, 8, 8).then("D", axes={"p": 8, "q": 8}, reduce=reduce, body=body)
    return Schedule(op).cache_write("C")


def forked() -> Schedule:
    """A product that two computes read, each at its own element."""
    op = o.matmul(8, 8, 8).epilogue(lambda c: ex.relu(c))
    body = lambda C, C_out, p, q: C[p, q] + C_out[p, q]  # noqa: E731
    return Schedule(op.then("E", axes={"p": 8, "q": 8}, body=body)).cache_write("C")


def shifted(body: Callable[..., ex.Expr]) -> Schedule:
    """T of X, read one row above: row -1 is 0."""
    first = o.compute("t", axes={"p": 8, "q": 8}, inputs={"X": (8, 9)}, body=body, output="T")
    return Schedule(first.then("C", axes={"i": 8, "j": 8}, body=lambda T, i, j: T[i - 1, j]))


INLINING_MISTAKES: dict[str, Case] = {
    "compute_inline unknown": (
        lambda: chain().compute_inline("TT"),
        "compute_inline",
        "'TT'",
        "between computes T",
        "'T'",
    ),
    "compute_inline result": (lambda: chain().compute_inline("C"), "compute_inline", "'C'", "T", "'T'"),
    "compute_inline input": (lambda: chain().compute_inline("X"), "compute_inline", "'X'", "T", "'T'"),
    "compute_inline alone": (
        lambda: product().compute_inline("C"),
        "compute_inline",
        "'C'",
        "no tensor between",
        "leave it out",
    ),
    "compute_inline clamped": (
        lambda: (
            Schedule(o.matmul(8, 8, 8, dtype="int8", out_dtype="int8").epilogue(lambda c: ex.relu(c)))
            .cache_write("C")
            .compute_inline("C")
        ),
        "compute_inline",
        "C as int8",
        "cuts it off",
        "a launch of its own",
    ),
    "compute_inline not held": (
        lambda: summed_first().compute_inline("C"),
        "compute_inline",
        "C held in registers",
        "no memory",
        r'cache_write\("C"\) first',
    ),
    "compute_inline scheduled without a sum": (
        lambda: shifted(lambda X, p, q: X[p, q]).split("p", (2,)).compute_inline("T"),
        "compute_inline",
        "own element",
        r"T\[i - 1, j\]",
        "launch",
    ),
    "compute_inline reader scheduled": (
        lambda: summed_first().cache_write("C").split("p", (2,)).compute_inline("C"),
        "compute_inline",
        "D not yet scheduled",
        "changed",
        "first",
    ),
    "compute_inline reader bound": (
        lambda: summed_first().cache_write("C").bind("p", "block.x").compute_inline("C"),
        "compute_inline",
        "D not yet scheduled",
        "changed",
        "first",
    ),
    "compute_inline other elements": (
        lambda: behind(lambda C, p, q: C[p, q] + C[p, q - 1]).compute_inline("C"),
        "compute_inline",
        "own element",
        r"C\[p, q - 1\]",
        "launch",
    ),
    "compute_inline turned": (
        lambda: behind(lambda C, p, q: C[q, p]).compute_inline("C"),
        "compute_inline",
        "own element",
        r"C\[q, p\]",
        "launch",
    ),
    "compute_inline summed": (
        lambda: behind(lambda C, p, q, r: C[p, q] * r, {"r": 3}).compute_inline("C"),
        "compute_inline",
        "own element",
        r"sum\[r < 3\]",
        "launch",
    ),
    "compute_inline read twice": (
        lambda: forked().compute_inline("C"),
        "compute_inline",
        "by one compute",
        "2 read it",
        "launch",
    ),
    "compute_inline copied": (
        lambda: chain().cache_read("T", "shared").compute_inline("T"),
        "compute_inline",
        "where it lies",
        "T.shared",
        "first",
    ),
    "compute_inline on the spot": (
        lambda: read_twice().compute_at("U", "i").compute_inline("T"),
        "compute_inline",
        "where it lies",
        "U.shared",
        "first",
    ),
    "compute_inline not 0 outside": (
        lambda: shifted(lambda X, p, q: ex.exp(X[p, q])).compute_inline("T"),
        "compute_inline",
        r"0 for T\[i - 1, j\] outside T",
        "exp",
        r'compute_at\("T"',
    ),
    "compute_inline an axis as a number": (
        lambda: shifted(lambda X, p, q: X[p, q] * p).compute_inline("T"),
        "compute_inline",
        "outside T",
        r"\* p",
        "compute_at",
    ),
    "compute_inline reads on": (
        # X has a row above row 0 of T: what T ends, X does not.
        lambda: shifted(lambda X, p, q: X[p + 1, q]).compute_inline("T"),
        "compute_inline",
        "outside T",
        r"X\[p \+ 1, q\]",
        "compute_at",
    ),
}
