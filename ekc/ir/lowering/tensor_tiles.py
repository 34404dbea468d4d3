"""The loops of a nest that one product on tensor cores replaces, and the reads that are its factors.

The product computes what these loops compute, so the rest of the nest keeps its meaning. Lanes have the sums
in the layout of the instruction, because rows are split as (2 registers, 8 lanes) and columns as (4 lanes, 2
registers). A `wgmma` has four warps outside of those rows, and strips of registers outside of those columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Extent
from ekc.ir.compute import TensorSpec
from ekc.ir.hardware.mma import (
    LANE_GROUPS,
    LANES_PER_GROUP,
    MMA_COLUMNS,
    MMA_ROWS,
    MmaInstruction,
    find_mma_instruction,
)
from ekc.ir.hardware.wgmma import MAX_STRIPS, STRIP_COLUMNS, WARPGROUP_WARPS, WgmmaFamily, find_wgmma_family
from ekc.ir.lowering.memory_access import to_affine_index
from ekc.ir.program import Loop, Nest
from ekc.ir.refusal import Check, at_most, exactly, fits, make_schedule_error, make_unknown_name_error

TENSORIZE_RULE = "tensorize"
_MMA_SPLITS = 'split("i", (.., 2, 8)), split("j", (.., 4, 2))'
_WGMMA_SPLITS = 'split("i", (.., 4, 2, 8)), split("j", (.., 16, 4, 2))'
_FACTOR_HINTS = {
    "fragment": ("fragments", 'call cache_read("{}.shared", "fragment", at=...) first'),
    "shared": ("shared memory", 'call cache_read("{}", "shared", at=..., swizzle=8, panel=...) first'),
}
"""(name in messages, step that copies a factor there) by scope of the factors."""


@dataclass(frozen=True, eq=False)
class TensorTile:
    """The loops of one product: those that the instruction runs, and those of its lanes and warps."""

    instruction: MmaInstruction | WgmmaFamily
    row_half_loop: Loop
    """Loop over halves of the rows, a register each."""
    column_pair_loop: Loop
    """Loop over two neighbouring columns, a register each."""
    depth_loop: Loop
    """Reduction loop of the product."""
    lane_group_loop: Loop
    """Lanes in groups, one for each of eight rows."""
    lane_loop: Loop
    """Lanes of a group, one for each of four pairs of columns; the fastest loop."""
    a_load: ex.Load
    b_load: ex.Load
    strip_loop: Loop | None = None
    """`wgmma` only: loop over strips of eight columns, a pair of registers each."""
    warp_loop: Loop | None = None
    """`wgmma` only: the four warps, the fastest loop after the lanes."""

    @property
    def inner_loops(self) -> tuple[Loop, ...]:
        """Loops that the instruction runs."""
        own = self.row_half_loop, self.column_pair_loop, self.depth_loop
        return own if self.strip_loop is None else (self.strip_loop, *own)

    @property
    def spread_loops(self) -> tuple[Loop, ...]:
        """Loops over the lanes and warps of the instruction."""
        lanes = self.lane_group_loop, self.lane_loop
        return lanes if self.warp_loop is None else (self.warp_loop, *lanes)


def derive_tensor_tile(nest: Nest, tensors: Mapping[str, TensorSpec]) -> TensorTile:
    """The tile of a tensorized nest. Raises `ScheduleError` where no product fits the nest."""
    factors = _find_factors(nest)
    product = _find_instruction(nest, tensors, factors)
    is_wgmma = isinstance(product, WgmmaFamily)
    inner = _find_inner_loops(nest, is_wgmma)
    groups, places = _find_lane_loops(nest, is_wgmma)
    warps = _find_warp_loop(nest) if is_wgmma else None
    _check_factor_scopes(nest, factors, "shared" if is_wgmma else "fragment")
    depth = next(x for x in inner if x.is_reduction)
    spatial = [x for x in inner if not x.is_reduction]
    indices = [to_affine_index(f, nest.index_forms) for f in factors]
    used = [{name for form in index for name in form.find_variables()} for index in indices]
    a = 0 if groups.name in used[0] else 1
    a_only, b_only = used[a] - used[1 - a], used[1 - a] - used[a]
    rows = [x for x in spatial if x.name in a_only]
    columns = [x for x in spatial if x.name in b_only]
    is_match = len(rows) == 1 and columns and groups.name in a_only and places.name in b_only
    is_match = is_match and len(columns) == 1 + is_wgmma and (warps is None or warps.name in a_only)
    if is_match and depth.name in used[0] & used[1]:
        *strips, pair = columns
        strip = strips[0] if strips else None
        a_load, b_load = factors[a], factors[1 - a]
        return TensorTile(product, rows[0], pair, depth, groups, places, a_load, b_load, strip, warps)
    leading = _join_names([groups] if warps is None else [warps, groups])
    raise make_schedule_error(
        TENSORIZE_RULE,
        need=(
            f"a factor that moves along {leading} and one of {_join_names(spatial)}, and one that moves "
            f"along {places.name} and the other{'s' * is_wgmma}, both along {depth.name}"
        ),
        problem=f"{factors[0]} and {factors[1]} do not move along the loops as the instruction does",
        remedy=f"use {_suggest_splits(is_wgmma)}, their lanes on thread.x, rows first",
    )


def _suggest_splits(is_wgmma: bool) -> str:
    return _WGMMA_SPLITS if is_wgmma else _MMA_SPLITS


def _find_factors(nest: Nest) -> tuple[ex.Load, ex.Load]:
    parts = ex.list_factors(nest.compute.body)
    loads = [p for p in parts if isinstance(p, ex.Load)]
    two = len(parts) == len(loads) == 2 and loads[0].tensor != loads[1].tensor
    if not two or nest.compute.combine != "sum":
        raise make_schedule_error(
            TENSORIZE_RULE,
            need="a sum of products of two tensors",
            problem=f"{nest.compute} is no sum of products of two tensors",
            remedy="leave tensorize out",
        )
    return loads[0], loads[1]


def _find_instruction(
    nest: Nest, tensors: Mapping[str, TensorSpec], factors: tuple[ex.Load, ex.Load]
) -> MmaInstruction | WgmmaFamily:
    types = [tensors[f.tensor].dtype for f in factors]
    product, grouped = find_mma_instruction(types[0]), find_wgmma_family(types[0])
    acc = nest.compute.acc_dtype
    if types[0] is not types[1] or product is None or acc.name != types[0].default_accumulator:
        nearest = "tf32" if types[0].name == types[1].name == "float32" else "float16"
        raise make_schedule_error(
            TENSORIZE_RULE,
            need="float16, bfloat16 or tf32 summed in float32, or int8 in int32, the same on both sides",
            problem=f"no instruction multiplies {types[0]} by {types[1]} with sums in {acc}",
            remedy=f'use dtype="{nearest}"',
        )
    found = [p for p in (product, grouped) if p is not None]
    for one in found:
        if one.name == nest.instruction:
            return one
    names = [p.name for p in found]
    raise make_unknown_name_error(
        TENSORIZE_RULE,
        f"{product.dtype} instruction",
        nest.instruction,
        names,
        plural=f"instructions for {product.dtype}",
    )


def _find_inner_loops(nest: Nest, is_wgmma: bool) -> list[Loop]:
    """The innermost loops that the product runs, all serial, one of them a reduction."""
    count = 4 if is_wgmma else 3
    inner, own = list(nest.loops[-count:]), f"{'three' if is_wgmma else 'two'} spatial loops"
    serial = all(x.level == "serial" for x in inner)
    if len(inner) < count or not serial or sum(x.is_reduction for x in inner) != 1:
        names = ", ".join(f"{x.name}{' (reduced)' * x.is_reduction}" for x in inner)
        raise make_schedule_error(
            TENSORIZE_RULE,
            need=f"{own} and a reduced one innermost, all serial",
            problem=f"the innermost loops are {names}",
            remedy=f"use {_suggest_splits(is_wgmma)}, reorder their last pieces and the depth inside",
        )
    for s in nest.stagings:
        if s.at in {x.name for x in inner}:
            outer = next((x.name for x in reversed(nest.loops[:-count]) if x.is_serial), None)
            raise make_schedule_error(
                TENSORIZE_RULE,
                need=f"no staging in {s.at}",
                problem=f"{s.name} sits in loop {s.at}",
                remedy=f"use at={outer!r}",
            )
    return inner


def _find_lane_loops(nest: Nest, is_wgmma: bool) -> tuple[Loop, Loop]:
    """The two loops on thread.x: lanes of a warp."""
    lanes = [x for x in nest.loops if x.level == "thread.x"]
    if len(lanes) != 2 or any(x.is_reduction for x in lanes):
        names = ", ".join(x.name for x in lanes) or "none"
        bind = "bind the 8 and the last 4 to thread.x, warps to thread.y"
        raise make_schedule_error(
            TENSORIZE_RULE,
            need="two spatial loops on thread.x, rows before columns",
            problem=f"the loops on thread.x are {names}",
            remedy=f"use {_suggest_splits(is_wgmma)}, {bind}",
        )
    return lanes[0], lanes[1]


def _find_warp_loop(nest: Nest) -> Loop:
    """The fastest loop on thread.y: the warps of a warpgroup."""
    warps = [x for x in nest.loops if x.level == "thread.y"]
    if not warps or warps[-1].is_reduction:
        names = ", ".join(x.name for x in warps) or "none"
        raise make_schedule_error(
            TENSORIZE_RULE,
            need="the four warps of a group innermost on thread.y",
            problem=f"the loops on thread.y are {names}",
            remedy=f"use {_WGMMA_SPLITS}, bind the first 4 of the rows to thread.y",
        )
    return warps[-1]


def _check_factor_scopes(nest: Nest, factors: tuple[ex.Load, ex.Load], scope: str) -> None:
    """Check that the sums are in registers, and the factors in fragments or in shared memory."""
    if not nest.has_accumulator:
        output = nest.compute.output.name
        raise make_schedule_error(
            TENSORIZE_RULE,
            need=f"{output} held in registers",
            problem=f"{output} has no accumulator",
            remedy=f'call cache_write("{output}") first',
        )
    where, first = _FACTOR_HINTS[scope]
    for name in (f.tensor for f in factors):
        chain = [s for s in nest.stagings if s.tensor == name]
        if not chain or chain[-1].scope != scope:
            use_existing = scope == "fragment" or not chain
            raise make_schedule_error(
                TENSORIZE_RULE,
                need=f"{name} in {where}",
                problem=f"{chain[-1].name if chain else name} is not in {where}",
                remedy=first.format(name) if use_existing else f"leave {chain[-1].name} out",
            )


def _join_names(loops: list[Loop]) -> str:
    return " and ".join(x.name for x in loops)


def check_tile_extents(nest: Nest, tile: TensorTile) -> Iterator[Check]:
    """Checks that loops have the extents of the instruction, and columns its order."""
    rule, splits = f"{TENSORIZE_RULE} {tile.instruction.name}", _suggest_splits(tile.strip_loop is not None)
    extents = {
        tile.row_half_loop: MMA_ROWS // LANE_GROUPS,
        tile.lane_group_loop: LANE_GROUPS,
        tile.lane_loop: LANES_PER_GROUP,
        tile.column_pair_loop: MMA_COLUMNS // LANES_PER_GROUP,
        tile.depth_loop: tile.instruction.depth,
    }
    if tile.warp_loop is not None:
        extents[tile.warp_loop] = WARPGROUP_WARPS
    for loop, extent in extents.items():
        yield exactly(rule, loop.extent, extent, f"iterations of {loop.name}")
    if tile.strip_loop is not None:
        yield at_most(
            rule,
            tile.strip_loop.extent,
            MAX_STRIPS,
            f"iterations of {tile.strip_loop.name}, {STRIP_COLUMNS} columns each",
        )
    for axis, form in nest.axis_forms.items():
        pair, one = _find_step(form, tile.lane_loop), _find_step(form, tile.column_pair_loop)
        is_adjacent = np.asanyarray(pair) == 2 * np.asanyarray(one)
        yield fits(
            rule,
            is_adjacent,
            pair,
            limit_text=f"must be twice that of {tile.column_pair_loop.name}, both cut from {axis}",
            nearest=f"use {splits}",
            unit=f"as the step of {tile.lane_loop.name}",
        )


def _find_step(form: AffineForm, loop: Loop) -> Extent:
    """Step of a loop along an axis, or along the joint loop whose quotient or remainder the axis is."""
    steps = dict(form.terms)
    if loop.name in steps:
        return steps[loop.name]
    within = [a for a in steps if not isinstance(a, str) and loop.name in a.find_variables()]
    return _find_step(within[0].inner, loop) if within else 0
