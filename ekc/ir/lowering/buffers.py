"""Buffers and accesses: the address of an element, and the guards under which the element exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ekc.ir.affine import AffineForm, Extent, find_range, sum_scaled_forms
from ekc.ir.compute import TensorSpec
from ekc.ir.dtypes import DType
from ekc.ir.hardware.memory import (
    SWIZZLE_PATTERN_BYTES,
    apply_panel_layout,
    apply_swizzle,
    compute_panel_distance,
    compute_swizzle_period,
)
from ekc.ir.lowering.regions import Region
from ekc.ir.refusal import make_schedule_error
from ekc.ir.trace.recorder import has_any

MAX_ACCESS_BYTES = 16
"""Most bytes that one access moves."""


@dataclass(frozen=True, eq=False)
class BoundsGuard:
    """A condition `0 <= form < extent`; either side may need no check."""

    form: AffineForm
    extent: int
    needs_lower_check: Any
    """Whether the form can be negative (for a population, for which members)."""
    needs_upper_check: Any
    """Whether the form can reach `extent` (for a population, for which members)."""


def has_needed_guard(guards: Iterable[BoundsGuard]) -> Any:
    """Whether any of the guards is needed (for a population, for which members)."""
    some: Any = np.False_
    for g in guards:
        some = some | g.needs_lower_check | g.needs_upper_check
    return some


@dataclass(frozen=True, eq=False)
class Buffer:
    """A region held in shared memory, fragments or registers: its segments in storage order, rows padded."""

    name: str
    scope: str
    dtype: DType
    region: Region
    order: tuple[int, ...]
    """The tensor's dimensions as stored, slowest first."""
    segment_order: tuple[int, ...]
    """Indices of the region's segments in storage order."""
    storage_extents: tuple[Extent, ...]
    """Extents of the segments in storage order, pad included in the last."""
    copy_count: Extent
    swizzle: Extent = 1
    """Chunks of 16 bytes that change places in each line of 128 (`ekc.ir.hardware.memory`); 1: none."""
    panel: int = 0
    """Elements of a row in one panel (`ekc.ir.hardware.memory`); 0 is no panels."""

    @property
    def elements(self) -> Extent:
        """Elements of one copy, pad included."""
        return prod(self.storage_extents)

    @property
    def bytes(self) -> Extent:
        """Bytes of all copies, as declared; a shared buffer of one row is rounded up to whole vectors."""
        one = self.elements * self.dtype.bytes
        if self.scope == "shared" and len(self.storage_extents) == 1:
            one = -(-one // MAX_ACCESS_BYTES) * MAX_ACCESS_BYTES
        return one * self.copy_count

    @property
    def aligned_bytes(self) -> Extent:
        """Bytes of all copies, rounded up to the alignment."""
        return -(-self.bytes // self.alignment_bytes) * self.alignment_bytes

    @property
    def alignment_bytes(self) -> int:
        """Alignment of the buffer's start in bytes."""
        return SWIZZLE_PATTERN_BYTES if self.panel else MAX_ACCESS_BYTES

    @property
    def row_pitch(self) -> Extent:
        """Elements of a row as stored, pad included."""
        return self.storage_extents[-1]

    @property
    def row_count(self) -> Extent:
        """Number of rows as stored."""
        return self.elements // self.row_pitch

    @property
    def strides(self) -> tuple[Extent, ...]:
        """Elements between neighbours along each segment of the region."""
        strides: dict[int, Extent] = {}
        step: Extent = 1
        for segment, size in zip(reversed(self.segment_order), reversed(self.storage_extents), strict=True):
            strides[segment] = step
            step = step * size
        return tuple(strides[i] for i in range(len(self.region.segments)))

    def compute_address(self, coordinates: tuple[AffineForm, ...]) -> AffineForm:
        """Address of the element with these coordinates, without panels and swizzle (`apply_layout`)."""
        return sum_scaled_forms(coordinates, self.strides)

    def apply_layout(self, address: Any) -> Any:
        """Stored address of the element at an address; numbers, not a form. Panels and swizzle applied."""
        if self.panel:
            address = apply_panel_layout(address, self.row_pitch, self.row_count, self.panel)
        return apply_swizzle(address, self.swizzle, self.dtype.bytes)

    def compute_stored_distance(self, step: int) -> int | None:
        """Stored distance of two elements whose addresses differ by `step`; None where it is not constant."""
        distance: int | None = step
        if self.panel:
            distance = compute_panel_distance(step, int(self.row_pitch), int(self.row_count), self.panel)
        period = compute_swizzle_period(int(self.swizzle), self.dtype.bytes)
        return None if distance is None or distance % period else distance

    @property
    def is_swizzled(self) -> bool:
        """Whether the buffer is swizzled, for any member of a population."""
        return has_any(self.swizzle != 1)

    def find_segment(self, dim: int) -> int | None:
        """Index of the last (finest) segment along a dimension of the tensor."""
        segments = [i for i, s in enumerate(self.region.segments) if s.dim == dim]
        return segments[-1] if segments else None

    @property
    def fastest_segment(self) -> int:
        """Index of the segment whose elements are neighbours in the buffer."""
        return self.segment_order[-1]


@dataclass(frozen=True, eq=False)
class TensorAccess:
    """One read or write: the tensor, the buffer (None: global memory), and the element."""

    spec: TensorSpec
    buffer: Buffer | None
    index: tuple[AffineForm, ...]
    """Coordinates of the element in the tensor."""
    address: AffineForm
    """Elements from the start of the buffer or tensor to the element."""
    guards: tuple[BoundsGuard, ...]
    segment_coordinates: tuple[AffineForm, ...] = ()
    """Coordinates along the buffer's segments (empty for global memory)."""

    @property
    def dtype(self) -> DType:
        """Element type in the memory that is accessed."""
        return self.spec.dtype if self.buffer is None else self.buffer.dtype


def make_buffer_access(
    spec: TensorSpec,
    buffer: Buffer,
    index: tuple[AffineForm, ...],
    segment_coordinates: tuple[AffineForm, ...],
) -> TensorAccess:
    """An access to a buffer. It needs no guard: buffers are filled with zeros outside the tensor."""
    address = buffer.compute_address(segment_coordinates)
    return TensorAccess(spec, buffer, index, address, (), segment_coordinates)


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
    places = [(order.index(s.dim), i) for i, s in enumerate(region.segments)]
    segment_order = tuple(i for _, i in sorted(places))
    sizes = [region.segments[i].extent for i in segment_order]
    sizes[-1] = sizes[-1] + pad
    return Buffer(name, scope, dtype, region, order, segment_order, tuple(sizes), copy_count, swizzle, panel)


def make_global_access(
    spec: TensorSpec, index: tuple[AffineForm, ...], extents: Mapping[str, Extent]
) -> TensorAccess:
    """An access to global memory, guarded where its index can leave the tensor."""
    address = sum_scaled_forms(index, spec.strides)
    return TensorAccess(spec, None, index, address, find_guards(index, spec.shape, extents))


def find_guards(
    index: tuple[AffineForm, ...], shape: tuple[int, ...], extents: Mapping[str, Extent]
) -> tuple[BoundsGuard, ...]:
    """Guards for bounds that the ranges of the loops do not guarantee (for some member of a population)."""
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
        # An element of the tensor may appear several times in an im2col tile.
        raise make_schedule_error(
            "compute_at",
            need=f"{buffer.name} as a box of the tensor",
            problem=f"the tile {buffer.name} cuts a joint loop",
            remedy="compute_at before fuse, or copy from global memory",
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
            need=f"{buffer.name} without gaps",
            problem=f"a serial loop outside the tile {buffer.name} cuts it in slices",
            remedy="reorder that loop inside, or copy from global memory",
        )
    forms = []
    for s in region.segments:
        if s.is_joint and part is not None:
            forms.append(part.derive_joint_coordinate(s))
            continue
        offset = region.compute_offset(coordinates, s.dim)
        forms.append(AffineForm(tuple((a, c // s.stride) for a, c in offset.terms), offset.const // s.stride))
    return tuple(forms)
