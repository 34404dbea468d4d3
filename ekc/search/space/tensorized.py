"""Structures for tensor cores: how a contraction is cut for products of a warp, told from what it reads.

Rows are an axis that only one factor has, columns one that only the other has (the one written side by
side, where it is such), the depth is summed and in both. Other outputs run over blocks, other sums outside.
Where a factor has several axes of its own, they are also taken together (`joint_axes.py`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.limits import Limits
from ekc.ir.operator import Axis, Compute, Operator
from ekc.ir.reduction_guards import covered
from ekc.ir.steps import Bind, CacheRead, Hole, Pipeline, Reorder, Tensorize, Unroll
from ekc.ir.swizzle import CHUNKS
from ekc.ir.tensor_core import COLUMNS, GROUPS, PLACES, ROW_BYTES, ROWS, Product, product_of
from ekc.search.space.builder import Builder, Chain, Structure
from ekc.search.space.decisions import Decision, Level, tiling
from ekc.search.space.digits import along
from ekc.search.space.flying import DEPTHS, grain, movable
from ekc.search.space.joint_axes import Group, fused, fusing, joint

WARPS, TILES, DEEP = (1, 2, 4, 8), (1, 2, 3, 4, 6, 8), (1, 2, 4, 8)
"""Warps along an axis, instructions along it for each, instructions deep a shared tile. Ours."""
RASTER = (1, 2, 4, 8)
"""Neighbouring blocks along the rows that run one after the other, on the same columns, so that what is
resident shares rows and columns alike in L2."""


@dataclass(frozen=True)
class Roles:
    """Which axis is what, and which read which factor."""

    product: Product
    rows: Axis
    columns: Axis
    depth: Axis
    a: ex.Load
    b: ex.Load
    joint: tuple[Group, ...] = ()
    """Axes fused into the rows, and into the columns."""


def tensorized(op: Operator, chain: Chain, prefix: str, limits: Limits) -> list[Structure]:
    """Every structure for tensor cores of one launch; none where its compute is no such contraction."""
    found = []
    for roles in roles_of(op, chain[0]):
        for orders in itertools.product(*(_orders(op, load, roles) for load in (roles.a, roles.b))):
            ways = zip((roles.a, roles.b), orders, strict=True)
            flies = all(can_fly(op, chain[0], roles, load, order) for load, order in ways)
            for flying in (True, False):
                if not flying or (limits.async_copies and flies):
                    found.append(_structure(op, chain, roles, orders, prefix, flying))
    return found


def depth_of(op: Operator, compute: Compute) -> Axis | None:
    """The axis that products of a warp are summed along; None where a compute is no contraction for them."""
    roles = roles_of(op, compute)
    return roles[0].depth if roles else None


def roles_of(op: Operator, compute: Compute) -> list[Roles]:
    """Who is what: with the outputs of each factor as one, where it has several, and with the largest."""
    factors = ex.factors(compute.body)
    loads = [x for x in factors if isinstance(x, ex.Load)]
    if compute.combine != "sum" or len(loads) != 2 or len(factors) != 2 or loads[0].tensor == loads[1].tensor:
        return []
    types = [op.tensors[x.tensor].dtype for x in loads]
    product = product_of(types[0])
    if product is None or types[0] is not types[1] or compute.acc_dtype.name != types[0].accumulator:
        return []
    used = [ex.variables(x) for x in loads]
    own = [[x for x in compute.spatial if x.name in used[i] - used[1 - i]] for i in (0, 1)]
    depths = [x for x in compute.reduction if x.name in used[0] & used[1] and _whole(op, compute, x, product)]
    if not (own[0] and own[1] and depths):
        return []
    last = compute.spatial[-1]
    b = 0 if last in own[0] else 1
    columns = last if last in own[b] else max(own[b], key=lambda x: x.extent)
    rows, depth = (max(axes, key=lambda x: x.extent) for axes in (own[1 - b], depths))
    plain = Roles(product, rows, columns, depth, loads[1 - b], loads[b])
    of_rows, of_columns = joint(own[1 - b]), joint(own[b])
    if not (of_rows or of_columns):
        return [plain]
    rows, columns = fused(of_rows) if of_rows else rows, fused(of_columns) if of_columns else columns
    groups = tuple(filter(None, (of_rows, of_columns)))
    return [replace(plain, rows=rows, columns=columns, joint=groups), plain]


def _whole(op: Operator, compute: Compute, depth: Axis, product: Product) -> bool:
    """Whether no guard cuts the instruction: what lies beyond the depth is 0, or nothing does."""
    return covered(compute, depth, op.tensors) or depth.extent % product.depth == 0


def _orders(op: Operator, load: ex.Load, roles: Roles) -> list[tuple[int, ...]]:
    """Orders of a shared tile: the tensor's own, and where `ldmatrix` cannot load that, the depth last."""
    last = load.index[-1]
    wide = op.tensors[load.tensor].dtype.bytes == 2
    sides = {x.name for x in (roles.rows, roles.columns, roles.depth)} if wide else {roles.depth.name}
    whole = isinstance(last, ex.Var) and last.name in sides
    deep = [d for d, form in enumerate(load.index) if roles.depth.name in ex.variables(form)]
    if whole or deep[-1] == len(load.index) - 1:
        return [()]
    return [(), (*(d for d in range(len(load.index)) if d != deep[-1]), deep[-1])]


