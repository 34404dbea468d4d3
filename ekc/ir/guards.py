"""How much of an access its guards let through: of its iterations, and of the warps that ask.

The values that a guarded index takes are counted, one by one: those of a split axis are all different, those
of a window and its place meet. The patterns of a population repeat, so each is counted once and remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.access import Guard
from ekc.ir.linear import Atom, Extent, Linear, Quasi, atom_range, ceil_div
from ekc.ir.lookup import Lookup
from ekc.ir.warp import WARP, along

Share = Any
"""A float, or a float64 vector over a population."""
Lanes = Mapping[Atom, Extent]
"""How many steps of an atom the lanes of one warp take."""
_MOST_VALUES = 1 << 16
"""Up to so many values are counted; of more, the two ends are a small part, and all are taken as equal."""


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


def _counts(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.array([_counted(row) for row in rows.tolist()])


def _counted(row: list[int]) -> tuple[float, float]:
    """(share of lanes, share of warps) of one pattern."""
    *flat, low, extent = row
    digits = list(zip(flat[0::3], flat[1::3], flat[2::3], strict=True))
    values = 1 + sum((count - 1) * step for count, _, step in digits)
    if values > _MOST_VALUES:
        count = max(min(low + values, extent) - max(low, 0), 0)
        return count / values, min(1.0, (count + WARP) / values)
    every, starts, offsets = np.ones(1), np.ones(1), np.ones(1)
    for count, together, step in digits:
        every = _spread(every, count, step)
        starts = _spread(starts, ceil_div(count, together), step * together)
        offsets = _spread(offsets, together, step)
    place = low + np.arange(len(starts) + len(offsets) - 1)
    fits = (place >= 0) & (place < extent)
    some = np.zeros(len(starts), bool)
    for offset in np.flatnonzero(offsets):
        some |= fits[offset : offset + len(starts)]
    return float(every @ fits[: len(every)] / every.sum()), float(starts @ some / starts.sum())


def _spread(counts: NDArray[np.float64], times: int, step: int) -> NDArray[np.float64]:
    """How often each value comes when a digit of `times` steps is added."""
    if times == 1 or step == 0:
        return counts * times
    padded = np.zeros(len(counts) + (times - 1) * step + step)
    padded[: len(counts)] += counts
    padded[times * step : times * step + len(counts)] -= counts[: len(padded) - times * step]
    rows = -(-len(padded) // step)
    grid = np.zeros(rows * step)
    grid[: len(padded)] = padded
    summed: NDArray[np.float64] = grid.reshape(rows, step).cumsum(axis=0).reshape(-1)
    return summed[: len(counts) + (times - 1) * step]


_COUNTED = Lookup(_counts, 2)
