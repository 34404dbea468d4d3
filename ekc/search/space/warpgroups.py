"""Structures for products of a warpgroup: as those of `tensorized.py`, but that tiles stay in shared memory.

Rows are cut into warpgroups, tiles of 64 and what the instruction deals out; columns into as many strips as
one instruction takes. Both factors come by asynchronous copies, in panels, in the order in which they are
stored: along the depth, or along the rows (the columns) that they have alone.
"""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.limits import Limits
from ekc.ir.operator import Axis, Compute, Operator
from ekc.ir.panels import panel_elements
from ekc.ir.steps import CacheRead, Pipeline, Tensorize, Unroll
from ekc.ir.tensor_core import COLUMNS, GROUPS, PLACES, ROWS
from ekc.ir.warpgroup import MOST_STRIPS, STRIP, SWIZZLE, WARPS, GroupProduct, group_product_of
from ekc.search.space.builder import Builder, Chain, Structure
from ekc.search.space.decisions import MOST_WASTE, Level, tiling
from ekc.search.space.digits import along
from ekc.search.space.flying import DEPTHS
from ekc.search.space.joint_axes import fused, fusing
from ekc.search.space.tensorized import (
    RASTER,
    Roles,
    can_fly,
    copy_width,
    dealt,
    pairs_written,
    roles_of,
    spread,
)

GROUPS_OF_WARPS, TILES, DEEP = (1, 2, 3, 4), (1, 2), (2, 4, 8)
"""Warpgroups along the rows, products along them for each, products deep a shared tile. Ours."""


def of_warpgroups(op: Operator, chain: Chain, prefix: str, limits: Limits) -> list[Structure]:
    """Every such structure of one launch; none where the target or the types have no such product, or where
    the least tile would be mostly waste."""
    if not (limits.group_products and limits.async_copies):
        return []
    found = []
    for roles in roles_of(op, chain[0]):
        product = group_product_of(roles.product.dtype)
        ways = [_runs_along(op, chain[0], roles, load) for load in (roles.a, roles.b)]
        flies = all(can_fly(op, chain[0], roles, load, ()) for load in (roles.a, roles.b))
        large = all(_fills(axis) for axis in (roles.rows, roles.columns))
        if product and flies and large and None not in ways:
            found.append(_structure(op, chain, roles, product, [bool(w) for w in ways], prefix))
    return found


def _fills(axis: Axis) -> bool:
    """Whether an axis is not much shorter than a panel."""
    return axis.extent * MOST_WASTE >= WARPS * ROWS


def _runs_along(op: Operator, compute: Compute, roles: Roles, load: ex.Load) -> bool | None:
    """Whether rows of a factor's tile run along the depth; None where they run along neither that nor the
    factor's own axis."""
    inner = {group[-1].name: fused(group).name for group in roles.joint}
    last = along(compute, load.index[-1])
    if last == roles.depth.name:
        return True
    own = roles.rows if load is roles.a else roles.columns
    return False if last is not None and inner.get(last, last) == own.name else None


def _structure(
    op: Operator, chain: Chain, roles: Roles, product: GroupProduct, ways: list[bool], prefix: str
) -> Structure:
    b, compute = Builder(op, chain, prefix), chain[0]
    panel = panel_elements(product.dtype.bytes)
    b.steps += fusing(compute, roles.joint)
    # A line lies within one tile: of the depth where rows run along it, else of the rows or columns.
    strips = range(STRIP, MOST_STRIPS + 1, STRIP) if not ways[1] else (2, 4, *range(8, MOST_STRIPS + 1, 4))
    least = panel // product.depth if any(ways) else 1
    own = (Level("raster", RASTER), Level("thread", GROUPS_OF_WARPS), Level("tile", TILES))
    i = dealt(b, "group", roles.rows, own, (WARPS, ROWS // GROUPS, GROUPS))
    j = dealt(b, "group", roles.columns, (Level("tile", tuple(strips)),), (PLACES, COLUMNS // PLACES))
    deep = (Level("reduce", tuple(d for d in DEEP if d % least == 0)), Level("lane", (product.depth,)))
    k = b.split(roles.depth, tiling(f"tile.group.{roles.depth.name}", roles.depth.extent, deep))
    inner = (k[1], i[3], j[1], i[5], j[3], k[2])
    spread(b, roles, (i[0], j[0], i[1]), (i[2], i[4]), (i[6], j[2]), (k[0], *inner))
    b.hold(pairs_written(chain, roles))
    for load in (roles.a, roles.b):
        vector = copy_width(b, load.tensor, (), True)
        b.steps.append(CacheRead(load.tensor, "shared", k[0], vector, swizzle=SWIZZLE, panel=panel))
    b.steps.append(Pipeline(k[0], b.hole("depth", DEPTHS), "async"))
    b.steps.append(Unroll(k[1], max(DEEP)))
    b.steps.append(Tensorize(k[2], product.name))
    return b.finish("warpgroup" + (" view" if roles.joint else "") + " flying")
