"""Which loops of a nest one product on tensor cores takes the place of, and which read is which factor.

What it computes is what those loops would compute, so nothing else of the nest changes meaning: the lanes
hold the sums as the instruction deals them out, because rows are cut as (2 registers, 8 lanes) and columns
as (4 lanes, 2 registers). A product of a warpgroup has four warps outside of those rows, and strips of
registers outside of those columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.footprint import index_of
from ekc.ir.linear import Extent, Linear
from ekc.ir.operator import TensorSpec
from ekc.ir.program import Loop, Nest
from ekc.ir.refusal import Check, refuse
from ekc.ir.tensor_core import COLUMNS, GROUPS, PLACES, ROWS, Product, product_of
from ekc.ir.warpgroup import MOST_STRIPS, STRIP, WARPS, GroupProduct, group_product_of

RULE = "tensorize"
_SPLITS = 'split("i", (.., 2, 8)), split("j", (.., 4, 2))'
_GROUP_SPLITS = 'split("i", (.., 4, 2, 8)), split("j", (.., 16, 4, 2))'
_HELD = {
    "fragment": ("fragments", 'cache_read("{}.shared", "fragment", at=...) first'),
    "shared": ("shared memory", 'cache_read("{}", "shared", at=..., swizzle=8, panel=...) first'),
}
"""By scope of the factors: in words, and the step that brings one there."""


@dataclass(frozen=True, eq=False)
class TensorTile:
    """The loops of one product: those that it runs itself, and those that its lanes and warps stand for."""

    product: Product | GroupProduct
    rows: Loop
    """Halves of the rows, a register each."""
    columns: Loop
    """Neighbouring columns, a register each."""
    depth: Loop
    groups: Loop
    """Lanes, eight by eight rows, ..."""
    places: Loop
    """... and four by pairs of columns; these run fastest."""
    a: ex.Load
    b: ex.Load
    strips: Loop | None = None
    """Of a product of a warpgroup: eights of columns, a pair of registers each, ..."""
    warps: Loop | None = None
    """... and its warps, which run fastest after the lanes."""

    @property
    def inner(self) -> tuple[Loop, ...]:
        """The loops that the instruction runs itself."""
        own = self.rows, self.columns, self.depth
        return own if self.strips is None else (self.strips, *own)

    @property
    def spread(self) -> tuple[Loop, ...]:
        """The loops that its lanes and warps stand for."""
        lanes = self.groups, self.places
        return lanes if self.warps is None else (self.warps, *lanes)


def tensor_tile(nest: Nest, tensors: Mapping[str, TensorSpec]) -> TensorTile:
    """The tile of a tensorized nest; refuses (ScheduleError) a nest that no product fits."""
    factors = _factors(nest)
    product = _product(nest, tensors, factors)
    grouped = isinstance(product, GroupProduct)
    inner = _inner(nest, grouped)
    groups, places = _lanes(nest, grouped)
    warps = _warps(nest) if grouped else None
    _held(nest, factors, "shared" if grouped else "fragment")
    depth = next(x for x in inner if x.reduction)
    spatial = [x for x in inner if not x.reduction]
    used = [{v for form in index_of(f, nest.forms) for v in form.variables()} for f in factors]
    a = 0 if groups.name in used[0] else 1
    mine, other = used[a] - used[1 - a], used[1 - a] - used[a]
    rows = [x for x in spatial if x.name in mine]
    columns = [x for x in spatial if x.name in other]
    apart = len(rows) == 1 and columns and groups.name in mine and places.name in other
    apart = apart and len(columns) == 1 + grouped and (warps is None or warps.name in mine)
    if apart and depth.name in used[0] & used[1]:
        *strips, pair = columns
        strip = strips[0] if strips else None
        a_load, b_load = factors[a], factors[1 - a]
        return TensorTile(product, rows[0], pair, depth, groups, places, a_load, b_load, strip, warps)
    leading = _names([groups] if warps is None else [warps, groups])
    need = (
        f"a factor that moves along {leading} and one of {_names(spatial)}, and one that moves along "
        f"{places.name} and the other{'s' * grouped}, both along {depth.name}"
    )
    nearest = f"{_splits(grouped)}, their lanes on thread.x, rows first"
    raise refuse(RULE, need, f"{factors[0]} and {factors[1]}", nearest)


def _splits(grouped: bool) -> str:
    return _GROUP_SPLITS if grouped else _SPLITS


def _factors(nest: Nest) -> tuple[ex.Load, ex.Load]:
    parts = ex.factors(nest.compute.body)
    loads = [p for p in parts if isinstance(p, ex.Load)]
    two = len(parts) == len(loads) == 2 and loads[0].tensor != loads[1].tensor
    if not two or nest.compute.combine != "sum":
        raise refuse(RULE, "a sum of products of two tensors", str(nest.compute), "leave tensorize out")
    return loads[0], loads[1]


def _product(
    nest: Nest, tensors: Mapping[str, TensorSpec], factors: tuple[ex.Load, ex.Load]
) -> Product | GroupProduct:
    types = [tensors[f.tensor].dtype for f in factors]
    product, grouped = product_of(types[0]), group_product_of(types[0])
    acc = nest.compute.acc_dtype
    if types[0] is not types[1] or product is None or acc.name != types[0].accumulator:
        told = f"{types[0]} and {types[1]} summed in {acc}"
        limit = "float16, bfloat16 or tf32 summed in float32, or int8 in int32, the same on both sides"
        nearest = 'dtype="tf32"' if types[0].name == types[1].name == "float32" else 'dtype="float16"'
        raise refuse(RULE, f"an instruction for {told}", limit, nearest)
    found = [p for p in (product, grouped) if p is not None]
    for one in found:
        if one.name == nest.instruction:
            return one
    limit = f"{' or '.join(p.name for p in found)} for {product.dtype}"
    raise refuse(RULE, f"instruction {nest.instruction!r}", limit, repr(product.name))


def _inner(nest: Nest, grouped: bool) -> list[Loop]:
    """The innermost loops that the product runs, all serial, one of them reduced."""
    count = 4 if grouped else 3
    inner, own = list(nest.loops[-count:]), f"{'three' if grouped else 'two'} spatial loops"
    serial = all(x.level == "serial" for x in inner)
    if len(inner) < count or not serial or sum(x.reduction for x in inner) != 1:
        told = ", ".join(f"{x.name}{' (reduced)' * x.reduction}" for x in inner)
        need = f"{own} and a reduced one innermost, all serial"
        raise refuse(RULE, need, told, f"{_splits(grouped)}, reorder their last pieces and the depth inside")
    for s in nest.stagings:
        if s.at in {x.name for x in inner}:
            outer = next((x.name for x in reversed(nest.loops[:-count]) if x.is_serial), None)
            raise refuse(RULE, f"no staging in {s.at}", f"{s.name} sits there", f"at={outer!r}")
    return inner


def _lanes(nest: Nest, grouped: bool) -> tuple[Loop, Loop]:
    """The loops on thread.x: the warp."""
    lanes = [x for x in nest.loops if x.level == "thread.x"]
    if len(lanes) != 2 or any(x.reduction for x in lanes):
        told = ", ".join(x.name for x in lanes) or "none"
        need = "two spatial loops on thread.x, rows before columns"
        bind = "bind the 8 and the last 4 to thread.x, warps to thread.y"
        raise refuse(RULE, need, told, f"{_splits(grouped)}, {bind}")
    return lanes[0], lanes[1]


def _warps(nest: Nest) -> Loop:
    """The loop on thread.y that runs fastest: the warps of a warpgroup."""
    warps = [x for x in nest.loops if x.level == "thread.y"]
    if not warps or warps[-1].reduction:
        told = ", ".join(x.name for x in warps) or "none"
        nearest = f"{_GROUP_SPLITS}, bind the first 4 of the rows to thread.y"
        raise refuse(RULE, "the four warps of a group innermost on thread.y", told, nearest)
    return warps[-1]


def _held(nest: Nest, factors: tuple[ex.Load, ex.Load], scope: str) -> None:
    """The sums in registers, the factors in fragments, or in shared memory."""
    if not nest.accumulate:
        output = nest.compute.output.name
        raise refuse(RULE, f"{output} held in registers", "it is not", f'cache_write("{output}") first')
    where, first = _HELD[scope]
    for name in (f.tensor for f in factors):
        held = [s for s in nest.stagings if s.tensor == name]
        if not held or held[-1].scope != scope:
            last = f"{held[-1].name} is not" if held else "it is not"
            nearest = first.format(name) if scope == "fragment" or not held else f"leave {held[-1].name} out"
            raise refuse(RULE, f"{name} in {where}", last, nearest)


def _names(loops: list[Loop]) -> str:
    return " and ".join(x.name for x in loops)


def extents_fit(nest: Nest, tile: TensorTile) -> Iterator[Check]:
    """Loops as long as the instruction is, and columns that lie as it deals them out."""
    rule, splits = f"{RULE} {tile.product.name}", _splits(tile.strips is not None)
    wanted = {
        tile.rows: ROWS // GROUPS,
        tile.groups: GROUPS,
        tile.places: PLACES,
        tile.columns: COLUMNS // PLACES,
        tile.depth: tile.product.depth,
    }
    if tile.warps is not None:
        wanted[tile.warps] = WARPS
    for loop, extent in wanted.items():
        fits = np.asanyarray(loop.extent) == extent
        yield Check(rule, fits, loop.extent, extent, extent, f"iterations of {loop.name}")
    if tile.strips is not None:
        n = np.asanyarray(tile.strips.extent)
        what = f"iterations of {tile.strips.name}, {STRIP} columns each"
        yield Check(rule, n <= MOST_STRIPS, tile.strips.extent, MOST_STRIPS, MOST_STRIPS, what)
    for axis, form in nest.index.items():
        pair, one = _step(form, tile.places), _step(form, tile.columns)
        beside = np.asanyarray(pair) == 2 * np.asanyarray(one)
        limit = f"{tile.places.name} and {tile.columns.name} cut from {axis} one after the other"
        yield Check(rule, beside, pair, None, splits, f"as the step of {tile.places.name}", limit)


def _step(form: Linear, loop: Loop) -> Extent:
    """How far a loop moves an axis, or the joint loop that the axis is a quotient or remainder of."""
    steps = dict(form.terms)
    if loop.name in steps:
        return steps[loop.name]
    within = [a for a in steps if not isinstance(a, str) and loop.name in a.variables()]
    return _step(within[0].inner, loop) if within else 0
