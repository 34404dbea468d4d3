"""Text of tensor cores: fragments loaded by `ldmatrix` and products by `mma`; for a warpgroup, products by
`wgmma` and the start addresses of the tiles that it multiplies.

The address of the row that a lane gives to `ldmatrix` is computed before the loop that loads the tiles, in
the first copy of the tile. The loop adds the offset of the copy in use, and constants that an instruction can
hold. Written as one index, LLVM computes the address again in every iteration, or builds it from bits that
nothing can be added to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ekc.codegen.emit.names import CNames, format_digit
from ekc.codegen.emit.strength_reduction import HoistedAddress, format_copy_offset, keep_address_in_register
from ekc.ir.affine import AffineForm
from ekc.ir.dtypes import BFLOAT16, FLOAT16, TF32, DType
from ekc.ir.hardware.memory import SHARED_LINE_BYTES, WARP, compute_swizzle_period
from ekc.ir.hardware.mma import SUMS_PER_LANE, LdmatrixInstruction, MmaInstruction
from ekc.ir.hardware.wgmma import WgmmaDescriptor, WgmmaFamily, WgmmaInstruction
from ekc.ir.lowering.buffers import Buffer, TensorAccess, substitute_access
from ekc.ir.lowering.fragments import (
    LANE_MATRIX_HIGH,
    LANE_MATRIX_LOW,
    LANE_ROW,
    LDMATRIX_LANES,
    count_fragments_per_load,
    derive_ldmatrix_fit,
    derive_register_element,
    derive_row_pointer,
    derive_tile_start,
    is_mn_major,
)
from ekc.ir.lowering.nodes import FragmentNode, LaunchTree, LoopNode, MmaNode, SharedFactor

_LANE_PART_NAMES = {LANE_ROW: "matrix_row", LANE_MATRIX_LOW: "matrix_low", LANE_MATRIX_HIGH: "matrix_high"}


def format_lane_lines(kernel: LaunchTree) -> list[str]:
    """Declarations of the parts of a lane's number: row and matrix whose address it gives to `ldmatrix`."""
    if not any(_find_matrix_load(n) for n in kernel.nodes if isinstance(n, FragmentNode)):
        return []
    lines, below = [], 1
    for part, extent in LDMATRIX_LANES.items():
        slowest = below * extent == WARP
        digit = format_digit("threadIdx.x", below, extent, slowest)
        lines.append(f"const int {_LANE_PART_NAMES[part]} = {digit};")
        below *= extent
    return lines


def name_product_function(product: MmaInstruction) -> str:
    """C name of the function of a product: `mma_m16n8k16_float16`."""
    return f"{product.name.replace('.', '_')}_{product.dtype}"


def name_load_function(load: LdmatrixInstruction) -> str:
    """C name of the function of a load: `load_matrices_4_transposed`."""
    return f"load_matrices_{load.matrix_count}{'_transposed' * load.is_transposed}"


def _find_matrix_load(node: FragmentNode) -> LdmatrixInstruction | None:
    """The `ldmatrix` that fills a fragment, or a pair of fragments; None if none does."""
    found = derive_ldmatrix_fit(node)
    if not found.is_possible:
        return None
    matrix_count = node.registers_per_lane * int(count_fragments_per_load(node))
    return LdmatrixInstruction(matrix_count, not found.direct)


def find_lane_row(node: FragmentNode) -> TensorAccess | None:
    """The row whose address a lane gives, by the parts of its number; None where no `ldmatrix` fits."""
    load = _find_matrix_load(node)
    if load is None:
        return None
    place = derive_row_pointer(node, load.is_transposed, count_filled_fragments(node) > 1)
    return substitute_access(node.source, place)


def add_lane_parts(names: CNames) -> CNames:
    """The names, with those of the parts of a lane's number."""
    return names.with_names(_LANE_PART_NAMES)


def build_fragment_values(node: FragmentNode, names: CNames, copy: str, source: str) -> dict[str, Any]:
    """Values of a fragment: the declaration of its registers, and the load of each.

    `source` is C text of the address of a lane's row, "" where it was not hoisted; `copy` is then the index
    of the copy of a pipelined tile.
    """
    name, load = names[node.stage.buffer.name], _find_matrix_load(node)
    pair = count_filled_fragments(node)
    loops = [{"name": names[x.name], "extent": int(x.extent), "step": 1} for x in node.fragment_loops]
    if pair > 1:
        loops[-1]["step"] = pair
    sizes = "".join(f"[{x['extent']}]" for x in loops)
    text = {
        "what": f"{names[node.stage.staging.source]} -> {name}",
        "declare": f"unsigned int {name}{sizes}[{node.registers_per_lane}];",
        "loops": loops,
    }
    row = find_lane_row(node)
    if load is None or row is None:
        return text | {"function": "", "words": list(_iterate_registers(node, names, copy))}
    targets = [
        f"{_format_fragment(node, names, fragment)}[{r}]"
        for fragment in range(pair)
        for r in range(node.registers_per_lane)
    ]
    if not source:
        cell = add_lane_parts(names).format_cell(_get_shared_buffer(node), row.segment_coordinates, copy)
        source = f"shared_address(&{cell})"
    call = {"function": name_load_function(load), "targets": targets, "source": source}
    return text | call | {"rounded": targets if node.source.dtype is TF32 else []}


def count_filled_fragments(node: FragmentNode) -> int:
    """Fragments that one `ldmatrix` fills, 1 where elements are packed one by one."""
    return int(count_fragments_per_load(node)) if _find_matrix_load(node) else 1


def _get_shared_buffer(node: FragmentNode) -> Any:
    assert node.source.buffer is not None
    return node.source.buffer


