"""How a warp takes fragments out of shared memory: by `ldmatrix` where rows of 16 bytes lie there, else
element by element.

What can be had is told from the steps of the address, which may be vectors over a population.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.ir.affine import AffineForm, Extent
from ekc.ir.hardware.mma import LANE_GROUPS, LANES_PER_GROUP, LDMATRIX_ROW_BYTES
from ekc.ir.lowering.nodes import FragmentNode
from ekc.ir.program import Loop

LANE_ROW, LANE_MATRIX_LOW, LANE_MATRIX_HIGH = "#row", "#low", "#high"
"""Of the lane that points at a row of a matrix: the row, and the two bits of the matrix's number."""
LDMATRIX_LANES = {LANE_ROW: LANE_GROUPS, LANE_MATRIX_LOW: 2, LANE_MATRIX_HIGH: 2}
"""How the lanes are numbered then, fastest first."""


@dataclass(frozen=True, eq=False)
class LdmatrixFit:
    """Whether a fragment's rows can be loaded whole: as they stand, or transposed on the way."""

    direct: Any
    """Rows of the shared tile run along the depth."""
    transposed: Any
    """Rows of the shared tile run across it: `ldmatrix.trans`, of elements of two bytes."""

    @property
    def is_possible(self) -> Any:
        """Whether either holds."""
        return np.asanyarray(self.direct) | self.transposed


def find_ldmatrix_fit(node: FragmentNode) -> LdmatrixFit:
    """What `ldmatrix` can load of the shared tile that a fragment is filled from."""
    tile, row = node.tile, LDMATRIX_ROW_BYTES // node.source.dtype.bytes
    wide = node.source.dtype.bytes == 2
    # Of a, the lanes stand for 8 rows, and the halves are matrices of their own; of b, for pairs of columns.
    run = [(tile.lane_group_loop, 1)] if node.is_a else [(tile.lane_loop, 2), (tile.column_pair_loop, 1)]
    along = _has_aligned_runs(node, [(tile.depth_loop, 1)], row)
    return LdmatrixFit(along, _has_aligned_runs(node, run, row) if wide else np.asanyarray(False))


def _has_aligned_runs(node: FragmentNode, run_loops: list[tuple[Loop, int]], row_elements: int) -> Any:
    """Whether loops of those steps make runs of `row` neighbours that start where a row may."""
    fits: Any = np.asanyarray(node.source.address.const % row_elements == 0)
    steps = dict(node.source.address.terms)
    for loop, step in run_loops:
        fits = fits & (np.asanyarray(steps.get(loop.name, 0)) == step)
    names = {loop.name for loop, _ in run_loops}
    for atom, step in steps.items():
        if not isinstance(atom, str) and names & atom.find_variables():
            return np.asanyarray(False)
        if atom not in names:
            fits = fits & (np.asanyarray(step) % row_elements == 0)
    return fits


def count_fragments_per_load(node: FragmentNode) -> Extent:
    """How many fragments one load fills: two neighbours of b, whose fragment is two matrices, where the
    innermost loop that picks them has an even extent."""
    if not _can_pair(node):
        return 1
    return np.where(np.asanyarray(node.fragment_loops[-1].extent) % 2 == 0, 2, 1)


def _can_pair(node: FragmentNode) -> bool:
    return not node.is_a and bool(node.fragment_loops)


def iterate_ldmatrix_variants(node: FragmentNode) -> Iterator[tuple[bool, bool, Any]]:
    """Every way to load matrices: across the depth or along it, two fragments at once or one; and whether
    it is the one taken."""
    fits, number = find_ldmatrix_fit(node), count_fragments_per_load(node)
    for across, fitting in ((False, fits.direct), (True, fits.transposed & ~fits.direct)):
        for pair in (False, True) if _can_pair(node) else (False,):
            yield across, pair, fitting & (number == 1 + pair)


def find_row_pointer(node: FragmentNode, transposed: bool, is_paired: bool) -> dict[str, AffineForm]:
    """The loops of the tile at the row that a lane points at, in terms of `ROW`, `LOW` and `HIGH`.

    Matrix m is register m. Of a, registers run through the halves of the rows, then along the depth; of b
    along the depth, then (`pair`) to the next fragment.
    """
    tile, deep = node.tile, LANES_PER_GROUP * node.instruction.elements_per_register
    far, near = (LANE_MATRIX_HIGH, LANE_MATRIX_LOW) if node.is_a else (LANE_MATRIX_LOW, LANE_MATRIX_HIGH)
    depth = AffineForm(((far, deep),))
    if node.is_a:
        place = {tile.row_half_loop.name: AffineForm(((near, 1),))}
    else:
        place = {tile.lane_loop.name: AffineForm()}
        if is_paired:
            last = node.fragment_loops[-1].name
            place[last] = AffineForm(((last, 1), (near, 1)))
    # Eight columns side by side, told by the loop of steps of one.
    side = tile.lane_group_loop.name if node.is_a else tile.column_pair_loop.name
    if transposed:
        return place | {tile.depth_loop.name: depth + AffineForm(((LANE_ROW, 1),)), side: AffineForm()}
    return place | {tile.depth_loop.name: depth, side: AffineForm(((LANE_ROW, 1),))}


def find_register_element(node: FragmentNode, register: int, slot: int) -> dict[str, AffineForm]:
    """The loops of the tile at one element of a lane's register, in terms of the lane's group and place."""
    tile, each = node.tile, node.instruction.elements_per_register
    place, group = tile.lane_loop.name, AffineForm(((tile.lane_group_loop.name, 1),))
    if node.is_a:
        half, beyond = node.instruction.find_a_element(register, slot)
        return {
            tile.row_half_loop.name: AffineForm((), half),
            tile.depth_loop.name: AffineForm(((place, each),), beyond),
        }
    depth = AffineForm(((place, each),), node.instruction.find_b_element(register, slot))
    return {tile.depth_loop.name: depth, tile.lane_loop.name: AffineForm(), tile.column_pair_loop.name: group}


def list_element_strides(node: FragmentNode) -> list[tuple[Extent, int, int]]:
    """What a lane runs through by itself, element by element: step of the address, 1, and how many."""
    product, steps = node.instruction, dict(node.source.address.terms)
    deep = steps.get(node.tile.depth_loop.name, 0)
    halves = [(steps.get(node.tile.row_half_loop.name, 0), 1, 2)] if node.is_a else []
    further = product.depth // (LANES_PER_GROUP * product.elements_per_register)
    return [
        *halves,
        (deep * LANES_PER_GROUP * product.elements_per_register, 1, further),
        (deep, 1, product.elements_per_register),
    ]
