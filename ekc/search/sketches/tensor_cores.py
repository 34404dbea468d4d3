"""Structures for tensor cores: how a contraction is cut for products of a warp, told from what it reads.

Rows are an axis that only one factor has, columns one that only the other has (the one written side by
side, where it is such), the depth is summed and in both. Other outputs run over blocks, other sums outside.
Where a factor has several axes of its own, they are also taken together (`joint_axes.py`).

Structures for products of a warpgroup: as those of `tensorized.py`, but that tiles stay in shared memory.

Rows are cut into warpgroups, tiles of 64 and what the instruction deals out; columns into as many strips as
one instruction takes. Both factors come by asynchronous copies, in panels, in the order in which they are
stored: along the depth, or along the rows (the columns) that they have alone.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.hardware.limits import Limits
from ekc.ir.hardware.memory import SWIZZLE_CHUNKS, count_panel_elements
from ekc.ir.hardware.mma import (
    LANE_GROUPS,
    LANES_PER_GROUP,
    LDMATRIX_ROW_BYTES,
    MMA_COLUMNS,
    MMA_ROWS,
    MmaInstruction,
    find_mma_instruction,
)
from ekc.ir.hardware.wgmma import (
    MAX_STRIPS,
    STRIP_COLUMNS,
    WARPGROUP_WARPS,
    WGMMA_SWIZZLE,
    WgmmaFamily,
    find_wgmma_family,
)
from ekc.ir.lowering.memory_access import is_zero_beyond_axis
from ekc.ir.operator import Operator
from ekc.ir.schedule import Bind, CacheRead, Hole, Pipeline, Reorder, Tensorize, Unroll
from ekc.search.sketches.async_copy import PIPELINE_DEPTHS, can_copy_async, find_copy_alignment
from ekc.search.sketches.builder import ComputeChain, Structure, StructureBuilder
from ekc.search.sketches.decisions import MAX_PADDING_RATIO, Decision, TileLevel, make_tiling
from ekc.search.sketches.divided_axes import find_contiguous_axis
from ekc.search.sketches.fused_axes import AxisGroup, fuse_group, make_fuse_steps, select_fusible

MMA_WARPS, MMA_TILES, MMA_DEPTHS = (1, 2, 4, 8), (1, 2, 3, 4, 6, 8), (1, 2, 4, 8)
"""Warps along an axis, instructions along it for each, instructions deep a shared tile. Ours."""
RASTER_SIZES = (1, 2, 4, 8)
"""Neighbouring blocks along the rows that run one after the other, on the same columns, so that what is
resident shares rows and columns alike in L2."""


@dataclass(frozen=True)
class ContractionRoles:
    """Which axis is what, and which read which factor."""

    product: MmaInstruction
    rows: Axis
    columns: Axis
    depth: Axis
    a: ex.Load
    b: ex.Load
    fused_groups: tuple[AxisGroup, ...] = ()
    """Axes fused into the rows, and into the columns."""


def derive_tensor_core(op: Operator, chain: ComputeChain, prefix: str, limits: Limits) -> list[Structure]:
    """Every structure for tensor cores of one launch; none where its compute is no such contraction."""
    found = []
    for roles in find_roles(op, chain[0]):
        for orders in itertools.product(*(_list_tile_orders(op, load, roles) for load in (roles.a, roles.b))):
            ways = zip((roles.a, roles.b), orders, strict=True)
            flies = all(can_copy_tile_async(op, chain[0], roles, load, order) for load, order in ways)
            for flying in (True, False):
                if not flying or (limits.async_copies and flies):
                    found.append(_build_mma_structure(op, chain, roles, orders, prefix, flying))
    return found


def find_depth_axis(op: Operator, compute: Compute) -> Axis | None:
    """The axis that products of a warp are summed along; None where a compute is no contraction for them."""
    roles = find_roles(op, compute)
    return roles[0].depth if roles else None


def find_roles(op: Operator, compute: Compute) -> list[ContractionRoles]:
    """Who is what: with the outputs of each factor as one, where it has several, and with the largest."""
    factors = ex.list_factors(compute.body)
    loads = [x for x in factors if isinstance(x, ex.Load)]
    if compute.combine != "sum" or len(loads) != 2 or len(factors) != 2 or loads[0].tensor == loads[1].tensor:
        return []
    types = [op.tensors[x.tensor].dtype for x in loads]
    product = find_mma_instruction(types[0])
    if product is None or types[0] is not types[1] or compute.acc_dtype.name != types[0].default_accumulator:
        return []
    used = [ex.find_variables(x) for x in loads]
    own = [[x for x in compute.spatial_axes if x.name in used[i] - used[1 - i]] for i in (0, 1)]
    depths = [
        x
        for x in compute.reduction_axes
        if x.name in used[0] & used[1] and _has_full_instructions(op, compute, x, product)
    ]
    if not (own[0] and own[1] and depths):
        return []
    last = compute.spatial_axes[-1]
    b = 0 if last in own[0] else 1
    columns = last if last in own[b] else max(own[b], key=lambda x: x.extent)
    rows, depth = (max(axes, key=lambda x: x.extent) for axes in (own[1 - b], depths))
    plain = ContractionRoles(product, rows, columns, depth, loads[1 - b], loads[b])
    of_rows, of_columns = select_fusible(own[1 - b]), select_fusible(own[b])
    if not (of_rows or of_columns):
        return [plain]
    rows, columns = (
        fuse_group(of_rows) if of_rows else rows,
        fuse_group(of_columns) if of_columns else columns,
    )
    groups = tuple(filter(None, (of_rows, of_columns)))
    return [replace(plain, rows=rows, columns=columns, fused_groups=groups), plain]


def _has_full_instructions(op: Operator, compute: Compute, depth: Axis, product: MmaInstruction) -> bool:
    """Whether no guard cuts the instruction: what lies beyond the depth is 0, or nothing does."""
    return is_zero_beyond_axis(compute, depth, op.tensors) or depth.extent % product.depth == 0


def _list_tile_orders(op: Operator, load: ex.Load, roles: ContractionRoles) -> list[tuple[int, ...]]:
    """Orders of a shared tile: the tensor's own, and where `ldmatrix` cannot load that, the depth last."""
    last = load.index[-1]
    wide = op.tensors[load.tensor].dtype.bytes == 2
    sides = {x.name for x in (roles.rows, roles.columns, roles.depth)} if wide else {roles.depth.name}
    whole = isinstance(last, ex.Var) and last.name in sides
    deep = [d for d, form in enumerate(load.index) if roles.depth.name in ex.find_variables(form)]
    if whole or deep[-1] == len(load.index) - 1:
        return [()]
    return [(), (*(d for d in range(len(load.index)) if d != deep[-1]), deep[-1])]


