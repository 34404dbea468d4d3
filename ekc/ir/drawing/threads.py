"""The picture of the threads: the output tile of one block, and the thread that writes each element."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ekc.ir.drawing import svg
from ekc.ir.drawing.ownership import (
    BlockTile,
    TileGrid,
    compute_block_tile,
    compute_thread_values,
    make_tile_grid,
    merge_cells,
)
from ekc.ir.drawing.svg import CYCLE, Cell, Column, Drawn, Figure
from ekc.ir.hardware.memory import WARP
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.printer import format_form
from ekc.ir.program import Loop, Program
from ekc.tables import count_nouns

_TILE_SIDE = 250
"""Pixels of the longer side of the whole tile."""
_MOST_RECTANGLES = 900
"""Most areas of the whole tile; with more, only a corner is shown."""
_CELL, _CORNER_ROWS, _CORNER_COLUMNS, _WIDE_COLUMNS = 24, 16, 16, 30
"""Pixels of a cell of the corner, and its largest size in cells; the last is for wide tiles."""
_AXIS = 54
"""Pixels for the names of rows."""
_LAST = 36
"""Pixels that the last coordinate of a row takes, with a gap."""
_MOST_NAME = 240
"""Most pixels of the name of an axis before its steps."""
_WIDE = 4
"""Columns for each row from which the corner is below the whole tile and not beside it."""
_LEVEL_COLORS = {
    "block": "blue",
    "thread": "orange",
    "vthread": "purple",
    "vector": "green",
    "serial": "gray",
}


def draw_threads(program: Program) -> Figure:
    """The output tile of the first block of each launch."""
    heading = "Threads and the elements of the output that they write"
    return draw_computing_launches(program, heading, _draw_launch)


def draw_computing_launches(program: Program, heading: str, draw: Callable[[LaunchTree], Drawn]) -> Figure:
    """A drawing of each launch that computes, below its formula where there are several."""
    launches = [x for x in derive_launches(program) if not x.is_zero_fill]
    heads = [[f"launch {n} of {len(launches)}: {x.nest.compute}"] for n, x in enumerate(launches, 1)]
    column = Column()
    svg.stack_launches(column, heads if len(heads) > 1 else [[]], lambda n: draw(launches[n]))
    return column.make_figure(heading)


def _draw_launch(kernel: LaunchTree) -> Drawn:
    """The whole tile, its corner, and the steps of the loops along each axis."""
    tile = compute_block_tile(kernel)
    grid = make_tile_grid(tile)
    marked = int(grid.owner[grid.owner >= 0][0]) if (grid.owner >= 0).any() else 0
    column = Column()
    column.add_note(" ".join(_describe_tile(kernel, tile, grid, marked)))
    warps = np.unique(grid.owner[grid.owner >= 0] // WARP).tolist()
    entries = [(CYCLE[n % len(CYCLE)], f"warp {n}") for n in warps]
    left = len(entries) - len(CYCLE)
    entries = [*entries[: len(CYCLE)], *([("gray", f"{left} more, colors again")] if left > 0 else [])]
    column.add_legend([*entries, ("mark", f"elements of thread {marked}")], 8)
    column.add_moved(_draw_tile(kernel, grid, marked), 8)
    column.add(_draw_steps(kernel, column.y))
    return column.elements, column.y


def _draw_tile(kernel: LaunchTree, grid: TileGrid, marked: int) -> Drawn:
    """The whole tile and its corner, beside or below each other; the corner alone where it is all."""
    rows, columns = grid.owner.shape
    is_wide = columns > _WIDE * rows
    corner_rows = min(rows, _CORNER_ROWS)
    corner_columns = min(columns, _WIDE_COLUMNS if is_wide else _CORNER_COLUMNS)
    corner, _, corner_height = _draw_corner(kernel, grid, marked, corner_rows, corner_columns)
    if (corner_rows, corner_columns) == (rows, columns):
        return corner, corner_height
    whole, width, height = _draw_whole(kernel, grid, marked, is_wide)
    if is_wide:
        return [*whole, svg.move_elements(corner, 0, height + 8)], height + 8 + corner_height
    return [*whole, svg.move_elements(corner, width + 30, 0)], max(height, corner_height)


def _describe_tile(kernel: LaunchTree, tile: BlockTile, grid: TileGrid, marked: int) -> Iterator[str]:
    """Sentences above the tile."""
    output, threads = kernel.nest.output, int(kernel.thread_count)
    counts = np.bincount(tile.thread, minlength=threads)
    each = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    spans = ", ".join(_format_span(tile.index[:, d]) for d in range(tile.index.shape[1]))
    yield (
        f"Block 0 of {int(kernel.block_count)} writes {output.name}[{spans}] "
        f"of {_format_shape(output.shape)}: "
        f"{count_nouns(len(tile.thread), 'element')} by {count_nouns(threads, 'thread')}, {each} each."
    )
    at = compute_thread_values(kernel, np.asarray(marked))
    place = ", ".join(f"{x.level} {x.name} = {int(at[x.name])}" for x in reversed(kernel.thread_loops))
    if place:
        yield f"Thread {marked} is {place}."
    names = _list_axis_names(kernel)
    if grid.fixed:
        yield f"Shown at {', '.join(f'{names[d]} = {v}' for d, v in grid.fixed.items())}."
    lanes = ", ".join(x.name for x in kernel.thread_loops if x.is_reduction)
    if lanes:
        yield f"The threads along {lanes} add up parts of the same sums; the one at 0 writes them."
    parts = ", ".join(x.name for x in kernel.block_loops if x.is_reduction)
    if parts:
        yield f"The blocks along {parts} add to the same elements."
    if tile.shortened:
        yield f"Only the first iterations of {', '.join(tile.shortened)} are shown."


def _format_span(values: NDArray[np.int64]) -> str:
    if not len(values):
        return "none"
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low}..{high}"


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _list_axis_names(kernel: LaunchTree) -> list[str]:
    """Names of the axes of the output, by dimension."""
    return [a.name for a in (kernel.nest.epilogue or kernel.nest.compute).spatial_axes]


def _draw_whole(
    kernel: LaunchTree, grid: TileGrid, marked: int, is_wide: bool
) -> tuple[list[str], float, float]:
    """The tile by warps, with the elements of one thread marked; elements, width and height."""
    owner = grid.owner
    warps = np.where(owner >= 0, owner // WARP, -1)
    mine = np.where(owner == marked, 0, -1)
    rows, columns = owner.shape
    while True:
        areas, marks = merge_cells(warps[:rows, :columns]), merge_cells(mine[:rows, :columns])
        if len(areas) + len(marks) <= _MOST_RECTANGLES:
            break
        rows, columns = (rows, columns // 2) if columns >= rows else (rows // 2, columns)
    across = (svg.WIDTH - _AXIS if is_wide else _TILE_SIDE) / columns
    cell = min(across, 14), min(max(across, 14) if is_wide else _TILE_SIDE / max(rows, columns), 14)
    part = f", {rows} x {columns} of" if (rows, columns) != owner.shape else ","
    elements = [svg.draw_text(0, 12, f"the tile by warps{part} {_format_shape(owner.shape)}", "t")]
    frame, left, top = _draw_axes(kernel, grid, rows, columns, cell)
    elements += frame
    for style, found in ((None, areas), ("mark", marks)):
        elements += svg.draw_cells(
            [
                Cell(
                    left + c * cell[0],
                    top + r * cell[1],
                    width * cell[0],
                    height * cell[1],
                    style or CYCLE[value % len(CYCLE)],
                )
                for value, r, c, height, width in found
            ]
        )
    return elements, left + columns * cell[0], top + rows * cell[1] + 8


def _draw_corner(
    kernel: LaunchTree, grid: TileGrid, marked: int, rows: int, columns: int
) -> tuple[list[str], float, float]:
    """The first rows and columns of the tile, with the number of the thread in each area."""
    is_all = (rows, columns) == grid.owner.shape
    size = f"its corner, {rows} x {columns} of {_format_shape(grid.owner.shape)}"
    size = f"the tile, {rows} x {columns}" if is_all else size
    elements = [svg.draw_text(0, 12, f"{size}; numbers are threads")]
    frame, left, top = _draw_axes(kernel, grid, rows, columns, (_CELL, _CELL))
    elements += frame
    cells = []
    for thread, r, c, height, width in merge_cells(grid.owner[:rows, :columns]):
        box = (left + c * _CELL, top + r * _CELL, width * _CELL, height * _CELL)
        color = "mark" if thread == marked else CYCLE[thread // WARP % len(CYCLE)]
        cells.append(Cell(*box, color, str(thread)))
    elements += svg.draw_cells(cells, "s c" if grid.owner.max() < 1000 else "y c")
    lines = [f"M{left + n * _CELL} {top}v{rows * _CELL}" for n in range(1, columns)]
    lines += [f"M{left} {top + n * _CELL}h{columns * _CELL}" for n in range(1, rows)]
    elements.append(svg.draw_path("".join(lines), "q"))
    return elements, left + columns * _CELL, top + rows * _CELL + 8


def _draw_axes(
    kernel: LaunchTree, grid: TileGrid, rows: int, columns: int, cell: tuple[float, float]
) -> tuple[list[str], float, float]:
    """First and last coordinates on the left and on top; the elements, and the corner of the cells."""
    names = _list_axis_names(kernel)
    row, column = (names[d] if d is not None else "" for d in grid.dims)
    left, top = (_AXIS if row else 0.0), 38.0 if column else 22.0
    right, bottom = left + columns * cell[0], top + rows * cell[1]
    elements = []
    if column:
        elements += _draw_first(left, top - 5, column, int(grid.columns[0]), right - left - _LAST)
        if right - left > 100:
            elements.append(svg.draw_text(right, top - 5, f"{grid.columns[columns - 1]}", "s d", "e"))
    if row:
        elements += _draw_first(left - 6, top + 11, row, int(grid.rows[0]), left - 6, "e")
        if bottom - top > 30:
            elements.append(svg.draw_text(left - 6, bottom - 2, f"{grid.rows[rows - 1]}", "s d", "e"))
    return elements, left, top


def _draw_first(x: float, y: float, name: str, value: int, width: float, anchor: str = "") -> list[str]:
    """The first coordinate of an axis, with the name of the axis cut to what fits into a width."""
    room = min(max(width, _AXIS - 6), _MOST_NAME) - svg.measure_text(f" = {value}", svg.SMALL_HEIGHT)
    short = svg.shorten_text(name, room, svg.SMALL_HEIGHT)
    return [svg.draw_text(x, y, f"{short} = {value}", "s d", anchor, name if short != name else "")]


def _draw_steps(kernel: LaunchTree, y: float) -> Drawn:
    """For each axis of the output, how far an iteration of each of its loops moves."""
    loops = {x.name: x for x in kernel.nest.loops}
    names = _list_axis_names(kernel)
    elements = [svg.draw_text(0, y + 12, "Index of an element: a step of each loop times its iteration")]
    longest = max(svg.measure_text(n, svg.CODE_HEIGHT, "mono") for n in names)
    indent, top = 26 + min(longest, _MOST_NAME), y + 22
    for name, axis in zip(names, kernel.nest.compute.spatial_axes, strict=False):
        form = kernel.nest.axis_forms[axis.name]
        short = svg.shorten_text(name, _MOST_NAME, svg.CODE_HEIGHT, "mono")
        elements.append(svg.draw_text(0, top + 14, f"{short} =", "m b", "", name if short != name else ""))
        chips = [(atom, step, loops.get(atom)) for atom, step in form.terms if isinstance(atom, str)]
        if len(chips) < len(form.terms) or not chips:
            text = svg.shorten_text(format_form(form), svg.WIDTH - indent, svg.CODE_HEIGHT, "mono")
            elements.append(svg.draw_text(indent, top + 14, text, "m"))
            top += 22
            continue
        x = indent
        for atom, step, loop in chips:
            assert loop is not None
            words = f"{atom}*{step} ({_name_level(loop)})" if step != 1 else f"{atom} ({_name_level(loop)})"
            words = svg.shorten_text(words, svg.WIDTH - indent - 14, svg.SMALL_HEIGHT, "mono")
            width = svg.measure_text(words, svg.SMALL_HEIGHT, "mono") + 14
            if x + width > svg.WIDTH and x > indent:
                x, top = indent, top + 24
            color = _LEVEL_COLORS[loop.level.split(".")[0]]
            hint = f"{atom} in {loop.extent}: one iteration moves {name} by {step}"
            elements.append(svg.draw_rectangle(x, top, width, 20, color, hint, corner=4))
            elements.append(svg.draw_text(x + 7, top + 14, words, "m s"))
            x += width + 8
        top += 26
    return elements, top - y


def _name_level(loop: Loop) -> str:
    return f"{loop.level} in {loop.extent}"
