"""One launch before it runs: arguments and variables placed in memory, limits checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ekc.emulator.decoding.decode import Decoded
from ekc.emulator.decoding.shelf import dtype_of
from ekc.emulator.geometry import Geometry, Shape
from ekc.emulator.memory import GLOBAL_BASE, Allocation, Space
from ekc.emulator.paged import Blank, Held, OnDemand, PagedSpace
from ekc.emulator.ptx.program import TYPE_BYTES, Variable
from ekc.emulator.sanitizer.conflicts import BlockConflicts
from ekc.emulator.sanitizer.read_only_cache import ReadOnlyCache
from ekc.emulator.sanitizer.sanitize import Findings
from ekc.errors import InvalidInput

_GAP = 1 << 20
"""Bytes between neighbours in global memory, so that an overrun lands nowhere."""
_RED_ZONE = 128
_PATTERN = 1024
"""Bytes of the widest swizzle pattern."""
_GRID_LIMIT, _BLOCK_LIMIT = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
_THREADS, _SHARED = 1024, 227 * 1024
_MARKS = 10
"""Bytes that the sanitizer notes of each place of global memory."""
_WIDE = frozenset(("gl", "gpu", "cluster", "sys"))
"""Scopes of fences that reach beyond a block."""


PAGED_FROM = 1 << 26
"""Bytes of arguments from which on a launch on `Blank` ones holds only the pages that it touches."""


class Plan:
    """What all batches of a launch share."""

    def __init__(
        self,
        decoded: Decoded,
        grid: Shape,
        block: Shape,
        args: Sequence[Any],
        dynamic_shared: int,
        sanitize: bool,
        max_instructions: int,
    ) -> None:
        self.decoded, self.name = decoded, decoded.text.name
        self.grid, self.block, self.sanitize, self.max_instructions = grid, block, sanitize, max_instructions
        _check_shape(decoded, grid, block)
        self.findings = Findings(self.name)
        self.arrays: list[tuple[int, Any, Held]] = []
        """Address, array and its bytes."""
        self.symbols: dict[str, int] = {}
        self.values: dict[str, bytes] = {}
        self.grouped = any(one.opcode.startswith("wgmma.mma_async") for one in decoded.text.code)
        """The kernel has products of warpgroups."""
        self._lay_shared(dynamic_shared)
        self._lay_local()
        self._lay_global(args)
        self.conflicts: BlockConflicts | None = None
        self.cache: ReadOnlyCache | None = None
        if sanitize:
            self.conflicts, self.cache = self._shadows()

    # -- memory layout --------------------------------------------------------------------------
    def _lay_shared(self, dynamic: int) -> None:
        """Static arrays first, each with room behind it, then the dynamic one. Where products of warpgroups
        read them, none lies better than it asks to: what they read may need more."""
        self.shared: list[Allocation] = []
        variables = [*self.decoded.text.variables, *self.decoded.module.variables]
        at = used = 0
        for one in (v for v in variables if v.space == "shared" and v.count is not None):
            at = self._aligned(at, one.align)
            self.symbols[one.name] = at
            self.shared.append(Allocation(f"shared array {one.name}", at, at + one.size))
            at += one.size + _RED_ZONE
            used += one.size
        if not 0 <= dynamic <= _SHARED or used + dynamic > _SHARED:
            raise InvalidInput(f"{used} + {dynamic} bytes of shared memory: a block has at most {_SHARED}")
        open_ended = [v for v in variables if v.space == "shared" and v.count is None]
        at = self._aligned(at, max((one.align for one in open_ended), default=1))
        if dynamic:
            self.shared.append(Allocation("dynamic shared memory", at, at + dynamic))
        for one in open_ended:
            self.symbols[one.name] = at
        self.shared_stride = -(-(at + dynamic) // _RED_ZONE) * _RED_ZONE

    def _aligned(self, at: int, align: int) -> int:
        """The next place for a shared array."""
        unit = max(align, _RED_ZONE)
        at = -(-at // unit) * unit
        odd = self.grouped and unit < _PATTERN and at % (2 * unit) == 0
        return at + unit if odd else at

    def _lay_local(self) -> None:
        self.local: list[Allocation] = []
        at = 0
        for one in (v for v in self.decoded.text.variables if v.space == "local"):
            at = -(-at // 16) * 16
            self.symbols[one.name] = at
            self.local.append(Allocation(f"local array {one.name}", at, at + one.size))
            at += one.size
        self.local_stride = -(-at // 16) * 16

    def _lay_global(self, args: Sequence[Any]) -> None:
        parameters = self.decoded.text.parameters
        if len(args) != len(parameters):
            raise InvalidInput(
                f"kernel {self.name} takes {len(parameters)} arguments, {len(args)} were given"
            )
        self._at, self._places, self._sources = _GAP, list[Allocation](), list[OnDemand]()
        for position, (one, value) in enumerate(zip(parameters, args, strict=True)):
            self.values[one.name] = self._argument(position, one, value)
        for one in self.decoded.module.variables:
            if one.space in ("global", "const"):
                held = Held(_bytes_of(_initial(one)), writable=False)
                self.symbols[one.name] = self._place(f"variable {one.name}", held, one.space == "global")
        for one in parameters:
            raw = np.frombuffer(self.values[one.name], np.uint8)
            self.symbols[one.name] = self._place(f"parameter {one.name}", Held(raw, False), False)
        self.memory = self._memory(args)

    def _argument(self, position: int, one: Variable, value: Any) -> bytes:
        """The bytes of a parameter; arrays are placed in memory, each once."""
        if isinstance(value, np.ndarray) and not _is_structure(value):
            _check_array(self.name, position, one, value)
            known = next((address for address, array, _ in self.arrays if array is value), None)
            if known is None:
                writable = bool(value.flags.writeable)
                held = Held(_bytes_of(value), writable)
                known = self._place(f"argument {position}", held, writable)
                self.arrays.append((known, value, held))
            return known.to_bytes(8, "little")
        if isinstance(value, OnDemand):
            return self._place(f"argument {position}", value, value.writable).to_bytes(8, "little")
        return _scalar_bytes(self.name, position, one, value)

    def _place(self, name: str, source: OnDemand, writable: bool) -> int:
        """The address where an array lies from here on."""
        start = GLOBAL_BASE + self._at
        self._places.append(Allocation(name, start, start + source.nbytes, writable))
        self._sources.append(source)
        self._at = _after(self._at, source.nbytes)
        return start

    def _memory(self, args: Sequence[Any]) -> Space:
        """Global memory: in whole, or by pages where an argument asks for that."""
        blank = all(isinstance(one, Blank) for one in args) and self._at < PAGED_FROM
        if not blank and any(isinstance(one, OnDemand) for one in args):
            return PagedSpace("global", self._places, self._sources)
        memory = Space("global", self._at, self._places)
        for place, source in zip(self._places, self._sources, strict=True):
            if isinstance(source, Held):
                start = place.start - GLOBAL_BASE
                memory.bytes[start : start + source.nbytes] = source.raw
        return memory

    def _shadows(self) -> tuple[BlockConflicts, ReadOnlyCache | None]:
        """What is noted of every place of global memory; for the read-only cache if any load goes there."""
        code, size = self.decoded.text.code, self.memory.bytes.size
        grain = min((int(s.code[1]) for s in self.decoded.shelf.sites), default=4)
        fenced = any(one.parts[0] in ("membar", "fence") and not _WIDE.isdisjoint(one.parts) for one in code)
        cached = any("nc" in one.parts for one in code)
        conflicts = BlockConflicts(self.findings, size, min(grain, 4), fenced)
        cache = ReadOnlyCache(self.findings, size, min(grain, 4)) if cached else None
        if isinstance(self.memory, PagedSpace):
            self.memory.marks = _MARKS / min(grain, 4)
        return conflicts, cache

    # -- what batches ask -------------------------------------------------------------------------
    def spaces(self, geometry: Geometry) -> dict[str, Space]:
        """The address spaces of a batch."""
        return {
            "global": self.memory,
            "shared": Space("shared", max(self.shared_stride, 16) * len(geometry.ids), self.shared),
            "local": Space("local", max(self.local_stride, 16) * geometry.lanes, self.local),
        }

    def parameter(self, name: str, offset: int, code: str) -> Any:
        """A value out of the parameters."""
        raw, size = self.values.get(name, b""), int(code[1])
        if offset < 0 or offset + size > len(raw):
            raise InvalidInput(f"kernel {self.name} reads parameter {name} beyond its {len(raw)} bytes")
        return np.frombuffer(raw[offset : offset + size], code)[0]

    def address(self, what: str) -> int:
        """The address of `symbol+offset`."""
        name, offset = what.rsplit("+", 1)
        if name not in self.symbols:
            raise InvalidInput(f"kernel {self.name}: the address of {name} is not known")
        return self.symbols[name] + int(offset)

    def argument_at(self, address: int) -> int | None:
        """The number of the array argument that holds an address of global memory."""
        place = self.memory.inside(address, address + 1)
        words = place.name.split() if place else []
        return int(words[1]) if words[:1] == ["argument"] else None

    def finish(self) -> None:
        """Copy global memory back into the caller's arrays."""
        paged = self.memory if isinstance(self.memory, PagedSpace) else None
        if paged is not None:
            paged.give_back()
        for address, array, held in self.arrays:
            if array.flags.writeable:
                start = address - GLOBAL_BASE
                raw = held.raw if paged else self.memory.bytes[start : start + array.nbytes]
                array[...] = raw.view(array.dtype).reshape(array.shape)


