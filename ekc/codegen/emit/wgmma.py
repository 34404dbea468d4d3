"""Text of `wgmma`: the call of each product, and the start addresses of the tiles that it multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ekc.codegen.emit.names import CNames
from ekc.codegen.emit.strength_reduction import HoistedAddress, format_copy_offset, keep_address_in_register
from ekc.ir.affine import AffineForm
from ekc.ir.hardware.memory import SHARED_LINE_BYTES
from ekc.ir.hardware.wgmma import WgmmaDescriptor, WgmmaFamily, WgmmaInstruction
from ekc.ir.lowering.buffers import Buffer, TensorAccess, substitute_access
from ekc.ir.lowering.fragments import find_tile_start, is_mn_major
from ekc.ir.lowering.nodes import LaunchTree, LoopNode, MmaNode, SharedFactor


def list_group_products(kernel: LaunchTree) -> list[MmaNode]:
    """The products of a launch that a warpgroup computes."""
    return [n for n in kernel.nodes if isinstance(n, MmaNode) and isinstance(n.a, SharedFactor)]


def _make_instruction(node: MmaNode) -> WgmmaInstruction:
    tile = node.tile
    assert isinstance(tile.instruction, WgmmaFamily)
    assert tile.strip_loop is not None
    is_mn_majors = [is_mn_major(node, f) for f in (node.a, node.b) if isinstance(f, SharedFactor)]
    return WgmmaInstruction(tile.instruction, int(tile.strip_loop.extent), *map(bool, is_mn_majors))


def build_group_product_values(node: MmaNode, names: CNames, places: Mapping[str, str]) -> dict[str, Any]:
    """The call of a product: the first of its sums, their strides, and the descriptors of its factors.

    `places` has C text of the start address of each tile, by buffer name.
    """
    target, tile = node.compute.target, node.tile
    assert target.buffer is not None
    assert tile.strip_loop is not None
    first = substitute_access(target, {x.name: AffineForm() for x in tile.inner_loops})
    steps = dict(target.address.terms)
    moves = (tile.strip_loop, tile.row_half_loop, tile.column_pair_loop)
    strides = [int(steps.get(x.name, 0)) for x in moves]
    factors = [_format_descriptor(node, f, places) for f in (node.a, node.b) if isinstance(f, SharedFactor)]
    name = f"{_make_instruction(node).function_name}<{', '.join(map(str, strides))}>"
    cell = names.format_cell(target.buffer, first.segment_coordinates)
    return {"call": f"{name}(&{cell}, {', '.join(factors)});"}


def format_wait(kernel: LaunchTree, names: CNames) -> str:
    """The call that waits for products; its argument is the array of a thread's sums."""
    (sums,) = {n.compute.target.buffer for n in list_group_products(kernel)}
    assert sums is not None
    return f"wait_for_products<{int(sums.elements)}>(&{names[sums.name]}{'[0]' * len(sums.storage_extents)});"


def _format_descriptor(node: MmaNode, factor: SharedFactor, places: Mapping[str, str]) -> str:
    buffer = factor.source.buffer
    assert buffer is not None
    mn_major, rows = bool(is_mn_major(node, factor)), int(buffer.row_count)
    descriptor = WgmmaDescriptor.for_tile(mn_major, rows, SHARED_LINE_BYTES)
    return f"make_descriptor<{descriptor.bits:#x}>({places[buffer.name]})"


def hoist_tile_start(
    node: MmaNode, factor: SharedFactor, names: CNames, loops: Mapping[str, LoopNode], copy: str
) -> HoistedAddress:
    """Hoist the start addresses of the tiles of a factor.

    `loops` are the loops between the tile loop and the use of the tiles.

    &B_shared[k_0_copy][k_1 * 16][j_1 * 64]
      ->   B_shared_start + k_0_copy * 16384 + k_1 * 2048 + panel_index<..>(j_1 * 64) * 2
    """
    tile_start = find_tile_start(node, factor)
    buffer = tile_start.buffer
    assert buffer is not None
    (start,) = names.find_free_names([f"{names[buffer.name]}_start"])
    inside = _select_loop_terms(tile_start, loops)
    outside = replace(names, zero=names.zero | {a for a, _ in inside.terms if isinstance(a, str)})
    text = {
        "declare": f"unsigned int {start};",
        "loops": [],
        "target": start,
        "value": keep_address_in_register(outside.format_cell(buffer, tile_start.segment_coordinates, "0")),
        "what": names[buffer.name],
    }
    address = f"{start} + {format_copy_offset(buffer, copy)}"
    further = _format_byte_offset(buffer, inside, names)
    return HoistedAddress(text, f"{address} + {further}" if further else address)


def _select_loop_terms(access: TensorAccess, loops: Mapping[str, LoopNode]) -> AffineForm:
    """The terms of an address that are some of these loops."""
    return AffineForm(tuple((a, c) for a, c in access.address.terms if isinstance(a, str) and a in loops))


def _format_byte_offset(buffer: Buffer, form: AffineForm, names: CNames) -> str:
    """C text of the bytes that a form adds: by whole rows, at a constant distance, and within a row.

    Tiles begin in the first line of a swizzle pattern, where the swizzle changes nothing.
    """
    width, size = int(buffer.row_pitch), buffer.dtype.bytes
    rows = tuple((a, int(c) // width * buffer.panel * size) for a, c in form.terms if int(c) % width == 0)
    within = names.format_linear(AffineForm(tuple(t for t in form.terms if int(t[1]) % width)))
    parts = [names.format_linear(AffineForm(rows))] if rows else []
    if within != "0":
        index = f"({within})"
        if width != buffer.panel:
            index = names.format_stored_index(replace(buffer, swizzle=1), within)
        parts.append(f"{index} * {size}")
    return " + ".join(part for part in parts if part != "0")
