"""The plan of a launch: limits are checked, and arguments and variables are placed in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ekc.argument_checks import refuse_mask
from ekc.emulator.block_races import BlockRaces
from ekc.emulator.counters import LaunchCounts
from ekc.emulator.decode.context import dtype_of
from ekc.emulator.decode.decode import DecodedKernel
from ekc.emulator.geometry import Geometry, Shape
from ekc.emulator.memory import GLOBAL_BASE, AddressSpace, Allocation
from ekc.emulator.paged_memory import BlankArray, LoadedArray, PagedAddressSpace, PagedSource
from ekc.emulator.report import Findings
from ekc.errors import InvalidInput
from ekc.ptx.module import TYPE_BYTES, Variable
from ekc.tables import count_nouns

_ALLOCATION_GAP_BYTES = 1 << 20
"""Bytes between two arrays in global memory, so that an overrun hits neither."""
_RED_ZONE_BYTES = 128
"""Bytes between two arrays in shared memory, likewise."""
_SWIZZLE_PATTERN_BYTES = 1024
"""Bytes of the widest swizzle pattern."""
_GRID_LIMIT, _BLOCK_LIMIT = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
_MAX_THREADS, _MAX_SHARED_BYTES = 1024, 227 * 1024
_SHADOW_BYTES = 10
"""Bytes that the sanitizer keeps for each cell of global memory."""
_WIDE_FENCE_SCOPES = frozenset(("gl", "gpu", "cluster", "sys"))
"""Scopes of fences that reach beyond a block."""


PAGED_FROM = 1 << 26
"""Bytes of arguments from which on a launch on `BlankArray`s holds only the pages that it touches."""


class LaunchPlan:
    """Arguments, memory layout and findings, which all batches of a launch share."""

    def __init__(
        self,
        decoded: DecodedKernel,
        grid: Shape,
        block: Shape,
        args: Sequence[Any],
        dynamic_shared: int,
        sanitize: bool,
        max_instructions: int,
        argument_names: Sequence[str] = (),
    ) -> None:
        """`argument_names`: names of the arguments in findings, in order; without them, their numbers."""
        self.decoded, self.kernel_name = decoded, decoded.kernel.name
        self.grid, self.block = grid, block
        self.is_sanitized, self.max_instructions = sanitize, max_instructions
        _check_shape(decoded, grid, block)
        self.findings, self.counts = Findings(self.kernel_name), LaunchCounts(len(decoded.blocks))
        self.arrays: list[tuple[int, Any, LoadedArray]] = []
        """(address, array, its bytes) of each array argument."""
        self.symbol_addresses: dict[str, int] = {}
        self.parameter_bytes: dict[str, bytes] = {}
        self.has_wgmma = any(one.opcode.startswith("wgmma.mma_async") for one in decoded.kernel.code)
        """Whether the kernel has products of warpgroups (`wgmma`)."""
        self._argument_names = argument_names
        self._place_shared(dynamic_shared)
        self._place_local()
        self._place_global(args)
        self.block_races = self._build_shadows() if sanitize else None

    # -- memory layout --------------------------------------------------------------------------
    def _place_shared(self, dynamic_bytes: int) -> None:
        """Place the static arrays, each with a red zone behind it, then the dynamic array.

        For kernels with `wgmma` no array is aligned better than declared, so that a missing alignment
        shows."""
        self.shared_allocations: list[Allocation] = []
        variables = [*self.decoded.kernel.variables, *self.decoded.module.variables]
        at = used = 0
        for one in (v for v in variables if v.space == "shared" and v.element_count is not None):
            at = self._align_shared(at, one.alignment_bytes)
            self.symbol_addresses[one.name] = at
            self.shared_allocations.append(
                Allocation(f"shared array {one.source_name}", at, at + one.size_bytes)
            )
            at += one.size_bytes + _RED_ZONE_BYTES
            used += one.size_bytes
        if not 0 <= dynamic_bytes <= _MAX_SHARED_BYTES or used + dynamic_bytes > _MAX_SHARED_BYTES:
            raise InvalidInput(
                f"shared memory per block: {used} + {dynamic_bytes} bytes, at most {_MAX_SHARED_BYTES}; "
                f"use {_MAX_SHARED_BYTES} or fewer"
            )
        open_ended = [v for v in variables if v.space == "shared" and v.element_count is None]
        at = self._align_shared(at, max((one.alignment_bytes for one in open_ended), default=1))
        if dynamic_bytes:
            self.shared_allocations.append(Allocation("dynamic shared memory", at, at + dynamic_bytes))
        self.symbol_addresses.update((one.name, at) for one in open_ended)
        self.shared_stride = -(-(at + dynamic_bytes) // _RED_ZONE_BYTES) * _RED_ZONE_BYTES

    def _align_shared(self, offset: int, align: int) -> int:
        """The next offset at which a shared array may begin."""
        unit = max(align, _RED_ZONE_BYTES)
        offset = -(-offset // unit) * unit
        odd = self.has_wgmma and unit < _SWIZZLE_PATTERN_BYTES and offset % (2 * unit) == 0
        return offset + unit if odd else offset

    def _place_local(self) -> None:
        self.local_allocations: list[Allocation] = []
        at = 0
        for one in (v for v in self.decoded.kernel.variables if v.space == "local"):
            at = -(-at // 16) * 16
            self.symbol_addresses[one.name] = at
            self.local_allocations.append(
                Allocation(f"local array {one.source_name}", at, at + one.size_bytes)
            )
            at += one.size_bytes
        self.local_stride = -(-at // 16) * 16

    def _place_global(self, args: Sequence[Any]) -> None:
        parameters = self.decoded.kernel.parameters
        if len(args) != len(parameters):
            counts = f"{count_nouns(len(parameters), 'argument')}, {len(args)} given"
            raise InvalidInput(f"kernel {self.kernel_name} takes {counts}")
        self._next_offset = _ALLOCATION_GAP_BYTES
        self._allocations: list[Allocation] = []
        self._sources: list[PagedSource] = []
        for position, (one, value) in enumerate(zip(parameters, args, strict=True)):
            self.parameter_bytes[one.name] = self._encode_argument(position, one, value)
        for one in self.decoded.module.variables:
            if one.space in ("global", "const"):
                source = LoadedArray(_to_bytes(_build_initial_values(one)), writable=False)
                start = self._place_array(f"variable {one.source_name}", source, one.space == "global")
                self.symbol_addresses[one.name] = start
        for one in parameters:
            source = LoadedArray(np.frombuffer(self.parameter_bytes[one.name], np.uint8), writable=False)
            self.symbol_addresses[one.name] = self._place_array(f"parameter {one.name}", source, False)
        self.global_memory = self._build_global_memory(args)

    def _encode_argument(self, position: int, variable: Variable, value: Any) -> bytes:
        """The bytes of a parameter; arrays are placed in memory, each once."""
        if isinstance(value, np.ndarray) and not _is_structure(value):
            _check_array(f"argument {position} of {self.kernel_name}", variable, value)
            start = next((address for address, array, _ in self.arrays if array is value), None)
            if start is None:
                writable = bool(value.flags.writeable)
                source = LoadedArray(_to_bytes(value), writable)
                start = self._place_argument(position, source, writable)
                self.arrays.append((start, value, source))
            return start.to_bytes(8, "little")
        if isinstance(value, PagedSource):
            return self._place_argument(position, value, value.writable).to_bytes(8, "little")
        return _encode_scalar(f"argument {position} of {self.kernel_name}", variable, value)

    def _place_argument(self, position: int, source: PagedSource, writable: bool) -> int:
        name = f"argument {position}"
        if position < len(self._argument_names):
            name = f"{self._argument_names[position]} ({name})"
        return self._place_array(name, source, writable, position)

    def _place_array(
        self, name: str, source: PagedSource, writable: bool, argument_number: int | None = None
    ) -> int:
        """Reserve addresses for an array; returns its start."""
        start = GLOBAL_BASE + self._next_offset
        self._allocations.append(Allocation(name, start, start + source.nbytes, writable, argument_number))
        self._sources.append(source)
        self._next_offset = -(-(self._next_offset + source.nbytes + _ALLOCATION_GAP_BYTES) // 256) * 256
        return start

    def _build_global_memory(self, args: Sequence[Any]) -> AddressSpace:
        """Global memory: all of it, or pages on demand where an argument asks for that."""
        blank = all(isinstance(one, BlankArray) for one in args if isinstance(one, PagedSource))
        blank = blank and self._next_offset < PAGED_FROM
        if not blank and any(isinstance(one, PagedSource) for one in args):
            return PagedAddressSpace("global", self._allocations, self._sources)
        memory = AddressSpace("global", self._next_offset, self._allocations)
        for place, source in zip(self._allocations, self._sources, strict=True):
            if isinstance(source, LoadedArray):
                start = place.start - GLOBAL_BASE
                memory.bytes[start : start + source.nbytes] = source.raw
        return memory

    def _build_shadows(self) -> BlockRaces:
        """Marks for every cell of global memory; those of the read-only cache only if a load uses it."""
        code, size = self.decoded.kernel.code, self.global_memory.bytes.size
        grain = min([4, *(int(s.dtype_code[1]) for s in self.decoded.context.sites)])
        fences = (one for one in code if one.parts[0] in ("membar", "fence"))
        fenced = any(not _WIDE_FENCE_SCOPES.isdisjoint(one.parts) for one in fences)
        cached = any("nc" in one.parts for one in code)
        if isinstance(self.global_memory, PagedAddressSpace):
            self.global_memory.shadow_bytes_per_byte = _SHADOW_BYTES / grain
        return BlockRaces(size, grain, fenced, cached)

    # -- queries of batches -----------------------------------------------------------------------
    def make_spaces(self, geometry: Geometry) -> dict[str, AddressSpace]:
        """The address spaces of a batch."""
        shared_bytes = max(self.shared_stride, 16) * len(geometry.block_ids)
        local_bytes = max(self.local_stride, 16) * geometry.lane_count
        return {
            "global": self.global_memory,
            "shared": AddressSpace("shared", shared_bytes, self.shared_allocations),
            "local": AddressSpace("local", local_bytes, self.local_allocations),
        }

    def read_parameter(self, name: str, offset: int, dtype_code: str) -> Any:
        """A value out of the parameters."""
        raw, size = self.parameter_bytes.get(name, b""), int(dtype_code[1])
        if offset < 0 or offset + size > len(raw):
            place = f"parameter {name} beyond its {len(raw)} bytes"
            raise InvalidInput(f"kernel {self.kernel_name} reads {place}")
        return np.frombuffer(raw[offset : offset + size], dtype_code)[0]

    def resolve_address(self, symbol: str) -> int:
        """The address of `symbol+offset`."""
        name, offset = symbol.rsplit("+", 1)
        if name not in self.symbol_addresses:
            raise InvalidInput(f"kernel {self.kernel_name}: the address of {name} is not known")
        return self.symbol_addresses[name] + int(offset)

    def find_argument(self, address: int) -> int | None:
        """The number of the array argument that holds an address of global memory."""
        place = self.global_memory.find_allocation(address, address + 1)
        return place.argument_number if place else None

    def copy_back(self) -> None:
        """Copy global memory back into the caller's arrays."""
        paged = self.global_memory if isinstance(self.global_memory, PagedAddressSpace) else None
        if paged is not None:
            paged.write_back()
        for address, array, source in self.arrays:
            if array.flags.writeable:
                start = address - GLOBAL_BASE
                raw = source.raw if paged else self.global_memory.bytes[start : start + array.nbytes]
                array[...] = raw.view(array.dtype).reshape(array.shape)


