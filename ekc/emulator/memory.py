"""Address spaces as flat bytes, and accesses to them by the lanes of a batch.

An `AddressProbe` holds the addresses of one access. Atomic operations of several lanes on one address run one
after another, in lane order. `Access.list_cells` splits an access into cells of one size, so that accesses
of different widths can be compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decode.context import Site, dtype_of
from ekc.emulator.numerics import fma
from ekc.emulator.numerics.rounding import flush
from ekc.errors import EkcError

Index = NDArray[np.int64]
Lanes = NDArray[Any]

GLOBAL_BASE = 0x7_0000_0000
SHARED_WINDOW = 0x7F00_0000_0000
LOCAL_WINDOW = 0x7E00_0000_0000
WINDOW_SIZE = 1 << 32
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3}


@dataclass(frozen=True, slots=True)
class Allocation:
    """A range of addresses that may be touched: [start, end)."""

    name: str
    start: int
    end: int
    writable: bool = True
    argument_number: int | None = None
    """Position of the array among the arguments of the launch; None for other memory."""


class AddressSpace:
    """The bytes of one address space, and the allocated ranges of its addresses."""

    def __init__(self, kind: str, size: int, allocations: list[Allocation]) -> None:
        self.kind = kind
        self.allocate_bytes(size)
        self.allocations = sorted(allocations, key=lambda one: one.start)
        self.allocation_starts = [one.start for one in self.allocations]

    def allocate_bytes(self, size: int) -> None:
        """Replace the memory by `size` zero bytes."""
        self.bytes = np.zeros((size + 15) // 16 * 16, np.uint8)
        self.views = {code: self.bytes.view(code) for code in ("u1", "i1", "u2", "i2", "u4", "u8")}

    def make_resident(self, access: Access) -> Access:
        """Load the pages of an access; returns it as it applies to `bytes`. Here all bytes are loaded."""
        return access

    def find_allocation(self, low: int, high: int) -> Allocation | None:
        """The allocation that holds all of [low, high)."""
        at = bisect_right(self.allocation_starts, low) - 1
        if at >= 0 and high <= self.allocations[at].end:
            return self.allocations[at]
        return None

    def is_in_bounds(self, address: Index, size: int | Index, needs_write: bool = False) -> NDArray[np.bool_]:
        """Whether each access of `size` bytes is inside one allocation; a writable one if `needs_write`."""
        if not self.allocations:
            return np.zeros(address.shape, np.bool_)
        at = np.searchsorted(np.array(self.allocation_starts, np.int64), address, side="right") - 1
        ends = np.array([one.end * (one.writable or not needs_write) for one in self.allocations], np.int64)
        return np.asarray((at >= 0) & (address + size <= ends[np.maximum(at, 0)]))

    def describe_nearest(self, address: int) -> str:
        """The position of an address relative to the nearest allocation, in words."""
        if not self.allocations:
            return f"there is no {self.kind} memory"
        best = min(self.allocations, key=lambda a: max(a.start - address, address - a.end + 1, 0))
        if address >= best.end:
            return f"{address - best.end} bytes after the end of {best.name} ({best.end - best.start} bytes)"
        if address < best.start:
            return f"{best.start - address} bytes before {best.name} ({best.end - best.start} bytes)"
        return f"{best.end - address} bytes before the end of {best.name}"


class AddressProbe:
    """The addresses of one access by the active lanes, with their range and common low bits."""

    __slots__ = (
        "act", "address", "base", "bits", "high", "indices", "low", "origin", "pattern", "shift", "space",
    )  # fmt: skip

    def __init__(self, space: AddressSpace, address: Index, base: Index | int, act: Index | None) -> None:
        self.space = space
        self.address = address
        self.base = base
        self.origin = base if isinstance(base, int) else 0
        self.act = act
        if address.size:
            self.low, self.high = int(address.min()), int(address.max())
            self.bits = int(np.bitwise_or.reduce(address))
        else:
            self.low, self.high, self.bits = 0, -1, 0
        self.indices: dict[int, Index] = {}
        self.pattern: Any = None
        self.shift = 0

    def element_indices(self, size: int) -> Index:
        """Element indices for elements of `size` bytes, without any immediate offset."""
        indices = self.indices.get(size)
        if indices is None:
            indices = (self.address + self.base) >> _SHIFT[size]
            self.indices[size] = indices
        return indices

    def select_lanes(self, offset: int, is_kept: NDArray[np.bool_] | None = None) -> AddressProbe:
        """The probe of the selected lanes at these addresses plus `offset`."""
        if is_kept is None:
            return AddressProbe(self.space, self.address + offset, self.base, self.act)
        act = np.flatnonzero(is_kept) if self.act is None else self.act[is_kept]
        base = self.base if isinstance(self.base, int) else self.base[is_kept]
        return AddressProbe(self.space, self.address[is_kept] + offset, base, act)

    def lane_numbers(self, all_lanes: Index) -> Index:
        """Lane numbers, in the order of the addresses."""
        return all_lanes if self.act is None else self.act


Views = dict[str, Lanes]


def _shift_view(probe: AddressProbe, code: str, offset: int, views: Views | None) -> tuple[Lanes, Index]:
    """A view that begins `offset` bytes later, and the indices into it."""
    size = int(code[1])
    view, step = (views or probe.space.views)[code], offset // size
    if step >= 0 and probe.low + probe.origin >= 0:
        return view[step:], probe.element_indices(size)
    return view, probe.element_indices(size) + step


def gather(
    probe: AddressProbe, code: str, offset: int, views: Views | None = None, out: Lanes | None = None
) -> Lanes:
    """Elements at the probe's addresses plus `offset` bytes, which must be aligned and inside; in a new
    array, or in a register row where all lanes are active."""
    view, index = _shift_view(probe, code, offset, views)
    return view.take(index, out=out, mode="clip")


def scatter(probe: AddressProbe, code: str, offset: int, values: Any, views: Views | None = None) -> None:
    """Write elements. Where several lanes write one address, the value of the last lane stays."""
    view, index = _shift_view(probe, code, offset, views)
    view[index] = values


@dataclass(eq=False, slots=True)
class Access:
    """One access by the lanes of a probe."""

    site: Site
    probe: AddressProbe
    offset: int
    """Bytes that are added to the addresses of the probe."""

    @property
    def low(self) -> int:
        """The lowest address."""
        return self.probe.low + self.offset

    @property
    def high(self) -> int:
        """One past the highest byte."""
        return self.probe.high + self.offset + self.site.bytes_per_lane

    def list_addresses(self) -> Index:
        """The address of the first element of every lane."""
        return self.probe.address + self.offset

    def list_cells(self, cell_bytes: int) -> Index:
        """The numbers of the cells that the access touches: a row for each lane."""
        first = self.probe.element_indices(cell_bytes) + self.offset // cell_bytes
        return first[:, None] + np.arange(self.site.bytes_per_lane // cell_bytes)

    def read(self, number: int, out: Lanes | None = None) -> Lanes:
        """The element of this number of every lane."""
        at = self.offset + number * self.site.element_bytes
        return gather(self.probe, self.site.dtype_code, at, out=out)

    def write(self, values: tuple[Any, ...]) -> None:
        """Write the elements of every lane."""
        for k, value in enumerate(values):
            scatter(self.probe, self.site.dtype_code, self.offset + k * self.site.element_bytes, value)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "exch": lambda old, new: new,
    "cas": lambda old, compare, new: np.where(old == compare, new, old),
    "inc": lambda old, top: np.where(old >= top, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, top: np.where((old == 0) | (old > top), top, old - old.dtype.type(1)),
}


def apply_atomic(
    probe: AddressProbe, offset: int, operation: str, type_name: str, values: tuple[Any, ...]
) -> Any:
    """Apply an atomic operation; returns the old values in lane order."""
    code, raw = dtype_of(type_name), f"u{np.dtype(dtype_of(type_name)).itemsize}"
    step = _find_operation(operation, type_name, probe.space.kind)
    place = probe.element_indices(int(raw[1]))
    order = np.argsort(place, kind="stable")
    turn = _rank_conflicts(place[order])
    if not turn.any():
        old = gather(probe, raw, offset).view(code)
        scatter(probe, raw, offset, np.asarray(step(old, *values)).view(raw))
        return old
    return _apply_in_turns(probe, offset, step, values, (code, raw), order, turn)


def _flushing_add(old: Any, new: Any) -> Any:
    """Add float32 in global memory, where subnormal numbers count as zeros (in shared memory they do not)."""
    return flush(np.add(flush(old), flush(new)))


def _find_operation(operation: str, type_name: str, space: str) -> Callable[..., Any]:
    if operation == "add" and type_name == "f32" and space == "global":
        return _flushing_add
    if type_name in ("f16x2", "bf16x2", "bf16", "f16"):
        pairs: dict[str, Callable[..., Any]] = {"f16x2": fma.add16x2, "f16": fma.add16}
        if operation != "add" or type_name not in pairs:
            raise EkcError(f"atomic {operation} of .{type_name} is not emulated")
        return pairs[type_name]
    return _OPERATIONS[operation]


def _rank_conflicts(ordered: Any) -> Any:
    """For each lane, the number of lanes before it at the same address; addresses are sorted."""
    count = np.arange(ordered.size)
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return count - np.repeat(first, np.diff(np.r_[first, ordered.size]))


def _apply_in_turns(
    probe: AddressProbe,
    offset: int,
    operation: Callable[..., Any],
    values: tuple[Any, ...],
    codes: tuple[str, str],
    order: Any,
    turns: Any,
) -> Any:
    code, raw = codes
    old = np.empty(order.size, code)
    view = probe.space.views[raw].view(code)
    place = probe.element_indices(int(raw[1])) + offset // int(raw[1])
    by_turn = np.argsort(turns, kind="stable")
    ends = np.cumsum(np.bincount(turns))
    start = 0
    for end in ends:
        lanes = order[by_turn[start:end]]
        at = place[lanes]
        before = view[at]
        old[lanes] = before
        view[at] = operation(before, *(v[lanes] for v in values))
        start = end
    return old


def list_cell_contents(probe: AddressProbe, values: tuple[Any, ...], cell_bytes: int) -> Any:
    """The values that a store writes to its cells, as unsigned words: a row for each lane."""
    lanes = probe.address.shape
    columns = [np.ascontiguousarray(np.broadcast_to(v, lanes)).view(f"u{cell_bytes}") for v in values]
    return np.concatenate([c.reshape(lanes[0], -1) for c in columns], axis=1)
