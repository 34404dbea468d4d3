"""The picture of the loops: every launch as nested boxes, colored by what runs the loop."""

from __future__ import annotations

from collections.abc import Sequence

from ekc.ir.drawing import svg
from ekc.ir.drawing.svg import Column, Drawn, Figure
from ekc.ir.hardware.memory import WARP
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.printer import format_node, join_remarks, list_loop_remarks
from ekc.ir.program import Program
from ekc.tables import count_nouns

_HEAD, _LEAF, _STEP, _GAP = 25, 21, 12, 6
"""Pixels: height of the head of a box, height of a line, indent of a body, space below a box."""
LEGEND = (
    ("blue", "blocks of the grid, in any order"),
    ("orange", "threads of a block, at the same time"),
    ("gray", "serial loop of one thread"),
    ("gray D", "serial loop, written out"),
    ("purple", "vthread: strided part of a thread's tile"),
    ("green", "vector: one access"),
    ("teal f", "copy"),
    ("red f", "arithmetic"),
)


def draw_loops(program: Program) -> Figure:
    """The loops of every launch."""
    launches = derive_launches(program)
    column = Column()
    column.add_legend(LEGEND, 4)
    heads = []
    for number, kernel in enumerate(launches, 1):
        label = f"launch {number} of {len(launches)}: " if len(launches) > 1 else ""
        epilogue = [str(kernel.nest.epilogue)] if kernel.nest.epilogue else []
        heads.append([f"{label}{kernel.nest.compute}", *epilogue])
    svg.stack_launches(column, heads, lambda n: _draw_launch(launches[n]))
    return column.make_figure("Loops and the hardware that runs them")


def _draw_launch(kernel: LaunchTree) -> Drawn:
    """The blocks, in them the threads, in them the body that each thread runs."""
    width, inside = svg.WIDTH - 2 * _STEP, svg.WIDTH - 4 * _STEP
    blocks, threads = (
        "   ".join(f"{x.level} {x.name} in {x.extent}" for x in loops)
        for loops in (reversed(kernel.block_loops), reversed(kernel.thread_loops))
    )
    count = count_nouns(int(kernel.block_count), "block")
    outer, top = _draw_head(0, 0, svg.WIDTH, "blue", blocks or "one block", count)
    inner, below = _draw_head(_STEP, top, width, "orange", threads or "one thread", _count_threads(kernel))
    lines, body = _draw_body(kernel, kernel.body, 2 * _STEP, top + below, inside)
    height = body + below + _GAP
    boxes = [
        svg.draw_rectangle(0, 0, svg.WIDTH, height + top + _GAP, "blue g", corner=4),
        svg.draw_rectangle(_STEP, top, width, height, "orange g", corner=4),
    ]
    return [*boxes, *outer, *inner, *lines], height + top + _GAP


def _count_threads(kernel: LaunchTree) -> str:
    count = int(kernel.thread_count)
    lanes = min(count, WARP)
    return f"{count_nouns(count, 'thread')}: {count_nouns(-(-count // WARP), 'warp')} of {lanes}"


def _draw_head(x: float, y: float, width: float, color: str, text: str, remark: str) -> Drawn:
    """The head of a box, its loops on the left and a remark on the right; the elements and their height."""
    room = width - 30 - svg.measure_text(remark, svg.SMALL_HEIGHT)
    lines = [""]
    for part in text.split("   "):
        longer = f"{lines[-1]}   {part}" if lines[-1] else part
        fits = not lines[-1] or svg.measure_text(longer, svg.CODE_HEIGHT, "mono") <= room
        lines = [*lines[:-1], longer] if fits else [*lines, part]
    height = _HEAD + 16 * (len(lines) - 1)
    elements = [svg.draw_rectangle(x, y, 4, height, f"{color} F f")]
    elements += [
        svg.draw_short_text(x + 11, y + 17 + 16 * n, line, room, "m b", "", svg.CODE_HEIGHT, "mono")
        for n, line in enumerate(lines)
    ]
    return [*elements, svg.draw_text(x + width - 8, y + 17, remark, "s d", "e")], height


def _draw_body(kernel: LaunchTree, nodes: Sequence[tree.Node], x: float, y: float, width: float) -> Drawn:
    """The nodes of a body from y on; the elements and their height."""
    elements: list[str] = []
    top = y
    for node in nodes:
        if isinstance(node, tree.LoopNode):
            more, height = _draw_loop(kernel, node, x, top, width)
        elif isinstance(node, tree.WgmmaGroupNode):
            more, inside = _draw_body(kernel, node.body, x, top, width)
            wait, height = _draw_lines([("wait for products", "")], "gray", x, top + inside, width)
            more, height = [*more, *wait], inside + height
        else:
            texts = [(line.text, line.remark) for line in format_node(kernel, node)]
            more, height = _draw_lines(texts, _find_color(node), x, top, width)
        elements += more
        top += height
    return elements, top - y


def _find_color(node: tree.Node) -> str:
    """The color of a line: copies, arithmetic, the rest."""
    if isinstance(node, (tree.StageNode, tree.FragmentNode, tree.WriteNode)):
        return "teal"
    is_arithmetic = isinstance(node, (tree.ComputeNode, tree.MmaNode, tree.ReduceNode, tree.LaneCombineNode))
    return "red" if is_arithmetic else "gray"


def _draw_loop(kernel: LaunchTree, node: tree.LoopNode, x: float, y: float, width: float) -> Drawn:
    loop = node.loop
    color = {"vthread": "purple", "vector": "green"}.get(loop.level, "gray")
    dashed = " D" if node.must_unroll or loop.unroll > 1 else ""
    text, remark = f"for {loop.name} in {loop.extent}", join_remarks(list_loop_remarks(node))
    head, top = _draw_head(x, y, width, color, text, remark)
    lines, inside = _draw_body(kernel, node.body, x + _STEP, y + top, width - 2 * _STEP)
    box = svg.draw_rectangle(x, y, width, inside + top + _GAP / 2, f"{color} g{dashed}", corner=4)
    return [box, *head, *lines], inside + top + _GAP


def _draw_lines(lines: Sequence[tuple[str, str]], color: str, x: float, y: float, width: float) -> Drawn:
    elements = []
    for n, (text, remark) in enumerate(lines):
        top = y + n * _LEAF
        room = width - 22 - svg.measure_text(remark, svg.SMALL_HEIGHT)
        elements += [
            svg.draw_rectangle(x, top + 2, width, _LEAF - 4, f"{color} f", corner=3),
            svg.draw_short_text(x + 6, top + 15, text, room, "m", "", svg.CODE_HEIGHT, "mono"),
            svg.draw_text(x + width - 8, top + 15, remark, "s d", "e"),
        ]
    return elements, len(lines) * _LEAF
