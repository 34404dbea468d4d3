"""Regions: the part of a tensor that some loops access, and the coordinates of its elements in a buffer.

Along each dimension, a region has one or more *segments* (a mixed-radix number). A thread that owns rows
64*i.1 + i.3 with i.1 < 2 and i.3 < 4 accesses 2 segments of 4 elements, eight in all, not the 68 between
first and last. Where two axes meet in one dimension (a convolution's p + r), or several reads overlap, the
segment is the *hull*: everything from the first element to the last. Where a tile cuts a joint loop (`fuse`),
its quotients and remainders make no box: the region is then a tile of an im2col *view*
(`ekc.ir.lowering.implicit_gemm`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ekc.ir.affine import (
    AffineForm,
    Atom,
    Extent,
    QuasiAffine,
    compute_atom_range,
    find_range,
    is_any,
    make_variable,
    max_extent,
    min_extent,
)
from ekc.ir.lowering.implicit_gemm import ImplicitGemmView, JointLoop, derive_joint_loops, make_view
from ekc.ir.refusal import make_schedule_error


@dataclass(frozen=True, eq=False)
class Segment:
    """`extent` elements at distance `stride` along dimension `dim` of the tensor, or along a joint loop."""

    dim: int
    stride: Extent
    extent: Extent
    terms: tuple[tuple[Atom, Extent], ...]
    """The coordinate along the segment as a sum of multiplier * loop variable; empty for a hull."""
    is_hull: bool = False
    """Whether the segment is everything between the first and the last element."""
    is_joint: bool = False
    """Whether `stride` counts iterations of a joint loop."""


@dataclass(frozen=True, eq=False)
class Region:
    """A box of segments in a tensor."""

    base: tuple[AffineForm, ...]
    """First element: one form for each dimension, in terms of the loops outside."""
    segments: tuple[Segment, ...]
    inner_loops: frozenset[str]
    """Loops that run while the region stays."""
    view: ImplicitGemmView | None = None
    """Offsets that joint loops add to `base`; None unless the region is an im2col tile."""

    @property
    def size(self) -> Extent:
        """Number of elements."""
        return prod(s.extent for s in self.segments)

    def locate(self, index: tuple[AffineForm, ...]) -> tuple[AffineForm, ...]:
        """Segment coordinates of a read of the tensor."""
        segments = self.segments
        return tuple(
            self.compute_offset(index, s.dim) if s.is_hull else AffineForm(s.terms) for s in segments
        )

    def compute_offset(self, index: tuple[AffineForm, ...], dim: int) -> AffineForm:
        """Offset of an index from the start of the box along a dimension.

        The index is in terms of loops, or of coordinates of a part of the region. Joint loops that the tile
        cuts add nothing to it.
        """
        form = index[dim]
        if self.view is not None:
            # Coordinates of a part stand for loops inside the part, and so inside this tile.
            part = {name for name in form.find_variables() if name.startswith("#")}
            form = form - form.select_crossing(self.inner_loops | part)
        return form - self.base[dim]

    def find_coordinates(self) -> tuple[AffineForm, ...]:
        """Tensor coordinates of the element whose segment coordinates are the variables `#0`, `#1`, ..."""
        box = self.find_box_coordinates()
        if self.view is None:
            return box
        return tuple(form + more for form, more in zip(box, self.view.forms, strict=True))

    def find_box_coordinates(self) -> tuple[AffineForm, ...]:
        """Tensor coordinates without the offsets of joint loops."""
        forms = list(self.base)
        for i, s in enumerate(self.segments):
            if not s.is_joint:
                forms[s.dim] = forms[s.dim] + AffineForm(((f"#{i}", s.stride),))
        return tuple(forms)

    def find_printed_start(self) -> tuple[AffineForm, ...]:
        """Start of the box for printing: joint loops appear as if the tile did not cut them."""
        if self.view is None:
            return self.base
        return tuple(form + more for form, more in zip(self.base, self.view.printed_forms, strict=True))

    def find_joint_segments(self, loops: Collection[Atom]) -> list[Segment]:
        """Segments that are pieces of one joint loop."""
        return [s for s in self.segments if s.is_joint and s.terms[-1][0] in loops]

    def find_outer_coordinate(self, segment: Segment) -> AffineForm:
        """Start of this tile along a joint segment of a larger tile."""
        own = {a for s in self.segments if s.is_joint for a, _ in s.terms}
        return AffineForm(tuple(t for t in segment.terms if t[0] not in own))

    def derive_joint_coordinate(self, segment: Segment) -> AffineForm:
        """Coordinate along a joint segment of a larger tile, by this tile's coordinates and outer loops."""
        own = {a: (i, s) for i, s in enumerate(self.segments) if s.is_joint for a, _ in s.terms}
        terms: list[tuple[Atom, Extent]] = []
        for atom, step in segment.terms:
            if atom not in own:
                terms.append((atom, step))
            elif atom == own[atom][1].terms[-1][0]:
                # The loops of a segment continue each other in both tiles: the finest one has the step.
                terms.append((f"#{own[atom][0]}", step))
        return AffineForm(tuple(terms))


