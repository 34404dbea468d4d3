"""Structures for tensor cores (rule 8): contractions cut for `mma` of a warp or `wgmma` of a warpgroup.

The roles of axes follow from the reads. Rows: an axis that only one factor has. Columns: an axis that only
the other factor has, the contiguous axis of the output if possible. Depth: a reduction axis that both factors
have. Other spatial axes run over blocks, other reduction axes outside the tiles. Where a factor has several
axes of its own, structures with these axes fused come first.

`mma`: rows and columns are cut into warps, tiles, and the lanes and registers of the instruction. Both
factors go through shared memory into fragments.

`wgmma`: the instruction reads shared memory. Rows are cut into warpgroups, tiles of 64 and the lanes of the
instruction; columns into the strips that one instruction takes. Both factors come by asynchronous copies, in
panels, contiguous along the depth or along their own axis, as they are stored.

Fusion of output axes into the rows or columns of an implicit matrix (implicit GEMM).

Axes are fused that index one factor and not the other. Example: the images, rows and columns of pixels of a
convolution become the rows of a matrix; so do two free axes of an einsum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
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
from ekc.ir.hardware.target import LaunchLimits
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
from ekc.ir.schedule import Bind, CacheRead, Fuse, Hole, Pipeline, Reorder, Step, Tensorize, Unroll
from ekc.search.data.defaults import TENSOR_CORES, TILING
from ekc.search.sketches import rules
from ekc.search.sketches.builder import (
    ComputeChain,
    Structure,
    StructureBuilder,
    can_copy_async,
    compute_copy_alignment,
)
from ekc.search.sketches.decisions import Decision, TileLevel, make_tiling
from ekc.search.sketches.divided_axes import find_contiguous_axis

AxisGroup = tuple[Axis, ...]
_LANE_ROWS = (MMA_ROWS // LANE_GROUPS, LANE_GROUPS)
_LANE_COLUMNS = (LANES_PER_GROUP, MMA_COLUMNS // LANES_PER_GROUP)
"""Rows and columns of one instruction, cut into the parts that lanes hold."""


def select_fusible(axes: Sequence[Axis]) -> AxisGroup:
    """Select the axes to fuse among those of one factor: all with extent above 1, if there are several."""
    moving = tuple(a for a in axes if a.extent > 1)
    return moving if len(moving) > 1 else ()


def fuse_group(group: AxisGroup) -> Axis:
    """The axis that fusing a group makes, with the name that `fuse` gives it: (n, h) -> n_h."""
    return Axis("_".join(a.name for a in group), math.prod(a.extent for a in group))


def make_fuse_steps(compute: Compute, groups: Sequence[AxisGroup]) -> list[Step]:
    """The first steps of a schedule: reorder the axes of each group next to each other, then fuse them."""
    steps: list[Step] = []
    names = [a.name for a in compute.spatial_axes]
    grouped = [a.name for group in groups for a in group]
    order = [name for name in names if name not in grouped] + grouped
    if order != names and not _are_adjacent(names, groups):
        steps.append(Reorder(tuple(order)))
    for group in groups:
        outer = group[0].name
        for axis in group[1:]:
            steps.append(Fuse(outer, axis.name))
            outer = f"{outer}_{axis.name}"
    return steps


def _are_adjacent(names: list[str], groups: Sequence[AxisGroup]) -> bool:
    """Whether the axes of every group are already next to each other, in order."""
    for group in groups:
        first = names.index(group[0].name)
        if names[first : first + len(group)] != [a.name for a in group]:
            return False
    return True


@dataclass(frozen=True)
class ContractionRoles:
    """Roles of the axes and reads of a contraction."""

    product: MmaInstruction
    """The `mma` instruction for the element type."""
    rows: Axis
    columns: Axis
    depth: Axis
    a: ex.Load
    """Read of the factor with the rows."""
    b: ex.Load
    """Read of the factor with the columns."""
    fused_groups: tuple[AxisGroup, ...] = ()
    """Axes fused into the rows, and axes fused into the columns; without those that are not fused."""


def derive_tensor_core(
    op: Operator, chain: ComputeChain, prefix: str, limits: LaunchLimits
) -> list[Structure]:
    """Structures of one launch with `mma`; none where its compute is no contraction that `mma` computes."""
    found = []
    for roles in derive_roles(op, chain[0]):
        for orders in itertools.product(*(_list_tile_orders(op, load, roles) for load in (roles.a, roles.b))):
            loads = zip((roles.a, roles.b), orders, strict=True)
            can_be_async = all(can_copy_tile_async(op, chain[0], roles, load, order) for load, order in loads)
            for is_async in (True, False):
                if not is_async or (limits.async_copies and can_be_async):
                    found.append(_build_mma_structure(op, chain, roles, orders, prefix, is_async))
    return found


def derive_depth_axis(op: Operator, compute: Compute) -> Axis | None:
    """The axis that `mma` sums along; None where a compute is no contraction that `mma` computes."""
    roles = derive_roles(op, compute)
    return roles[0].depth if roles else None


def derive_roles(op: Operator, compute: Compute) -> list[ContractionRoles]:
    """The roles of a contraction: with the own axes of each factor fused, where it has several, and with the
    largest axis alone. Empty if `mma` cannot compute it."""
    factors = ex.list_factors(compute.body)
    loads = [x for x in factors if isinstance(x, ex.Load)]
    if compute.combine != "sum" or len(loads) != 2 or len(factors) != 2 or loads[0].tensor == loads[1].tensor:
        return []
    types = [op.tensors[x.tensor].dtype for x in loads]
    product = find_mma_instruction(types[0])
    if product is None or types[0] is not types[1] or compute.acc_dtype.name != types[0].default_accumulator:
        return []
    used = [ex.find_variables(x) for x in loads]
    own_axes = [[x for x in compute.spatial_axes if x.name in used[i] - used[1 - i]] for i in (0, 1)]
    depths = [
        x
        for x in compute.reduction_axes
        if x.name in used[0] & used[1] and _has_full_instructions(op, compute, x, product)
    ]
    if not (own_axes[0] and own_axes[1] and depths):
        return []
    last = compute.spatial_axes[-1]
    b = 0 if last in own_axes[0] else 1
    columns = last if last in own_axes[b] else max(own_axes[b], key=lambda x: x.extent)
    rows, depth = (max(axes, key=lambda x: x.extent) for axes in (own_axes[1 - b], depths))
    unfused = ContractionRoles(product, rows, columns, depth, loads[1 - b], loads[b])
    row_group, column_group = select_fusible(own_axes[1 - b]), select_fusible(own_axes[b])
    if not (row_group or column_group):
        return [unfused]
    fused = replace(
        unfused,
        rows=fuse_group(row_group) if row_group else rows,
        columns=fuse_group(column_group) if column_group else columns,
        fused_groups=tuple(filter(None, (row_group, column_group))),
    )
    return [fused, unfused]


def _has_full_instructions(op: Operator, compute: Compute, depth: Axis, product: MmaInstruction) -> bool:
    """Whether `mma` needs no guard along the depth: elements beyond its end are 0, or there are none."""
    return is_zero_beyond_axis(compute, depth, op.tensors) or depth.extent % product.depth == 0


def _list_tile_orders(op: Operator, load: ex.Load, roles: ContractionRoles) -> list[tuple[int, ...]]:
    """Dimension orders of a shared tile: the tensor's own, and the depth last where `ldmatrix` needs it."""
    last = load.index[-1]
    # `ldmatrix` transposes elements of 2 bytes only.
    can_transpose = op.tensors[load.tensor].dtype.bytes == 2
    axes = (roles.rows, roles.columns, roles.depth) if can_transpose else (roles.depth,)
    is_loadable = isinstance(last, ex.Var) and last.name in {x.name for x in axes}
    deep = [d for d, form in enumerate(load.index) if roles.depth.name in ex.find_variables(form)]
    if is_loadable or deep[-1] == len(load.index) - 1:
        return [()]
    return [(), (*(d for d in range(len(load.index)) if d != deep[-1]), deep[-1])]