def can_copy_tile_async(
    op: Operator, compute: Compute, roles: ContractionRoles, load: ex.Load, order: tuple[int, ...]
) -> bool:
    """Whether a copy can move the tensor into this order, and a tile holds the neighbours that it needs:
    along an axis that is cut here, or the last that is fused into such a one."""
    inner = {fuse_group(group).name: group[-1].name for group in roles.fused_groups}
    cut = {inner.get(x.name, x.name) for x in (roles.rows, roles.columns, roles.depth)}
    together = (
        find_copy_alignment(op, load.tensor) == 1 or find_contiguous_axis(compute, load.index[-1]) in cut
    )
    return together and can_copy_async(op, compute, load, order)


def _build_mma_structure(
    op: Operator,
    chain: ComputeChain,
    roles: ContractionRoles,
    orders: tuple[tuple[int, ...], ...],
    prefix: str,
    is_async: bool,
) -> Structure:
    b = StructureBuilder(op, chain, prefix)
    compute, product = chain[0], roles.product
    b.steps += make_fuse_steps(compute, roles.fused_groups)
    own = (TileLevel("thread", MMA_WARPS), TileLevel("tile", MMA_TILES))
    i = cut_for_instruction(
        b,
        "tensor",
        roles.rows,
        (TileLevel("raster", RASTER_SIZES), *own),
        (MMA_ROWS // LANE_GROUPS, LANE_GROUPS),
    )
    j = cut_for_instruction(
        b, "tensor", roles.columns, own, (LANES_PER_GROUP, MMA_COLUMNS // LANES_PER_GROUP)
    )
    deep = (TileLevel("reduce", MMA_DEPTHS), TileLevel("lane", (product.depth,)))
    k = b.split_axis(roles.depth, make_tiling(f"tile.tensor.{roles.depth.name}", roles.depth.extent, deep))
    inner = (k[1], i[3], j[2], i[4], j[4], k[2])
    bind_contraction_loops(b, roles, (i[0], j[0], i[1]), (i[2], j[1]), (i[5], j[3]), (k[0], *inner))
    b.cache_results(count_written_elements(chain, roles))
    for load, order in zip((roles.a, roles.b), orders, strict=True):
        vector = add_copy_width(b, load.tensor, order, is_async)
        pad, swizzle = _add_bank_decision(b, load.tensor)
        b.steps.append(CacheRead(load.tensor, "shared", k[0], vector, order, pad, swizzle))
    for load in (roles.a, roles.b):
        b.steps.append(CacheRead(f"{load.tensor}.shared", "fragment", k[1]))
    stages = b.add_choice("depth", PIPELINE_DEPTHS) if is_async else b.add_choice("stages", (1, 2))
    b.steps.append(Pipeline(k[0], stages, "async" if is_async else "register"))
    b.steps.append(Unroll(k[1], b.add_choice("unroll", (1, 2, 4, 8, 16))))
    if roles.fused_groups:
        b.steps.append(Unroll(k[0], b.add_choice("written", (1, 16))))
    b.steps.append(Tensorize(k[2], product.name))
    turned = "".join(f" {x.tensor}'" for x, order in zip((roles.a, roles.b), orders, strict=True) if order)
    view = " view" if roles.fused_groups else ""
    return b.build("tensor" + view + turned + (" flying" if is_async else ""))


def cut_for_instruction(
    builder: StructureBuilder,
    kind: str,
    axis: Axis,
    own_levels: tuple[TileLevel, ...],
    instruction: tuple[int, ...],
) -> list[str]:
    """Cut rows or columns into blocks, what we choose, and what the instruction deals out."""
    columns = (*own_levels, *(TileLevel("lane", (extent,)) for extent in instruction))
    return builder.split_axis(axis, make_tiling(f"tile.{kind}.{axis.name}", axis.extent, columns))


def bind_contraction_loops(
    builder: StructureBuilder,
    roles: ContractionRoles,
    blocks: tuple[str, ...],
    warps: tuple[str, ...],
    lanes: tuple[str, ...],
    inner: tuple[str, ...],
) -> None:
    """Order the loops and bind them: outputs that are not cut are blocks too, other sums run outside."""
    cut = (roles.rows, roles.columns, roles.depth, *(a for group in roles.fused_groups for a in group))
    others = [x.name for x in builder.compute.spatial_axes if x not in cut]
    sums = [x.name for x in builder.compute.reduction_axes if x not in cut]
    builder.steps.append(Reorder((*others, *blocks, *warps, *lanes, *sums, *inner)))
    builder.steps += [Bind(x, "block.x") for x in (*others, *blocks)]
    builder.steps += [Bind(x, "thread.y") for x in warps]
    builder.steps += [Bind(x, "thread.x") for x in lanes]


def count_written_elements(chain: ComputeChain, roles: ContractionRoles) -> int:
    """Elements written at once: the two neighbours that a lane has, where they are such in the output."""
    last = chain[0].spatial_axes[-1]
    side = [group[-1] for group in roles.fused_groups if fuse_group(group) == roles.columns] or [
        roles.columns
    ]
    return 2 if last is side[0] and chain[-1].output.shape[-1] % 2 == 0 else 1


def add_copy_width(
    builder: StructureBuilder, tensor: str, order: tuple[int, ...], is_async: bool
) -> Hole | int:
    """Elements that one copy into shared memory moves."""
    if order and is_async:
        return 1
    least = find_copy_alignment(builder.op, tensor) if is_async else 1
    return builder.add_vector_width("vector" if least == 1 else "flight", tensor, least)


def _add_bank_decision(builder: StructureBuilder, tensor: str) -> tuple[Hole, Hole]:
    """Against bank conflicts: nothing, a pad of 16 bytes a row, or a swizzle."""
    name, row = (
        f"{builder.prefix}banks.{tensor}",
        LDMATRIX_ROW_BYTES // builder.op.tensors[tensor].dtype.bytes,
    )
    table = np.array([(0, 1), (0, SWIZZLE_CHUNKS[-1]), (row, 1)], dtype=np.int64)
    builder.decisions.append(Decision(name, (f"{name}.pad", f"{name}.swizzle"), table))
    return Hole(f"{name}.pad"), Hole(f"{name}.swizzle")


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
