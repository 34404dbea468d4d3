"""How a warp takes fragments out of shared memory: by `ldmatrix` where rows of 16 bytes lie there, else
element by element.

What can be had is told from the steps of the address, which may be vectors over a population.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.ir.linear import Extent, Linear
from ekc.ir.nodes import FragmentNode
from ekc.ir.program import Loop
from ekc.ir.tensor_core import GROUPS, PLACES, ROW_BYTES

ROW, LOW, HIGH = "#row", "#low", "#high"
"""Of the lane that points at a row of a matrix: the row, and the two bits of the matrix's number."""
LANES = {ROW: GROUPS, LOW: 2, HIGH: 2}
"""How the lanes are numbered then, fastest first."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Whether a fragment's rows can be loaded whole: as they stand, or transposed on the way."""

    along: Any
    """Rows of the shared tile run along the depth."""
    across: Any
    """Rows of the shared tile run across it: `ldmatrix.trans`, of elements of two bytes."""

    @property
    def any(self) -> Any:
        """Whether either holds."""
        return np.asanyarray(self.along) | self.across


def fit(node: FragmentNode) -> Fit:
    """What `ldmatrix` can load of the shared tile that a fragment is filled from."""
    tile, row = node.tile, ROW_BYTES // node.source.dtype.bytes
    wide = node.source.dtype.bytes == 2
    # Of a, the lanes stand for 8 rows, and the halves are matrices of their own; of b, for pairs of columns.
    run = [(tile.groups, 1)] if node.is_a else [(tile.places, 2), (tile.columns, 1)]
    along = _aligned(node, [(tile.depth, 1)], row)
    return Fit(along, _aligned(node, run, row) if wide else np.asanyarray(False))


def _aligned(node: FragmentNode, run: list[tuple[Loop, int]], row: int) -> Any:
    """Whether loops of those steps make runs of `row` neighbours that start where a row may."""
    fits: Any = np.asanyarray(node.source.address.const % row == 0)
    steps = dict(node.source.address.terms)
    for loop, step in run:
        fits = fits & (np.asanyarray(steps.get(loop.name, 0)) == step)
    names = {loop.name for loop, _ in run}
    for atom, step in steps.items():
        if not isinstance(atom, str) and names & atom.variables():
            return np.asanyarray(False)
        if atom not in names:
            fits = fits & (np.asanyarray(step) % row == 0)
    return fits


def pairs(node: FragmentNode) -> Extent:
    """How many fragments one load fills: two neighbours of b, whose fragment is two matrices, where the
    innermost loop that picks them has an even extent."""
    if not _may_pair(node):
        return 1
    return np.where(np.asanyarray(node.tiles[-1].extent) % 2 == 0, 2, 1)


def _may_pair(node: FragmentNode) -> bool:
    return not node.is_a and bool(node.tiles)


def ways(node: FragmentNode) -> Iterator[tuple[bool, bool, Any]]:
    """Every way to load matrices: across the depth or along it, two fragments at once or one; and whether
    it is the one taken."""
    fits, number = fit(node), pairs(node)
    for across, fitting in ((False, fits.along), (True, fits.across & ~fits.along)):
        for pair in (False, True) if _may_pair(node) else (False,):
            yield across, pair, fitting & (number == 1 + pair)


def pointed(node: FragmentNode, across: bool, pair: bool) -> dict[str, Linear]:
    """The loops of the tile at the row that a lane points at, in terms of `ROW`, `LOW` and `HIGH`.

    Matrix m is register m. Of a, registers run through the halves of the rows, then along the depth; of b
    along the depth, then (`pair`) to the next fragment.
    """
    tile, deep = node.tile, PLACES * node.product.each
    far, near = (HIGH, LOW) if node.is_a else (LOW, HIGH)
    depth = Linear(((far, deep),))
    if node.is_a:
        place = {tile.rows.name: Linear(((near, 1),))}
    else:
        place = {tile.places.name: Linear()}
        if pair:
            last = node.tiles[-1].name
            place[last] = Linear(((last, 1), (near, 1)))
    # Eight columns side by side, told by the loop of steps of one.
    side = tile.groups.name if node.is_a else tile.columns.name
    if across:
        return place | {tile.depth.name: depth + Linear(((ROW, 1),)), side: Linear()}
    return place | {tile.depth.name: depth, side: Linear(((ROW, 1),))}


def held(node: FragmentNode, register: int, slot: int) -> dict[str, Linear]:
    """The loops of the tile at one element of a lane's register, in terms of the lane's group and place."""
    tile, each = node.tile, node.product.each
    place, group = tile.places.name, Linear(((tile.groups.name, 1),))
    if node.is_a:
        half, beyond = node.product.a_place(register, slot)
        return {tile.rows.name: Linear((), half), tile.depth.name: Linear(((place, each),), beyond)}
    depth = Linear(((place, each),), node.product.b_place(register, slot))
    return {tile.depth.name: depth, tile.places.name: Linear(), tile.columns.name: group}


def turns(node: FragmentNode) -> list[tuple[Extent, int, int]]:
    """What a lane runs through by itself, element by element: step of the address, 1, and how many."""
    product, steps = node.product, dict(node.source.address.terms)
    deep = steps.get(node.tile.depth.name, 0)
    halves = [(steps.get(node.tile.rows.name, 0), 1, 2)] if node.is_a else []
    further = product.depth // (PLACES * product.each)
    return [*halves, (deep * PLACES * product.each, 1, further), (deep, 1, product.each)]