def can_fly(op: Operator, compute: Compute, roles: Roles, load: ex.Load, order: tuple[int, ...]) -> bool:
    """Whether a copy can move the tensor into this order, and a tile holds the neighbours that it needs:
    along an axis that is cut here, or the last that is fused into such a one."""
    inner = {fused(group).name: group[-1].name for group in roles.joint}
    cut = {inner.get(x.name, x.name) for x in (roles.rows, roles.columns, roles.depth)}
    together = grain(op, load.tensor) == 1 or along(compute, load.index[-1]) in cut
    return together and movable(op, compute, load, order)


def _structure(
    op: Operator,
    chain: Chain,
    roles: Roles,
    orders: tuple[tuple[int, ...], ...],
    prefix: str,
    flying: bool,
) -> Structure:
    b = Builder(op, chain, prefix)
    compute, product = chain[0], roles.product
    b.steps += fusing(compute, roles.joint)
    own = (Level("thread", WARPS), Level("tile", TILES))
    i = dealt(b, "tensor", roles.rows, (Level("raster", RASTER), *own), (ROWS // GROUPS, GROUPS))
    j = dealt(b, "tensor", roles.columns, own, (PLACES, COLUMNS // PLACES))
    deep = (Level("reduce", DEEP), Level("lane", (product.depth,)))
    k = b.split(roles.depth, tiling(f"tile.tensor.{roles.depth.name}", roles.depth.extent, deep))
    inner = (k[1], i[3], j[2], i[4], j[4], k[2])
    spread(b, roles, (i[0], j[0], i[1]), (i[2], j[1]), (i[5], j[3]), (k[0], *inner))
    b.hold(pairs_written(chain, roles))
    for load, order in zip((roles.a, roles.b), orders, strict=True):
        vector = copy_width(b, load.tensor, order, flying)
        pad, swizzle = _banks(b, load.tensor)
        b.steps.append(CacheRead(load.tensor, "shared", k[0], vector, order, pad, swizzle))
    for load in (roles.a, roles.b):
        b.steps.append(CacheRead(f"{load.tensor}.shared", "fragment", k[1]))
    stages = b.hole("depth", DEPTHS) if flying else b.hole("stages", (1, 2))
    b.steps.append(Pipeline(k[0], stages, "async" if flying else "register"))
    b.steps.append(Unroll(k[1], b.hole("unroll", (1, 2, 4, 8, 16))))
    if roles.joint:
        b.steps.append(Unroll(k[0], b.hole("written", (1, 16))))
    b.steps.append(Tensorize(k[2], product.name))
    turned = "".join(f" {x.tensor}'" for x, order in zip((roles.a, roles.b), orders, strict=True) if order)
    view = " view" if roles.joint else ""
    return b.finish("tensor" + view + turned + (" flying" if flying else ""))


def dealt(
    b: Builder, kind: str, axis: Axis, own: tuple[Level, ...], instruction: tuple[int, ...]
) -> list[str]:
    """Cut rows or columns into blocks, what we choose, and what the instruction deals out."""
    columns = (*own, *(Level("lane", (extent,)) for extent in instruction))
    return b.split(axis, tiling(f"tile.{kind}.{axis.name}", axis.extent, columns))


def spread(
    b: Builder,
    roles: Roles,
    blocks: tuple[str, ...],
    warps: tuple[str, ...],
    lanes: tuple[str, ...],
    inner: tuple[str, ...],
) -> None:
    """Order the loops and bind them: outputs that are not cut are blocks too, other sums run outside."""
    cut = (roles.rows, roles.columns, roles.depth, *(a for group in roles.joint for a in group))
    others = [x.name for x in b.compute.spatial if x not in cut]
    sums = [x.name for x in b.compute.reduction if x not in cut]
    b.steps.append(Reorder((*others, *blocks, *warps, *lanes, *sums, *inner)))
    b.steps += [Bind(x, "block.x") for x in (*others, *blocks)]
    b.steps += [Bind(x, "thread.y") for x in warps]
    b.steps += [Bind(x, "thread.x") for x in lanes]


def pairs_written(chain: Chain, roles: Roles) -> int:
    """Elements written at once: the two neighbours that a lane has, where they are such in the output."""
    last = chain[0].spatial[-1]
    side = [group[-1] for group in roles.joint if fused(group) == roles.columns] or [roles.columns]
    return 2 if last is side[0] and chain[-1].output.shape[-1] % 2 == 0 else 1


def copy_width(b: Builder, tensor: str, order: tuple[int, ...], flying: bool) -> Hole | int:
    """Elements that one copy into shared memory moves."""
    if order and flying:
        return 1
    least = grain(b.op, tensor) if flying else 1
    return b.width("vector" if least == 1 else "flight", tensor, least)


def _banks(b: Builder, tensor: str) -> tuple[Hole, Hole]:
    """Against bank conflicts: nothing, a pad of 16 bytes a row, or a swizzle."""
    name, row = f"{b.prefix}banks.{tensor}", ROW_BYTES // b.op.tensors[tensor].dtype.bytes
    table = np.array([(0, 1), (0, CHUNKS[-1]), (row, 1)], dtype=np.int64)
    b.decisions.append(Decision(name, (f"{name}.pad", f"{name}.swizzle"), table))
    return Hole(f"{name}.pad"), Hole(f"{name}.swizzle")
