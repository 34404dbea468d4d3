"""What the blocks of a kernel share while they are written: places, constants, sites, types."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ekc.emulator.ptx.program import (
    Instruction,
    KernelText,
    Module,
    Operand,
    Pair,
    Register,
    Variable,
    Vector,
)
from ekc.emulator.ptx.sums import Hazards
from ekc.emulator.ptx.used_bytes import bytes_used

_DTYPES = {"f16": "f2", "bf16": "u2", "f16x2": "u4", "bf16x2": "u4", "tf32": "f4", "pred": "?"}


def dtype_of(kind: str) -> str:
    """NumPy code of a PTX type: "s32" is "i4"; pairs of halves are words."""
    if kind in _DTYPES:
        return _DTYPES[kind]
    return {"s": "i", "u": "u", "b": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8)


def letter(kind: str) -> str:
    """The view of a register row that holds this type: u, i, f or h."""
    code = dtype_of(kind)
    return "h" if code == "f2" else code[0] if code != "?" else ""


@dataclass(frozen=True)
class Site:
    """One memory instruction (or any that the run must know by number)."""

    number: int
    instruction: Instruction
    action: str
    """load, store, atom, async or other."""
    code: str
    """NumPy code of an element in memory."""
    count: int = 1
    volatile: bool = False
    wanted: tuple[bool, ...] = ()
    """Of a load: the elements that anybody reads; () is all."""
    kernel: KernelText | None = None
    """What reads the rest."""

    @property
    def size(self) -> int:
        """Bytes that one lane touches."""
        return int(self.code[1]) * self.count

    def needed(self, kind: str) -> int:
        """Bytes of these that must be there, in a space of this kind: in shared memory, up to the last
        that anybody looks at. The compiler widens a load there over the end of an array, as far as its
        alignment reaches, and joins loads of bytes into words. One that nobody reads must be there in
        whole."""
        return self._looked_at if kind == "shared" and any(self.wanted) else self.size

    @cached_property
    def _looked_at(self) -> int:
        width, readers = int(self.code[1]), self.kernel.readers if self.kernel else {}
        loaded = zip(items(self.instruction.operands[0]), self.wanted, strict=True)
        ends = [
            k * width + min(bytes_used(item.name, readers), width)
            for k, (item, wanted) in enumerate(loaded)
            if wanted and isinstance(item, Register)
        ]
        return max(ends)


@dataclass
class Shelf:
    """What the blocks of a kernel share: register places, variables, constants, sites."""

    module: Module
    text: KernelText
    places: dict[str, tuple[str, int]]
    types: dict[str, str]
    variables: dict[str, Variable]
    dead: frozenset[str] = frozenset()
    """Registers that nobody reads."""
    early: tuple[str, ...] = ()
    """Registers that some path reads before it writes them; their lanes keep a mark once they are set."""
    constants: dict[str, Any] = field(default_factory=dict)
    full: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Rows that hold one value: name -> (dtype, text of the value)."""
    sites: list[Site] = field(default_factory=list)
    hazards: Hazards = field(default_factory=Hazards)
    """Of the sums of products of warpgroups."""
    scratch: int = 0
    """float64 rows that fused multiply-adds need."""

    def constant(self, value: Any) -> str:
        """The name of a bound constant."""
        value = np.asarray(value)[()] if not isinstance(value, tuple) else value
        key = f"K_{value.dtype.kind}{value.dtype.itemsize}_{value.tobytes().hex()}"
        self.constants[key] = value
        return key

    def site(
        self,
        one: Instruction,
        action: str,
        code: str,
        count: int = 1,
        volatile: bool = False,
        wanted: tuple[bool, ...] = (),
    ) -> int:
        """The number of a new site."""
        self.sites.append(Site(len(self.sites), one, action, code, count, volatile, wanted, self.text))
        return len(self.sites) - 1


def items(operand: Operand) -> tuple[Operand, ...]:
    """A vector's members; anything else alone."""
    if isinstance(operand, Vector):
        return operand.items
    if isinstance(operand, Pair):
        return (operand.first, operand.second)
    return (operand,)


def immediate(value: int | float, kind: str) -> Any:
    """A literal as a NumPy scalar of a PTX type, by its bits where it is a float in a `.b` type."""
    if kind == "pred":
        return np.bool_(bool(value))
    code = dtype_of(kind)
    size = int(code[1])
    if isinstance(value, float):
        if code[0] == "f":
            return np.dtype(code).type(value)
        value = int.from_bytes(struct.pack("<f" if size == 4 else "<d", value), "little")
    if code[0] == "f" and kind != "f16":
        return np.dtype(code).type(value)
    raw = int(value) & ((1 << (8 * size)) - 1)
    return np.array([raw], f"u{size}").view(code)[0]
