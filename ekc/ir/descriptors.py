"""How the tile of a product of a warpgroup lies in shared memory, told from the steps of its address."""

from __future__ import annotations

from collections.abc import Mapping

from ekc.ir.access import Access, moved
from ekc.ir.linear import Extent, Linear
from ekc.ir.nodes import MmaNode, SharedFactor
from ekc.ir.tensor_core import COLUMNS, GROUPS, PLACES, ROWS
from ekc.ir.warpgroup import STRIP


def across(node: MmaNode, factor: SharedFactor) -> bool | None:
    """Whether rows of the tile run across the depth (along the product's own rows, or columns); None where
    neither is told."""
    buffer, tile = factor.source.buffer, node.tile
    assert buffer is not None
    along = {atom for atom, _ in buffer.region.segments[buffer.fastest].terms}
    own = tile.groups if factor is node.a else tile.columns
    if tile.depth.name in along:
        return False
    return True if own.name in along else None


def units(node: MmaNode, factor: SharedFactor) -> Mapping[str, Extent]:
    """By loop of the tile: how many elements a step of it moves in the tile, as the instruction wants it."""
    tile, buffer = node.tile, factor.source.buffer
    assert buffer is not None
    assert tile.warps is not None
    assert tile.strips is not None
    turned = across(node, factor)
    one, deep = (1, buffer.width) if turned else (buffer.width, 1)
    if factor is node.a:
        own = {tile.groups: 1, tile.rows: GROUPS, tile.warps: ROWS}
    else:
        own = {tile.columns: 1, tile.places: COLUMNS // PLACES, tile.strips: STRIP}
    return {loop.name: step * one for loop, step in own.items()} | {tile.depth.name: deep}


def first(node: MmaNode, factor: SharedFactor) -> Access:
    """The element with which the tile of a product begins."""
    start = {x.name: Linear() for x in (*node.tile.inner, *node.tile.spread)}
    return moved(factor.source, start)
