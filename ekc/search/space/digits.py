"""Dimensions that two axes run along as the digits of a number: `k_part*128 + k`, where k has 128 values.

So a sum in parts reads (`ekc.ir.schedule.graph_rewrites`), and so does whoever writes parts of a dimension by hand.
"""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.affine import to_affine
from ekc.ir.operator import Compute


def match_digits(compute: Compute, index: ex.Expr) -> tuple[str, str] | None:
    """The outer and the inner axis of such an index; None for any other."""
    form = to_affine(index, {})
    if len(form.terms) != 2 or form.const != 0:
        return None
    outer, inner = sorted(form.terms, key=lambda term: -int(term[1]))
    if not isinstance(outer[0], str) or not isinstance(inner[0], str):
        return None
    whole = inner[1] == 1 and outer[1] == compute.find_axis(inner[0]).extent
    return (outer[0], inner[0]) if whole else None


def find_contiguous_axis(compute: Compute, index: ex.Expr) -> str | None:
    """The axis whose neighbours are those of a dimension: its only one, or its inner digit."""
    if isinstance(index, ex.Var):
        return index.name
    found = match_digits(compute, index)
    return found and found[1]


def find_part_axes(compute: Compute) -> frozenset[str]:
    """Spatial axes that every read has as the outer digit of a sum, and nowhere else: one part of it each."""
    sums = {a.name for a in compute.reduction_axes}
    found = frozenset(a.name for a in compute.spatial_axes)
    for load in ex.find_loads(compute.body):
        pairs = [match_digits(compute, index) for index in load.index]
        outer = [pair[0] for pair in pairs if pair and pair[1] in sums]
        once = {x for x in outer if sum(x in ex.find_variables(index) for index in load.index) == 1}
        found &= once
    return found if ex.find_loads(compute.body) else frozenset()
