"""Footprints: the part of each global tensor that a block accesses, from the loops of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from ekc.codegen.compiled import Footprint
from ekc.ir.compute import TensorSpec
from ekc.ir.lowering.memory_access import (
    IndexForms,
    count_block_elements,
    find_block_region,
    find_global_reads,
    find_global_writes,
)
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.lowering.regions import Region, Segment

SECTOR_BYTES, PAIR_BYTES = 32, 64


def list_footprints(kernel: LaunchTree) -> tuple[Footprint, ...]:
    """The footprint of a block in each global tensor that a launch reads or writes.

    A box ends where the tensor does. Its sectors are the mean over the places where its rows may begin."""
    nest = kernel.nest
    reads = [(tensor, "load", forms) for tensor, forms in find_global_reads(nest).items()]
    write_kind = "atomic" if nest.is_atomic else "store"
    accesses = (*reads, (nest.output.name, write_kind, find_global_writes(nest)))
    return tuple(_make_footprint(kernel, *access) for access in accesses)


def _make_footprint(kernel: LaunchTree, tensor: str, kind: str, forms: IndexForms) -> Footprint:
    spec, nest = kernel.tensors[tensor], kernel.nest
    used = {name for read in forms for form in read for name in form.find_variables()}
    loops = tuple((int(x.extent), x.name in used) for x in kernel.block_loops)
    region = find_block_region(forms, nest)
    if region is None or region.view is not None:
        elements = float(count_block_elements(forms, nest))
        return Footprint(tensor, kind, spec.bytes, min(elements * spec.dtype.bytes, float(spec.bytes)), loops)
    row_bytes, rows = _measure_rows(region, spec)
    step = _find_alignment(region, spec, row_bytes)
    sectors, pairs = (
        rows * _count_cells(row_bytes, min(step, size), size) for size in (SECTOR_BYTES, PAIR_BYTES)
    )
    return Footprint(tensor, kind, spec.bytes, float(rows * row_bytes), loops, sectors, pairs)


def _measure_rows(region: Region, spec: TensorSpec) -> tuple[int, int]:
    """Bytes of a part of the box that is one piece in memory, and the number of such parts."""
    extents = [
        min(prod(int(s.extent) for s in region.segments if s.dim == dim), extent)
        for dim, extent in enumerate(spec.shape)
    ]
    row = 1
    for dim, extent in reversed(list(enumerate(spec.shape))):
        piece = _count_neighbours([s for s in region.segments if s.dim == dim], extents[dim])
        row *= piece
        if piece < extent:
            break
    return row * spec.dtype.bytes, prod(extents) // row


def _count_neighbours(segments: Sequence[Segment], most: int) -> int:
    """Neighbouring elements of a box along one dimension."""
    length = 1
    for one in sorted(segments, key=lambda s: int(s.stride)):
        if int(one.stride) != length:
            break
        length *= int(one.extent)
    return min(length, most)


def _find_alignment(region: Region, spec: TensorSpec, row_bytes: int) -> int:
    """Bytes of which every row of the box begins at a multiple, at most a pair of sectors."""
    step, stride = gcd(PAIR_BYTES, row_bytes), spec.dtype.bytes
    for dim, extent in reversed(list(enumerate(spec.shape))):
        for factor in (region.base[dim].const, *(each for _, each in region.base[dim].terms)):
            step = gcd(step, int(factor) * stride)
        for one in region.segments:
            if one.dim == dim and int(one.extent) > 1 and int(one.stride) * stride >= row_bytes:
                step = gcd(step, int(one.stride) * stride)
        stride *= extent
    return step


def _count_cells(row_bytes: int, step: int, size: int) -> float:
    """Cells of `size` bytes that a row touches, mean over starts at multiples of `step`."""
    return (row_bytes - step) / size + 1.0
