"""The picture of shared memory: the banks of a tile, and the wavefronts of one request of a warp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, evaluate_form, split_digits
from ekc.ir.analysis.bank_conflicts import count_address_wavefronts, detect_paired_rows
from ekc.ir.analysis.issued_accesses import compute_copy_width, compute_merged_width, list_unrolled_loops
from ekc.ir.analysis.traffic import list_segment_digits
from ekc.ir.drawing import svg
from ekc.ir.drawing.ownership import compute_thread_values
from ekc.ir.drawing.svg import CYCLE, Cell, Column, Drawn, Figure
from ekc.ir.hardware.memory import BANK_BYTES, BANKS, WARP
from ekc.ir.hardware.mma import LANE_GROUPS, LDMATRIX_ROW_BYTES
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import Buffer, substitute_access
from ekc.ir.lowering.fragments import (
    LDMATRIX_LANES,
    derive_ldmatrix_fit,
    derive_register_element,
    derive_row_pointer,
    iterate_ldmatrix_variants,
)
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree, choose_strip_width
from ekc.ir.printer import format_shape
from ekc.ir.program import Program
from ekc.tables import count_nouns

_CELL, _ROW, _LEFT = 21, 17, 100
"""Pixels: width and height of a cell, and width of the names of rows."""
_TILE_ROWS, _TILE_WORDS, _WAVEFRONTS = 16, 33, 8
"""Most rows and words of a tile, and wavefronts of a request, that are shown."""
_MOST_TILES = 4
_BANKS_PER_COLOR = 4
"""Banks of one color: a chunk of 16 bytes, the unit of a swizzle."""


@dataclass(frozen=True, eq=False)
class SharedRequest:
    """One request of the first warp to a tile in shared memory, in the first iteration of every loop."""

    buffer: Buffer
    kind: str
    """Kind of access: "load" or "store"."""
    origin: str
    """The part of the kernel that makes it, in words."""
    address: NDArray[np.int64]
    """Element that each lane begins at, before panels and swizzle are applied."""
    vector: int
    """Elements of each lane."""

    @property
    def width_bytes(self) -> int:
        """Bytes of each lane."""
        return self.vector * self.buffer.dtype.bytes

    @property
    def stored_bytes(self) -> NDArray[np.int64]:
        """Byte address of each lane in the tile as it is stored."""
        return np.asarray(self.buffer.apply_layout(self.address) * self.buffer.dtype.bytes, np.int64)

    @property
    def warp_bytes(self) -> NDArray[np.int64]:
        """`stored_bytes` of a whole warp, as one row; idle lanes have the address of the first."""
        stored = self.stored_bytes
        return np.append(stored, np.full(WARP - len(stored), stored[0]))[None]

    @property
    def wavefronts(self) -> int:
        """Passes through shared memory, as `ekc.ir.analysis.bank_conflicts` counts them."""
        columns = (np.array([n]) for n in (self.width_bytes, len(self.address)))
        return int(count_address_wavefronts(self.warp_bytes, *columns)[0])

    @property
    def needed_wavefronts(self) -> int:
        """Passes that the distinct words need if no two of them meet in a bank."""
        parts = _split_into_parts(self)
        return sum(-(-len({w for words in lanes.values() for w in words}) // BANKS) for lanes in parts)


def _split_into_parts(request: SharedRequest) -> list[dict[int, list[int]]]:
    """The words of each lane, for lanes that take their turn together (see `count_address_wavefronts`)."""
    count, width = len(request.address), request.width_bytes
    number = max(width // BANK_BYTES, 1)
    if number > 1 and detect_paired_rows(request.warp_bytes, (np.arange(WARP) < count)[None])[0]:
        number //= 2
    size = WARP // number
    words = {
        lane: [int(first + b) // BANK_BYTES for b in range(0, width, BANK_BYTES)]
        for lane, first in enumerate(request.stored_bytes.tolist())
    }
    return [
        {lane: words[lane] for lane in range(start, min(start + size, count))}
        for start in range(0, count, size)
    ]


def list_wavefronts(request: SharedRequest) -> list[dict[int, list[int]]]:
    """The lanes that each bank serves, by bank, for every wavefront of a request."""
    found = []
    for lanes in _split_into_parts(request):
        by_bank: dict[int, dict[int, list[int]]] = {}
        for lane, words in lanes.items():
            for word in words:
                readers = by_bank.setdefault(word % BANKS, {}).setdefault(word, [])
                readers += [lane] if lane not in readers else []
        for turn in range(max(len(words) for words in by_bank.values())):
            found.append({b: list(w.values())[turn] for b, w in sorted(by_bank.items()) if turn < len(w)})
    return found


def list_shared_requests(kernel: LaunchTree) -> list[SharedRequest]:
    """A request of each access to shared memory that lanes make, in the order of the kernel."""
    return list(_iterate_requests(kernel))


def _iterate_requests(kernel: LaunchTree) -> Iterator[SharedRequest]:
    for node, path in tree.walk_with_loops(kernel.body):
        match node:
            case tree.StageNode() if node.buffer.scope == "shared":
                yield _make_copy_store(kernel, node)
            case tree.StageNode() if node.source.buffer is not None:
                width = int(np.max(compute_copy_width(node, path, kernel.nest)))
                words = f"copy into {node.buffer.name}"
                yield _make_load(kernel, node.source.buffer, words, node.source.address, width)
            case tree.FragmentNode():
                yield _make_fragment_load(kernel, node)
            case tree.ReduceNode():
                yield from _iterate_reduction_loads(node)
            case tree.ComputeNode():
                unrolled = list_unrolled_loops(path, kernel.nest)
                for access in node.reads.values():
                    if access.buffer is not None and access.buffer.scope == "shared":
                        width = int(np.max(compute_merged_width(access, unrolled)))
                        yield _make_load(kernel, access.buffer, "arithmetic", access.address, width)


def _make_load(
    kernel: LaunchTree, buffer: Buffer, origin: str, form: AffineForm, vector: int
) -> SharedRequest:
    """A load by the threads of the first warp."""
    lanes = np.arange(min(int(kernel.thread_count), WARP))
    address = _evaluate_lanes(form, compute_thread_values(kernel, lanes), len(lanes))
    return SharedRequest(buffer, "load", origin, address, vector)


def _evaluate_lanes(form: AffineForm, lanes: Mapping[str, Any], count: int) -> NDArray[np.int64]:
    """The value of a form for each lane, every other variable being 0."""
    values: dict[str, Any] = {**dict.fromkeys(form.find_variables(), 0), **lanes}
    return np.broadcast_to(np.asarray(evaluate_form(form, values)), (count,)).astype(np.int64)


def _make_copy_store(kernel: LaunchTree, node: tree.StageNode) -> SharedRequest:
    """The store of a copy by all threads, which take neighbouring vectors."""
    region, vector = node.buffer.region, int(node.staging.vector)
    strip = int(np.max(choose_strip_width(node, kernel.thread_count)))
    extents, steps = list_segment_digits(node.target_address, region, vector, strip)
    number = np.arange(min(int(kernel.thread_count), WARP, max(int(region.size) // vector, 1)))
    digits = split_digits(number, dict(enumerate(map(int, extents)))).values()
    moves = (digit * int(step) for digit, step in zip(digits, steps, strict=True))
    address = sum(moves, np.full(len(number), int(node.target_address.const)))
    is_contiguous = node.buffer.fastest_segment == node.vector_segment
    words = (
        f"{'computed' if node.staging.producer else 'copied'} by all threads{', cp.async' * node.is_async}"
    )
    words += f", first of {vector} stores" if vector > 1 and not is_contiguous else ""
    return SharedRequest(node.buffer, "store", words, address, vector if is_contiguous else 1)


def _make_fragment_load(kernel: LaunchTree, node: tree.FragmentNode) -> SharedRequest:
    """The load of a fragment: the rows of an `ldmatrix`, or elements of each lane."""
    buffer = node.source.buffer
    assert buffer is not None
    if not derive_ldmatrix_fit(node).is_possible:
        element = substitute_access(node.source, derive_register_element(node, 0, 0))
        return _make_load(kernel, buffer, f"load into {node.staging.name}", element.address, 1)
    across, pair, _ = next(v for v in iterate_ldmatrix_variants(node) if v[2])
    row = substitute_access(node.source, derive_row_pointer(node, across, pair))
    matrices = node.registers_per_lane * (1 + pair)
    lanes = split_digits(np.arange(LANE_GROUPS * matrices), LDMATRIX_LANES)
    address = _evaluate_lanes(row.address, lanes, LANE_GROUPS * matrices)
    words = f"ldmatrix.x{matrices}{'.trans' * across} into {node.staging.name}"
    return SharedRequest(buffer, "load", words, address, LDMATRIX_ROW_BYTES // buffer.dtype.bytes)


def _iterate_reduction_loads(node: tree.ReduceNode) -> Iterator[SharedRequest]:
    """Loads of a fused reduction, whose lanes are neighbours along its last axis."""
    lanes = {node.compute.reduction_axes[-1].name: np.arange(WARP)}
    for access in node.reads.values():
        if access.buffer is not None and access.buffer.scope == "shared":
            address = _evaluate_lanes(access.address, lanes, WARP)
            yield SharedRequest(access.buffer, "load", f"reduction to {node.staging.tensor}", address, 1)


def draw_banks(program: Program) -> Figure:
    """Every tile in shared memory by its banks, and the requests of a warp to it."""
    tiles = [(k, b) for k in derive_launches(program) for b in k.buffers if b.scope == "shared"]
    if not tiles:
        raise InvalidInput(
            'picture "banks": this schedule stages nothing in shared memory; '
            'try cache_read("NAME", "shared", at=...)'
        )
    entries = [
        (CYCLE[n], f"banks {n * _BANKS_PER_COLOR}-{(n + 1) * _BANKS_PER_COLOR - 1}")
        for n in range(BANKS // _BANKS_PER_COLOR)
    ]
    column = Column()
    column.add_legend([*entries, ("mark o", "elements that the first warp loads at once")])
    column.add_note(
        f"Shared memory has {BANKS} banks of {BANK_BYTES} bytes. A wavefront serves one word of each bank, "
        "to any number of lanes. Words of one bank take turns: bank conflicts. "
        "Below each tile are requests of the first warp; a cell names its lanes, or the first of many.",
        8,
    )
    for kernel, buffer in tiles[:_MOST_TILES]:
        column.add_moved(_draw_tile(kernel, buffer), 12)
    if len(tiles) > _MOST_TILES:
        column.add_note(f"Not shown: {', '.join(b.name for _, b in tiles[_MOST_TILES:])}.")
    return column.make_figure("Banks of shared memory")


def _draw_tile(kernel: LaunchTree, buffer: Buffer) -> Drawn:
    """The words of a tile by their banks, then its requests."""
    requests = [r for r in list_shared_requests(kernel) if r.buffer is buffer]
    pitch, rows, itemsize = int(buffer.row_pitch), int(buffer.row_count), buffer.dtype.bytes
    pad = pitch - int(buffer.region.segments[buffer.segment_order[-1]].extent)
    each = max(BANK_BYTES // itemsize, 1)
    shown_rows, shown = min(rows, _TILE_ROWS), min(pitch, _TILE_WORDS * each)
    layout = "".join(_list_layout_words(buffer, pad))
    head = f"{buffer.name}{format_shape(buffer, pad)} of {buffer.dtype}{layout}"
    part = "" if (shown_rows, shown) == (rows, pitch) else "; shown is the corner"
    size = f"{count_nouns(rows, 'row')} of {count_nouns(pitch, 'element')}{_describe_axes(kernel, buffer)}"
    end = f"; a word holds {each} elements." if each > 1 else "."
    elements = [
        svg.draw_short_text(0, 14, head, svg.WIDTH, "m b", "", svg.CODE_HEIGHT, "mono"),
        svg.draw_short_text(0, 31, f"{size}{part}. Numbers are banks{end}", svg.WIDTH),
    ]
    top = 40.0
    loads = [r for r in requests if r.kind == "load"]
    touched = {int(a) + v for r in loads for a in r.address for v in range(r.vector)}
    cells, marks = [], []
    for row in range(shown_rows):
        elements.append(svg.draw_text(_LEFT - 8, top + row * _ROW + 12, f"row {row}", "s d", "e"))
        for first, count, bank in _list_words(buffer, row, shown):
            box = (_LEFT + first / each * _CELL, top + row * _ROW, count / each * _CELL, float(_ROW))
            style = "p D l" if first >= pitch - pad else CYCLE[bank // _BANKS_PER_COLOR]
            cells.append(Cell(*box, style, str(bank)))
            if any(row * pitch + first + n in touched for n in range(count)):
                marks.append(Cell(*box, "mark o"))
    column = Column(top + shown_rows * _ROW + 14, [*elements, *svg.draw_cells([*cells, *marks])])
    for request in requests:
        column.add_moved(_draw_request(request), 10)
    if not loads:
        reader = "wgmma reads whole lines of 128 bytes of this tile"
        column.add_note(f"No load is shown: {reader if buffer.panel else 'no lane loads from it'}.")
    return column.elements, column.y


def _list_layout_words(buffer: Buffer, pad: int) -> Iterator[str]:
    if pad:
        yield f", rows padded by {pad}"
    if int(buffer.swizzle) > 1:
        yield f", swizzle {int(buffer.swizzle)}"
    if buffer.panel:
        yield f", panels of {buffer.panel}"


def _describe_axes(kernel: LaunchTree, buffer: Buffer) -> str:
    """The index along a row of the tile: " along k"."""
    tensor = buffer.name.partition(".")[0]
    loads = [x for x in ex.find_loads(kernel.nest.compute.body) if x.tensor == tensor]
    return f" along {loads[0].index[buffer.order[-1]]}" if loads else ""


def _list_words(buffer: Buffer, row: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(first element, elements, bank) of each run of elements of a row that share a word."""
    start = row * int(buffer.row_pitch)
    stored = np.asarray(buffer.apply_layout(np.arange(start, start + count)))
    word = stored * buffer.dtype.bytes // BANK_BYTES
    edges = [0, *(np.flatnonzero(np.diff(word)) + 1).tolist(), count]
    for first, last in pairwise(edges):
        yield first, last - first, int(word[first]) % BANKS


