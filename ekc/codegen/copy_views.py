"""Copies of tiles, by all threads of a block or by each for itself."""

from __future__ import annotations

from typing import Any

from ekc.codegen.names import Names
from ekc.codegen.region_text import box, coordinates, stepped
from ekc.codegen.scope import Scope
from ekc.codegen.shared_memory import array_sizes
from ekc.codegen.types import Arithmetic, converted, move_type, zero
from ekc.ir.access import Buffer
from ekc.ir.nodes import StageNode
from ekc.ir.region import segment_cell
from ekc.ir.strips import strip

_COPIES_WRITTEN_OUT = 8
"""Cooperative copies of up to this many rounds are unrolled whole; longer ones four rounds at a time."""


def cooperative(scope: Scope, node: StageNode) -> dict[str, Any]:
    """A copy by all threads: element numbers, their coordinates, source and destination."""
    size, vector, rounds = int(node.buffer.region.size), int(node.staging.vector), rounds_of(scope, node)
    region = node.buffer.region
    names = scope.names.within(region, scope.names.shared_coordinates(scope.kernel, region))
    text = _copy(scope, node, vector, names)
    wide, row = int(strip(node, scope.threads)), int(region.segments[-1].extent)
    return text | {
        "rounds": rounds,
        "unroll": "" if rounds <= _COPIES_WRITTEN_OUT else " 4",
        "threads": scope.threads,
        "size": size,
        "exact": rounds * scope.threads * vector == size,
        "coordinates": coordinates(region, names, wide),
        "strip": wide,
        "strips": row // wide,
        "next": f"{scope.names[node.buffer.name]}_next",
        "parity": scope.parity.get(node.buffer.name, ""),
    }


def rounds_of(scope: Scope, node: StageNode) -> int:
    """How often each thread has something to move."""
    moves = int(node.buffer.region.size) // int(node.staging.vector)
    return -(-moves // scope.threads)


def private(scope: Scope, node: StageNode) -> dict[str, Any]:
    """A copy by each thread for itself: plain nested loops, all written out."""
    vector = int(node.staging.vector)
    names, loops = scope.tile_loops(node.buffer.region, node.vector_segment, vector)
    return _copy(scope, node, vector, names) | {"loops": loops, "declare": declaration(node.buffer, names)}


def _copy(scope: Scope, node: StageNode, vector: int, names: Names) -> dict[str, Any]:
    """Source element, destination cells, guard and types of one move of `vector` elements."""
    buffer, dtype = node.buffer, node.buffer.dtype if node.produced is not None else node.source.dtype
    copy = scope.parity.get(buffer.name, "")
    cell = segment_cell(buffer.region)
    converts = dtype is not buffer.dtype
    source = _source(scope, node, names)
    return {
        "what": box(scope.names, node.staging.tensor, node.buffer.region),
        "source": converted(source, dtype, buffer.dtype) if converts and vector == 1 else source,
        "produced": node.produced is not None,
        "guard": names.condition(node.source.guards),
        "type": dtype.cuda,
        "zero": zero(buffer.dtype),
        "vector": vector,
        "move": move_type(dtype, vector),
        "contiguous": vector == 1 or (buffer.fastest == node.vector_segment and not converts),
        "bytes": dtype.bytes * vector,
        "target": names.cell(buffer, cell, copy),
        "targets": [names.cell(buffer, stepped(cell, node.vector_segment, v), copy) for v in range(vector)],
        "values": [converted(f"moved[{v}]", dtype, buffer.dtype) for v in range(vector)],
        "name": names[buffer.name],
        "place": "",
        "walk": {},
    }


def _source(scope: Scope, node: StageNode, names: Names) -> str:
    if node.produced is None:
        return scope.copied(node.source, names)
    compute = node.staging.produced_by
    assert compute is not None
    axes = dict(zip((a.name for a in compute.spatial), node.source.index, strict=True))
    reads = node.produced
    acc = compute.acc_dtype
    arithmetic = Arithmetic.of(compute, scope.kernel.tensors)
    value = names.value(compute.body, arithmetic, axes, lambda x: scope.read(reads[x], acc, names))
    return converted(value, acc, node.buffer.dtype)


def declaration(buffer: Buffer, names: Names) -> str:
    """`alignas(16) float C_acc[2][4];`: what each thread has for itself."""
    return f"alignas(16) {buffer.dtype.cuda} {names[buffer.name]}{array_sizes(buffer)};"
