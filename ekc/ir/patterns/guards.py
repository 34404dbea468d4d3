"""How much of an access its guards let through: of its iterations, and of the warps that ask.

The patterns of a population repeat, so each is counted once (`guard_counts.py`) and remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ekc.ir.access import Guard
from ekc.ir.linear import Atom, Extent, Linear, Quasi, atom_range
from ekc.ir.patterns.guard_counts import counts
from ekc.ir.patterns.lookup import Lookup
from ekc.ir.patterns.warp import along

Share = Any
"""A float, or a float64 vector over a population."""
Lanes = Mapping[Atom, Extent]
"""How many steps of an atom the lanes of one warp take."""


@dataclass(frozen=True, eq=False)
class Shares:
    """What some guards let through; 1 where there are none."""

    lanes: Share
    """The share of iterations of single lanes."""
    warps: Share
    """The share of iterations in which some lane of the warp is let through."""


def needed(guards: Iterable[Guard]) -> Any:
    """Whether any of them is needed (for a population, for which members)."""
    some: Any = np.asanyarray(False)
    for g in guards:
        some = some | np.asanyarray(g.below) | np.asanyarray(g.above)
    return some


def joint(statement: Sequence[Guard], read: Sequence[Guard]) -> tuple[Guard, ...]:
    """The guards of a statement and of a read in it; one that both have counts once."""
    held = {_key(g) for g in statement}
    return (*statement, *(g for g in read if _key(g) not in held))


def _key(g: Guard) -> tuple[tuple[str, ...], int]:
    """Loops and bound: reads that differ by an offset leave the tensor together, or nearly."""
    return tuple(a if isinstance(a, str) else a.tag for a, _ in g.form.terms), g.extent


def shares(guards: Iterable[Guard], extents: Mapping[str, Extent], lanes: Lanes) -> Shares:
    """What the guards let through together; guards of different dimensions are taken as independent."""
    of_lanes: Share = 1.0
    of_warps: Share = 1.0
    for g in guards:
        counted = _of_one(g, extents, lanes)
        of_lanes, of_warps = of_lanes * counted.lanes, of_warps * counted.warps
    return Shares(of_lanes, of_warps)


def reaches(names: Iterable[Atom], extents: Iterable[Extent]) -> dict[Atom, Extent]:
    """How many steps of each of some digits, fastest first, the lanes of one warp take."""
    return dict(zip(names, along(extents), strict=True))


def _of_one(g: Guard, extents: Mapping[str, Extent], lanes: Lanes) -> Shares:
    """Looked up by row: the index's digits as columns (values, lanes, step), its least value, its bound."""
    form, extent = _undivided(g.form, g.extent)
    columns: list[Any] = []
    low: Any = np.asanyarray(form.const)
    for atom, coefficient in form.terms:
        first, last = (np.asanyarray(v) for v in atom_range(atom, extents))
        step = np.asanyarray(coefficient)
        # A digit that counts down starts from its other end.
        low = low + step * np.where(step < 0, last, first)
        columns += [last - first + 1, np.minimum(_lanes_of(atom, lanes), last - first + 1), np.abs(step)]
    columns += [low, np.asanyarray(extent)]
    found = _COUNTED(*columns)
    return Shares(found[0], found[1])


def _undivided(form: Linear, extent: Extent) -> tuple[Linear, Extent]:
    """The same bounds on what a joint loop's quotient is taken of: p // 14 < 2 where p < 28."""
    (atom, step), *more = form.terms or (("", 0),)
    if not isinstance(atom, Quasi) or atom.op != "//" or more or np.ndim(step) or np.ndim(form.const):
        return form, extent
    if int(step) != 1 or int(form.const) != 0:
        return form, extent
    return _undivided(atom.inner, extent * atom.divisor)


def _lanes_of(atom: Atom, lanes: Lanes) -> Any:
    if isinstance(atom, str):
        return np.asanyarray(lanes.get(atom, 1))
    # Lanes that enter a quotient or a remainder move it at most as far as they move themselves.
    return reduce(
        np.maximum, [np.asanyarray(lanes.get(name, 1)) for name in atom.variables()], np.asanyarray(1)
    )


_COUNTED = Lookup(counts, 2)
