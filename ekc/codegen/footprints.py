"""Footprints: the part of each global tensor that a block accesses, from the loops of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import Footprint
from ekc.ir.affine import evaluate_form
from ekc.ir.compute import TensorSpec
from ekc.ir.hardware.memory import PAIR_BYTES, SECTOR_BYTES
from ekc.ir.lowering.memory_access import (
    IndexForms,
    count_block_elements,
    derive_block_region,
    find_global_reads,
    find_global_writes,
)
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.lowering.regions import Region, Segment

SAMPLED_BLOCKS, MOST_LISTED = 8, 1 << 22
"""Blocks of which elements are listed where a block accesses no box, and most elements of one."""


def list_footprints(kernel: LaunchTree) -> tuple[Footprint, ...]:
    """The footprint of a block in each global tensor that a launch reads or writes.

    A box ends where the tensor does, and its sectors are the mean over the places where its rows may begin.
    Where a block accesses no box, or windows move over the tensor, its elements are listed."""
    nest = kernel.nest
    reads = [(tensor, "load", forms) for tensor, forms in find_global_reads(nest).items()]
    write_kind = "atomic" if nest.is_atomic else "store"
    accesses = (*reads, (nest.output.name, write_kind, find_global_writes(nest)))
    return tuple(_make_footprint(kernel, *access) for access in accesses)


def _make_footprint(kernel: LaunchTree, tensor: str, kind: str, forms: IndexForms) -> Footprint:
    spec, nest = kernel.tensors[tensor], kernel.nest
    used = {name for read in forms for form in read for name in form.find_variables()}
    loops = tuple((int(x.extent), x.name in used) for x in kernel.block_loops)
    region = derive_block_region(forms, nest)
    if region is None or region.view is not None or _overlaps_edges(region):
        touched = _list_touched(kernel, forms, spec)
        if touched is None:
            elements = float(count_block_elements(forms, nest))
            size = min(elements * spec.dtype.bytes, float(spec.bytes))
            return Footprint(tensor, kind, spec.bytes, size, loops)
        sectors, pairs = (
            float(np.unique(touched * spec.dtype.bytes // size).size) for size in (SECTOR_BYTES, PAIR_BYTES)
        )
        return Footprint(
            tensor, kind, spec.bytes, float(touched.size * spec.dtype.bytes), loops, sectors, pairs
        )
    row_bytes, rows = _measure_rows(region, spec)
    step = _find_alignment(region, spec, row_bytes)
    sectors, pairs = (
        rows * _count_cells(row_bytes, min(step, size), size) for size in (SECTOR_BYTES, PAIR_BYTES)
    )
    return Footprint(tensor, kind, spec.bytes, float(rows * row_bytes), loops, sectors, pairs)


def _overlaps_edges(region: Region) -> bool:
    """Whether windows move over the tensor, and beyond its edges."""
    return any(s.is_hull for s in region.segments) or any(int(form.const) != 0 for form in region.base)


def _list_touched(kernel: LaunchTree, forms: IndexForms, spec: TensorSpec) -> NDArray[np.int64] | None:
    """Elements of a tensor that a block accesses, by their numbers, of that block out of a few that accesses
    the most; None where a block accesses too many to list."""
    nest = kernel.nest
    used = sorted({name for read in forms for form in read for name in form.find_variables()})
    blocks = {x.name: int(x.extent) for x in kernel.block_loops}
    extents = {name: int(x) for name, x in (nest.extents | nest.fused_reduction_extents).items()}
    inner = [name for name in used if name not in blocks]
    if prod(extents[name] for name in inner) > MOST_LISTED:
        return None
    axes = dict(zip(inner, np.ix_(*(np.arange(extents[name]) for name in inner)), strict=True))
    found = []
    total = prod(blocks.values())
    sample = np.random.default_rng(0).choice(total, min(total, SAMPLED_BLOCKS), replace=False)
    for number in sample.tolist():
        values: dict[str, Any] = dict(axes)
        for name, extent in blocks.items():
            values[name], number = number % extent, number // extent
        found.append(_list_elements(forms, values, spec.shape))
    return max(found, key=len)


def _list_elements(forms: IndexForms, values: Mapping[str, Any], shape: Sequence[int]) -> NDArray[np.int64]:
    """Numbers of the elements within the tensor that the reads access, each once."""
    numbers = []
    for read in forms:
        place, is_inside = np.zeros((), np.int64), np.ones((), np.bool_)
        for form, extent in zip(read, shape, strict=True):
            index = np.asarray(evaluate_form(form, values))
            place = place * extent + index
            is_inside = is_inside & (index >= 0) & (index < extent)
        numbers.append(place[np.broadcast_to(is_inside, place.shape)])
    return np.unique(np.concatenate([one.ravel() for one in numbers]))


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