def _bytes_of(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _after(at: int, size: int) -> int:
    return -(-(at + size + _GAP) // 256) * 256


def _check_shape(decoded: Decoded, grid: Shape, block: Shape) -> None:
    for what, shape, limits in (("grid", grid, _GRID_LIMIT), ("block", block, _BLOCK_LIMIT)):
        for axis, extent, limit in zip("xyz", shape, limits, strict=True):
            if not 1 <= extent <= limit:
                raise InvalidInput(f"{what}.{axis} is {extent}: it must be 1 to {limit}")
    threads = block[0] * block[1] * block[2]
    most = min(_THREADS, decoded.text.max_threads or _THREADS)
    if threads > most:
        raise InvalidInput(f"a block of {threads} threads: kernel {decoded.text.name} takes at most {most}")


def _check_array(kernel: str, position: int, one: Variable, value: Any) -> None:
    if one.size != 8 or one.type not in ("u64", "b64", "s64"):
        raise InvalidInput(f"argument {position} of {kernel} is an array; the parameter is a .{one.type}")
    if value.dtype.hasobject:
        raise InvalidInput(f"argument {position} of {kernel}: arrays of {value.dtype} cannot be passed")


def _is_structure(value: np.ndarray[Any, Any]) -> bool:
    """Whether an array is one argument by value. (The kind of bfloat16 arrays is "V" too.)"""
    return value.dtype.type is np.void


def _scalar_bytes(kernel: str, position: int, one: Variable, value: Any) -> bytes:
    """A number (or a structure as bytes) in the parameter's type."""
    if isinstance(value, bytes | np.void) or (isinstance(value, np.ndarray) and _is_structure(value)):
        raw = value if isinstance(value, bytes) else value.tobytes()
        if len(raw) != one.size:
            raise InvalidInput(
                f"argument {position} of {kernel} has {len(raw)} bytes; the parameter {one.size}"
            )
        return raw
    if not isinstance(value, bool | int | float | np.generic):
        raise InvalidInput(
            f"argument {position} of {kernel} is a {type(value).__name__}, not a number or an array"
        )
    if one.count != 1 or one.type not in TYPE_BYTES:
        raise InvalidInput(f"argument {position} of {kernel} is a structure of {one.size} bytes: pass bytes")
    dtype = np.dtype(dtype_of(one.type))
    if dtype.kind == "f":
        return np.asarray(value).astype(dtype).tobytes()
    if isinstance(value, float | np.floating):
        raise InvalidInput(f"argument {position} of {kernel} is {value!r}; the parameter is a .{one.type}")
    number, bits = int(value), 8 * dtype.itemsize
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise InvalidInput(f"argument {position} of {kernel}: the number does not fit a .{one.type}")
    return (number & ((1 << bits) - 1)).to_bytes(dtype.itemsize, "little")


def _initial(one: Variable) -> Any:
    values = np.zeros(one.count or 0, dtype_of(one.type))
    if one.values:
        given = (
            np.array(one.values)
            if values.dtype.kind == "f"
            else np.array([int(v) for v in one.values], object)
        )
        wrap = (1 << (8 * values.dtype.itemsize)) - 1
        unsigned = np.dtype(f"u{values.dtype.itemsize}")
        if values.dtype.kind == "f":
            values[: given.size] = given
        else:
            values[: given.size] = np.array([int(v) & wrap for v in given], unsigned).view(values.dtype)
    return values
