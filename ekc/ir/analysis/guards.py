"""Guards: the share of iterations, and of warps, for which a guarded index is within bounds.

Patterns repeat in a population, so each distinct one is counted once and stored. The values of a split axis
are all different, and the digits below one never exceed its step: such patterns are counted digit by digit,
all at once. Values of a window and its position overlap; these patterns are counted value by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import (
    AffineForm,
    Atom,
    Extent,
    QuasiAffine,
    ceil_div,
    choose,
    compute_atom_range,
    max_extent,
    min_extent,
)
from ekc.ir.analysis.bank_conflicts import split_lanes
from ekc.ir.analysis.population_math import Lookup
from ekc.ir.hardware.memory import WARP
from ekc.ir.lowering.buffers import BoundsGuard

_MAX_COUNTED_VALUES = 1 << 16
"""Most values that are counted; of more, all count as equally frequent, as the ends hardly matter."""

IntegerColumns = NDArray[np.int64]
"""Rows of integers, a pattern or a member of a population each."""


def count_guard_passes(patterns: IntegerColumns) -> NDArray[np.float64]:
    """(share of the values, share of the warps) within bounds, of each pattern.

    A pattern is (values, values in one warp, step) for each digit, then the least value and the bound.
    """
    values, together, step = patterns[:, 0:-2:3], patterns[:, 1:-2:3], patterns[:, 2:-2:3]
    low, below = patterns[:, -2], patterns[:, -1] - patterns[:, -2]
    # A digit with step 0 does not change the shares.
    values = np.where(step == 0, 1, values)
    order = np.argsort(step, axis=1)
    values, together, step = (np.take_along_axis(x, order, axis=1) for x in (values, together, step))
    reach = np.cumsum((values - 1) * step, axis=1)
    disjoint = (values[:, 1:] == 1) | (step[:, 1:] >= reach[:, :-1])
    is_plain = disjoint.all(axis=1) & (low >= 0) & (reach.max(axis=1, initial=0) < _MAX_COUNTED_VALUES)
    warps = ceil_div(values, together)
    found = np.empty((len(patterns), 2))
    found[:, 0] = _count_sums_below(below, values, step) / values.prod(axis=1)
    # The first lane of a warp has its least value, and none of these is below 0.
    found[:, 1] = _count_sums_below(below, warps, step * together) / warps.prod(axis=1)
    for row in np.flatnonzero(~is_plain):
        found[row] = _count_by_enumeration(patterns[row].tolist())
    return found


def _count_sums_below(bound: IntegerColumns, values: IntegerColumns, step: IntegerColumns) -> NDArray[Any]:
    """Number of sums of digits below a bound, where the digits below one never exceed its step."""
    found: NDArray[Any] = np.ones(len(bound), dtype=np.int64)
    left: NDArray[Any] = bound
    for digit in reversed(range(values.shape[1])):
        full = np.minimum(ceil_div(left, np.maximum(step[:, digit], 1)), values[:, digit]) - 1
        found += full * values[:, :digit].prod(axis=1)
        left = left - full * step[:, digit]
    return np.where(bound > 0, found, 0)


def _count_by_enumeration(pattern: list[int]) -> tuple[float, float]:
    """(share of the values, share of the warps) within bounds of one pattern, value by value."""
    *flat, low, extent = pattern
    digits = list(zip(flat[0::3], flat[1::3], flat[2::3], strict=True))
    values = 1 + sum((count - 1) * step for count, _, step in digits)
    if values > _MAX_COUNTED_VALUES:
        count = max(min(low + values, extent) - max(low, 0), 0)
        return count / values, min(1.0, (count + WARP) / values)
    every, starts, offsets = np.ones(1), np.ones(1), np.ones(1)
    for count, together, step in digits:
        every = _add_digit(every, count, step)
        starts = _add_digit(starts, ceil_div(count, together), step * together)
        offsets = _add_digit(offsets, together, step)
    place = low + np.arange(len(starts) + len(offsets) - 1)
    fits = (place >= 0) & (place < extent)
    some = np.zeros(len(starts), bool)
    for offset in np.flatnonzero(offsets):
        some |= fits[offset : offset + len(starts)]
    return float(every @ fits[: len(every)] / every.sum()), float(starts @ some / starts.sum())


def _add_digit(histogram: NDArray[np.float64], step_count: int, step: int) -> NDArray[np.float64]:
    """The histogram of the values when a digit of `step_count` steps is added."""
    if step_count == 1 or step == 0:
        return histogram * step_count
    size, reach = len(histogram), step_count * step
    padded = np.zeros(size + reach)
    padded[:size] += histogram
    padded[reach:] -= histogram
    rows = -(-len(padded) // step)
    grid = np.zeros(rows * step)
    grid[: len(padded)] = padded
    summed: NDArray[np.float64] = grid.reshape(rows, step).cumsum(axis=0).reshape(-1)
    return summed[: size + reach - step]


PassShare = Any
"""A float, or a float64 vector over a population."""
LaneSteps = Mapping[Atom, Extent]
"""Steps of each atom that the lanes of one warp take."""


@dataclass(frozen=True, eq=False)
class PassShares:
    """Shares of iterations that pass some guards; 1 where there are none."""

    lane_share: PassShare
    """Share of the iterations of single lanes."""
    warp_share: PassShare
    """Share of the iterations in which some lane of the warp passes."""


def merge_guards(
    statement_guards: Sequence[BoundsGuard], read_guards: Sequence[BoundsGuard]
) -> tuple[BoundsGuard, ...]:
    """The guards of a statement and of a read in it; one that both have appears once."""
    statement_keys = {_make_guard_key(g) for g in statement_guards}
    return (*statement_guards, *(g for g in read_guards if _make_guard_key(g) not in statement_keys))


def _make_guard_key(g: BoundsGuard) -> tuple[tuple[str, ...], int]:
    """Loops and bound of a guard; reads that differ by an offset leave the tensor at nearly the same step."""
    return tuple(a if isinstance(a, str) else a.tag for a, _ in g.form.terms), g.extent


def compute_pass_shares(
    guards: Iterable[BoundsGuard], extents: Mapping[str, Extent], lane_steps: LaneSteps
) -> PassShares:
    """Shares of iterations that pass all guards; guards of different dimensions count as independent."""
    lane_share: PassShare = 1.0
    warp_share: PassShare = 1.0
    for g in guards:
        counted = _compute_guard_shares(g, extents, lane_steps)
        lane_share, warp_share = lane_share * counted.lane_share, warp_share * counted.warp_share
    return PassShares(lane_share, warp_share)


def map_lane_steps(names: Iterable[Atom], extents: Iterable[Extent]) -> dict[Atom, Extent]:
    """Steps of each digit, fastest first, that the lanes of one warp take, by name."""
    return dict(zip(names, split_lanes(extents), strict=True))


def _compute_guard_shares(g: BoundsGuard, extents: Mapping[str, Extent], lane_steps: LaneSteps) -> PassShares:
    """Shares of a guard, from its pattern: (values, values in a warp, step) of digits, least value, bound."""
    form, extent = _strip_quotient(g.form, g.extent)
    columns: list[Any] = []
    low = form.const
    for atom, step in form.terms:
        first, last = compute_atom_range(atom, extents)
        count = last - first + 1
        # A digit with a negative step has its least value at its last iteration.
        low = low + step * choose(step < 0, last, first)
        columns += [count, min_extent(_count_atom_lanes(atom, lane_steps), count), abs(step)]
    columns += [low, extent]
    found = _PASS_SHARE_LOOKUP(*columns)
    return PassShares(found[0], found[1])


def _strip_quotient(form: AffineForm, extent: Extent) -> tuple[AffineForm, Extent]:
    """The same guard on the dividend of a quotient: p // 14 < 2 -> p < 28."""
    (atom, step), *more = form.terms or (("", 0),)
    if not isinstance(atom, QuasiAffine) or atom.op != "//" or more or np.ndim(step) or np.ndim(form.const):
        return form, extent
    if int(step) != 1 or int(form.const) != 0:
        return form, extent
    return _strip_quotient(atom.inner, extent * atom.divisor)


def _count_atom_lanes(atom: Atom, lane_steps: LaneSteps) -> Any:
    if isinstance(atom, str):
        return lane_steps.get(atom, 1)
    # Lanes change a quotient or remainder at most as often as its dividend.
    return reduce(max_extent, (lane_steps.get(name, 1) for name in atom.find_variables()), 1)


_PASS_SHARE_LOOKUP = Lookup(count_guard_passes, 2)