def can_copy_tile_async(
    op: Operator, compute: Compute, roles: ContractionRoles, load: ex.Load, order: tuple[int, ...]
) -> bool:
    """Whether asynchronous copies can store a tile in this dimension order. A copy of several elements needs
    them contiguous along a tiled axis, or along the last axis fused into one."""
    inner = {fuse_group(group).name: group[-1].name for group in roles.fused_groups}
    tiled = {inner.get(x.name, x.name) for x in (roles.rows, roles.columns, roles.depth)}
    is_single = compute_copy_alignment(op, load.tensor) == 1
    contiguous = is_single or find_contiguous_axis(compute, load.index[-1]) in tiled
    return contiguous and can_copy_async(op, compute, load, order)


def _build_mma_structure(
    op: Operator,
    chain: ComputeChain,
    roles: ContractionRoles,
    orders: tuple[tuple[int, ...], ...],
    prefix: str,
    is_async: bool,
) -> Structure:
    """A structure with `mma`; `orders`: dimension orders of the shared tiles of both factors."""
    b = StructureBuilder(op, chain, prefix)
    compute, product = chain[0], roles.product
    b.steps += make_fuse_steps(compute, roles.fused_groups)
    levels = (TileLevel("thread", TENSOR_CORES.warps), TileLevel("tile", TENSOR_CORES.tiles))
    row_levels = (TileLevel("raster", TENSOR_CORES.raster_sizes), *levels)
    i = cut_for_instruction(b, "tensor", roles.rows, row_levels, _LANE_ROWS)
    j = cut_for_instruction(b, "tensor", roles.columns, levels, _LANE_COLUMNS)
    deep = (TileLevel("reduce", TENSOR_CORES.depths),)
    k = cut_for_instruction(b, "tensor", roles.depth, deep, (product.depth,))
    inner = (k[1], i[3], j[2], i[4], j[4], k[2])
    bind_contraction_loops(b, roles, (i[0], j[0], i[1]), (i[2], j[1]), (i[5], j[3]), (k[0], *inner))
    b.cache_results(count_written_elements(chain, roles))
    for load, order in zip((roles.a, roles.b), orders, strict=True):
        vector = b.add_copy_width(load.tensor, order, is_async)
        pad, swizzle = _add_bank_decision(b, load.tensor)
        b.steps.append(CacheRead(load.tensor, "shared", k[0], vector, order, pad, swizzle))
    b.steps += [CacheRead(f"{load.tensor}.shared", "fragment", k[1]) for load in (roles.a, roles.b)]
    choice = ("depth", TILING.pipeline_depths) if is_async else ("stages", TILING.buffer_counts)
    b.steps.append(Pipeline(k[0], b.add_choice(*choice), "async" if is_async else "register"))
    b.steps.append(Unroll(k[1], b.add_choice("unroll", TILING.unroll_factors)))
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
    """Split rows, columns or the depth into blocks, search levels, instruction extents; loop names, outer
    first."""
    builder.rules.add(rules.TENSOR_CORES)
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
    """Order and bind the loops; spatial axes without a role are blocks, such reduction axes run outside."""
    tiled = (roles.rows, roles.columns, roles.depth, *(a for group in roles.fused_groups for a in group))
    others = [x.name for x in builder.compute.spatial_axes if x not in tiled]
    sums = [x.name for x in builder.compute.reduction_axes if x not in tiled]
    builder.steps.append(Reorder((*others, *blocks, *warps, *lanes, *sums, *inner)))
    builder.steps += [Bind(x, "block.x") for x in (*others, *blocks)]
    builder.steps += [Bind(x, "thread.y") for x in warps]
    builder.steps += [Bind(x, "thread.x") for x in lanes]