def make_segment_variables(region: Region) -> tuple[AffineForm, ...]:
    """The segment variables `#0`, `#1`, ... as forms: the coordinates of any element."""
    return tuple(AffineForm(((f"#{i}", 1),)) for i in range(len(region.segments)))


def derive_region(
    reads: list[tuple[AffineForm, ...]],
    inner_loops: frozenset[str],
    extents: Mapping[str, Extent],
    axis_by_loop: Mapping[str, str],
) -> Region:
    """The region that reads of one tensor (as index forms) access while `inner_loops` run.

    Joining of segments and hulls depend on the structure of the forms only, never on extents, so that a
    population and each of its members have the same segments. `axis_by_loop` has the axis of each loop, ""
    for the loop of an axis of extent 1, which never moves.
    """
    bases: list[AffineForm] = []
    segments: list[Segment] = []
    joint = derive_joint_loops(reads, inner_loops, axis_by_loop)
    for dim in range(len(reads[0])):
        for loop in joint:
            if loop.dim == dim:
                pieces = _make_segments(dim, loop.index.select_inside(inner_loops).terms, loop.index, extents)
                segments.extend(replace(s, is_joint=True) for s in pieces)
        forms = [read[dim] for read in reads]
        base, found = _find_dimension_region(dim, forms, inner_loops, extents, axis_by_loop)
        bases.append(base)
        segments.extend(found)
    if not segments:
        segments.append(Segment(len(bases) - 1, 1, 1, ()))
    view = _make_view(reads[0], joint, segments, inner_loops)
    return Region(tuple(bases), tuple(segments), inner_loops, view)


def _make_view(
    read: tuple[AffineForm, ...],
    joint: Sequence[JointLoop],
    segments: Sequence[Segment],
    inner_loops: frozenset[str],
) -> ImplicitGemmView | None:
    """The offsets of joint loops in terms of segment coordinates; only the finest loop of a segment moves."""
    if not joint:
        return None
    move: dict[str, AffineForm] = {}
    for i, s in enumerate(segments):
        if s.is_joint:
            *others, (finest, _) = s.terms
            move |= {str(a): AffineForm() for a, _ in others} | {str(finest): make_variable(f"#{i}")}
    return make_view(read, joint, inner_loops, move)


