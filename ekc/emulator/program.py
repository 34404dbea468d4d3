"""PTX as data: what the parser gives and everything else reads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    """A register operand; `%p1` after `!` is `negated`."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number: an int, or a float with the bits that PTX spells (`0f`, `0d`)."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, a label or a special register such as `%tid.x`, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, c, d}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`%r1|%p1`: a result and a predicate."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Address | Vector | Pair


@dataclass(frozen=True, slots=True)
class Instruction:
    """One statement: opcode with its modifiers, guard and operands, and where it stands."""

    opcode: str
    guard: Register | None
    operands: tuple[Operand, ...]
    line: int
    source_line: int | None
    text: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode's words: `ld.global.f32` is ("ld", "global", "f32")."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable: space, element type, elements (None: `name[]`), alignment, initial values."""

    name: str
    space: str
    type: str
    count: int | None
    align: int
    values: tuple[int | float, ...] = ()

    @property
    def size(self) -> int:
        """Bytes; 0 for dynamic shared memory."""
        return TYPE_BYTES[self.type] * (self.count or 0)


@dataclass
class KernelText:
    """One `.entry`: parameters, registers (name -> type), variables, statements and labels."""

    name: str
    parameters: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_threads: int | None = None


@dataclass
class Module:
    """A whole PTX text."""

    version: str
    target: str
    variables: list[Variable] = field(default_factory=list)
    kernels: dict[str, KernelText] = field(default_factory=dict)


TYPE_BYTES = {
    **{f"{k}8": 1 for k in "bus"},
    **{f"{k}{n}": n // 8 for k in "busf" for n in (16, 32, 64)},
    "b128": 16,
    "f16x2": 4,
    "bf16": 2,
    "bf16x2": 4,
    "tf32": 4,
    "pred": 1,
}
