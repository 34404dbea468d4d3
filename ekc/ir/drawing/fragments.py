"""The picture of the fragments: the lane and the register that hold each element of a tensor-core product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.ir.drawing import svg
from ekc.ir.drawing.svg import CYCLE, Cell, Drawn, Figure
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
from ekc.ir.lowering.fragments import count_fragments_per_load, find_ldmatrix_fit
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


def find_mma_layouts(instruction: MmaInstruction) -> dict[str, Layout]:
    """Layouts of the factors a (rows x depth) and b (depth x columns) and of the sums c of one `mma`."""
    each, depth = instruction.elements_per_register, instruction.depth
    a, b, c = (_make_empty(*shape) for shape in _list_shapes(depth))
    for lane in range(WARP):
        group, place = lane // LANES_PER_GROUP, lane % LANES_PER_GROUP
        for register in range(instruction.a_registers):
            for slot in range(each):
                half, beyond = instruction.find_a_element(register, slot)
                _set_element(a, group + LANE_GROUPS * half, each * place + beyond, lane, register)
        for register in range(instruction.b_registers):
            for slot in range(each):
                beyond = instruction.find_b_element(register, slot)
                _set_element(b, each * place + beyond, group, lane, register)
        for register in range(SUMS_PER_LANE):
            half, column = instruction.find_sum_element(register)
            _set_element(c, group + LANE_GROUPS * half, 2 * place + column, lane, register)
    return {"a": a, "b": b, "c": c}


def find_wgmma_layout(family: WgmmaFamily, strip_count: int) -> Layout:
    """Layout of the sums of one `wgmma` of `strip_count` strips."""
    sums = _make_empty(WARPGROUP_WARPS * MMA_ROWS, STRIP_COLUMNS * strip_count)
    for lane in range(WARPGROUP_WARPS * WARP):
        warp, group, place = lane // WARP, lane % WARP // LANES_PER_GROUP, lane % LANES_PER_GROUP
        for register in range(SUMS_PER_LANE * strip_count):
            strip, half, column = family.find_sum_element(register)
            row = MMA_ROWS * warp + group + LANE_GROUPS * half
            _set_element(sums, row, STRIP_COLUMNS * strip + 2 * place + column, lane, register)
    return sums


def _list_shapes(depth: int) -> tuple[tuple[int, int], ...]:
    return (MMA_ROWS, depth), (depth, MMA_COLUMNS), (MMA_ROWS, MMA_COLUMNS)


def _make_empty(rows: int, columns: int) -> Layout:
    return np.full((rows, columns), -1), np.full((rows, columns), -1)


def _set_element(layout: Layout, row: int, column: int, lane: int, register: int) -> None:
    assert layout[0][row, column] < 0, "an element in two places"
    layout[0][row, column], layout[1][row, column] = lane, register


def draw_fragments(program: Program) -> Figure:
    """The layouts of the products of every launch."""
    elements: list[str] = []
    y = 0.0
    for kernel in derive_launches(program):
        for node in kernel.nodes:
            if isinstance(node, tree.MmaNode):
                is_warp = isinstance(node.tile.instruction, MmaInstruction)
                more, height = _draw_mma(node) if is_warp else _draw_wgmma(node)
                elements.append(svg.move_elements(more, 0, y))
                y += height + 12
    if not elements:
        raise InvalidInput(
            'picture "fragments": this schedule uses no tensor cores; '
            'try tensorize("LOOP", "mma.m16n8k16") (docs/learn/tensor-cores.md)'
        )
    return Figure("Fragments: the lanes and registers of a tensor-core product", tuple(elements), y)


def _draw_mma(node: tree.MmaNode) -> Drawn:
    """Factor b above the sums, factor a on their left, as in a product on paper."""
    instruction = node.tile.instruction
    assert isinstance(instruction, MmaInstruction)
    each, layouts = instruction.elements_per_register, find_mma_layouts(instruction)
    names = node.tile.a_load.tensor, node.tile.b_load.tensor, node.compute.target.spec.name
    size = f"{MMA_ROWS} x {instruction.depth} by {instruction.depth} x {MMA_COLUMNS}"
    words = (
        f"{instruction.name} of {instruction.dtype}: one warp multiplies {names[0]}, {size}, with {names[1]} "
    )
    words += f"and adds to {MMA_ROWS} x {MMA_COLUMNS} sums of {names[2]}. "
    words += "In a cell: the lane and its register"
    words += f"; a register of a factor holds {each} neighbours along {node.tile.depth_loop.axis}." * (
        each > 1
    )
    elements, y = svg.draw_note(words, 0)
    legend, height = svg.draw_legend(_list_registers(instruction), y)
    elements += legend
    y += height + 14
    depths = [_format_run(n, each) for n in range(0, instruction.depth, each)]
    rows, columns = (list(map(str, range(n))) for n in (MMA_ROWS, MMA_COLUMNS))
    title = f"{names[1]}: {instruction.depth} x {MMA_COLUMNS}"
    elements += _draw_matrix(title, _RIGHT, y, "b", layouts["b"], (each, 1), (depths, columns))
    y += _TITLE + instruction.depth // each * _HEIGHT + 20
    title = f"{names[0]}: {MMA_ROWS} x {instruction.depth}"
    elements += _draw_matrix(title, _LEFT, y, "a", layouts["a"], (1, each), (rows, depths))
    title = f"{names[2]}: {MMA_ROWS} x {MMA_COLUMNS} sums"
    elements += _draw_matrix(title, _RIGHT, y, "c", layouts["c"], (1, 1), (rows, columns))
    y += _TITLE + MMA_ROWS * _HEIGHT + 10
    note, height = svg.draw_note(" ".join(_describe_loads(node)), y)
    return [*elements, *note], y + height


def _list_registers(instruction: MmaInstruction) -> list[tuple[str, str]]:
    most = max(instruction.a_registers, SUMS_PER_LANE)
    entries = [(CYCLE[n], f"register {n} of a lane") for n in range(most)]
    return [*entries, ("mark", f"elements of lane {_MARKED_LANE}")]


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
) -> list[str]:
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
    return elements


def _describe_loads(node: tree.MmaNode) -> list[str]:
    """How the fragments come from shared memory, and how many products a warp does."""
    words = []
    for factor in (node.a, node.b):
        if not isinstance(factor, tree.FragmentNode):
            continue
        fits, pair = find_ldmatrix_fit(factor), int(np.max(count_fragments_per_load(factor)))
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
    lanes, registers = find_wgmma_layout(family, strips)
    a, b, c = node.tile.a_load.tensor, node.tile.b_load.tensor, node.compute.target.spec.name
    words = (
        f"{family.format_name(strips)} of {family.dtype}: a warpgroup of {WARPGROUP_WARPS} warps multiplies "
    )
    words += f"{a}, {rows} x {family.depth}, with {b}, {family.depth} x {columns}, both in shared memory, "
    words += f"and adds to {rows} x {columns} sums of {c}, {SUMS_PER_LANE * strips} registers of each lane."
    elements, y = svg.draw_note(words, 0)
    entries = [(CYCLE[n], f"warp {n}") for n in range(WARPGROUP_WARPS)]
    legend, height = svg.draw_legend([*entries, ("mark", f"elements of lane {_MARKED_LANE} of warp 0")], y)
    elements += legend
    y += height + 14
    whole = _list_areas(lanes, (min(300 / columns, 4), 4), (_LEFT, y + _TITLE))
    title = f"{c}: {rows} x {columns} sums, a strip is {STRIP_COLUMNS} columns"
    elements += [svg.draw_text(0, y + 10, title, "b"), *svg.draw_cells(whole)]
    corner = tuple(part[:MMA_ROWS, : 2 * STRIP_COLUMNS] for part in (lanes, registers))
    shown = corner[0].shape[1]
    labels = [str(n) for n in range(MMA_ROWS)], [_format_run(n, 2) for n in range(0, shown, 2)]
    title = f"the corner, {MMA_ROWS} x {shown}: lane, first of two registers"
    elements += _draw_matrix(title, _RIGHT, y, "c", (corner[0], corner[1]), (1, 2), labels)
    y += _TITLE + max(rows * 4, MMA_ROWS * _HEIGHT) + 22
    swizzle, height = _draw_swizzle(family.dtype.bytes)
    return [*elements, svg.move_elements(swizzle, 0, y)], y + height


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
    words = (
        f"A cell is a chunk of {CHUNK_BYTES} bytes, four banks. The chunks of one column of the tile are in "
    )
    words += "different banks, so a read along the column has no bank conflict."
    note, height = svg.draw_note(words, 24 + lines * _HEIGHT + 6)
    return [*elements, *svg.draw_cells(cells, "s c"), *note], 24 + lines * _HEIGHT + 6 + height
