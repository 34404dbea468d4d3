"""The picture of the fragments: the lane and the register that hold each element of a tensor-core product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.ir.drawing import svg
from ekc.ir.drawing.svg import CYCLE, Cell, Column, Drawn, Figure
from ekc.ir.hardware.memory import CHUNK_BYTES, SHARED_LINE_BYTES, SWIZZLE_CHUNKS, WARP, apply_swizzle
from ekc.ir.hardware.mma import (
    LANE_GROUPS,
    LANES_PER_GROUP,
    MMA_COLUMNS,
    MMA_ROWS,
    SUMS_PER_LANE,
    MmaInstruction,
)
from ekc.ir.hardware.wgmma import STRIP_COLUMNS, WARPGROUP_WARPS, WgmmaFamily
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.fragments import count_fragments_per_load, derive_ldmatrix_fit
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.program import Program

_MARKED_LANE = 5
"""The lane whose elements are marked."""
_WIDTH, _HEIGHT = 38, 20
"""Pixels of a cell."""
_LEFT, _RIGHT, _TITLE = 46, 446, 30
"""Pixels: left edges of the left and right matrices, and height of a title with the numbers of columns."""

Layout = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(lane, register) of each element of a matrix. A warpgroup counts its lanes through its four warps."""


def compute_mma_layouts(instruction: MmaInstruction) -> dict[str, Layout]:
    """Layouts of the factors a (rows x depth) and b (depth x columns) and of the sums c of one `mma`."""
    each, depth = instruction.elements_per_register, instruction.depth
    lane, register, slot = np.indices((WARP, instruction.a_registers, each))
    group, place = np.divmod(lane, LANES_PER_GROUP)
    half, beyond = instruction.find_a_element(register, slot)
    rows, depths = group + LANE_GROUPS * half, each * place + beyond
    a = _make_layout((MMA_ROWS, depth), rows, depths, lane, register)
    lane, register, slot = np.indices((WARP, instruction.b_registers, each))
    group, place = np.divmod(lane, LANES_PER_GROUP)
    depths = each * place + instruction.find_b_element(register, slot)
    b = _make_layout((depth, MMA_COLUMNS), depths, group, lane, register)
    lane, register = np.indices((WARP, SUMS_PER_LANE))
    group, place = np.divmod(lane, LANES_PER_GROUP)
    half, column = instruction.find_sum_element(register)
    rows, columns = group + LANE_GROUPS * half, 2 * place + column
    return {"a": a, "b": b, "c": _make_layout((MMA_ROWS, MMA_COLUMNS), rows, columns, lane, register)}