def _find_dimension_region(
    dim: int,
    forms: list[AffineForm],
    inner_loops: frozenset[str],
    extents: Mapping[str, Extent],
    axis_by_loop: Mapping[str, str],
) -> tuple[AffineForm, list[Segment]]:
    outer_forms = [form.select_outside(inner_loops) for form in forms]
    for other in outer_forms[1:]:
        if not _has_constant_difference(other, outer_forms[0]):
            raise make_schedule_error(
                "stage",
                need="one region for several reads",
                problem="the reads differ by more than a constant",
                remedy="stage at another loop",
            )
    inside = [(t, _find_axis(t[0], axis_by_loop)) for t in forms[0].select_inside(inner_loops).terms]
    terms, axes = tuple([t for t, axis in inside if axis]), {axis for _, axis in inside if axis}
    different = len(forms) > 1 and any(not _is_equal(f, forms[0]) for f in forms[1:])
    is_single = len(axes) <= 1 or _is_divided_pair(forms[0], axes, axis_by_loop, extents)
    lowest = (compute_atom_range(a, extents)[0] for a, _ in terms if isinstance(a, QuasiAffine))
    is_hull = different or not is_single or any(is_any(c < 0) for _, c in terms)
    if is_hull or any(is_any(low != 0) for low in lowest):
        return _make_hull(dim, forms, outer_forms, inner_loops, extents)
    return outer_forms[0], _make_segments(dim, terms, forms[0], extents)


def _is_divided_pair(
    form: AffineForm, axes: Collection[str], axis_by_loop: Mapping[str, str], extents: Mapping[str, Extent]
) -> bool:
    """Whether the axes are the pieces of a divided axis without a gap; 20*o.0 + o.1 with o.1 < 16 has one."""
    outer, inner = min(axes), max(axes)
    if len(axes) != 2 or (outer[:-2] + ".0", outer[:-2] + ".1") != (outer, inner):
        return False
    steps = [[(a, c) for a, c in form.terms if axis_by_loop.get(str(a)) == axis] for axis in (outer, inner)]
    (_, above), (first, step) = steps[0][-1], steps[1][0]
    return not is_any(above != step * extents[str(first)])


def _find_axis(atom: Atom, axis_by_loop: Mapping[str, str]) -> str:
    """The axis of an atom; a quotient or remainder is an axis of its own."""
    return axis_by_loop.get(atom, atom) if isinstance(atom, str) else atom.tag


def _make_segments(
    dim: int, terms: tuple[tuple[Atom, Extent], ...], form: AffineForm, extents: Mapping[str, Extent]
) -> list[Segment]:
    """One segment for each term; neighbouring loops of one split are joined."""
    position = {atom: i for i, (atom, _) in enumerate(form.terms)}
    segments: list[Segment] = []
    before = -2
    for atom, coefficient in terms:
        count = compute_atom_range(atom, extents)[1] + 1
        if position[atom] == before + 1:
            last = segments[-1]
            joined = tuple((a, m * count) for a, m in last.terms)
            segments[-1] = Segment(dim, coefficient, last.extent * count, (*joined, (atom, 1)))
        else:
            segments.append(Segment(dim, coefficient, count, ((atom, 1),)))
        before = position[atom]
    return segments


def _make_hull(
    dim: int,
    forms: list[AffineForm],
    outer_forms: list[AffineForm],
    inner_loops: frozenset[str],
    extents: Mapping[str, Extent],
) -> tuple[AffineForm, list[Segment]]:
    low: Any = None
    high: Any = None
    for form, out in zip(forms, outer_forms, strict=True):
        first, last = find_range(form.select_inside(inner_loops), extents)
        first, last = first + out.const, last + out.const
        low = first if low is None else min_extent(low, first)
        high = last if high is None else max_extent(high, last)
    base = AffineForm(outer_forms[0].terms, low)
    return base, [Segment(dim, 1, high - low + 1, (), is_hull=True)]


def _has_constant_difference(a: AffineForm, b: AffineForm) -> bool:
    """Whether two forms differ by a constant. Reads of a fused producer may share the tags of quotients, but
    not their dividends, so these are compared too."""
    difference = dict((a - b).terms)
    inside = {atom: atom.inner for atom, _ in b.terms if isinstance(atom, QuasiAffine)}
    pairs = ((x.inner, inside[x]) for x, _ in a.terms if isinstance(x, QuasiAffine) and x in inside)
    same = not any(is_any(c != 0) for c in difference.values())
    return same and all(_is_equal(x, y) for x, y in pairs if x is not y)


def _is_equal(a: AffineForm, b: AffineForm) -> bool:
    return _has_constant_difference(a, b) and not is_any(a.const != b.const)