def _to_bytes(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check_shape(decoded: DecodedKernel, grid: Shape, block: Shape) -> None:
    for argument, shape, limits in (("grid", grid, _GRID_LIMIT), ("block", block, _BLOCK_LIMIT)):
        for axis, extent, limit in zip("xyz", shape, limits, strict=True):
            if not 1 <= extent <= limit:
                bound = f"at most {limit}" if extent > limit else "at least 1"
                raise InvalidInput(f"{argument}.{axis}: {extent}, {bound}; use 1 to {limit}")
    threads = block[0] * block[1] * block[2]
    most = min(_MAX_THREADS, decoded.kernel.max_threads or _MAX_THREADS)
    if threads > most:
        raise InvalidInput(f"threads per block: {threads}, at most {most}; use {most} or fewer")


def _check_array(argument: str, variable: Variable, value: Any) -> None:
    if variable.size_bytes != 8 or variable.type not in ("u64", "b64", "s64"):
        raise InvalidInput(f"{argument} is an array; the parameter is a .{variable.type}")
    if value.dtype.hasobject:
        raise InvalidInput(f"{argument}: arrays of {value.dtype} cannot be passed")
    refuse_mask(argument, value)


def _is_structure(value: np.ndarray[Any, Any]) -> bool:
    """Whether an array is one argument by value. (The kind of bfloat16 arrays is "V" too.)"""
    return value.dtype.type is np.void


def _encode_scalar(argument: str, variable: Variable, value: Any) -> bytes:
    """A number (or a structure as bytes) in the parameter's type."""
    if isinstance(value, bytes | np.void) or (isinstance(value, np.ndarray) and _is_structure(value)):
        raw = value if isinstance(value, bytes) else value.tobytes()
        if len(raw) != variable.size_bytes:
            raise InvalidInput(f"{argument} has {len(raw)} bytes; the parameter {variable.size_bytes}")
        return raw
    if not isinstance(value, bool | int | float | np.generic):
        raise InvalidInput(f"{argument} is a {type(value).__name__}, not a number or an array")
    if variable.element_count != 1 or variable.type not in TYPE_BYTES:
        raise InvalidInput(f"{argument} is a structure of {variable.size_bytes} bytes: pass bytes")
    dtype = np.dtype(dtype_of(variable.type))
    if dtype.kind == "f":
        return np.asarray(value).astype(dtype).tobytes()
    if isinstance(value, float | np.floating):
        raise InvalidInput(f"{argument} is {value!r}; the parameter is a .{variable.type}")
    number, bits = int(value), 8 * dtype.itemsize
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise InvalidInput(f"{argument}: the number does not fit a .{variable.type}")
    return (number & ((1 << bits) - 1)).to_bytes(dtype.itemsize, "little")


def _build_initial_values(variable: Variable) -> Any:
    values = np.zeros(variable.element_count or 0, dtype_of(variable.type))
    if variable.initial_values:
        given, size = variable.initial_values, values.dtype.itemsize
        if values.dtype.kind == "f":
            values[: len(given)] = given
        else:
            words = [int(v) & ((1 << (8 * size)) - 1) for v in given]
            values[: len(given)] = np.array(words, f"u{size}").view(values.dtype)
    return values
