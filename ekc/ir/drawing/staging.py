"""The picture of the stagings: the memories that each tensor passes through, and the pipelines over time.

The timeline follows the order of the generated CUDA. Its unit is an iteration of the loop; copies and
arithmetic take as long as the other work beside them, so widths say nothing about seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ekc.ir import expr as ex
from ekc.ir.drawing import svg
from ekc.ir.drawing.svg import Column, Drawn, Figure
from ekc.ir.drawing.threads import draw_computing_launches
from ekc.ir.dtypes import DType
from ekc.ir.hardware.cp_async import count_tiles_ahead
from ekc.ir.hardware.mma import REGISTER_BYTES
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import Buffer
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.printer import format_shape
from ekc.ir.program import Loop, Program, Staging
from ekc.tables import count_nouns

_COLUMNS = {"global": (0, 170), "shared": (315, 170), "register": (630, 170)}
"""Left edge and width, in pixels, of the boxes of each memory."""
_BOX, _ROW = 38, 54
"""Pixels: height of a box, and of a row of boxes."""
_MEMORY_COLORS = {"global": "gray", "shared": "teal", "register": "orange"}
_FIRST, _LAST = 6, 2
"""Iterations at the start and at the end of a loop that a timeline shows; those between are left out."""
_MOST_TIMELINES = 3
_LANE, _NAMES = 26, 150
"""Pixels: height of a row of a timeline, and width of the names of rows."""


@dataclass(frozen=True)
class Span:
    """Something that lasts from `start` to `end`, in iterations of the loop (the prologue is before 0)."""

    row: str
    kind: str
    """Kind of work: "copy", "store" or "use"."""
    tile: int
    start: float
    end: float


@dataclass(frozen=True)
class PipelinePlan:
    """The copies and uses of the tiles of one loop."""

    rows: tuple[str, ...]
    spans: tuple[Span, ...]
    barriers: tuple[float, ...]
    start: float
    """Time at which the prologue begins, 0 or less."""


def plan_timeline(stages: int, copy: str, iterations: Sequence[int], extent: int) -> PipelinePlan:
    """The copies and uses in some iterations of a loop, as the generated kernel orders them.

    `stages` is the number of buffers of each tile and `copy` the way of the copies, as `Loop` has them.
    """
    if stages == 1:
        return _plan_synchronous(iterations)
    return (
        _plan_register(iterations, extent) if copy == "register" else _plan_async(stages, iterations, extent)
    )


def _plan_synchronous(iterations: Sequence[int]) -> PipelinePlan:
    """Copy a tile, wait, use it, wait."""
    spans, barriers = [], []
    for i in iterations:
        spans += [Span("buffer 0", "copy", i, i, i + 0.5), Span("buffer 0", "use", i, i + 0.5, i + 1)]
        barriers += [i + 0.5, i + 1.0]
    return PipelinePlan(("buffer 0",), tuple(spans), tuple(barriers), 0)


def _plan_register(iterations: Sequence[int], extent: int) -> PipelinePlan:
    """Fetch the next tile into registers, use this one, store the fetched one into the other buffer."""
    rows = ("registers of the copy", "buffer 0", "buffer 1")
    spans = [Span(rows[0], "copy", 0, -1, -0.3), Span("buffer 0", "store", 0, -0.3, 0)]
    barriers = [0.0]
    for i in iterations:
        spans.append(Span(f"buffer {i % 2}", "use", i, i, i + 0.7))
        barriers.append(i + 1.0)
        if i + 1 < extent:
            spans.append(Span(rows[0], "copy", i + 1, i, i + 0.7))
            spans.append(Span(f"buffer {(i + 1) % 2}", "store", i + 1, i + 0.7, i + 1))
    return PipelinePlan(rows, tuple(spans), tuple(barriers), -1)


def _plan_async(stages: int, iterations: Sequence[int], extent: int) -> PipelinePlan:
    """Issue the copy of the tile that is `stages` - 1 iterations ahead, after the wait for this one."""
    ahead = int(count_tiles_ahead(stages))
    rows = tuple(f"buffer {slot}" for slot in range(stages))
    spans = []
    # The prologue issues one group after the other; it is as wide as one iteration.
    issue = {tile: -1 + tile / ahead for tile in range(min(ahead, extent))}
    for i in iterations:
        spans.append(Span(rows[i % stages], "use", i, i, i + 1))
        issue |= {i + ahead: float(i)} if i + ahead < extent else {}
        issue.setdefault(i, float(i - ahead))
    spans += [Span(rows[tile % stages], "copy", tile, start, tile) for tile, start in sorted(issue.items())]
    return PipelinePlan(rows, tuple(spans), tuple(float(i) for i in iterations), -1)


def draw_staging(program: Program) -> Figure:
    """The way of each tensor to the arithmetic and back, and a timeline of each loop that fills shared
    tiles."""
    return draw_computing_launches(program, "Copies: what is staged where, and when", _draw_launch)


def _draw_launch(kernel: LaunchTree) -> Drawn:
    """The routes of the tensors, and below it the pipelines."""
    column = Column()
    for part in (_draw_routes(kernel), *(_draw_timeline(x) for x in _list_tile_loops(kernel))):
        column.add_moved(part, 12)
    return column.elements, column.y


@dataclass(frozen=True)
class _Route:
    """A tensor on its way from global memory to the arithmetic."""

    tensor: str
    shared: tree.StageNode | tree.ReduceNode | None = None
    private: tree.StageNode | tree.FragmentNode | None = None
    """The copy into registers, of the shared tile or of the tensor."""
    result: str = ""
    """The tensor that is computed from it, where it is read from global memory."""


def _list_routes(kernel: LaunchTree) -> Iterator[_Route]:
    """The routes of the tensors that a launch reads, in the order of its stagings."""
    nest = kernel.nest
    nodes = {n.staging.name: n for n in kernel.nodes if isinstance(n, _PRIVATE)}
    tiles = {s.name: n for s, n in _find_tiles(kernel).items()}
    for staging in nest.stagings:
        if staging.name in tiles:
            readers = [nodes[s.name] for s in nest.stagings if s.source == staging.name and s.name in nodes]
            yield from (_Route(staging.tensor, tiles[staging.name], reader) for reader in readers)
            if not readers:
                yield _Route(staging.tensor, tiles[staging.name])
        elif staging.source == staging.tensor:
            yield _Route(staging.tensor, None, nodes[staging.name])
    bodies = [(s.tensor, s.producer.body) for s in nest.stagings if s.producer]
    bodies += [(nest.compute.output.name, nest.compute.body), (nest.output.name, nest.written_value)]
    seen = {nest.compute.output.name, *(s.tensor for s in nest.stagings)}
    for result, body in bodies:
        for tensor in dict.fromkeys(x.tensor for x in ex.find_loads(body)):
            if tensor not in seen:
                seen.add(tensor)
                yield _Route(tensor, result=result)


_PRIVATE = (tree.StageNode, tree.FragmentNode)
_SHARED = (tree.StageNode, tree.ReduceNode)


def _find_tiles(kernel: LaunchTree) -> dict[Staging, tree.StageNode | tree.ReduceNode]:
    """The nodes that fill shared tiles, by their staging."""
    found = (n for n in kernel.nodes if isinstance(n, _SHARED))
    return {n.staging: n for n in found if n.buffer.scope == "shared"}


def _draw_routes(kernel: LaunchTree) -> Drawn:
    """A row for each tensor: its boxes in global memory, shared memory and registers, and the copies."""
    heads = {
        "global": "global memory",
        "shared": "shared memory of a block",
        "register": "registers of a thread",
    }
    titles = [
        svg.draw_text(left + width / 2, 12, heads[memory], "b", "c")
        for memory, (left, width) in _COLUMNS.items()
    ]
    column = Column(22.0, titles)
    for route in _list_routes(kernel):
        column.add((_draw_route(kernel, route, column.y), _ROW))
    column.add((_draw_output(kernel, column.y), _ROW))
    column.add_note(
        f"A block has {count_nouns(int(kernel.thread_count), 'thread')} and "
        f"{_format_bytes(int(kernel.shared_bytes))} of shared memory."
    )
    return column.elements, column.y


def _draw_route(kernel: LaunchTree, route: _Route, y: float) -> list[str]:
    elements, left = [], _COLUMNS["global"]
    producer = route.shared.staging.producer if route.shared else None
    if producer is None:
        spec = kernel.tensors[route.tensor]
        size = f"{' x '.join(map(str, spec.shape))} {spec.dtype}"
        elements += _draw_box("global", y, spec.name, size)
    else:
        elements += _draw_box("global", y, f"{route.tensor}, computed here", f"{producer.body}")
    if route.shared is not None:
        node = route.shared
        words = "computed" if producer else format_width(node.source.dtype, int(node.staging.vector))
        is_async = isinstance(node, tree.StageNode) and node.is_async
        how = _describe_place(node.staging.at) + ", cp.async" * is_async
        elements += _draw_move(left, _COLUMNS["shared"], y, words, how)
        elements += _draw_box("shared", y, *_describe_buffer(node.buffer, node.staging))
        left = _COLUMNS["shared"]
    if route.private is None:
        is_wgmma = any(isinstance(n, tree.WgmmaGroupNode) for n in kernel.nodes)
        words = "wgmma reads the tile" if is_wgmma and route.shared else "read by the arithmetic"
        words = f"read where {route.result} is computed" if route.result else words
        elements += _draw_move(left, _COLUMNS["register"], y, words, "")
        return elements + _draw_box("register", y, "", "")
    private = route.private
    if isinstance(private, tree.FragmentNode):
        count = int(private.registers_per_lane * private.fragment_count) * REGISTER_BYTES
        words, name, what = (
            "fragments of a warp",
            private.staging.name,
            f"{count_nouns(count, 'byte')} a lane",
        )
    else:
        words = format_width(private.source.dtype, int(private.staging.vector))
        name, what = _describe_buffer(private.buffer, private.staging)
    elements += _draw_move(left, _COLUMNS["register"], y, words, _describe_place(private.staging.at))
    return elements + _draw_box("register", y, name, what)


def _draw_output(kernel: LaunchTree, y: float) -> list[str]:
    """The way of the result from registers to global memory."""
    output = kernel.nest.output
    elements = _draw_box("global", y, output.name, f"{' x '.join(map(str, output.shape))} {output.dtype}")
    write = next((n for n in kernel.nodes if isinstance(n, tree.WriteNode)), None)
    if write is None:
        words, name, size = format_width(output.dtype, 1), "result", "not kept in a register"
        if kernel.nest.compute.reduction_axes:
            words, size = "read, added to, written", "summed in global memory"
    else:
        words = format_width(output.dtype, int(write.vector)) + ", atomic" * write.is_atomic
        name, size = _describe_buffer(write.buffer, None)
    (left, width), (right, _) = _COLUMNS["global"], _COLUMNS["register"]
    middle = y + _BOX / 2
    elements += svg.draw_arrow(right - 6, middle, left + width + 6, middle)
    elements.append(svg.draw_text((left + width + right) / 2, middle - 5, f"write {words}", "s", "c"))
    return elements + _draw_box("register", y, name, size)


def _draw_box(memory: str, y: float, name: str, size: str) -> list[str]:
    left, width = _COLUMNS[memory]
    if not name:
        return [
            svg.draw_rectangle(left, y, width, _BOX, "red", corner=4),
            svg.draw_text(left + width / 2, y + _BOX / 2 + 4, "arithmetic", "t", "c"),
        ]
    middle = left + width / 2
    return [
        svg.draw_rectangle(left, y, width, _BOX, _MEMORY_COLORS[memory], corner=4),
        svg.draw_short_text(middle, y + 16, name, width - 12, "m b", "c", svg.CODE_HEIGHT, "mono"),
        svg.draw_text(middle, y + 31, svg.shorten_text(size, width - 8, 11), "s", "c", size),
    ]


def _draw_move(start: tuple[int, int], end: tuple[int, int], y: float, above: str, below: str) -> list[str]:
    """An arrow between two memories, with words above and below."""
    left, right = start[0] + start[1] + 6, end[0] - 6
    middle = y + _BOX / 2
    center = (left + right) / 2
    elements, width = svg.draw_arrow(left, middle, right, middle), right - left
    elements.append(svg.draw_short_text(center, middle - 5, above, width, "s", "c"))
    if below:
        elements.append(svg.draw_short_text(center, middle + 14, below, width, "s d", "c"))
    return elements


def format_width(dtype: DType, vector: int) -> str:
    """The elements that one access moves: "4 x float32, 16 bytes"."""
    return f"{vector} x {dtype}, {count_nouns(vector * dtype.bytes, 'byte')}"


def _describe_place(at: str | None) -> str:
    return f"for each {at}" if at else "once"


def _describe_buffer(buffer: Buffer, staging: Staging | None) -> tuple[str, str]:
    """Name with extents, and size with what is special about the layout."""
    name = f"{buffer.name}{format_shape(buffer, staging.pad if staging else 0)}"
    if buffer.scope != "shared":
        return (
            name,
            f"{buffer.dtype}, {count_nouns(int(buffer.elements) * buffer.dtype.bytes, 'byte')}",
        )
    parts, copies = [_format_bytes(int(buffer.bytes))], int(buffer.copy_count)
    if copies > 1:
        is_reduced = staging is not None and staging.producer is not None and staging.producer.reduction_axes
        parts.append(f"for {copies} warps" if is_reduced else f"{copies} buffers")
    parts += [f"swizzle {int(buffer.swizzle)}"] if int(buffer.swizzle) > 1 else []
    return name, ", ".join(parts)


def _format_bytes(count: int) -> str:
    return f"{count / 1024:.1f} KiB".replace(".0 ", " ") if count >= 1024 else count_nouns(count, "byte")


def _list_tile_loops(kernel: LaunchTree) -> list[tuple[tree.LoopNode, list[tree.StageNode]]]:
    """The loops that fill shared tiles, with the copies in each."""
    found = []
    for node in kernel.nodes:
        if isinstance(node, tree.LoopNode):
            copies = [n for n in node.body if isinstance(n, tree.StageNode) and n.buffer.scope == "shared"]
            if copies:
                found.append((node, copies))
    return found[:_MOST_TIMELINES]


def _draw_timeline(tiled: tuple[tree.LoopNode, list[tree.StageNode]]) -> Drawn:
    """The timeline of one loop: buffers from top to bottom, iterations from left to right."""
    node, copies = tiled
    loop, extent = node.loop, int(node.loop.extent)
    names = " and ".join(c.staging.name for c in copies)
    head = f"Loop {loop.name} over time: {_describe_pipeline(loop)}"
    title = svg.draw_short_text(0, 12, head, svg.WIDTH, "b", "", svg.TEXT_HEIGHT, "bold")
    column = Column(22, [title])
    barrier = (
        "barrier of the block" if loop.copy == "register" else "wait for the copies, barrier of the block"
    )
    entries = [("teal", f"copy of {names}"), ("red", "arithmetic on the tile"), ("k", barrier)]
    if int(loop.stages) > 1 and loop.copy == "register":
        entries.insert(1, ("orange", "store of the copied tile"))
    column.add_legend(entries, 20)
    windows = _find_windows(extent)
    shown = [i for window in windows for i in window]
    plan = plan_timeline(int(loop.stages), loop.copy, shown, extent)
    scale, height = _TimeScale(plan.start, windows), len(plan.rows) * _LANE
    elements = _draw_time_axis(plan, scale, column.y, height)
    for span in plan.spans:
        elements += _draw_span(span, plan, scale, column.y)
    column.add((elements, height), 6)
    column.add_note(
        "Numbers are tiles: iteration n uses tile n. Widths are not to scale: only the order is true."
    )
    return column.elements, column.y


def _describe_pipeline(loop: Loop) -> str:
    extent = count_nouns(int(loop.extent), "iteration")
    if int(loop.stages) == 1:
        return f"{extent}; a tile is copied, then used"
    if loop.copy == "register":
        return f"{extent}; the next tile is loaded while one is used"
    return (
        f"{extent}; {int(loop.stages)} buffers, copies {int(count_tiles_ahead(loop.stages))} ahead (cp.async)"
    )


def _find_windows(extent: int) -> list[range]:
    """The iterations that are shown."""
    if extent <= _FIRST + _LAST + 1:
        return [range(extent)]
    return [range(_FIRST), range(extent - _LAST, extent)]


@dataclass(frozen=True)
class _TimeScale:
    """Pixels of times, in windows with a gap between."""

    start: float
    windows: list[range]

    @property
    def unit(self) -> float:
        """Pixels of an iteration."""
        units = -self.start + sum(map(len, self.windows)) + 0.6 * (len(self.windows) - 1)
        return min((svg.WIDTH - _NAMES) / units, 110)

    def list_parts(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        """Left and right edges of the visible parts of a span."""
        x = float(_NAMES)
        for n, window in enumerate(self.windows):
            first, last = (self.start if n == 0 else window.start), window.stop
            a, b = max(start, first), min(end, last)
            if a < b or (a == b and start == end):
                yield x + (a - first) * self.unit, x + (b - first) * self.unit
            x += (last - first + 0.6) * self.unit


def _draw_time_axis(plan: PipelinePlan, scale: _TimeScale, top: float, height: float) -> list[str]:
    """Names of rows and of iterations, barriers, and the gap."""
    elements = []
    for n, row in enumerate(plan.rows):
        elements.append(svg.draw_text(_NAMES - 10, top + n * _LANE + 17, row, "s", "e"))
        for left, right in scale.list_parts(plan.start, scale.windows[-1].stop):
            elements.append(svg.draw_rectangle(left, top + n * _LANE + 2, right - left, _LANE - 4, "p"))
    if plan.start < 0:
        for left, right in scale.list_parts(plan.start, 0):
            elements.append(svg.draw_text((left + right) / 2, top - 6, "prologue", "s d", "c"))
    for window in scale.windows:
        for i in window:
            for left, right in scale.list_parts(i, i + 1):
                words = f"iteration {i}" if i == 0 and scale.unit > 70 else str(i)
                elements.append(svg.draw_text((left + right) / 2, top - 6, words, "s d", "c"))
    for barrier in plan.barriers:
        for left, _ in list(scale.list_parts(barrier, barrier))[:1]:
            elements.append(svg.draw_line(left, top - 2, left, top + height + 2, "L"))
    if len(scale.windows) > 1:
        *_, (_, end) = scale.list_parts(plan.start, scale.windows[0].stop)
        middle = end + 0.3 * scale.unit
        elements.append(
            svg.draw_text(middle, top + height / 2 + 4, "\N{MIDLINE HORIZONTAL ELLIPSIS}", "b", "c")
        )
    return elements


def _draw_span(span: Span, plan: PipelinePlan, scale: _TimeScale, top: float) -> list[str]:
    color = {"copy": "teal", "store": "orange", "use": "red"}[span.kind]
    y = top + plan.rows.index(span.row) * _LANE
    verb = {"copy": "copied", "store": "stored", "use": "used"}[span.kind]
    elements = []
    for left, right in scale.list_parts(span.start, span.end):
        hint = f"tile {span.tile} is {verb}"
        width = right - left - 3
        elements.append(svg.draw_rectangle(left + 1.5, y + 3, width, _LANE - 6, color, hint, corner=3))
        at = min(left + 12, left + 1.5 + width / 2)
        elements.append(svg.draw_text(at, y + 17, str(span.tile), "s", "c"))
    return elements
