"""Buffers and accesses: where an element lies, in elements from the start, and when it exists at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.ir.affine import AffineForm, Extent, find_range
from ekc.ir.compute import TensorSpec
from ekc.ir.dtypes import DType
from ekc.ir.hardware.memory import (
    SWIZZLE_PATTERN_BYTES,
    apply_panel_layout,
    apply_swizzle,
    find_panel_distance,
    find_swizzle_period,
)
from ekc.ir.lowering.regions import Region
from ekc.ir.refusal import make_schedule_error
from ekc.ir.trace.recorder import has_any

MAX_ACCESS_BYTES = 16
"""That one access moves."""


@dataclass(frozen=True, eq=False)
class BoundsGuard:
    """A condition `0 <= form < extent`; either side may be known to hold."""

    form: AffineForm
    extent: int
    needs_lower_check: Any
    """Whether the form can be negative (for a population, for which members)."""
    needs_upper_check: Any
    """Whether it can reach `extent`."""


def has_needed_guard(guards: Iterable[BoundsGuard]) -> Any:
    """Whether any of the guards is needed (for a population, for which members)."""
    some: Any = np.asanyarray(False)
    for g in guards:
        some = some | np.asanyarray(g.needs_lower_check) | np.asanyarray(g.needs_upper_check)
    return some


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory on chip that holds a region: its segments in storage order, rows padded."""

    name: str
    scope: str
    dtype: DType
    region: Region
    order: tuple[int, ...]
    """The tensor's dimensions as stored, slowest first."""
    segment_order: tuple[int, ...]
    """Indices of the region's segments in storage order."""
    storage_extents: tuple[Extent, ...]
    """Extents in storage order, pad included."""
    copy_count: Extent
    swizzle: Extent = 1
    """Chunks of 16 bytes that change places within each line of 128 (`ekc.ir.hardware.memory`)."""
    panel: int = 0
    """Elements of a row that lie side by side before those of the next row (`ekc.ir.hardware.memory`); 0 is all."""

    @property
    def elements(self) -> Extent:
        """Elements of one copy, pad included."""
        total: Extent = 1
        for size in self.storage_extents:
            total = total * size
        return total

    @property
    def bytes(self) -> Extent:
        """Of all copies, as they are declared: a shared row by itself is rounded up to whole vectors."""
        one = self.elements * self.dtype.bytes
        if self.scope == "shared" and len(self.storage_extents) == 1:
            one = -(-one // MAX_ACCESS_BYTES) * MAX_ACCESS_BYTES
        return one * self.copy_count

    @property
    def aligned_bytes(self) -> Extent:
        """Bytes up to where the next shared tile may begin."""
        return -(-self.bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def alignment_bytes(self) -> int:
        """Bytes, of which the place where it begins is a multiple."""
        return SWIZZLE_PATTERN_BYTES if self.panel else MAX_ACCESS_BYTES

    @property
    def row_pitch(self) -> Extent:
        """Elements of a row as stored, pad included."""
        return self.storage_extents[-1]

    @property
    def row_count(self) -> Extent:
        """Rows as stored."""
        return self.elements // self.row_pitch

    @property
    def strides(self) -> tuple[Extent, ...]:
        """Elements between neighbours, for each segment of the region."""
        strides: dict[int, Extent] = {}
        step: Extent = 1
        for segment, size in zip(reversed(self.segment_order), reversed(self.storage_extents), strict=True):
            strides[segment] = step
            step = step * size
        return tuple(strides[i] for i in range(len(self.region.segments)))

    def find_address(self, coordinates: tuple[AffineForm, ...]) -> AffineForm:
        """The element's place, from its coordinate along each segment; panels and a swizzle come on top
        (`placed`)."""
        total = AffineForm()
        for form, stride in zip(coordinates, self.strides, strict=True):
            total = total + form.scale(stride)
        return total

    def apply_layout(self, address: Any) -> Any:
        """Where the element at an address (numbers, not a form) really lies."""
        if self.panel:
            address = apply_panel_layout(address, self.row_pitch, self.row_count, self.panel)
        return apply_swizzle(address, self.swizzle, self.dtype.bytes)

    def find_stored_distance(self, step: int) -> int | None:
        """How far from an element that one lies, of a single tile, whose address is so much greater; None
        where that differs from element to element."""
        found = (
            find_panel_distance(step, int(self.row_pitch), int(self.row_count), self.panel)
            if self.panel
            else step
        )
        whole = find_swizzle_period(int(self.swizzle), self.dtype.bytes)
        return None if found is None or found % whole else found

    @property
    def is_swizzled(self) -> bool:
        """Whether chunks change places for any member of a population."""
        return has_any(np.asanyarray(self.swizzle) != 1)

    def find_segment(self, dim: int) -> int | None:
        """The last (finest) segment along a dimension of the tensor."""
        found = [i for i, s in enumerate(self.region.segments) if s.dim == dim]
        return found[-1] if found else None

    @property
    def fastest_segment(self) -> int:
        """The segment whose elements are neighbours in the buffer."""
        return self.segment_order[-1]


@dataclass(frozen=True, eq=False)
class TensorAccess:
    """One read or write: which tensor, from which buffer (None: global memory), at which element."""

    spec: TensorSpec
    buffer: Buffer | None
    index: tuple[AffineForm, ...]
    """Coordinates in the tensor."""
    address: AffineForm
    """Elements from the start of the buffer or tensor."""
    guards: tuple[BoundsGuard, ...]
    segment_coordinates: tuple[AffineForm, ...] = ()
    """Coordinates along the buffer's segments (empty for global memory)."""

    @property
    def dtype(self) -> DType:
        """The element type where the access goes."""
        return self.spec.dtype if self.buffer is None else self.buffer.dtype


def make_buffer_access(
    spec: TensorSpec,
    buffer: Buffer,
    index: tuple[AffineForm, ...],
    segment_coordinates: tuple[AffineForm, ...],
) -> TensorAccess:
    """An access to a buffer; regions are filled with zeros outside the tensor, so it needs no guard."""
    return TensorAccess(
        spec, buffer, index, buffer.find_address(segment_coordinates), (), segment_coordinates
    )


def make_buffer(
    name: str,
    scope: str,
    dtype: DType,
    region: Region,
    order: tuple[int, ...],
    pad: Extent,
    copy_count: Extent,
    swizzle: Extent = 1,
    panel: int = 0,
) -> Buffer:
    """A buffer for a region, its dimensions stored in `order`, `pad` elements after each row."""
    stored = tuple(
        sorted(range(len(region.segments)), key=lambda i: (order.index(region.segments[i].dim), i))
    )
    sizes = [region.segments[i].extent for i in stored]
    sizes[-1] = sizes[-1] + pad
    return Buffer(name, scope, dtype, region, order, stored, tuple(sizes), copy_count, swizzle, panel)


def make_global_access(
    spec: TensorSpec, index: tuple[AffineForm, ...], extents: Mapping[str, Extent]
) -> TensorAccess:
    """An access to global memory, guarded where its index can leave the tensor."""
    address = AffineForm()
    for form, stride in zip(index, spec.strides, strict=True):
        address = address + form.scale(stride)
    return TensorAccess(spec, None, index, address, find_guards(index, spec.shape, extents))


def find_guards(
    index: tuple[AffineForm, ...], shape: tuple[int, ...], extents: Mapping[str, Extent]
) -> tuple[BoundsGuard, ...]:
    """The bounds that loop ranges alone do not guarantee (for any member of a population)."""
    guards = []
    for form, extent in zip(index, shape, strict=True):
        low, high = find_range(form, extents)
        below, above = low < 0, high >= extent
        if has_any(below) or has_any(above):
            guards.append(BoundsGuard(form, extent, below, above))
    return tuple(guards)


def substitute_access(access: TensorAccess, replacements: Mapping[str, AffineForm]) -> TensorAccess:
    """An access with loop variables or segment coordinates replaced."""
    return replace(
        access,
        index=tuple(form.substitute(replacements) for form in access.index),
        address=access.address.substitute(replacements),
        segment_coordinates=tuple(form.substitute(replacements) for form in access.segment_coordinates),
        guards=tuple(replace(g, form=g.form.substitute(replacements)) for g in access.guards),
    )


def locate_part_element(buffer: Buffer, part: Region) -> tuple[AffineForm, ...]:
    """Segment coordinates in `buffer` of the element at `#0`, `#1`, ... of a part of its region."""
    region = buffer.region
    if region.view is None:
        return locate_element(buffer, part.find_coordinates())
    return _locate_in_segments(buffer, part.find_coordinates(), part)


def locate_element(buffer: Buffer, coordinates: tuple[AffineForm, ...]) -> tuple[AffineForm, ...]:
    """Segment coordinates in `buffer` of a tensor element given by its tensor coordinates."""
    if buffer.region.view is not None:
        # Which element of a view a place in the tensor is has no one answer.
        raise make_schedule_error(
            "compute_at",
            f"{buffer.name} as a box of the tensor",
            f"the tile {buffer.name} cuts a joint loop",
            "compute_at before fuse, or copy from global memory",
        )
    return _locate_in_segments(buffer, coordinates, None)


def _locate_in_segments(
    buffer: Buffer, coordinates: tuple[AffineForm, ...], part: Region | None
) -> tuple[AffineForm, ...]:
    region = buffer.region
    dims = [s.dim for s in region.segments if not s.is_joint]
    if len(set(dims)) != len(dims):
        raise make_schedule_error(
            "cache_read",
            f"{buffer.name} without gaps",
            f"a serial loop outside the tile {buffer.name} cuts it in slices",
            "reorder that loop inside, or copy from global memory",
        )
    forms = []
    for s in region.segments:
        if s.is_joint and part is not None:
            forms.append(part.find_joint_coordinate(s))
            continue
        offset = region.find_offset(coordinates, s.dim)
        forms.append(AffineForm(tuple((a, c // s.stride) for a, c in offset.terms), offset.const // s.stride))
    return tuple(forms)
