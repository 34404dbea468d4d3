"""What the blocks of a kernel share while they are written: places, constants, sites, types."""

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
    """One memory instruction (or any that the run must know by number)."""

    number: int
    instruction: Instruction
    action: str
    """load, store, atom, async or other."""
    dtype_code: str
    """NumPy code of an element in memory."""
    element_count: int = 1
    is_volatile: bool = False
    is_element_read: tuple[bool, ...] = ()
    """Of a load: the elements that anybody reads; () is all."""
    kernel: KernelText | None = None
    """What reads the rest."""

    @property
    def bytes_per_lane(self) -> int:
        """Bytes that one lane touches."""
        return int(self.dtype_code[1]) * self.element_count

    def count_needed_bytes(self, space: str) -> int:
        """Bytes of these that must be there, in a space of this kind: in shared memory, up to the last
        that anybody looks at. The compiler widens a load there over the end of an array, as far as its
        alignment reaches, and joins loads of bytes into words. One that nobody reads must be there in
        whole."""
        return self._read_bytes if space == "shared" and any(self.is_element_read) else self.bytes_per_lane

    @cached_property
    def _read_bytes(self) -> int:
        width, readers = int(self.dtype_code[1]), self.kernel.readers_by_register if self.kernel else {}
        loaded = zip(operand_items(self.instruction.operands[0]), self.is_element_read, strict=True)
        ends = [
            k * width + min(count_used_bytes(item.name, readers), width)
            for k, (item, wanted) in enumerate(loaded)
            if wanted and isinstance(item, Register)
        ]
        return max(ends)


@dataclass
class DecodeContext:
    """What the blocks of a kernel share: register places, variables, constants, sites."""

    module: Module
    kernel: KernelText
    register_slots: dict[str, tuple[str, int]]
    register_types: dict[str, str]
    variables: dict[str, Variable]
    unread_registers: frozenset[str] = frozenset()
    """Registers that nobody reads."""
    maybe_unset_registers: tuple[str, ...] = ()
    """Registers that some path reads before it writes them; their lanes keep a mark once they are set."""
    constants: dict[str, Any] = field(default_factory=dict)
    address_rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Rows that hold one value: name -> (dtype, text of the value)."""
    sites: list[Site] = field(default_factory=list)
    hazards: WgmmaHazards = field(default_factory=WgmmaHazards)
    """Of the sums of products of warpgroups."""
    scratch_row_count: int = 0
    """float64 rows that fused multiply-adds need."""

    def bind_constant(self, value: Any) -> str:
        """The name of a bound constant."""
        value = np.asarray(value)[()] if not isinstance(value, tuple) else value
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
        """The number of a new site."""
        self.sites.append(
            Site(
                len(self.sites),
                instruction,
                action,
                dtype_code,
                element_count,
                is_volatile,
                is_element_read,
                self.kernel,
            )
        )
        return len(self.sites) - 1


def operand_items(operand: Operand) -> tuple[Operand, ...]:
    """A vector's members; anything else alone."""
    if isinstance(operand, Vector):
        return operand.items
    if isinstance(operand, Pair):
        return (operand.first, operand.second)
    return (operand,)


def to_scalar(value: int | float, type_name: str) -> Any:
    """A literal as a NumPy scalar of a PTX type, by its bits where it is a float in a `.b` type."""
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
