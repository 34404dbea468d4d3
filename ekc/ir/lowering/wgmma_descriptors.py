"""Layout in shared memory of the tiles of a `wgmma`, from the steps of their addresses."""

from __future__ import annotations

from collections.abc import Mapping

from ekc.ir.affine import AffineForm, Extent
from ekc.ir.hardware.mma import LANE_GROUPS, LANES_PER_GROUP, MMA_COLUMNS, MMA_ROWS
from ekc.ir.hardware.wgmma import STRIP_COLUMNS
from ekc.ir.lowering.buffers import TensorAccess, substitute_access
from ekc.ir.lowering.nodes import MmaNode, SharedFactor


def is_mn_major(node: MmaNode, factor: SharedFactor) -> bool | None:
    """Whether rows of the tile run along the rows or columns of the product (MN-major), not along the depth
    (K-major); None where they run along neither."""
    buffer, tile = factor.source.buffer, node.tile
    assert buffer is not None
    along = {atom for atom, _ in buffer.region.segments[buffer.fastest_segment].terms}
    own = tile.lane_group_loop if factor is node.a else tile.column_pair_loop
    if tile.depth_loop.name in along:
        return False
    return True if own.name in along else None


def find_tile_strides(node: MmaNode, factor: SharedFactor) -> Mapping[str, Extent]:
    """Elements that a step of each loop moves in the tile, as the instruction requires; by name of the
    loop."""
    tile, buffer = node.tile, factor.source.buffer
    assert buffer is not None
    assert tile.warp_loop is not None
    assert tile.strip_loop is not None
    mn_major = is_mn_major(node, factor)
    one, deep = (1, buffer.row_pitch) if mn_major else (buffer.row_pitch, 1)
    if factor is node.a:
        own = {tile.lane_group_loop: 1, tile.row_half_loop: LANE_GROUPS, tile.warp_loop: MMA_ROWS}
    else:
        own = {
            tile.column_pair_loop: 1,
            tile.lane_loop: MMA_COLUMNS // LANES_PER_GROUP,
            tile.strip_loop: STRIP_COLUMNS,
        }
    return {loop.name: step * one for loop, step in own.items()} | {tile.depth_loop.name: deep}


def find_tile_start(node: MmaNode, factor: SharedFactor) -> TensorAccess:
    """The first element of the tile of a product."""
    start = {x.name: AffineForm() for x in (*node.tile.inner_loops, *node.tile.spread_loops)}
    return substitute_access(factor.source, start)
