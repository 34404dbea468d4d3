"""Dimensions that two axes run along as the digits of a number: `k_part*128 + k`, where k has 128 values.

So a sum in parts reads (`ekc.ir.partial`), and so does whoever writes parts of a dimension by hand.
"""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.linear import linearize
from ekc.ir.operator import Compute

SHORT = 8
"""Terms: of four bytes a sector, of two half of one."""


def digits(compute: Compute, index: ex.Expr) -> tuple[str, str] | None:
    """The outer and the inner axis of such an index; None for any other."""
    form = linearize(index, {})
    if len(form.terms) != 2 or form.const != 0:
        return None
    outer, inner = sorted(form.terms, key=lambda term: -int(term[1]))
    if not isinstance(outer[0], str) or not isinstance(inner[0], str):
        return None
    whole = inner[1] == 1 and outer[1] == compute.axis(inner[0]).extent
    return (outer[0], inner[0]) if whole else None


def along(compute: Compute, index: ex.Expr) -> str | None:
    """The axis whose neighbours are those of a dimension: its only one, or its inner digit."""
    if isinstance(index, ex.Var):
        return index.name
    found = digits(compute, index)
    return found and found[1]


def part_axes(compute: Compute) -> frozenset[str]:
    """Spatial axes that every read has as the outer digit of one dimension and nowhere else, some read as
    that of a sum: each step of them is a part of a sum, or a group of channels."""
    found = frozenset(a.name for a in compute.spatial)
    for load in ex.loads(compute.body):
        outer = {pair[0] for pair in _pairs(compute, load)}
        found &= {x for x in outer if sum(x in ex.variables(index) for index in load.index) == 1}
    return found & {outer for outer, _ in _before_sums(compute)}


def narrow(compute: Compute) -> frozenset[str]:
    """Outer digits of sums so short that a sector of memory holds several."""
    return frozenset(outer for outer, inner in _before_sums(compute) if compute.axis(inner).extent <= SHORT)


def _before_sums(compute: Compute) -> list[tuple[str, str]]:
    """Pairs of digits whose inner one is summed."""
    sums = {a.name for a in compute.reduction}
    every = (pair for load in ex.loads(compute.body) for pair in _pairs(compute, load))
    return [pair for pair in every if pair[1] in sums]


def _pairs(compute: Compute, load: ex.Load) -> list[tuple[str, str]]:
    return [pair for pair in (digits(compute, index) for index in load.index) if pair]
