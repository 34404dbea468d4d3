"""im2col tiles (implicit GEMM): tiles of a joint loop, whose elements are no box of the tensor.

A *joint loop*, made by `fuse`, moves through several dimensions by quotients and remainders. A tile of it is
taken from a virtual tensor, which has one coordinate for the joint loop in place of those dimensions. A
convolution has such an implicit matrix of (pixels, channels) for each tap. An element of the tensor may
appear in a tile more than once; it is then copied more than once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.ir.affine import AffineForm, Atom, QuasiAffine, make_variable
from ekc.ir.refusal import make_schedule_error


@dataclass(frozen=True, eq=False)
class JointLoop:
    """A joint loop that a tile cuts: some of its pieces run inside the tile, some outside."""

    name: str
    """Name for printing: the axes that it joins, with underscores appended to make it unique."""
    dim: int
    """Last dimension that the loop moves through; the loop's coordinate replaces it in the tile."""
    index: AffineForm
    """Iteration of the joint loop, in terms of the loops that it was split into."""


@dataclass(frozen=True, eq=False)
class JointLoopRange:
    """Iterations of a joint loop in a tile, for printing."""

    name: str
    start: AffineForm
    """First iteration, in terms of the loops outside."""
    pieces: frozenset[Atom]
    """Loops that the joint loop was split into."""


@dataclass(frozen=True, eq=False)
class ImplicitGemmView:
    """Offsets that joint loops add to the coordinates of a tile, one form for each dimension."""

    forms: tuple[AffineForm, ...]
    """Offsets in terms of the tile's coordinates `#0`, `#1`, ... and the loops outside."""
    printed_forms: tuple[AffineForm, ...]
    """Offsets for printing, in terms of the joint loops as if they were not cut."""
    joint_ranges: tuple[JointLoopRange, ...]
    """Iterations of each joint loop in the tile."""


def derive_joint_loops(
    reads: Sequence[tuple[AffineForm, ...]], inner_loops: frozenset[str], axis_by_loop: Mapping[str, str]
) -> tuple[JointLoop, ...]:
    """The joint loops that a tile cuts.

    Raises `ScheduleError` for a cut quotient or remainder of another kind, and for reads that move
    differently.
    """
    found: dict[frozenset[Atom], JointLoop] = {}
    names: dict[frozenset[Atom], str] = {}
    for dim, form in enumerate(reads[0]):
        for atom, _ in form.select_crossing(inner_loops).terms:
            assert isinstance(atom, QuasiAffine)
            for name in sorted(atom.find_variables() & inner_loops):
                axis = axis_by_loop.get(name, name)
                if "+" not in axis:
                    raise make_schedule_error(
                        "stage",
                        f"a region along the fused index {atom.tag}",
                        f"fused index {atom.tag} is partly inside and partly outside the region",
                        "split the axes before fusing them, or stage at another loop",
                    )
                index = _find_joint_form(atom.inner, name)
                if any(isinstance(a, QuasiAffine) for a, _ in index.terms):
                    # Its iteration is then not a sum of loops, so a tile cannot have a coordinate for it.
                    raise make_schedule_error(
                        "stage",
                        f"a region along the fused index {atom.tag}",
                        f"the joint loop of {atom.tag} is made of pieces that are joined again",
                        "fuse before split only, or stage at another loop",
                    )
                pieces = frozenset(a for a, _ in index.terms)
                label = names.setdefault(pieces, _make_free_name(axis.replace("+", "_"), names.values()))
                found[pieces] = JointLoop(label, dim, index)
    for other in reads[1:]:
        if any(_has_different_crossing(a, b, inner_loops) for a, b in zip(reads[0], other, strict=True)):
            raise make_schedule_error(
                "stage",
                need="one region for several reads",
                problem="the reads differ by more than a constant",
                remedy="stage at another loop",
            )
    return tuple(found.values())


def _make_free_name(name: str, taken: Collection[str]) -> str:
    """The name, with underscores appended until no other joint loop has it."""
    return _make_free_name(f"{name}_", taken) if name in taken else name


def _find_joint_form(form: AffineForm, name: str) -> AffineForm:
    """The innermost sum that has the loop as a term, inside quotients and remainders."""
    deeper = [a for a, _ in form.terms if isinstance(a, QuasiAffine) and name in a.find_variables()]
    return _find_joint_form(deeper[0].inner, name) if deeper else form


def _has_different_crossing(one: AffineForm, other: AffineForm, inner_loops: frozenset[str]) -> bool:
    """Whether two forms differ in the terms that a tile cuts."""
    a, b = dict(one.select_crossing(inner_loops).terms), dict(other.select_crossing(inner_loops).terms)
    return a.keys() != b.keys() or any(np.any(np.asanyarray(a[x] != b[x])) for x in a)


def make_view(
    read: tuple[AffineForm, ...],
    joint: Sequence[JointLoop],
    inner_loops: frozenset[str],
    replacements: Mapping[str, AffineForm],
) -> ImplicitGemmView:
    """The view of a read; `replacements` has the loops inside in terms of coordinates of the tile."""
    crossing = [form.select_crossing(inner_loops) for form in read]
    uncut: dict[str, AffineForm] = {}
    for loop in joint:
        *others, (finest, _) = loop.index.terms
        uncut |= {str(a): AffineForm() for a, _ in others} | {str(finest): make_variable(loop.name)}
    outer_indices = [loop.index.select_outside(inner_loops) for loop in joint]
    pieces = [frozenset(a for a, _ in loop.index.terms) for loop in joint]
    names = [loop.name for loop in joint]
    return ImplicitGemmView(
        tuple(form.substitute(replacements) for form in crossing),
        tuple(form.substitute(uncut) for form in crossing),
        tuple(map(JointLoopRange, names, outer_indices, pieces)),
    )
