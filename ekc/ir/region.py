"""Which part of a tensor a stretch of loops touches, and where in a buffer each element lands.

Along each dimension the touched elements are one or more *segments* (a mixed-radix number): a
thread that owns rows 64*i.1 + i.3 with i.1 < 2, i.3 < 4 touches 2 segments by 4 elements, eight
in all, not the 68 that lie between first and last. Where two axes meet in one dimension (a
convolution's p + r), or several reads overlap, the hull is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.ir.linear import Atom, Extent, Linear, Quasi, atom_range, larger, smaller, span
from ekc.ir.refusal import refuse


@dataclass(frozen=True, eq=False)
class Segment:
    """`extent` elements, `stride` apart along dimension `dim` of the tensor."""

    dim: int
    stride: Extent
    extent: Extent
    terms: tuple[tuple[Atom, Extent], ...]
    """Its coordinate as a sum of multiplier * loop variable; empty for a hull."""
    hull: bool = False


@dataclass(frozen=True, eq=False)
class Region:
    """A box of segments that starts at `base` (one form per dimension, in the loops outside)."""

    base: tuple[Linear, ...]
    segments: tuple[Segment, ...]
    inner: frozenset[str]

    @property
    def size(self) -> Extent:
        """Number of elements."""
        total: Extent = 1
        for s in self.segments:
            total = total * s.extent
        return total

    def locate(self, index: tuple[Linear, ...]) -> tuple[Linear, ...]:
        """The coordinate along each segment of one read of the tensor."""
        return tuple(index[s.dim] - self.base[s.dim] if s.hull else Linear(s.terms) for s in self.segments)

    def coordinates(self) -> tuple[Linear, ...]:
        """Tensor coordinates of the element whose segment coordinates are the variables `#0`, `#1`, ..."""
        forms = list(self.base)
        for i, s in enumerate(self.segments):
            forms[s.dim] = forms[s.dim] + Linear(((f"#{i}", s.stride),))
        return tuple(forms)


def segment_cell(region: Region) -> tuple[Linear, ...]:
    """The cell whose coordinates are the segment variables `#0`, `#1`, ... themselves."""
    return tuple(Linear(((f"#{i}", 1),)) for i in range(len(region.segments)))


def region_of(
    reads: list[tuple[Linear, ...]],
    inner: frozenset[str],
    extents: Mapping[str, Extent],
    axis_of: Mapping[str, str],
) -> Region:
    """The region that `reads` (index forms of one tensor) touch while the loops `inner` run.

    What is joined and where a hull is taken depends on the structure of the forms alone, never on
    extents, so that a population and each of its members see the same segments. `axis_of` gives
    the axis of each loop, "" for the loop of an axis of extent 1, which never moves.
    """
    bases, segments = [], []
    for dim in range(len(reads[0])):
        base, found = _dimension(dim, [read[dim] for read in reads], inner, extents, axis_of)
        bases.append(base)
        segments.extend(found)
    if not segments:
        segments.append(Segment(len(bases) - 1, 1, 1, ()))
    return Region(tuple(bases), tuple(segments), inner)


def _dimension(
    dim: int,
    forms: list[Linear],
    inner: frozenset[str],
    extents: Mapping[str, Extent],
    axis_of: Mapping[str, str],
) -> tuple[Linear, list[Segment]]:
    outside = [form.without(inner) for form in forms]
    for form in forms:
        if form.mixed(inner):
            raise refuse(
                "stage",
                f"a region along the fused index {form.mixed(inner)[0].tag}",
                "an index that runs wholly inside or outside",
                "split the axes before fusing them, or stage at another loop",
            )
    for other in outside[1:]:
        if (other - outside[0]).variables() and not _same(other, outside[0]):
            raise refuse(
                "stage",
                "one region for several reads",
                "reads that differ by a constant",
                "stage at another loop",
            )
    terms = tuple(t for t in forms[0].only(inner).terms if _axis(t[0], axis_of))
    axes = {_axis(a, axis_of) for a, _ in terms}
    different = len(forms) > 1 and any(not _equal(f, forms[0]) for f in forms[1:])
    if different or len(axes) > 1 or any(np.any(np.asanyarray(c) < 0) for _, c in terms):
        return _hull(dim, forms, outside, inner, extents)
    if any(isinstance(a, Quasi) and np.any(np.asanyarray(atom_range(a, extents)[0]) != 0) for a, _ in terms):
        return _hull(dim, forms, outside, inner, extents)
    return outside[0], _segments(dim, terms, forms[0], extents)


def _axis(atom: Atom, axis_of: Mapping[str, str]) -> str:
    """The axis an atom moves along; a quotient or remainder is an axis of its own."""
    return axis_of.get(atom, atom) if isinstance(atom, str) else atom.tag


def _segments(
    dim: int, terms: tuple[tuple[Atom, Extent], ...], form: Linear, extents: Mapping[str, Extent]
) -> list[Segment]:
    """One segment per term, neighbours joined where one continues the other: the loops of a split,
    with none of their siblings left outside between them."""
    place = {atom: i for i, (atom, _) in enumerate(form.terms)}
    segments: list[Segment] = []
    before = -2
    for atom, coefficient in terms:
        count = atom_range(atom, extents)[1] + 1
        if place[atom] == before + 1:
            last = segments[-1]
            joined = tuple((a, m * count) for a, m in last.terms)
            segments[-1] = Segment(dim, coefficient, last.extent * count, (*joined, (atom, 1)))
        else:
            segments.append(Segment(dim, coefficient, count, ((atom, 1),)))
        before = place[atom]
    return segments


def _hull(
    dim: int, forms: list[Linear], outside: list[Linear], inner: frozenset[str], extents: Mapping[str, Extent]
) -> tuple[Linear, list[Segment]]:
    low: Any = None
    high: Any = None
    for form, out in zip(forms, outside, strict=True):
        first, last = span(form.only(inner), extents)
        first, last = first + out.const, last + out.const
        low = first if low is None else smaller(low, first)
        high = last if high is None else larger(high, last)
    base = Linear(outside[0].terms, low)
    return base, [Segment(dim, 1, high - low + 1, (), hull=True)]


def _same(a: Linear, b: Linear) -> bool:
    difference = dict((a - b).terms)
    return all(np.all(np.asanyarray(c) == 0) for c in difference.values())


def _equal(a: Linear, b: Linear) -> bool:
    return _same(a, b) and bool(np.all(np.asanyarray(a.const == b.const)))
