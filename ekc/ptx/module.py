"""PTX as data: operands, instructions, variables, kernels and modules, as the parser makes them.

`classify_instruction` sorts instructions into the kinds that counters use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ekc.errors import EkcError, InvalidInput
from ekc.ptx.lexer import format_statement
from ekc.tables import group_pairs

_ROOTS_WITHOUT_RESULT = (
    *("st", "red", "cp", "bar", "barrier", "stmatrix"),
    *("prefetch", "prefetchu", "discard", "applypriority"),
)


_LONG_VECTOR = re.compile(r"\{([^,{}]+)(?:, [^,{}]+){3,}, ([^,{}]+)\}")
"""A vector of five or more."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register operand; `is_negated` where a `!` precedes it."""

    name: str
    is_negated: bool = False


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


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction: opcode with its modifiers, guard, operands and place in the text."""

    opcode: str
    guard: Register | None
    operands: tuple[Operand, ...]
    line: int
    """Line of the PTX text, from 1."""
    source_line: int | None
    """Line of the CUDA text, where the PTX has line information."""
    raw: str
    """The PTX text of the instruction, without the semicolon."""

    @cached_property
    def text(self) -> str:
        """The instruction as one line with even spacing."""
        return format_statement(self.raw)

    @cached_property
    def short_text(self) -> str:
        """`text` with only the first and the last item of long vectors."""
        return _LONG_VECTOR.sub(r"{\1, ..., \2}", self.text)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The opcode split at its dots: `ld.global.f32` -> ("ld", "global", "f32")."""
        return split_opcode(self.opcode)

    @property
    def ends_block(self) -> bool:
        """Whether control may go elsewhere than to the next instruction, or waits here for other threads."""
        return _ends_block(self.opcode)

    @cached_property
    def is_accumulating(self) -> bool:
        """Whether the instruction adds to its result: a `wgmma` whose scale-d is not the number 0."""
        return self.opcode.startswith("wgmma.mma_async") and Immediate(0) not in self.operands[3:4]

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Registers that the instruction writes."""
        first = self.operands[0] if self.operands else None
        if first is None or isinstance(first, Address) or _has_no_result(self.opcode):
            return ()
        return list_registers(first)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Registers that the instruction reads, its guard included."""
        first = 1 if self.writes and not self.is_accumulating else 0
        names = [n for operand in self.operands[first:] for n in list_registers(operand)]
        return (*names, self.guard.name) if self.guard else tuple(names)

    def make_error(self, problem: str) -> EkcError:
        """An error that names the line and the text."""
        return EkcError(f"PTX line {self.line}: {self.text}: {problem}")


@lru_cache(maxsize=4096)
def split_opcode(opcode: str) -> tuple[str, ...]:
    """Split an opcode at its dots."""
    return tuple(opcode.split("."))


@lru_cache(maxsize=4096)
def _ends_block(opcode: str) -> bool:
    root = split_opcode(opcode)[0]
    return root in ("bra", "ret", "exit", "brx", "trap") or (
        root in ("bar", "barrier") and not opcode.startswith(("bar.warp", "barrier.cluster"))
    )


@lru_cache(maxsize=4096)
def _has_no_result(opcode: str) -> bool:
    """Whether the first operand of an opcode is a source instead of a result."""
    stores = split_opcode(opcode)[0] in _ROOTS_WITHOUT_RESULT or _ends_block(opcode)
    return stores and not opcode.startswith(("bar.red", "barrier.red"))


def list_registers(operand: Operand) -> tuple[str, ...]:
    """Names of the registers in an operand."""
    if isinstance(operand, Register):
        return (operand.name,) if operand.name != "_" else ()
    if isinstance(operand, Address):
        return list_registers(operand.base)
    if isinstance(operand, Vector):
        return tuple(n for item in operand.items for n in list_registers(item))
    if isinstance(operand, Pair):
        return list_registers(operand.first) + list_registers(operand.second)
    return ()


_SAME_NAME_NUMBER = re.compile(r"(?:_\d|__\d+_)?")
"""End of the mangled name of a variable, where several of one function have the same name."""


