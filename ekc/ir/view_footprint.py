"""How many elements of a tensor lie behind a tile of a view: windows of a convolution overlap.

A run of a joint loop goes through the digits of a mixed-radix number, one digit to a dimension: all columns
of a row before the next row, all rows of an image before the next. Where it starts, blocks differ; the mean
is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.ir.linear import QuasiAffine
from ekc.ir.region import Region

FloatOrArray = Any
"""A float, or a float64 vector over a population."""


def count_distinct_elements(region: Region) -> FloatOrArray:
    """Different elements of the tensor in a tile of a view: exact without windows; with them, the mean over
    where one run of a joint loop starts, the halo of each digit taken whole. Of anything else (several runs,
    a dimension that several quotients move) the size of the tile, which is a bound from above."""
    runs = [s for s in region.segments if s.is_joint]
    digits = _find_digits(region)
    if len(runs) != 1 or digits is None:
        return region.size
    length, before, total = np.asanyarray(runs[0].extent, np.float64), np.ones(()), np.ones(())
    for s in region.segments:
        if not s.is_joint and s.dim not in digits:
            total = total * s.extent
    for dim, (stays, step) in sorted(digits.items(), key=lambda item: -item[1][0]):
        prefixes = 1 + (length - 1) / stays
        values, before = prefixes / before, prefixes
        own = [s for s in region.segments if s.dim == dim and not s.is_joint]
        taps = np.prod([np.ones(()), *(np.asanyarray(s.extent) for s in own)], axis=0)
        halo = sum((np.asanyarray(s.extent) - 1) * np.abs(s.stride) for s in own)
        total = total * np.minimum(values * taps, (values - 1) * step + halo + 1)
    return np.minimum(total, region.size)


def _find_digits(region: Region) -> dict[int, tuple[int, int]] | None:
    """By dimension that a joint loop moves: how many iterations it stays, and by how much it moves then."""
    assert region.view is not None
    found = {}
    for dim, form in enumerate(region.view.forms):
        if not form.terms:
            continue
        (atom, step), *more = form.terms
        assert isinstance(atom, QuasiAffine)
        stays = _find_digit_period(atom)
        if more or np.ndim(stays) or np.ndim(step):
            return None
        found[dim] = (int(stays), abs(int(step)))
    return found


def _find_digit_period(atom: QuasiAffine) -> Any:
    """Iterations of the joint loop between two changes of a digit."""
    inside = [a for a, _ in atom.inner.terms if isinstance(a, QuasiAffine)]
    below = _find_digit_period(inside[0]) if inside else 1
    return below * atom.divisor if atom.op == "//" else below
