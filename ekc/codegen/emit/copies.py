"""Values for the text of copies of tiles: cooperative (all threads of a block) or private (each thread its
own tile). The text itself is in `templates/nodes.j2`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ekc.codegen.emit.names import CNames, format_array_sizes
from ekc.codegen.emit.scope import Scope
from ekc.codegen.emit.types import choose_move_type, format_conversion, format_zero
from ekc.ir.affine import AffineForm
from ekc.ir.lowering.buffers import Buffer
from ekc.ir.lowering.nodes import StageNode, choose_strip_width
from ekc.ir.lowering.regions import Region, Segment, make_segment_variables


def format_coordinates(region: Region, names: CNames, strip_width: int | None = None) -> list[str]:
    """`const int i = element / 8;` for each segment of a region, or of a strip of `strip_width` elements."""
    extents = [int(s.extent) for s in region.segments]
    if strip_width is not None:
        extents[-1] = strip_width
    lines, below = [], math.prod(extents)
    for i, extent in enumerate(extents):
        below //= extent
        text = "element" if below == 1 else f"element / {below}"
        lines.append(f"const int {names[f'#{i}']} = {text if i == 0 else f'{text} % {extent}'};")
    return lines


def shift_cell(cell: tuple[AffineForm, ...], segment: int | None, by: int) -> tuple[AffineForm, ...]:
    """A cell `by` elements further along one segment."""
    return tuple(form.shift(by) if i == segment else form for i, form in enumerate(cell))


def format_box(names: CNames, tensor: str, region: Region) -> str:
    """A region of a tensor as comments print it: `A[i_0 * 8 : 8, k]`."""
    runs = region.view.joint_ranges if region.view else ()
    names = names.with_names({run.name: run.name for run in runs})
    box = [
        _format_span(names.format_linear(f), [s for s in region.segments if s.dim == dim and not s.is_joint])
        for dim, f in enumerate(region.find_printed_start())
    ]
    joint = ""
    for run in runs:
        span = _format_span(names.format_linear(run.start), region.find_joint_segments(run.pieces))
        joint += f", {run.name} = {span}"
    return f"{tensor}[{', '.join(box)}]{joint}"


def _format_span(start: str, segments: Sequence[Segment]) -> str:
    count = math.prod(int(s.extent) for s in segments)
    return f"{start} : {count}" if count > 1 else start


_MAX_UNROLLED_ROUNDS, _ROUNDS_WRITTEN_OUT = 8, 4
"""Most rounds of a cooperative copy that are all unrolled, and those of a longer copy."""


def build_cooperative_copy(scope: Scope, node: StageNode) -> dict[str, Any]:
    """Values of a copy by all threads: element numbers, their coordinates, source and destination."""
    size, vector, rounds = int(node.buffer.region.size), int(node.staging.vector), count_rounds(scope, node)
    region = node.buffer.region
    names = scope.names.for_region(region, scope.names.name_shared_coordinates(scope.kernel, region))
    text = _build_copy(scope, node, vector, names)
    strip_width, row = int(choose_strip_width(node, scope.thread_count)), int(region.segments[-1].extent)
    return text | {
        "rounds": rounds,
        "unroll": _format_unroll(int(node.staging.unroll), rounds),
        "threads": scope.thread_count,
        "size": size,
        "exact": rounds * scope.thread_count * vector == size,
        "coordinates": format_coordinates(region, names, strip_width),
        "strip": strip_width,
        "strips": row // strip_width,
        "next": f"{scope.names[node.buffer.name]}_next",
        "parity": scope.copy_indices.get(node.buffer.name, ""),
    }


def _format_unroll(unroll: int, rounds: int) -> str:
    """Iterations of the loop over rounds that a pragma writes out; "" for all of them."""
    count = unroll or (rounds if rounds <= _MAX_UNROLLED_ROUNDS else _ROUNDS_WRITTEN_OUT)
    return "" if count >= rounds else f" {count}"


def count_rounds(scope: Scope, node: StageNode) -> int:
    """Vectors that each thread moves, rounded up."""
    moves = int(node.buffer.region.size) // int(node.staging.vector)
    return -(-moves // scope.thread_count)


def build_private_copy(scope: Scope, node: StageNode) -> dict[str, Any]:
    """Values of a copy by each thread of its own tile: nested loops, all unrolled."""
    vector = int(node.staging.vector)
    names, loops = scope.make_tile_loops(node.buffer.region, node.vector_segment, vector)
    declare = format_declaration(node.buffer, names)
    return _build_copy(scope, node, vector, names) | {"loops": loops, "declare": declare}


def _build_copy(scope: Scope, node: StageNode, vector: int, names: CNames) -> dict[str, Any]:
    """Source element, destination cells, guard and types of one move of `vector` elements."""
    buffer, dtype = node.buffer, node.buffer.dtype if node.producer_reads is not None else node.source.dtype
    copy = scope.copy_indices.get(buffer.name, "")
    cell = make_segment_variables(buffer.region)
    converts = dtype is not buffer.dtype
    source = _format_source(scope, node, names)
    targets = [shift_cell(cell, node.vector_segment, v) for v in range(vector)]

    def widen(value: str) -> str:
        return scope.format_widened(value, node.source, buffer.dtype)

    return {
        "what": format_box(scope.names, node.staging.tensor, node.buffer.region),
        "source": widen(source) if converts and vector == 1 else source,
        "produced": node.producer_reads is not None,
        "guard": names.format_condition(node.source.guards),
        "type": dtype.cuda_name,
        "zero": format_zero(buffer.dtype),
        "vector": vector,
        "move": choose_move_type(dtype, vector),
        "contiguous": vector == 1 or (buffer.fastest_segment == node.vector_segment and not converts),
        "bytes": dtype.bytes * vector,
        "target": names.format_cell(buffer, cell, copy),
        "targets": [names.format_cell(buffer, target, copy) for target in targets],
        "values": [widen(f"packed[{v}]") for v in range(vector)],
        "name": names[buffer.name],
        "address": "",
        "pointer": {},
    }


def _format_source(scope: Scope, node: StageNode, names: CNames) -> str:
    if node.producer_reads is None:
        return scope.format_access(node.source, names)
    compute = node.staging.producer
    assert compute is not None
    axes = dict(zip((a.name for a in compute.spatial_axes), node.source.index, strict=True))
    value = scope.format_body(compute, axes, node.producer_reads, names)
    return format_conversion(value, compute.acc_dtype, node.buffer.dtype)


def format_declaration(buffer: Buffer, names: CNames) -> str:
    """Declaration of a private array of a thread: `alignas(16) float C_acc[2][4];`."""
    return f"alignas(16) {buffer.dtype.cuda_name} {names[buffer.name]}{format_array_sizes(buffer)};"
