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

from ekc.ir.linear import Atom, Linear, Quasi, variable
from ekc.ir.refusal import refuse


@dataclass(frozen=True, eq=False)
class Joint:
    """A joint loop that a tile cuts."""

    name: str
    """What text calls it: the axes that it joins, an underscore more for each that joins the same."""
    dim: int
    """The last dimension that it moves through: its coordinate takes that one's place in the tile."""
    index: Linear
    """The iteration of the joint loop, in terms of the loops that it was cut into."""


@dataclass(frozen=True, eq=False)
class Run:
    """For text, the iterations of a joint loop that a tile takes."""

    name: str
    start: Linear
    loops: frozenset[Atom]
    """The pieces of the joint loop."""


@dataclass(frozen=True, eq=False)
class View:
    """What joint loops add to the coordinates of a tile, dimension by dimension."""

    forms: tuple[Linear, ...]
    """In terms of the tile's own coordinates `#0`, `#1`, ... and the loops outside."""
    told: tuple[Linear, ...]
    """The same for text, in terms of the joint loops as if they had not been cut, ..."""
    runs: tuple[Run, ...]
    """... and what the tile takes of each."""


def joint_loops(
    reads: Sequence[tuple[Linear, ...]], inner: frozenset[str], axis_of: Mapping[str, str]
) -> tuple[Joint, ...]:
    """The joint loops of which some pieces run inside a tile and some outside.

    Refuses (ScheduleError) other quotients and remainders that are cut so, and reads that move differently.
    """
    found: dict[frozenset[Atom], Joint] = {}
    names: dict[frozenset[Atom], str] = {}
    for dim, form in enumerate(reads[0]):
        for atom, _ in form.only_cut(inner).terms:
            assert isinstance(atom, Quasi)
            for name in sorted(atom.variables() & inner):
                axis = axis_of.get(name, name)
                if "+" not in axis:
                    raise refuse(
                        "stage",
                        f"a region along the fused index {atom.tag}",
                        "an index that runs wholly inside or outside",
                        "split the axes before fusing them, or stage at another loop",
                    )
                index = _holds(atom.inner, name)
                if any(isinstance(a, Quasi) for a, _ in index.terms):
                    # Its iteration is then no sum of loops, of which each could be told apart in a tile.
                    raise refuse(
                        "stage",
                        f"a region along the fused index {atom.tag}",
                        "a joint loop whose pieces are not joined again",
                        "fuse before split only, or stage at another loop",
                    )
                pieces = frozenset(a for a, _ in index.terms)
                told = names.setdefault(pieces, _free(axis.replace("+", "_"), names.values()))
                found[pieces] = Joint(told, dim, index)
    for other in reads[1:]:
        if any(_apart(a, b, inner) for a, b in zip(reads[0], other, strict=True)):
            raise refuse(
                "stage",
                "one region for several reads",
                "reads that differ by a constant",
                "stage at another loop",
            )
    return tuple(found.values())


def _free(name: str, taken: Collection[str]) -> str:
    """A name that no other joint loop has."""
    return _free(f"{name}_", taken) if name in taken else name


def _holds(form: Linear, name: str) -> Linear:
    """The sum in which a loop stands itself, inside quotients and remainders."""
    deeper = [a for a, _ in form.terms if isinstance(a, Quasi) and name in a.variables()]
    return _holds(deeper[0].inner, name) if deeper else form


def _apart(one: Linear, other: Linear, inner: frozenset[str]) -> bool:
    """Whether two reads move differently where a joint loop is cut."""
    a, b = dict(one.only_cut(inner).terms), dict(other.only_cut(inner).terms)
    return a.keys() != b.keys() or any(np.any(np.asanyarray(a[x] != b[x])) for x in a)


def view_of(
    read: tuple[Linear, ...], joint: Sequence[Joint], inner: frozenset[str], move: Mapping[str, Linear]
) -> View:
    """The view that a read goes through; `move` tells the loops inside in coordinates of the tile."""
    cut = [form.only_cut(inner) for form in read]
    whole: dict[str, Linear] = {}
    for loop in joint:
        *others, (finest, _) = loop.index.terms
        whole |= {str(a): Linear() for a, _ in others} | {str(finest): variable(loop.name)}
    return View(
        tuple(form.substitute(move) for form in cut),
        tuple(form.substitute(whole) for form in cut),
        tuple(
            Run(loop.name, loop.index.without(inner), frozenset(a for a, _ in loop.index.terms))
            for loop in joint
        ),
    )