def _demangle(name: str) -> str:
    """The name in the CUDA text of a variable of a function (`_ZZ<function>E<length><name>`), or of a static
    one outside of functions (`_ZL<length><name>`); other names as they are."""
    for found in re.finditer(r"(?:\A_ZL|E)(\d+)", name) if name.startswith(("_ZZ", "_ZL")) else ():
        end = found.end() + int(found[1])
        if end <= len(name) and _SAME_NAME_NUMBER.fullmatch(name, end):
            return name[found.end() : end]
    return name


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable or parameter."""

    name: str
    space: str
    """"global", "shared", "local", "const" or "param"."""
    type: str
    """PTX type of an element, such as "f32"."""
    element_count: int | None
    """Elements; None for `name[]`, whose size the launch gives."""
    alignment_bytes: int
    initial_values: tuple[int | float, ...] = ()

    @property
    def source_name(self) -> str:
        """The name in the CUDA text: "B_shared" for "_ZZ10ekc_matmulE8B_shared"."""
        return _demangle(self.name)

    @property
    def size_bytes(self) -> int:
        """Bytes of the variable; 0 for dynamic shared memory."""
        return TYPE_BYTES[self.type] * (self.element_count or 0)


@dataclass
class KernelText:
    """One kernel (`.entry`) as text."""

    name: str
    parameters: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    """Register -> PTX type."""
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Label -> index in `code` of the instruction after it."""
    label_lines: dict[str, int] = field(default_factory=dict)
    """Label -> line of the PTX text."""
    branch_tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Label of a `.branchtargets` -> labels that `brx` may go to."""
    max_threads: int | None = None
    """Most threads of a block, by `.maxntid` or `.reqntid`."""

    @cached_property
    def readers_by_register(self) -> dict[str, list[Instruction]]:
        """The instructions that read each register. To be asked only once the kernel is complete."""
        return group_pairs((name, one) for one in self.code for name in one.reads)


@dataclass
class Module:
    """A PTX text."""

    version: str
    """PTX version, such as "8.0"."""
    target: str
    """Architecture, such as "sm_80"."""
    variables: list[Variable] = field(default_factory=list)
    kernels: dict[str, KernelText] = field(default_factory=dict)

    def find_kernel(self, name: str) -> KernelText:
        """The kernel of this name; `InvalidInput` lists those that exist."""
        if name not in self.kernels:
            names = ", ".join(self.kernels) or "none"
            raise InvalidInput(f"kernel: no {name!r} in this PTX; kernels are {names}")
        return self.kernels[name]


TYPE_BYTES = {
    **{f"{k}8": 1 for k in "bus"},
    **{f"{k}{n}": n // 8 for k in "busf" for n in (16, 32, 64)},
    **{"f16x2": 4, "bf16": 2, "bf16x2": 4, "tf32": 4},
    **{"b128": 16, "pred": 1},
}


_SPACES = ("global", "shared", "local", "param", "const")
_FLOAT_ROOTS = ("fma", "mad", "add", "sub", "mul", "div", "min", "max", "neg", "abs")
_FLOAT_TYPES = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "tf32")
_ACCESS_VERBS = {
    **dict.fromkeys(("ld", "ldu", "ldmatrix"), "load"), "st": "store",
    **dict.fromkeys(("atom", "red"), "atomic"),
}  # fmt: skip
_KINDS = {
    **dict.fromkeys(("bar", "barrier"), "barrier"),
    **dict.fromkeys(("bra", "brx", "ret", "exit", "trap"), "branch"),
    **dict.fromkeys(("shfl", "vote", "redux", "match", "activemask"), "warp"),
    "mma": "mma",
    **dict.fromkeys(("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh"), "special"),
    **dict.fromkeys(("mov", "cvta"), "move"),
    "cvt": "convert",
    **dict.fromkeys(("setp", "selp", "set", "slct"), "compare"),
}
"""First part of an opcode -> kind, where the other parts do not matter."""


def classify_instruction(instruction: Instruction) -> str:
    """The kind of an instruction, such as "fma.f32", "integer", "load.global", "barrier" or "branch"."""
    parts = instruction.parts
    root = parts[0]
    spaces = [p.split("::")[0] for p in parts[1:] if p.split("::")[0] in _SPACES]
    if root in _ACCESS_VERBS:
        return f"{_ACCESS_VERBS[root]}.{spaces[0] if spaces else 'generic'}"
    if root == "cp":
        return "copy.shared" if spaces else "copy.control"
    if root == "wgmma":
        return "wgmma" if parts[1] == "mma_async" else "wgmma.control"
    if root in _FLOAT_ROOTS and parts[-1] in _FLOAT_TYPES:
        return f"{'fma' if root in ('fma', 'mad') else 'float'}.{parts[-1]}"
    return _KINDS.get(root, "integer")
