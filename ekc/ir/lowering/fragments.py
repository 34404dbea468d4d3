"""Loads of fragments from shared memory: by `ldmatrix` where rows of 16 bytes are contiguous, else by
element.

Which is possible follows from the steps of the address, which may be vectors over a population.

Layout in shared memory of the tiles of a `wgmma`, from the steps of their addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.ir.affine import AffineForm, Extent
from ekc.ir.hardware.mma import LANE_GROUPS, LANES_PER_GROUP, LDMATRIX_ROW_BYTES, MMA_COLUMNS, MMA_ROWS
from ekc.ir.hardware.wgmma import STRIP_COLUMNS
from ekc.ir.lowering.buffers import TensorAccess, substitute_access
from ekc.ir.lowering.nodes import FragmentNode, MmaNode, SharedFactor
from ekc.ir.program import Loop

LANE_ROW, LANE_MATRIX_LOW, LANE_MATRIX_HIGH = "#row", "#low", "#high"
"""Parts of the number of a lane for `ldmatrix`: row of a matrix, low and high bit of the matrix's number."""
LDMATRIX_LANES = {LANE_ROW: LANE_GROUPS, LANE_MATRIX_LOW: 2, LANE_MATRIX_HIGH: 2}
"""Extents of these parts, fastest first."""


@dataclass(frozen=True, eq=False)
class LdmatrixFit:
    """Whether `ldmatrix` can load the rows of a fragment, directly or transposed; masks for a population."""

    direct: Any
    """Whether rows of the shared tile run along the depth."""
    transposed: Any
    """Whether rows of the shared tile run across the depth: `ldmatrix.trans`, for elements of two bytes."""

    @property
    def is_possible(self) -> Any:
        """Whether either is possible."""
        return np.asanyarray(self.direct) | self.transposed


def derive_ldmatrix_fit(node: FragmentNode) -> LdmatrixFit:
    """Ways in which `ldmatrix` can load a fragment from its shared tile."""
    tile, row = node.tile, LDMATRIX_ROW_BYTES // node.source.dtype.bytes
    is_16_bit = node.source.dtype.bytes == 2
    # For a, lanes are 8 rows, and each half of the rows is a matrix; for b, lanes are pairs of columns.
    run = [(tile.lane_group_loop, 1)] if node.is_a else [(tile.lane_loop, 2), (tile.column_pair_loop, 1)]
    along = _has_aligned_runs(node, [(tile.depth_loop, 1)], row)
    return LdmatrixFit(along, _has_aligned_runs(node, run, row) if is_16_bit else np.asanyarray(False))


def _has_aligned_runs(node: FragmentNode, run_loops: list[tuple[Loop, int]], row_elements: int) -> Any:
    """Whether loops with these steps run over `row_elements` contiguous elements, aligned to a row."""
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
    """Fragments that one load fills: two neighbours of b (a fragment of b is two matrices) where the
    innermost loop that selects them has an even extent, else 1."""
    if not _can_pair(node):
        return 1
    return np.where(np.asanyarray(node.fragment_loops[-1].extent) % 2 == 0, 2, 1)


def _can_pair(node: FragmentNode) -> bool:
    return not node.is_a and bool(node.fragment_loops)


def iterate_ldmatrix_variants(node: FragmentNode) -> Iterator[tuple[bool, bool, Any]]:
    """Every way to load matrices: (transposed, two fragments at once, whether the node uses this way)."""
    fits, number = derive_ldmatrix_fit(node), count_fragments_per_load(node)
    for across, fitting in ((False, fits.direct), (True, fits.transposed & np.logical_not(fits.direct))):
        for pair in (False, True) if _can_pair(node) else (False,):
            yield across, pair, fitting & (number == 1 + pair)


