"""Buffers and accesses: where an element lies, in elements from the start, and when it exists at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.ir.dtypes import DType
from ekc.ir.linear import Extent, Linear, span
from ekc.ir.operator import TensorSpec
from ekc.ir.panels import PATTERN_BYTES, apart, paneled
from ekc.ir.refusal import refuse
from ekc.ir.region import Region
from ekc.ir.swizzle import period, swizzled
from ekc.ir.tape.tape import some

MOST_BYTES = 16
"""That one access moves."""


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition `0 <= form < extent`; either side may be known to hold."""

    form: Linear
    extent: int
    below: Any
    """Whether the form can be negative (for a population, for which members)."""
    above: Any
    """Whether it can reach `extent`."""


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory on chip that holds a region: its segments in storage order, rows padded."""

    name: str
    scope: str
    dtype: DType
    region: Region
    order: tuple[int, ...]
    """The tensor's dimensions as stored, slowest first."""
    stored: tuple[int, ...]
    """Indices of the region's segments in storage order."""
    sizes: tuple[Extent, ...]
    """Extents in storage order, pad included."""
    copies: Extent
    swizzle: Extent = 1
    """Chunks of 16 bytes that change places within each line of 128 (`ekc.ir.swizzle`)."""
    panel: int = 0
    """Elements of a row that lie side by side before those of the next row (`ekc.ir.panels`); 0 is all."""

    @property
    def elements(self) -> Extent:
        """Elements of one copy, pad included."""
        total: Extent = 1
        for size in self.sizes:
            total = total * size
        return total

    @property
    def bytes(self) -> Extent:
        """Of all copies, as they are declared: a shared row by itself is rounded up to whole vectors."""
        one = self.elements * self.dtype.bytes
        if self.scope == "shared" and len(self.sizes) == 1:
            one = -(-one // MOST_BYTES) * MOST_BYTES
        return one * self.copies

    @property
    def room(self) -> Extent:
        """Bytes up to where the next shared tile may begin."""
        return -(-self.bytes // self.alignment) * self.alignment

    @property
    def alignment(self) -> int:
        """Bytes, of which the place where it begins is a multiple."""
        return PATTERN_BYTES if self.panel else MOST_BYTES

    @property
    def width(self) -> Extent:
        """Elements of a row as stored, pad included."""
        return self.sizes[-1]

    @property
    def rows(self) -> Extent:
        """Rows as stored."""
        return self.elements // self.width

    @property
    def strides(self) -> tuple[Extent, ...]:
        """Elements between neighbours, for each segment of the region."""
        strides: dict[int, Extent] = {}
        step: Extent = 1
        for segment, size in zip(reversed(self.stored), reversed(self.sizes), strict=True):
            strides[segment] = step
            step = step * size
        return tuple(strides[i] for i in range(len(self.region.segments)))

    def address(self, coordinates: tuple[Linear, ...]) -> Linear:
        """The element's place, from its coordinate along each segment; panels and a swizzle come on top
        (`placed`)."""
        total = Linear()
        for form, stride in zip(coordinates, self.strides, strict=True):
            total = total + form.scaled(stride)
        return total

    def placed(self, address: Any) -> Any:
        """Where the element at an address (numbers, not a form) really lies."""
        if self.panel:
            address = paneled(address, self.width, self.rows, self.panel)
        return swizzled(address, self.swizzle, self.dtype.bytes)

    def apart(self, step: int) -> int | None:
        """How far from an element that one lies, of a single tile, whose address is so much greater; None
        where that differs from element to element."""
        found = apart(step, int(self.width), int(self.rows), self.panel) if self.panel else step
        whole = period(int(self.swizzle), self.dtype.bytes)
        return None if found is None or found % whole else found

    @property
    def may_swizzle(self) -> bool:
        """Whether chunks change places for any member of a population."""
        return some(np.asanyarray(self.swizzle) != 1)

    def segment_of(self, dim: int) -> int | None:
        """The last (finest) segment along a dimension of the tensor."""
        found = [i for i, s in enumerate(self.region.segments) if s.dim == dim]
        return found[-1] if found else None

    @property
    def fastest(self) -> int:
        """The segment whose elements are neighbours in the buffer."""
        return self.stored[-1]


@dataclass(frozen=True, eq=False)
class Access:
    """One read or write: which tensor, from which buffer (None: global memory), at which element."""

    spec: TensorSpec
    buffer: Buffer | None
    index: tuple[Linear, ...]
    """Coordinates in the tensor."""
    address: Linear
    """Elements from the start of the buffer or tensor."""
    guards: tuple[Guard, ...]
    cell: tuple[Linear, ...] = ()
    """Coordinates along the buffer's segments (empty for global memory)."""

    @property
    def dtype(self) -> DType:
        """The element type where the access goes."""
        return self.spec.dtype if self.buffer is None else self.buffer.dtype


def buffer_access(
    spec: TensorSpec, buffer: Buffer, index: tuple[Linear, ...], cell: tuple[Linear, ...]
) -> Access:
    """An access to a buffer; regions are filled with zeros outside the tensor, so it needs no guard."""
    return Access(spec, buffer, index, buffer.address(cell), (), cell)


def make_buffer(
    name: str,
    scope: str,
    dtype: DType,
    region: Region,
    order: tuple[int, ...],
    pad: Extent,
    copies: Extent,
    swizzle: Extent = 1,
    panel: int = 0,
) -> Buffer:
    """A buffer for a region, its dimensions stored in `order`, `pad` elements after each row."""
    stored = tuple(
        sorted(range(len(region.segments)), key=lambda i: (order.index(region.segments[i].dim), i))
    )
    sizes = [region.segments[i].extent for i in stored]
    sizes[-1] = sizes[-1] + pad
    return Buffer(name, scope, dtype, region, order, stored, tuple(sizes), copies, swizzle, panel)


def global_access(spec: TensorSpec, index: tuple[Linear, ...], extents: Mapping[str, Extent]) -> Access:
    """An access to global memory, guarded where its index can leave the tensor."""
    address = Linear()
    for form, stride in zip(index, spec.strides, strict=True):
        address = address + form.scaled(stride)
    return Access(spec, None, index, address, guards_of(index, spec.shape, extents))


def guards_of(
    index: tuple[Linear, ...], shape: tuple[int, ...], extents: Mapping[str, Extent]
) -> tuple[Guard, ...]:
    """The bounds that loop ranges alone do not guarantee (for any member of a population)."""
    guards = []
    for form, extent in zip(index, shape, strict=True):
        low, high = span(form, extents)
        below, above = low < 0, high >= extent
        if some(below) or some(above):
            guards.append(Guard(form, extent, below, above))
    return tuple(guards)


def moved(access: Access, move: Mapping[str, Linear]) -> Access:
    """An access with loop variables or segment coordinates replaced."""
    return replace(
        access,
        index=tuple(form.substitute(move) for form in access.index),
        address=access.address.substitute(move),
        cell=tuple(form.substitute(move) for form in access.cell),
        guards=tuple(replace(g, form=g.form.substitute(move)) for g in access.guards),
    )


def cell_within(buffer: Buffer, part: Region) -> tuple[Linear, ...]:
    """Segment coordinates in `buffer` of the element at `#0`, `#1`, ... of a part of its region."""
    region = buffer.region
    if region.view is None:
        return cell_of(buffer, part.coordinates())
    return _cells(buffer, part.coordinates(), part)


def cell_of(buffer: Buffer, coordinates: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """Segment coordinates in `buffer` of a tensor element given by its tensor coordinates."""
    if buffer.region.view is not None:
        # Which element of a view a place in the tensor is has no one answer.
        raise refuse(
            "compute_at",
            f"{buffer.name} as a box of the tensor",
            "its tile cuts a joint loop",
            "compute_at before fuse, or copy from global memory",
        )
    return _cells(buffer, coordinates, None)


def _cells(buffer: Buffer, coordinates: tuple[Linear, ...], part: Region | None) -> tuple[Linear, ...]:
    region = buffer.region
    dims = [s.dim for s in region.segments if not s.joint]
    if len(set(dims)) != len(dims):
        raise refuse(
            "cache_read",
            f"{buffer.name} without gaps",
            "a serial loop outside it cuts its tile in slices",
            "reorder that loop inside, or copy from global memory",
        )
    forms = []
    for s in region.segments:
        if s.joint and part is not None:
            forms.append(part.along(s))
            continue
        offset = region.offset(coordinates, s.dim)
        forms.append(Linear(tuple((a, c // s.stride) for a, c in offset.terms), offset.const // s.stride))
    return tuple(forms)
