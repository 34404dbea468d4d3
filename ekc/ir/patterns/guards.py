"""How much of an access its guards let through: of its iterations, and of the warps that ask.

The patterns of a population repeat, so each is counted once (`guard_counts.py`) and remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from ekc.ir.access import BoundsGuard
from ekc.ir.linear import AffineForm, Atom, Extent, QuasiAffine, find_atom_range
from ekc.ir.patterns.guard_counts import count_guard_passes
from ekc.ir.patterns.lookup import Lookup
from ekc.ir.patterns.warp import split_lanes

PassShare = Any
"""A float, or a float64 vector over a population."""
LaneSteps = Mapping[Atom, Extent]
"""How many steps of an atom the lanes of one warp take."""


@dataclass(frozen=True, eq=False)
class PassShares:
    """What some guards let through; 1 where there are none."""

    lane_share: PassShare
    """The share of iterations of single lanes."""
    warp_share: PassShare
    """The share of iterations in which some lane of the warp is let through."""


def has_needed_guard(guards: Iterable[BoundsGuard]) -> Any:
    """Whether any of them is needed (for a population, for which members)."""
    some: Any = np.asanyarray(False)
    for g in guards:
        some = some | np.asanyarray(g.needs_lower_check) | np.asanyarray(g.needs_upper_check)
    return some


def merge_guards(
    statement_guards: Sequence[BoundsGuard], read_guards: Sequence[BoundsGuard]
) -> tuple[BoundsGuard, ...]:
    """The guards of a statement and of a read in it; one that both have counts once."""
    held = {_make_guard_key(g) for g in statement_guards}
    return (*statement_guards, *(g for g in read_guards if _make_guard_key(g) not in held))


def _make_guard_key(g: BoundsGuard) -> tuple[tuple[str, ...], int]:
    """Loops and bound: reads that differ by an offset leave the tensor together, or nearly."""
    return tuple(a if isinstance(a, str) else a.tag for a, _ in g.form.terms), g.extent


def compute_pass_shares(
    guards: Iterable[BoundsGuard], extents: Mapping[str, Extent], lane_steps: LaneSteps
) -> PassShares:
    """What the guards let through together; guards of different dimensions are taken as independent."""
    of_lanes: PassShare = 1.0
    of_warps: PassShare = 1.0
    for g in guards:
        counted = _compute_guard_shares(g, extents, lane_steps)
        of_lanes, of_warps = of_lanes * counted.lane_share, of_warps * counted.warp_share
    return PassShares(of_lanes, of_warps)


def map_lane_steps(names: Iterable[Atom], extents: Iterable[Extent]) -> dict[Atom, Extent]:
    """How many steps of each of some digits, fastest first, the lanes of one warp take."""
    return dict(zip(names, split_lanes(extents), strict=True))


def _compute_guard_shares(g: BoundsGuard, extents: Mapping[str, Extent], lane_steps: LaneSteps) -> PassShares:
    """Looked up by row: the index's digits as columns (values, lanes, step), its least value, its bound."""
    form, extent = _strip_quotient(g.form, g.extent)
    columns: list[Any] = []
    low: Any = np.asanyarray(form.const)
    for atom, coefficient in form.terms:
        first, last = (np.asanyarray(v) for v in find_atom_range(atom, extents))
        step = np.asanyarray(coefficient)
        # A digit that counts down starts from its other end.
        low = low + step * np.where(step < 0, last, first)
        columns += [
            last - first + 1,
            np.minimum(_count_atom_lanes(atom, lane_steps), last - first + 1),
            np.abs(step),
        ]
    columns += [low, np.asanyarray(extent)]
    found = _PASS_SHARE_LOOKUP(*columns)
    return PassShares(found[0], found[1])


def _strip_quotient(form: AffineForm, extent: Extent) -> tuple[AffineForm, Extent]:
    """The same bounds on what a joint loop's quotient is taken of: p // 14 < 2 where p < 28."""
    (atom, step), *more = form.terms or (("", 0),)
    if not isinstance(atom, QuasiAffine) or atom.op != "//" or more or np.ndim(step) or np.ndim(form.const):
        return form, extent
    if int(step) != 1 or int(form.const) != 0:
        return form, extent
    return _strip_quotient(atom.inner, extent * atom.divisor)


def _count_atom_lanes(atom: Atom, lane_steps: LaneSteps) -> Any:
    if isinstance(atom, str):
        return np.asanyarray(lane_steps.get(atom, 1))
    # Lanes that enter a quotient or a remainder move it at most as far as they move themselves.
    return reduce(
        np.maximum,
        [np.asanyarray(lane_steps.get(name, 1)) for name in atom.find_variables()],
        np.asanyarray(1),
    )


_PASS_SHARE_LOOKUP = Lookup(count_guard_passes, 2)
