"""Structures for products of a warpgroup: as those of `tensorized.py`, but that tiles stay in shared memory.

Rows are cut into warpgroups, tiles of 64 and what the instruction deals out; columns into as many strips as
one instruction takes. Both factors come by asynchronous copies, in panels, in the order in which they are
stored: along the depth, or along the rows (the columns) that they have alone.
"""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.hardware.limits import Limits
from ekc.ir.hardware.mma import LANE_GROUPS, LANES_PER_GROUP, MMA_COLUMNS, MMA_ROWS
from ekc.ir.hardware.wgmma import (
    MAX_STRIPS,
    STRIP_COLUMNS,
    WARPGROUP_WARPS,
    WGMMA_SWIZZLE,
    WgmmaFamily,
    find_wgmma_family,
)
from ekc.ir.lowering.layouts import count_panel_elements
from ekc.ir.operator import Axis, Compute, Operator
from ekc.ir.schedule import CacheRead, Pipeline, Tensorize, Unroll
from ekc.search.space.builder import ComputeChain, Structure, StructureBuilder
from ekc.search.space.decisions import MAX_PADDING_RATIO, TileLevel, make_tiling
from ekc.search.space.digits import find_contiguous_axis
from ekc.search.space.flying import PIPELINE_DEPTHS
from ekc.search.space.joint_axes import fuse_group, make_fuse_steps
from ekc.search.space.tensorized import (
    RASTER_SIZES,
    ContractionRoles,
    add_copy_width,
    bind_contraction_loops,
    can_copy_tile_async,
    count_written_elements,
    cut_for_instruction,
    find_roles,
)

WARPGROUP_COUNTS, WGMMA_TILES, WGMMA_DEPTHS = (1, 2, 3, 4), (1, 2), (2, 4, 8)
"""Warpgroups along the rows, products along them for each, products deep a shared tile. Ours."""


def derive_warpgroup(op: Operator, chain: ComputeChain, prefix: str, limits: Limits) -> list[Structure]:
    """Every such structure of one launch; none where the target or the types have no such product, or where
    the least tile would be mostly waste."""
    if not (limits.group_products and limits.async_copies):
        return []
    found = []
    for roles in find_roles(op, chain[0]):
        product = find_wgmma_family(roles.product.dtype)
        ways = [_runs_along_depth(op, chain[0], roles, load) for load in (roles.a, roles.b)]
        flies = all(can_copy_tile_async(op, chain[0], roles, load, ()) for load in (roles.a, roles.b))
        large = all(_fills_panel(axis) for axis in (roles.rows, roles.columns))
        if product and flies and large and None not in ways:
            found.append(_build_wgmma_structure(op, chain, roles, product, [bool(w) for w in ways], prefix))
    return found


def _fills_panel(axis: Axis) -> bool:
    """Whether an axis is not much shorter than a panel."""
    return axis.extent * MAX_PADDING_RATIO >= WARPGROUP_WARPS * MMA_ROWS


def _runs_along_depth(op: Operator, compute: Compute, roles: ContractionRoles, load: ex.Load) -> bool | None:
    """Whether rows of a factor's tile run along the depth; None where they run along neither that nor the
    factor's own axis."""
    inner = {group[-1].name: fuse_group(group).name for group in roles.fused_groups}
    last = find_contiguous_axis(compute, load.index[-1])
    if last == roles.depth.name:
        return True
    own = roles.rows if load is roles.a else roles.columns
    return False if last is not None and inner.get(last, last) == own.name else None


def _build_wgmma_structure(
    op: Operator,
    chain: ComputeChain,
    roles: ContractionRoles,
    product: WgmmaFamily,
    runs_along_depth: list[bool],
    prefix: str,
) -> Structure:
    b, compute = StructureBuilder(op, chain, prefix), chain[0]
    panel = count_panel_elements(product.dtype.bytes)
    b.steps += make_fuse_steps(compute, roles.fused_groups)
    # A line lies within one tile: of the depth where rows run along it, else of the rows or columns.
    strips = (
        range(STRIP_COLUMNS, MAX_STRIPS + 1, STRIP_COLUMNS)
        if not runs_along_depth[1]
        else (2, 4, *range(8, MAX_STRIPS + 1, 4))
    )
    least = panel // product.depth if any(runs_along_depth) else 1
    own = (
        TileLevel("raster", RASTER_SIZES),
        TileLevel("thread", WARPGROUP_COUNTS),
        TileLevel("tile", WGMMA_TILES),
    )
    i = cut_for_instruction(
        b, "group", roles.rows, own, (WARPGROUP_WARPS, MMA_ROWS // LANE_GROUPS, LANE_GROUPS)
    )
    j = cut_for_instruction(
        b,
        "group",
        roles.columns,
        (TileLevel("tile", tuple(strips)),),
        (LANES_PER_GROUP, MMA_COLUMNS // LANES_PER_GROUP),
    )
    deep = (
        TileLevel("reduce", tuple(d for d in WGMMA_DEPTHS if d % least == 0)),
        TileLevel("lane", (product.depth,)),
    )
    k = b.split_axis(roles.depth, make_tiling(f"tile.group.{roles.depth.name}", roles.depth.extent, deep))
    inner = (k[1], i[3], j[1], i[5], j[3], k[2])
    bind_contraction_loops(b, roles, (i[0], j[0], i[1]), (i[2], i[4]), (i[6], j[2]), (k[0], *inner))
    b.cache_results(count_written_elements(chain, roles))
    for load in (roles.a, roles.b):
        vector = add_copy_width(b, load.tensor, (), True)
        b.steps.append(CacheRead(load.tensor, "shared", k[0], vector, swizzle=WGMMA_SWIZZLE, panel=panel))
    b.steps.append(Pipeline(k[0], b.add_choice("depth", PIPELINE_DEPTHS), "async"))
    b.steps.append(Unroll(k[1], max(WGMMA_DEPTHS)))
    b.steps.append(Tensorize(k[2], product.name))
    return b.build("warpgroup" + (" view" if roles.fused_groups else "") + " flying")