def _format_fragment(node: FragmentNode, names: CNames, further: int = 0) -> str:
    """C text of a fragment at the indices of the loops around, `further` more along the innermost."""
    forms = [AffineForm(((x.name, 1),)) for x in node.fragment_loops]
    if forms:
        forms[-1] = forms[-1].shift(further)
    return names[node.stage.buffer.name] + "".join(f"[{names.format_linear(f)}]" for f in forms)


def _iterate_registers(node: FragmentNode, names: CNames, copy: str) -> Iterator[dict[str, str]]:
    """Target and value of each register that is packed from single elements."""
    for register in range(node.registers_per_lane):
        elements = []
        for slot in range(node.instruction.elements_per_register):
            element = substitute_access(node.source, derive_register_element(node, register, slot))
            elements.append(names.format_cell(_get_shared_buffer(node), element.segment_coordinates, copy))
        target = f"{_format_fragment(node, names)}[{register}]"
        yield {"target": target, "value": _pack_register(elements, node.source.dtype)}


def _pack_register(elements: list[str], dtype: DType) -> str:
    """C text of elements packed into one register, the first in the lowest bits."""
    if dtype is TF32:
        return f"__float_as_uint(to_tf32({elements[0]}))"
    bits = 8 * dtype.bytes
    wrap = "{}.bits" if dtype in (FLOAT16, BFLOAT16) else "static_cast<unsigned char>({})"
    parts = [f"static_cast<unsigned int>({wrap.format(e)})" for e in elements]
    return " | ".join(f"{part} << {i * bits}" if i else part for i, part in enumerate(parts))


def build_product_values(node: MmaNode, names: CNames) -> dict[str, Any]:
    """The call of a product: its sums, and the fragments at the indices of the loops around."""
    target, tile = node.compute.target, node.tile
    assert target.buffer is not None
    assert isinstance(tile.instruction, MmaInstruction)
    assert isinstance(node.a, FragmentNode)
    assert isinstance(node.b, FragmentNode)
    sums = []
    for element in range(SUMS_PER_LANE):
        row, column = tile.instruction.find_sum_element(element)
        place = {
            tile.row_half_loop.name: AffineForm((), row),
            tile.column_pair_loop.name: AffineForm((), column),
        }
        sums.append(names.format_cell(target.buffer, substitute_access(target, place).segment_coordinates))
    fragments = [_format_fragment(node.a, names), _format_fragment(node.b, names)]
    return {"call": f"{name_product_function(tile.instruction)}({', '.join([*sums, *fragments])});"}


def hoist_fragment_rows(
    node: FragmentNode, row: TensorAccess, names: CNames, loops: Mapping[str, LoopNode], copy: str
) -> HoistedAddress | None:
    """Hoist the row addresses of a fragment; None where a loop that is not unrolled moves them not by a sum.

    `loops` are the loops between the tile loop and the use of the tile.

        &A_shared[k_0_copy][i_1 * 64 + i_2 * 16 + ..]   ->   A_fragment_address + k_0_copy * 4096 + i_2 * 1024
    """
    buffer = row.buffer
    assert buffer is not None
    steps = {a: int(c) for a, c in row.address.terms if isinstance(a, str) and a in loops}
    period = compute_swizzle_period(int(buffer.swizzle), buffer.dtype.bytes)
    swizzle_loops = [name for name in loops if steps.get(name, 0) % period]
    joint = any(not isinstance(a, str) and a.find_variables() & loops.keys() for a, _ in row.address.terms)
    around = [loops[name] for name in swizzle_loops]
    if joint or not all(x.must_unroll or int(x.loop.unroll) >= int(x.loop.extent) for x in around):
        return None
    innermost, filled = {x.name for x in node.fragment_loops[-1:]}, count_filled_fragments(node)
    plain = {name: step for name, step in steps.items() if name not in swizzle_loops}
    (start,) = names.find_free_names([f"{names[node.stage.buffer.name]}_address"])
    first = replace(names, zero=names.zero | plain.keys())
    extents = [int(x.loop.extent) for x in around]
    picked = start + "".join(f"[{names[name]}]" for name in swizzle_loops)
    further = names.format_linear(AffineForm(tuple(plain.items())).scale(buffer.dtype.bytes))
    text = {
        "declare": f"unsigned int {start}{''.join(f'[{n}]' for n in extents)};",
        "loops": [
            {"name": names[name], "extent": extent, "step": filled if name in innermost else 1}
            for name, extent in zip(swizzle_loops, extents, strict=True)
        ],
        "target": picked,
        "value": keep_address_in_register(first.format_cell(buffer, row.segment_coordinates, "0")),
        "what": names[node.stage.buffer.name],
    }
    place = f"{picked} + {format_copy_offset(buffer, copy)}"
    return HoistedAddress(text, place if further == "0" else f"{place} + {further}")


def collect_loops(nodes: Iterable[Any]) -> dict[str, LoopNode]:
    """The loops among nodes, by name, outer ones first."""
    return {n.loop.name: n for n in nodes if isinstance(n, LoopNode)}


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
    products = (n for n in kernel.nodes if isinstance(n, MmaNode) and isinstance(n.a, SharedFactor))
    (sums,) = {n.compute.target.buffer for n in products}
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
    tile_start = derive_tile_start(node, factor)
    buffer = tile_start.buffer
    assert buffer is not None
    (start,) = names.find_free_names([f"{names[buffer.name]}_start"])
    terms = ((a, c) for a, c in tile_start.address.terms if isinstance(a, str) and a in loops)
    inside = AffineForm(tuple(terms))
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