def count_written_elements(chain: ComputeChain, roles: ContractionRoles) -> int:
    """Elements that a lane stores at once: its two adjacent columns, if they are adjacent in the output."""
    last = chain[0].spatial_axes[-1]
    fused = [group[-1] for group in roles.fused_groups if fuse_group(group) == roles.columns]
    innermost = fused[0] if fused else roles.columns
    return 2 if last is innermost and chain[-1].output.shape[-1] % 2 == 0 else 1


def _add_bank_decision(builder: StructureBuilder, tensor: str) -> tuple[Hole, Hole]:
    """Add a decision against bank conflicts: nothing, a pad of 16 bytes per row, or a swizzle."""
    name = f"{builder.prefix}banks.{tensor}"
    row = LDMATRIX_ROW_BYTES // builder.op.tensors[tensor].dtype.bytes
    table = np.array([(0, 1), (0, SWIZZLE_CHUNKS[-1]), (row, 1)], dtype=np.int64)
    builder.decisions.append(Decision(name, (f"{name}.pad", f"{name}.swizzle"), table))
    return Hole(f"{name}.pad"), Hole(f"{name}.swizzle")


def derive_warpgroup(op: Operator, chain: ComputeChain, prefix: str, limits: LaunchLimits) -> list[Structure]:
    """Structures of one launch with `wgmma`. None where the target or the element types have no `wgmma`, or
    where the smallest tile would be mostly padding."""
    if not (limits.group_products and limits.async_copies):
        return []
    found = []
    for roles in derive_roles(op, chain[0]):
        product = find_wgmma_family(roles.product.dtype)
        loads = (roles.a, roles.b)
        along_depth = [_runs_along_depth(op, chain[0], roles, load) for load in loads]
        can_be_async = all(can_copy_tile_async(op, chain[0], roles, load, ()) for load in loads)
        is_large = all(_fills_panel(axis) for axis in (roles.rows, roles.columns))
        if product and can_be_async and is_large and None not in along_depth:
            runs = list(map(bool, along_depth))
            found.append(_build_wgmma_structure(op, chain, roles, product, runs, prefix))
    return found