def derive_row_pointer(node: FragmentNode, transposed: bool, is_paired: bool) -> dict[str, AffineForm]:
    """The row whose address a lane gives: loops of the tile in terms of `LANE_ROW`, `LANE_MATRIX_LOW` and
    `LANE_MATRIX_HIGH`.

    Matrix m fills register m. Registers of a run through the halves of the rows, then along the depth; those
    of b along the depth, then (`is_paired`) to the next fragment.
    """
    tile, deep = node.tile, LANES_PER_GROUP * node.instruction.elements_per_register
    depth_part, other_part = LANE_MATRIX_LOW, LANE_MATRIX_HIGH
    if node.is_a:
        depth_part, other_part = other_part, depth_part
    depth = AffineForm(((depth_part, deep),))
    if node.is_a:
        place = {tile.row_half_loop.name: AffineForm(((other_part, 1),))}
    else:
        place = {tile.lane_loop.name: AffineForm()}
        if is_paired:
            last = node.fragment_loops[-1].name
            place[last] = AffineForm(((last, 1), (other_part, 1)))
    # Eight neighbouring columns are the loop with steps of one.
    side = tile.lane_group_loop.name if node.is_a else tile.column_pair_loop.name
    if transposed:
        return place | {tile.depth_loop.name: depth + AffineForm(((LANE_ROW, 1),)), side: AffineForm()}
    return place | {tile.depth_loop.name: depth, side: AffineForm(((LANE_ROW, 1),))}


def derive_register_element(node: FragmentNode, register: int, slot: int) -> dict[str, AffineForm]:
    """One element of a lane's register: loops of the tile in terms of the lane's group and place."""
    tile, each = node.tile, node.instruction.elements_per_register
    place, group = tile.lane_loop.name, AffineForm(((tile.lane_group_loop.name, 1),))
    if node.is_a:
        half, beyond = node.instruction.find_a_element(register, slot)
        depth = AffineForm(((place, each),), beyond)
        return {tile.row_half_loop.name: AffineForm((), half), tile.depth_loop.name: depth}
    depth = AffineForm(((place, each),), node.instruction.find_b_element(register, slot))
    return {tile.depth_loop.name: depth, tile.lane_loop.name: AffineForm(), tile.column_pair_loop.name: group}


def list_element_strides(node: FragmentNode) -> list[tuple[Extent, int, int]]:
    """Digits of the elements that one lane loads: (step of the address, 1, count) each."""
    product, steps = node.instruction, dict(node.source.address.terms)
    deep = steps.get(node.tile.depth_loop.name, 0)
    halves = [(steps.get(node.tile.row_half_loop.name, 0), 1, 2)] if node.is_a else []
    each = product.elements_per_register
    between = LANES_PER_GROUP * each
    return [*halves, (deep * between, 1, product.depth // between), (deep, 1, each)]


def is_mn_major(node: MmaNode, factor: SharedFactor) -> bool | None:
    """Whether rows of the tile run across the depth (MN-major), not along it (K-major); None for neither."""
    buffer, tile = factor.source.buffer, node.tile
    assert buffer is not None
    along = {atom for atom, _ in buffer.region.segments[buffer.fastest_segment].terms}
    own = tile.lane_group_loop if factor is node.a else tile.column_pair_loop
    if tile.depth_loop.name in along:
        return False
    return True if own.name in along else None


def compute_tile_strides(node: MmaNode, factor: SharedFactor) -> Mapping[str, Extent]:
    """Elements that a step of each loop moves in the tile, as the instruction requires, by loop name."""
    tile, buffer = node.tile, factor.source.buffer
    assert buffer is not None
    assert tile.warp_loop is not None
    assert tile.strip_loop is not None
    one, deep = (1, buffer.row_pitch) if is_mn_major(node, factor) else (buffer.row_pitch, 1)
    if factor is node.a:
        own = {tile.lane_group_loop: 1, tile.row_half_loop: LANE_GROUPS, tile.warp_loop: MMA_ROWS}
    else:
        own = {
            tile.column_pair_loop: 1,
            tile.lane_loop: MMA_COLUMNS // LANES_PER_GROUP,
            tile.strip_loop: STRIP_COLUMNS,
        }
    return {loop.name: step * one for loop, step in own.items()} | {tile.depth_loop.name: deep}


def derive_tile_start(node: MmaNode, factor: SharedFactor) -> TensorAccess:
    """The first element of the tile of a product."""
    start = {x.name: AffineForm() for x in (*node.tile.inner_loops, *node.tile.spread_loops)}
    return substitute_access(factor.source, start)