def _draw_request(request: SharedRequest) -> Drawn:
    """The wavefronts of a request: a row each, a column for each bank, with the lanes that it serves."""
    waves, needed = list_wavefronts(request), request.needed_wavefronts
    conflicts = request.wavefronts - needed
    result = f"{count_nouns(request.wavefronts, 'wavefront')}, {count_nouns(conflicts, 'bank conflict')}"
    size = f"{count_nouns(len(request.address), 'lane')} x {count_nouns(request.width_bytes, 'byte')}"
    words = f"{request.kind} of the first warp, {size}: {request.origin}"
    elements = [svg.draw_text(0, 12, words), svg.draw_text(svg.WIDTH, 12, result, "b", "e")]
    top, cells = 34.0, []
    elements.append(svg.draw_text(_LEFT - 8, top - 4, "numbers are lanes", "y d", "e"))
    for bank in range(0, BANKS, _BANKS_PER_COLOR):
        x = _LEFT + bank * _CELL + 2
        elements.append(svg.draw_text(x, top - 4, f"bank {bank}", "y d"))
    for n, wave in enumerate(waves[:_WAVEFRONTS]):
        y = top + n * _ROW
        elements.append(svg.draw_text(_LEFT - 8, y + 12, f"wavefront {n + 1}", "s d", "e"))
        elements.append(svg.draw_rectangle(_LEFT, y + 1, BANKS * _CELL, _ROW - 2, "p"))
        for bank, count, served in _join_banks(wave):
            style = CYCLE[bank // _BANKS_PER_COLOR]
            text = _format_lanes(served, count)
            cells.append(Cell(_LEFT + bank * _CELL, y, count * _CELL, _ROW, style, text))
    column = Column(top + min(len(waves), _WAVEFRONTS) * _ROW + 4, [*elements, *svg.draw_cells(cells)])
    if len(waves) > _WAVEFRONTS:
        column.add_note(f"The first {_WAVEFRONTS} of {len(waves)} wavefronts are shown.")
    return column.elements, column.y


def _join_banks(wave: Mapping[int, list[int]]) -> Iterator[tuple[int, int, list[int]]]:
    """(first bank, banks, lanes) of neighbouring banks of one color that serve the same lanes."""
    run: tuple[int, int, list[int]] | None = None
    for bank, served in wave.items():
        if run and bank == run[0] + run[1] and bank % _BANKS_PER_COLOR and served == run[2]:
            run = run[0], run[1] + 1, served
            continue
        if run:
            yield run
        run = bank, 1, served
    if run:
        yield run


def _format_lanes(lanes: Sequence[int], banks: int) -> str:
    """Lanes in a cell: "5", "0-3", or the first and an ellipsis where that is too long."""
    if len(lanes) == 1:
        return str(lanes[0])
    text = ",".join(map(str, lanes))
    if lanes[-1] - lanes[0] == len(lanes) - 1:
        text = f"{lanes[0]}-{lanes[-1]}"
    return text if len(text) <= 4 * banks else f"{lanes[0]}\N{HORIZONTAL ELLIPSIS}"