def _fills_panel(axis: Axis) -> bool:
    """Whether an axis fills the rows of a warpgroup's tile, up to the padding that a tile may add."""
    return axis.extent * TILING.max_padding_ratio >= WARPGROUP_WARPS * MMA_ROWS


def _runs_along_depth(op: Operator, compute: Compute, roles: ContractionRoles, load: ex.Load) -> bool | None:
    """Whether a factor is contiguous along the depth (True), its own axis (False) or neither (None)."""
    inner = {group[-1].name: fuse_group(group).name for group in roles.fused_groups}
    last = find_contiguous_axis(compute, load.index[-1])
    if last == roles.depth.name:
        return True
    own_axis = roles.rows if load is roles.a else roles.columns
    return False if last is not None and inner.get(last, last) == own_axis.name else None


def _build_wgmma_structure(
    op: Operator,
    chain: ComputeChain,
    roles: ContractionRoles,
    product: WgmmaFamily,
    runs_along_depth: list[bool],
    prefix: str,
) -> Structure:
    """A structure with `wgmma`; `runs_along_depth`: which factors are contiguous along the depth."""
    b, compute = StructureBuilder(op, chain, prefix), chain[0]
    panel = count_panel_elements(product.dtype.bytes)
    b.steps += make_fuse_steps(compute, roles.fused_groups)
    # A panel row must be within one tile: of the depth if contiguous along it, else of the rows or columns.
    across, along = range(STRIP_COLUMNS, MAX_STRIPS + 1, STRIP_COLUMNS), (2, 4, *range(8, MAX_STRIPS + 1, 4))
    column_levels = (TileLevel("tile", tuple(along if runs_along_depth[1] else across)),)
    min_depth = panel // product.depth if any(runs_along_depth) else 1
    row_levels = (
        TileLevel("raster", TENSOR_CORES.raster_sizes),
        TileLevel("thread", TENSOR_CORES.warpgroups),
        TileLevel("tile", TENSOR_CORES.warpgroup_tiles),
    )
    i = cut_for_instruction(b, "group", roles.rows, row_levels, (WARPGROUP_WARPS, *_LANE_ROWS))
    j = cut_for_instruction(b, "group", roles.columns, column_levels, _LANE_COLUMNS)
    depths = tuple(d for d in TENSOR_CORES.warpgroup_depths if d % min_depth == 0)
    k = cut_for_instruction(b, "group", roles.depth, (TileLevel("reduce", depths),), (product.depth,))
    inner = (k[1], i[3], j[1], i[5], j[3], k[2])
    bind_contraction_loops(b, roles, (i[0], j[0], i[1]), (i[2], i[4]), (i[6], j[2]), (k[0], *inner))
    b.cache_results(count_written_elements(chain, roles))
    for load in (roles.a, roles.b):
        vector = b.add_copy_width(load.tensor, (), True)
        b.steps.append(CacheRead(load.tensor, "shared", k[0], vector, swizzle=WGMMA_SWIZZLE, panel=panel))
    b.steps.append(Pipeline(k[0], b.add_choice("depth", TILING.pipeline_depths), "async"))
    b.steps.append(Unroll(k[1], max(TENSOR_CORES.warpgroup_depths)))
    b.steps.append(Tensorize(k[2], product.name))
    return b.build("warpgroup" + (" view" if roles.fused_groups else "") + " flying")
