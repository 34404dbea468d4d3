"""Which loops of a nest one product of a warp takes the place of, and which read is which factor.

What it computes is what those loops would compute, so nothing else of the nest changes meaning: the lanes
hold the sums as the instruction deals them out, because rows are cut as (2 registers, 8 lanes) and columns
as (4 lanes, 2 registers).
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

RULE = "tensorize"
_SPLITS = 'split("i", (.., 2, 8)), split("j", (.., 4, 2))'


@dataclass(frozen=True, eq=False)
class TensorTile:
    """The loops of one product: three that it runs itself, two that its lanes stand for."""

    product: Product
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

    @property
    def inner(self) -> tuple[Loop, ...]:
        """The loops that the instruction runs itself."""
        return self.rows, self.columns, self.depth


def tensor_tile(nest: Nest, tensors: Mapping[str, TensorSpec]) -> TensorTile:
    """The tile of a tensorized nest; refuses (ScheduleError) a nest that no product fits."""
    factors = _factors(nest)
    product = _product(nest, tensors, factors)
    inner = _inner(nest)
    groups, places = _lanes(nest)
    _held(nest, factors)
    depth = next(x for x in inner if x.reduction)
    spatial = [x for x in inner if not x.reduction]
    used = [{v for form in index_of(f, nest.forms) for v in form.variables()} for f in factors]
    a = 0 if groups.name in used[0] else 1
    mine, other = used[a] - used[1 - a], used[1 - a] - used[a]
    rows = [x for x in spatial if x.name in mine]
    columns = [x for x in spatial if x.name in other]
    apart = rows and columns and groups.name in mine and places.name in other
    if apart and depth.name in used[0] & used[1]:
        return TensorTile(product, rows[0], columns[0], depth, groups, places, factors[a], factors[1 - a])
    need = (
        f"a factor that moves along {groups.name} and one of {_names(spatial)}, and one that moves along "
        f"{places.name} and the other, both along {depth.name}"
    )
    nearest = f"{_SPLITS}, their lanes on thread.x, rows first"
    raise refuse(RULE, need, f"{factors[0]} and {factors[1]}", nearest)


def _factors(nest: Nest) -> tuple[ex.Load, ex.Load]:
    parts = ex.factors(nest.compute.body)
    loads = [p for p in parts if isinstance(p, ex.Load)]
    two = len(parts) == len(loads) == 2 and loads[0].tensor != loads[1].tensor
    if not two or nest.compute.combine != "sum":
        raise refuse(RULE, "a sum of products of two tensors", str(nest.compute), "leave tensorize out")
    return loads[0], loads[1]


def _product(nest: Nest, tensors: Mapping[str, TensorSpec], factors: tuple[ex.Load, ex.Load]) -> Product:
    types = [tensors[f.tensor].dtype for f in factors]
    product = product_of(types[0])
    acc = nest.compute.acc_dtype
    if types[0] is not types[1] or product is None or acc.name != types[0].accumulator:
        told = f"{types[0]} and {types[1]} summed in {acc}"
        limit = "float16, bfloat16 or tf32 summed in float32, or int8 in int32, the same on both sides"
        nearest = 'dtype="tf32"' if types[0].name == types[1].name == "float32" else 'dtype="float16"'
        raise refuse(RULE, f"an instruction for {told}", limit, nearest)
    if nest.instruction != product.name:
        limit = f"{product.name} for {product.dtype}"
        raise refuse(RULE, f"instruction {nest.instruction!r}", limit, repr(product.name))
    return product


def _inner(nest: Nest) -> list[Loop]:
    """The three innermost loops, all serial, one of them reduced."""
    inner = list(nest.loops[-3:])
    if len(inner) < 3 or not all(x.level == "serial" for x in inner) or sum(x.reduction for x in inner) != 1:
        told = ", ".join(f"{x.name}{' (reduced)' * x.reduction}" for x in inner)
        need = "two spatial loops and a reduced one innermost, all serial"
        raise refuse(RULE, need, told, f"{_SPLITS}, reorder their last pieces and the depth inside")
    for s in nest.stagings:
        if s.at in {x.name for x in inner}:
            outer = next((x.name for x in reversed(nest.loops[:-3]) if x.is_serial), None)
            raise refuse(RULE, f"no staging in {s.at}", f"{s.name} sits there", f"at={outer!r}")
    return inner


def _lanes(nest: Nest) -> tuple[Loop, Loop]:
    """The loops on thread.x: the warp."""
    lanes = [x for x in nest.loops if x.level == "thread.x"]
    if len(lanes) != 2 or any(x.reduction for x in lanes):
        told = ", ".join(x.name for x in lanes) or "none"
        need = "two spatial loops on thread.x, rows before columns"
        raise refuse(RULE, need, told, f"{_SPLITS}, bind the 8 and the 4 to thread.x, warps to thread.y")
    return lanes[0], lanes[1]


def _held(nest: Nest, factors: tuple[ex.Load, ex.Load]) -> None:
    """The sums in registers, the factors in fragments."""
    if not nest.accumulate:
        output = nest.compute.output.name
        raise refuse(RULE, f"{output} held in registers", "it is not", f'cache_write("{output}") first')
    for name in (f.tensor for f in factors):
        if not any(s.tensor == name and s.scope == "fragment" for s in nest.stagings):
            nearest = f'cache_read("{name}.shared", "fragment", at=...) first'
            raise refuse(RULE, f"{name} in fragments", "it is not", nearest)


def _names(loops: list[Loop]) -> str:
    return " and ".join(x.name for x in loops)


def extents_fit(nest: Nest, tile: TensorTile) -> Iterator[Check]:
    """Loops as long as the instruction is, and columns that lie as it deals them out."""
    wanted = {
        tile.rows: ROWS // GROUPS,
        tile.groups: GROUPS,
        tile.places: PLACES,
        tile.columns: COLUMNS // PLACES,
        tile.depth: tile.product.depth,
    }
    for loop, extent in wanted.items():
        fits = np.asanyarray(loop.extent) == extent
        yield Check(
            f"{RULE} {tile.product.name}", fits, loop.extent, extent, extent, f"iterations of {loop.name}"
        )
    for axis, form in nest.index.items():
        pair, one = _step(form, tile.places), _step(form, tile.columns)
        beside = np.asanyarray(pair) == 2 * np.asanyarray(one)
        limit = f"{tile.places.name} and {tile.columns.name} cut from {axis} one after the other"
        rule = f"{RULE} {tile.product.name}"
        yield Check(rule, beside, pair, None, _SPLITS, f"as the step of {tile.places.name}", limit)


def _step(form: Linear, loop: Loop) -> Extent:
    """How far a loop moves an axis, or the joint loop that the axis is a quotient or remainder of."""
    steps = dict(form.terms)
    if loop.name in steps:
        return steps[loop.name]
    within = [a for a in steps if not isinstance(a, str) and loop.name in a.variables()]
    return _step(within[0].inner, loop) if within else 0