def compute_wgmma_layout(family: WgmmaFamily, strip_count: int) -> Layout:
    """Layout of the sums of one `wgmma` of `strip_count` strips."""
    lane, register = np.indices((WARPGROUP_WARPS * WARP, SUMS_PER_LANE * strip_count))
    group, place = np.divmod(lane % WARP, LANES_PER_GROUP)
    strip, half, column = family.find_sum_element(register)
    rows = MMA_ROWS * (lane // WARP) + group + LANE_GROUPS * half
    columns = STRIP_COLUMNS * strip + 2 * place + column
    shape = WARPGROUP_WARPS * MMA_ROWS, STRIP_COLUMNS * strip_count
    return _make_layout(shape, rows, columns, lane, register)


def _make_layout(shape: tuple[int, int], rows: Any, columns: Any, lane: Any, register: Any) -> Layout:
    """The layout of a matrix from the place of each register of each lane."""
    layout = np.full(shape, -1), np.full(shape, -1)
    layout[0][rows, columns], layout[1][rows, columns] = lane, register
    assert lane.size == layout[0].size, "as many registers as elements"
    assert (layout[0] >= 0).all(), "an element in two places"
    return layout


def draw_fragments(program: Program) -> Figure:
    """The layouts of the products of every launch."""
    column = Column()
    for kernel in derive_launches(program):
        for node in kernel.nodes:
            if isinstance(node, tree.MmaNode):
                is_warp = isinstance(node.tile.instruction, MmaInstruction)
                column.add_moved(_draw_mma(node) if is_warp else _draw_wgmma(node), 12)
    if not column.elements:
        raise InvalidInput(
            'picture "fragments": this schedule uses no tensor cores; '
            'try tensorize("LOOP", "mma.m16n8k16") (docs/learn/tensor-cores.md)'
        )
    return column.make_figure("Fragments: the lanes and registers of a tensor-core product")


def _draw_mma(node: tree.MmaNode) -> Drawn:
    """Factor b above the sums, factor a on their left, as in a product on paper."""
    instruction = node.tile.instruction
    assert isinstance(instruction, MmaInstruction)
    each, layouts = instruction.elements_per_register, compute_mma_layouts(instruction)
    names = node.tile.a_load.tensor, node.tile.b_load.tensor, node.compute.target.spec.name
    size = f"{MMA_ROWS} x {instruction.depth} by {instruction.depth} x {MMA_COLUMNS}"
    packed = f"; a register of a factor holds {each} neighbours along {node.tile.depth_loop.axis}."
    column = Column()
    column.add_note(
        f"{instruction.name} of {instruction.dtype}: one warp multiplies {names[0]}, {size}, with {names[1]} "
        f"and adds to {MMA_ROWS} x {MMA_COLUMNS} sums of {names[2]}. "
        f"In a cell: the lane and its register{packed * (each > 1)}"
    )
    most = max(instruction.a_registers, SUMS_PER_LANE)
    entries = [(CYCLE[n], f"register {n} of a lane") for n in range(most)]
    column.add_legend([*entries, ("mark", f"elements of lane {_MARKED_LANE}")], 14)
    depths = [_format_run(n, each) for n in range(0, instruction.depth, each)]
    rows, columns = (list(map(str, range(n))) for n in (MMA_ROWS, MMA_COLUMNS))
    title, labels = f"{names[1]}: {instruction.depth} x {MMA_COLUMNS}", (depths, columns)
    column.add(_draw_matrix(title, _RIGHT, column.y, "b", layouts["b"], (each, 1), labels), 20)
    title, labels = f"{names[0]}: {MMA_ROWS} x {instruction.depth}", (rows, depths)
    column.elements += _draw_matrix(title, _LEFT, column.y, "a", layouts["a"], (1, each), labels)[0]
    title, labels = f"{names[2]}: {MMA_ROWS} x {MMA_COLUMNS} sums", (rows, columns)
    column.add(_draw_matrix(title, _RIGHT, column.y, "c", layouts["c"], (1, 1), labels), 10)
    column.add_note(" ".join(_describe_loads(node)))
    return column.elements, column.y


def _format_run(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _draw_matrix(
    title: str,
    left: float,
    y: float,
    name: str,
    layout: Layout,
    step: tuple[int, int],
    labels: tuple[Sequence[str], Sequence[str]],
) -> Drawn:
    """A title, and a cell for each register: `step` elements along rows or columns, with their numbers."""
    lanes, registers = (part[:: step[0], :: step[1]] for part in layout)
    top = y + _TITLE
    cells = []
    for (row, column), lane in np.ndenumerate(lanes):
        style = "mark" if lane == _MARKED_LANE else CYCLE[int(registers[row, column]) % len(CYCLE)]
        box = (left + column * _WIDTH, top + row * _HEIGHT, _WIDTH, _HEIGHT)
        cells.append(Cell(*box, style, f"{lane} {name}{registers[row, column]}"))
    elements = [svg.draw_text(left, y + 10, title, "b"), *svg.draw_cells(cells)]
    for n, label in enumerate(labels[0]):
        elements.append(svg.draw_text(left - 6, top + n * _HEIGHT + 14, label, "y d", "e"))
    for n, label in enumerate(labels[1]):
        elements.append(svg.draw_text(left + (n + 0.5) * _WIDTH, top - 4, label, "y d", "c"))
    return elements, _TITLE + len(lanes) * _HEIGHT


def _describe_loads(node: tree.MmaNode) -> list[str]:
    """How the fragments come from shared memory, and how many products a warp does."""
    words = []
    for factor in (node.a, node.b):
        if not isinstance(factor, tree.FragmentNode):
            continue
        fits, pair = derive_ldmatrix_fit(factor), int(np.max(count_fragments_per_load(factor)))
        name, count = factor.staging.name, int(np.max(factor.fragment_count))
        if not fits.is_possible:
            words.append(f"{name}: {count} fragments, loaded element by element.")
            continue
        how = f"ldmatrix.x{factor.registers_per_lane * pair}{'' if fits.direct else '.trans'}"
        words.append(f"{name}: {count} fragments for each {factor.staging.at}, by {how}, ")
        words[-1] += f"for which lanes {LANE_GROUPS} m to {LANE_GROUPS} m + 7 give the rows of register m."
    return words


def _draw_wgmma(node: tree.MmaNode) -> Drawn:
    """The sums by warps and lanes, and the chunks of a swizzled tile."""
    family, strip_loop = node.tile.instruction, node.tile.strip_loop
    assert isinstance(family, WgmmaFamily)
    assert strip_loop is not None
    strips = int(strip_loop.extent)
    rows, columns = WARPGROUP_WARPS * MMA_ROWS, STRIP_COLUMNS * strips
    lanes, registers = compute_wgmma_layout(family, strips)
    a, b, c = node.tile.a_load.tensor, node.tile.b_load.tensor, node.compute.target.spec.name
    column = Column()
    column.add_note(
        f"{family.format_name(strips)} of {family.dtype}: a warpgroup of {WARPGROUP_WARPS} warps multiplies "
        f"{a}, {rows} x {family.depth}, with {b}, {family.depth} x {columns}, both in shared memory, "
        f"and adds to {rows} x {columns} sums of {c}, {SUMS_PER_LANE * strips} registers of each lane."
    )
    entries = [(CYCLE[n], f"warp {n}") for n in range(WARPGROUP_WARPS)]
    column.add_legend([*entries, ("mark", f"elements of lane {_MARKED_LANE} of warp 0")], 14)
    whole = _list_areas(lanes, (min(300 / columns, 4), 4), (_LEFT, column.y + _TITLE))
    title = f"{c}: {rows} x {columns} sums, a strip is {STRIP_COLUMNS} columns"
    column.elements += [svg.draw_text(0, column.y + 10, title, "b"), *svg.draw_cells(whole)]
    corner = lanes[:MMA_ROWS, : 2 * STRIP_COLUMNS], registers[:MMA_ROWS, : 2 * STRIP_COLUMNS]
    shown = corner[0].shape[1]
    labels = [str(n) for n in range(MMA_ROWS)], [_format_run(n, 2) for n in range(0, shown, 2)]
    title = f"the corner, {MMA_ROWS} x {shown}: lane, first of two registers"
    drawn, height = _draw_matrix(title, _RIGHT, column.y, "c", corner, (1, 2), labels)
    column.add((drawn, max(_TITLE + rows * 4, height)), 22)
    column.add_moved(_draw_swizzle(family.dtype.bytes))
    return column.elements, column.y


def _list_areas(
    lanes: NDArray[np.int64], cell: tuple[float, float], corner: tuple[float, float]
) -> list[Cell]:
    """The rows of each warp, and the pairs of sums of the marked lane."""
    rows, columns = lanes.shape
    (left, top), (width, height) = corner, cell
    bands = [
        Cell(left, top + MMA_ROWS * n * height, columns * width, MMA_ROWS * height, CYCLE[n], f"warp {n}")
        for n in range(rows // MMA_ROWS)
    ]
    marks = [
        Cell(left + column * width, top + row * height, 2 * width, height, "mark")
        for row, column in np.argwhere(lanes == _MARKED_LANE)
        if column % 2 == 0
    ]
    return [*bands, *marks]


def _draw_swizzle(itemsize: int) -> Drawn:
    """The chunks of a pattern of eight lines: where each is stored."""
    lines = SWIZZLE_CHUNKS[-1]
    line, chunk = SHARED_LINE_BYTES // itemsize, CHUNK_BYTES // itemsize
    title = (
        f"Swizzle of the tiles: {lines} lines of {SHARED_LINE_BYTES} bytes. In a cell: elements of the row"
    )
    elements, cells = [svg.draw_text(0, 12, title, "b")], []
    width = 80
    for row in range(lines):
        elements.append(svg.draw_text(_LEFT + 14, 24 + row * _HEIGHT + 14, f"row {row}", "s d", "e"))
        for place in range(line // chunk):
            stored = int(apply_swizzle(row * line + place * chunk, lines, itemsize)) % line // chunk
            x = _LEFT + 20 + stored * width
            text = f"{place * chunk}-{place * chunk + chunk - 1}"
            cells.append(Cell(x, 24 + row * _HEIGHT, width, _HEIGHT, CYCLE[place % len(CYCLE)], text))
    column = Column(24 + lines * _HEIGHT + 6, [*elements, *svg.draw_cells(cells, "s c")])
    column.add_note(
        f"A cell is a chunk of {CHUNK_BYTES} bytes, four banks. The chunks of one column of the tile are in "
        "different banks, so a read along the column has no bank conflict."
    )
    return column.elements, column.y
