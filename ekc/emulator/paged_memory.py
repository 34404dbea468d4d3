"""Global memory that holds only the pages that a kernel touches.

Addresses are those of the whole arrays, so bounds, sectors and findings do not change. A page is loaded when
it is first touched. Its bytes, and the sanitizer's marks for them, are in a pool of all pages loaded so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.memory import Access, AddressProbe, AddressSpace, Allocation, Index
from ekc.errors import EkcError
from ekc.host_memory import format_bytes, measure_free_memory

PAGE_BYTES = 1 << 10
"""Bytes of a page: a few rows of a tile, so that one that is read by columns does not bring in its rows."""
_PAGE_SHIFT = PAGE_BYTES.bit_length() - 1
_FIRST_PAGES = 64

Pages = NDArray[np.uint8]
"""Bytes, a row for each page."""


@runtime_checkable
class PagedSource(Protocol):
    """An array argument that supplies pages when a kernel touches them, and takes them back afterwards.

    Pages are counted from the start of the array. The last may reach beyond its end; the bytes there are not
    used.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""

    @property
    def writable(self) -> bool:
        """Whether a kernel may write it."""

    def read_pages(self, pages: Index) -> Pages:
        """The bytes of these pages before the launch."""

    def write_pages(self, pages: Index, content: Pages) -> None:
        """Take back the pages that the launch touched; called only if `writable`."""


@dataclass(frozen=True)
class BlankArray:
    """An array whose content does not matter: nothing is copied in or out."""

    nbytes: int
    writable: bool = True

    def read_pages(self, pages: Index) -> Pages:
        """See `PagedSource`."""
        return np.zeros((len(pages), PAGE_BYTES), np.uint8)

    def write_pages(self, pages: Index, content: Pages) -> None:
        """See `PagedSource`."""


@dataclass(frozen=True, eq=False)
class LoadedArray:
    """An array whose bytes are all in memory."""

    raw: NDArray[np.uint8]
    writable: bool

    @property
    def nbytes(self) -> int:
        """See `PagedSource`."""
        return self.raw.size

    def read_pages(self, pages: Index) -> Pages:
        """See `PagedSource`."""
        found = np.zeros((len(pages), PAGE_BYTES), np.uint8)
        for row, page in zip(found, pages.tolist(), strict=True):
            part = self.raw[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            row[: part.size] = part
        return found

    def write_pages(self, pages: Index, content: Pages) -> None:
        """See `PagedSource`."""
        for row, page in zip(content, pages.tolist(), strict=True):
            part = self.raw[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            part[...] = row[: part.size]


class PagedAddressSpace(AddressSpace):
    """An address space whose bytes are those of the pages touched so far."""

    def __init__(self, kind: str, allocations: list[Allocation], sources: list[PagedSource]) -> None:
        """One source for each allocation, in order."""
        super().__init__(kind, _FIRST_PAGES * PAGE_BYTES, allocations)
        order = sorted(range(len(sources)), key=lambda i: allocations[i].start)
        self._sources = [sources[i] for i in order]
        self._page_slots: list[NDArray[np.int32] | None] = [None] * len(sources)
        """Source -> index of each of its pages in the pool; 0 where the page was not touched."""
        self._source_starts = np.array(self.allocation_starts, np.int64)
        self._used_pages = 1
        self.shadow_bytes_per_byte = 0.0
        """Bytes that the sanitizer keeps for each byte of memory."""

    def make_resident(self, access: Access) -> Access:
        """Load the pages of an access, which must be inside allocations; returns the access to the pool."""
        site, act, address = access.site, access.probe.act, access.list_addresses()
        if not address.size:
            return access
        inside = self._find_source(int(address.min()), int(address.max()))
        if inside is not None:
            base = self._compute_pool_offsets(inside, address) - address
            return Access(site, AddressProbe(self, address, base, act), 0)
        place, which = np.empty_like(address), np.searchsorted(self._source_starts, address, side="right") - 1
        for number in np.unique(which).tolist():
            mine = which == number
            place[mine] = self._compute_pool_offsets(number, address[mine])
        return Access(site, AddressProbe(self, address, place - address, act), 0)

    def write_back(self) -> None:
        """Return the touched pages of writable arrays to their sources."""
        for source, places in zip(self._sources, self._page_slots, strict=True):
            if source.writable and places is not None:
                pages = np.flatnonzero(places)
                source.write_pages(pages, self.bytes.reshape(-1, PAGE_BYTES)[places[pages]])

    def _find_source(self, low: int, high: int) -> int | None:
        """The source that contains a range of addresses; None if several do."""
        first, last = np.searchsorted(self._source_starts, (low, high), side="right").tolist()
        return first - 1 if first == last else None

    def _compute_pool_offsets(self, number: int, address: Index) -> Index:
        """Offsets in the pool of the bytes at some addresses of a source."""
        places = self._page_slots[number]
        if places is None:
            places = np.zeros(-(-self._sources[number].nbytes // PAGE_BYTES), np.int32)
            self._page_slots[number] = places
        relative = address - self.allocation_starts[number]
        page = relative >> _PAGE_SHIFT
        slots = places[page]
        if not slots.all():
            self._load_pages(number, places, np.unique(page[slots == 0]))
            slots = places[page]
        return np.asarray((slots.astype(np.int64) << _PAGE_SHIFT) + (relative & (PAGE_BYTES - 1)))

    def _load_pages(self, number: int, page_slots: NDArray[np.int32], pages: Index) -> None:
        end = self._used_pages + len(pages)
        if end * PAGE_BYTES > self.bytes.size:
            self._grow_pool(end)
        self.bytes.reshape(-1, PAGE_BYTES)[self._used_pages : end] = self._sources[number].read_pages(pages)
        page_slots[pages] = np.arange(self._used_pages, end, dtype=np.int32)
        self._used_pages = end

    def _grow_pool(self, pages: int) -> None:
        """Grow the pool to at least `pages` pages, and at least to twice its size."""
        before, size = self.bytes, max(pages * PAGE_BYTES, 2 * self.bytes.size)
        needed, left = int(size * (1 + self.shadow_bytes_per_byte)), measure_free_memory()
        if needed > left.bytes:
            raise EkcError(
                f"memory: the blocks that run touch more than {format_bytes(before.size)}, to hold it needs "
                f"{format_bytes(needed)}, this host has {left}; use smaller extents"
            )
        self.allocate_bytes(size)
        self.bytes[: before.size] = before


def grow_array(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array, extended by zeros to a size."""
    grown = np.zeros(size, array.dtype)
    grown[: array.size] = array
    return grown
