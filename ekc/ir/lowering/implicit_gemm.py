"""Tiles of a view: what a stretch of a joint loop reads, though it is no box of the tensor.

A loop joined by `fuse` moves through several dimensions by quotients and remainders. A tile of the loop is
then taken as one of a virtual tensor, with one coordinate for the joint loop in the place of those
dimensions: an implicit matrix, as a convolution has one of (pixels, channels) for each tap. Two of its
elements may be the same of the tensor; each is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.ir.affine import AffineForm, Atom, QuasiAffine, make_variable
from ekc.ir.refusal import make_schedule_error


@dataclass(frozen=True, eq=False)
class JointLoop:
    """A joint loop that a tile cuts."""

    name: str
    """What text calls it: the axes that it joins, an underscore more for each that joins the same."""
    dim: int
    """The last dimension that it moves through: its coordinate takes that one's place in the tile."""
    index: AffineForm
    """The iteration of the joint loop, in terms of the loops that it was cut into."""


@dataclass(frozen=True, eq=False)
class JointLoopRange:
    """For text, the iterations of a joint loop that a tile takes."""

    name: str
    start: AffineForm
    pieces: frozenset[Atom]
    """The pieces of the joint loop."""


@dataclass(frozen=True, eq=False)
class ImplicitGemmView:
    """What joint loops add to the coordinates of a tile, dimension by dimension."""

    forms: tuple[AffineForm, ...]
    """In terms of the tile's own coordinates `#0`, `#1`, ... and the loops outside."""
    printed_forms: tuple[AffineForm, ...]
    """The same for text, in terms of the joint loops as if they had not been cut, ..."""
    joint_ranges: tuple[JointLoopRange, ...]
    """... and what the tile takes of each."""


def find_joint_loops(
    reads: Sequence[tuple[AffineForm, ...]], inner_loops: frozenset[str], axis_by_loop: Mapping[str, str]
) -> tuple[JointLoop, ...]:
    """The joint loops of which some pieces run inside a tile and some outside.

    Refuses (ScheduleError) other quotients and remainders that are cut so, and reads that move differently.
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
                    # Its iteration is then no sum of loops, of which each could be told apart in a tile.
                    raise make_schedule_error(
                        "stage",
                        f"a region along the fused index {atom.tag}",
                        f"the joint loop of {atom.tag} is made of pieces that are joined again",
                        "fuse before split only, or stage at another loop",
                    )
                pieces = frozenset(a for a, _ in index.terms)
                told = names.setdefault(pieces, _make_free_name(axis.replace("+", "_"), names.values()))
                found[pieces] = JointLoop(told, dim, index)
    for other in reads[1:]:
        if any(_has_different_crossing(a, b, inner_loops) for a, b in zip(reads[0], other, strict=True)):
            raise make_schedule_error(
                "stage",
                "one region for several reads",
                "the reads differ by more than a constant",
                "stage at another loop",
            )
    return tuple(found.values())


def _make_free_name(name: str, taken: Collection[str]) -> str:
    """A name that no other joint loop has."""
    return _make_free_name(f"{name}_", taken) if name in taken else name


def _find_joint_form(form: AffineForm, name: str) -> AffineForm:
    """The sum in which a loop stands itself, inside quotients and remainders."""
    deeper = [a for a, _ in form.terms if isinstance(a, QuasiAffine) and name in a.find_variables()]
    return _find_joint_form(deeper[0].inner, name) if deeper else form


def _has_different_crossing(one: AffineForm, other: AffineForm, inner_loops: frozenset[str]) -> bool:
    """Whether two reads move differently where a joint loop is cut."""
    a, b = dict(one.select_crossing(inner_loops).terms), dict(other.select_crossing(inner_loops).terms)
    return a.keys() != b.keys() or any(np.any(np.asanyarray(a[x] != b[x])) for x in a)


def make_view(
    read: tuple[AffineForm, ...],
    joint: Sequence[JointLoop],
    inner_loops: frozenset[str],
    replacements: Mapping[str, AffineForm],
) -> ImplicitGemmView:
    """The view that a read goes through; `move` tells the loops inside in coordinates of the tile."""
    cut = [form.select_crossing(inner_loops) for form in read]
    whole: dict[str, AffineForm] = {}
    for loop in joint:
        *others, (finest, _) = loop.index.terms
        whole |= {str(a): AffineForm() for a, _ in others} | {str(finest): make_variable(loop.name)}
    return ImplicitGemmView(
        tuple(form.substitute(replacements) for form in cut),
        tuple(form.substitute(whole) for form in cut),
        tuple(
            JointLoopRange(
                loop.name, loop.index.select_outside(inner_loops), frozenset(a for a, _ in loop.index.terms)
            )
            for loop in joint
        ),
    )
