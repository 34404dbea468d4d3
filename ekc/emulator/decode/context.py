"""The context that all blocks of a kernel share while they are decoded: rows, constants, sites and types."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ekc.ptx.address_slice import count_used_bytes
from ekc.ptx.module import Instruction, KernelText, Module, Operand, Pair, Register, Variable, Vector
from ekc.ptx.wgmma_hazards import WgmmaHazards

_DTYPES = {"f16": "f2", "bf16": "u2", "f16x2": "u4", "bf16x2": "u4", "tf32": "f4", "pred": "?"}


def dtype_of(type_name: str) -> str:
    """NumPy code of a PTX type: "s32" is "i4"; pairs of halves are words."""
    if type_name in _DTYPES:
        return _DTYPES[type_name]
    return {"s": "i", "u": "u", "b": "u", "f": "f"}[type_name[0]] + str(int(type_name[1:]) // 8)


def view_letter(type_name: str) -> str:
    """The view of a register row that holds this type: u, i, f or h."""
    code = dtype_of(type_name)
    return "h" if code == "f2" else code[0] if code != "?" else ""


@dataclass(frozen=True)
class Site:
    """A memory instruction, or another one that decoded text refers to by number."""

    number: int
    instruction: Instruction
    action: str
    """"load", "store", "atom", "async", "product" or "other"."""
    dtype_code: str
    """NumPy code of an element in memory."""
    element_count: int = 1
    is_volatile: bool = False
    is_element_read: tuple[bool, ...] = ()
    """For a load, whether any instruction reads each element; () where all are read."""
    kernel: KernelText | None = None
    """The kernel, whose instructions read the loaded registers."""

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return int(self.dtype_code[1])

    @cached_property
    def bytes_per_lane(self) -> int:
        """Bytes that one lane touches."""
        return self.element_bytes * self.element_count

    def count_needed_bytes(self, space: str) -> int:
        """Bytes that must be inside an allocation of this address space.

        In shared memory these are the bytes up to the last one that an instruction uses: the compiler widens
        loads over the end of an array as far as its alignment allows, and joins loads of bytes into words.
        All bytes count where no element is read."""
        return self._read_bytes if space == "shared" and any(self.is_element_read) else self.bytes_per_lane

    @cached_property
    def _read_bytes(self) -> int:
        width, readers = self.element_bytes, self.kernel.readers_by_register if self.kernel else {}
        loaded = zip(operand_items(self.instruction.operands[0]), self.is_element_read, strict=True)
        ends = [
            k * width + min(count_used_bytes(item.name, readers), width)
            for k, (item, is_read) in enumerate(loaded)
            if is_read and isinstance(item, Register)
        ]
        return max(ends)


@dataclass
class DecodeContext:
    """Register rows, variables, constants and sites of a kernel."""

    module: Module
    kernel: KernelText
    register_slots: dict[str, tuple[str, int]]
    """Register -> class ("P", "H", "W" or "D") and number of its row."""
    variables: dict[str, Variable]
    unread_registers: frozenset[str] = frozenset()
    """Registers that no instruction reads."""
    maybe_unset_registers: tuple[str, ...] = ()
    """Registers that some path reads before it writes them. A row marks the lanes in which they are set."""
    constants: dict[str, Any] = field(default_factory=dict)
    address_rows: dict[tuple[str, str], str] = field(default_factory=dict)
    """Rows that hold one address: (dtype, "symbol+offset") -> name."""
    sites: list[Site] = field(default_factory=list)
    hazards: WgmmaHazards = field(default_factory=WgmmaHazards)
    """Hazards of the accumulators of `wgmma`."""
    scratch_row_count: int = 0
    """Number of float64 rows that fused multiply-adds need."""

    def bind_constant(self, value: Any) -> str:
        """The name of a constant, which is added if it is new."""
        key = f"K_{value.dtype.kind}{value.dtype.itemsize}_{value.tobytes().hex()}"
        self.constants[key] = value
        return key

    def add_site(
        self,
        instruction: Instruction,
        action: str,
        dtype_code: str,
        element_count: int = 1,
        is_volatile: bool = False,
        is_element_read: tuple[bool, ...] = (),
    ) -> int:
        """Add a site; returns its number."""
        layout = dtype_code, element_count, is_volatile, is_element_read
        self.sites.append(Site(len(self.sites), instruction, action, *layout, self.kernel))
        return len(self.sites) - 1


def operand_items(operand: Operand) -> tuple[Operand, ...]:
    """The items of a vector or pair; any other operand as its only item."""
    if isinstance(operand, Vector):
        return operand.items
    if isinstance(operand, Pair):
        return (operand.first, operand.second)
    return (operand,)


def to_scalar(value: int | float, type_name: str) -> Any:
    """A literal as a NumPy scalar of a PTX type. A float in a `.b` type gives its bits."""
    if type_name == "pred":
        return np.bool_(bool(value))
    code = dtype_of(type_name)
    size = int(code[1])
    if isinstance(value, float):
        if code[0] == "f":
            return np.dtype(code).type(value)
        value = int.from_bytes(struct.pack("<f" if size == 4 else "<d", value), "little")
    if code[0] == "f" and type_name != "f16":
        return np.dtype(code).type(value)
    raw = int(value) & ((1 << (8 * size)) - 1)
    return np.array([raw], f"u{size}").view(code)[0]
