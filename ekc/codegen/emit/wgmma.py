"""What the templates print of products of a warpgroup: their functions, and where the tiles of each begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ekc.codegen.emit.names import CNames
from ekc.codegen.emit.strength_reduction import format_copy_offset, keep_address_in_register
from ekc.ir.affine import AffineForm
from ekc.ir.hardware.memory import SHARED_LINE_BYTES
from ekc.ir.hardware.wgmma import (
    WgmmaDescriptor,
    WgmmaFamily,
    WgmmaInstruction,
)
from ekc.ir.lowering.buffers import Buffer, TensorAccess, substitute_access
from ekc.ir.lowering.nodes import LaunchTree, LoopNode, MmaNode, SharedFactor, walk_nodes
from ekc.ir.lowering.wgmma_descriptors import find_tile_start, is_mn_major


def list_group_products(kernel: LaunchTree) -> list[MmaNode]:
    """Those of a launch that a warpgroup does."""
    return [n for n in walk_nodes(kernel.body) if isinstance(n, MmaNode) and isinstance(n.a, SharedFactor)]


def _make_instruction(node: MmaNode) -> WgmmaInstruction:
    tile = node.tile
    assert isinstance(tile.instruction, WgmmaFamily)
    assert tile.strip_loop is not None
    ways = [is_mn_major(node, f) for f in (node.a, node.b) if isinstance(f, SharedFactor)]
    return WgmmaInstruction(tile.instruction, int(tile.strip_loop.extent), bool(ways[0]), bool(ways[1]))


def build_group_product_values(node: MmaNode, names: CNames, places: Mapping[str, str]) -> dict[str, Any]:
    """The call of a product: where its sums begin and how far apart they are, and its descriptors; `places`
    tells by tile where it begins."""
    target, tile = node.compute.target, node.tile
    assert target.buffer is not None
    assert tile.strip_loop is not None
    begin = substitute_access(target, {x.name: AffineForm() for x in tile.inner_loops})
    steps = dict(target.address.terms)
    apart = [int(steps.get(x.name, 0)) for x in (tile.strip_loop, tile.row_half_loop, tile.column_pair_loop)]
    factors = [_format_descriptor(node, f, places) for f in (node.a, node.b) if isinstance(f, SharedFactor)]
    name = f"{_make_instruction(node).function_name}<{', '.join(map(str, apart))}>"
    return {
        "call": f"{name}(&{names.format_cell(target.buffer, begin.segment_coordinates)}, {', '.join(factors)});"
    }


def format_wait(kernel: LaunchTree, names: CNames) -> str:
    """The call that waits for products: it takes all sums that a thread holds."""
    (held,) = {n.compute.target.buffer for n in list_group_products(kernel)}
    assert held is not None
    return f"wait_for_products<{int(held.elements)}>(&{names[held.name]}{'[0]' * len(held.storage_extents)});"


def _format_descriptor(node: MmaNode, factor: SharedFactor, places: Mapping[str, str]) -> str:
    buffer = factor.source.buffer
    assert buffer is not None
    bits = WgmmaDescriptor.for_tile(
        bool(is_mn_major(node, factor)), int(buffer.row_count), SHARED_LINE_BYTES
    ).bits
    return f"make_descriptor<{bits:#x}>({places[buffer.name]})"


@dataclass(frozen=True)
class TileAddress:
    """Where tiles begin: the text that tells it before the loop, and the text of one inside."""

    start_values: dict[str, Any]
    source: str


def hoist_tile_start(
    node: MmaNode, factor: SharedFactor, names: CNames, loops: Mapping[str, LoopNode], copy: str
) -> TileAddress:
    """Where the tiles of a factor begin, `loops` being those between the one that brings them and their use.

    &B_shared[k_0_copy][k_1 * 16][j_1 * 64]
      ->   B_shared_start + k_0_copy * 16384 + k_1 * 2048 + panel_index<..>(j_1 * 64) * 2
    """
    begin = find_tile_start(node, factor)
    buffer = begin.buffer
    assert buffer is not None
    (start,) = names.find_free_names([f"{names[buffer.name]}_start"])
    inside = _select_loop_terms(begin, loops)
    outside = replace(names, zero=names.zero | {a for a, _ in inside.terms if isinstance(a, str)})
    text = {
        "declare": f"unsigned int {start};",
        "loops": [],
        "target": start,
        "value": keep_address_in_register(outside.format_cell(buffer, begin.segment_coordinates, "0")),
        "what": names[buffer.name],
    }
    place = f"{start} + {format_copy_offset(buffer, copy)}"
    further = _format_byte_offset(buffer, inside, names)
    return TileAddress(text, f"{place} + {further}" if further else place)


def _select_loop_terms(begin: TensorAccess, loops: Mapping[str, LoopNode]) -> AffineForm:
    """The part of an address that some loops move."""
    return AffineForm(tuple((a, c) for a, c in begin.address.terms if isinstance(a, str) and a in loops))


def _format_byte_offset(buffer: Buffer, moved: AffineForm, names: CNames) -> str:
    """Bytes that a form leads further on: by whole rows, which are a number apart, and within a row.

    Tiles begin in the first line of a pattern, where the swizzle changes nothing.
    """
    width, size = int(buffer.row_pitch), buffer.dtype.bytes
    rows = tuple((a, int(c) // width * buffer.panel * size) for a, c in moved.terms if int(c) % width == 0)
    within = names.format_linear(AffineForm(tuple(t for t in moved.terms if int(t[1]) % width)))
    parts = [names.format_linear(AffineForm(rows))] if rows else []
    if within != "0":
        placed = (
            f"({within})" if width == buffer.panel else names.format_place(replace(buffer, swizzle=1), within)
        )
        parts.append(f"{placed} * {size}")
    return " + ".join(part for part in parts if part != "0")
