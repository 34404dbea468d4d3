"""Operands of instructions, with names resolved in the scopes of inline assembly.

Inline assembly opens a scope (`{ ... }`) and may declare registers, variables and labels there. NVRTC repeats
it wherever a function is inlined. So each declared name gets an own name that is unique in the kernel:
`%r1@4`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from ekc.errors import EkcError
from ekc.ptx.constants import ConstantReader, is_constant_start
from ekc.ptx.lexer import split_operands
from ekc.ptx.module import (
    Address,
    Immediate,
    Instruction,
    KernelText,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)

_PLAIN_ADDRESS = re.compile(r"\[([%$_A-Za-z][\w$]*+)(?:\+(-?(?:0|[1-9]\d{0,8})))?\]")
"""Base and decimal offset."""


@dataclass
class _Scope:
    """One scope: the kernel, or the braces of inline assembly."""

    parsed_operands: dict[str, Operand] = field(default_factory=dict)
    """Operand by text: few different ones occur in a kernel. Scopes share it until names are declared."""
    first_instruction: int = 0
    """Index of the scope's first instruction in `KernelText.code`."""
    first_table: int = 0
    """Index of the scope's first entry in `KernelText.branch_tables`."""
    names: dict[str, str] = field(default_factory=dict)
    """Register or variable as written -> own name."""
    labels: dict[str, str] = field(default_factory=dict)
    """Label as written -> own name."""


class NameScopes:
    """Scopes of registers, variables and labels in a kernel while it is parsed.

    A branch may precede its label, so branches get the own names of labels when the scope is closed."""

    def __init__(self) -> None:
        self.registers: dict[str, str] = {}
        self._scopes = [_Scope()]
        self._serial = count()

    @property
    def is_nested(self) -> bool:
        """Whether a scope is open."""
        return len(self._scopes) > 1

    def open_scope(self, kernel: KernelText) -> None:
        """Open a scope, in which the outer names stay visible."""
        parsed = self._scopes[-1].parsed_operands
        self._scopes.append(_Scope(parsed, len(kernel.code), len(kernel.branch_tables)))

    def close_scope(self, kernel: KernelText) -> None:
        """Close the innermost scope: its branches to its own labels get the own names of these."""
        scope = self._scopes.pop()
        if not scope.labels:
            return
        code, tables = kernel.code, kernel.branch_tables
        first = scope.first_instruction
        code[first:] = [_resolve_branch(one, scope.labels) for one in code[first:]]
        for name in list(tables)[scope.first_table :]:
            tables[name] = tuple(scope.labels.get(target, target) for target in tables[name])

    def _make_own_name(self, name: str) -> str:
        """The name of what is declared in the innermost scope, unique in the kernel."""
        return f"{name}@{next(self._serial)}" if self.is_nested else name

    def declare_label(self, name: str, line: int) -> str:
        """Declare a label in the innermost scope; returns its own name."""
        labels = self._scopes[-1].labels
        if name in labels:
            raise EkcError(f"PTX line {line}: label {name}: declared twice in one scope; rename one")
        labels[name] = self._make_own_name(name)
        return labels[name]

    def declare_names(self, names: Sequence[str]) -> list[str]:
        """Declare registers or variables in the innermost scope; returns their own names."""
        scope, own = self._scopes[-1], [self._make_own_name(name) for name in names]
        scope.parsed_operands = {}
        scope.names |= zip(names, own, strict=True)
        return own

    def resolve_name(self, name: str) -> str:
        """The own name of the register or variable that a name refers to here."""
        for scope in reversed(self._scopes):
            if name in scope.names:
                return scope.names[name]
        return name

    def parse_operands(self, text: str, line: int) -> tuple[Operand, ...]:
        """The operands of an instruction, from the text after its opcode."""
        parsed, operands = self._scopes[-1].parsed_operands, []
        for piece in split_operands(text, line):
            operand = parsed.get(piece)
            if operand is None:
                operand = parsed[piece] = self._parse_operand(piece, line)
            operands.append(operand)
        return tuple(operands)

    def _parse_operand(self, text: str, line: int) -> Operand:
        # The common forms, without a look at every token: registers, vectors of them, and addresses.
        plain = text.strip()
        own = self.resolve_name(plain)
        if own in self.registers:
            return Register(own)
        if plain[:1] == "{" and (items := self.parse_operands(plain[1:-1], line)):
            return Vector(items)
        if (match := _PLAIN_ADDRESS.fullmatch(plain)) is not None:
            name, offset = self.resolve_name(match[1]), int(match[2] or 0)
            return Address(Register(name) if name in self.registers else Symbol(name), offset)
        return _OperandReader(text, line, self).read_operand()


class _OperandReader(ConstantReader):
    """Reads one operand, token by token."""

    def __init__(self, text: str, line: int, names: NameScopes) -> None:
        super().__init__(text, line)
        self.scopes = names

    def read_operand(self) -> Operand:
        """Read the operand; nothing may follow it."""
        if not self.peek():
            raise self.make_error("an operand is missing beside a comma")
        one = self.read_simple()
        if self.accept("|"):
            one = Pair(one, self.read_simple())
        if self.peek():
            raise self.make_error(f"{self.peek()!r} where ';' was expected")
        return one

    def read_simple(self) -> Operand:
        """Read one operand, but not a pair `a|b`."""
        if self.accept("{"):
            items = [self.read_simple()]
            while self.accept(","):
                items.append(self.read_simple())
            self.take("}")
            return Vector(tuple(items))
        if self.accept("["):
            return self.read_address()
        if is_constant_start(self.source, self.position):
            return Immediate(self.read_constant())
        if self.accept("("):
            items = []
            while not self.accept(")"):
                items.append(self.read_simple())
                self.accept(",")
            return Vector(tuple(items))
        is_negated = bool(self.accept("!"))
        _, kind, _ = self.peek_token()
        line, word = self.current_line(), self.take()
        if kind != "word":
            raise EkcError(f"PTX line {line}: {word!r} cannot be an operand")
        return self.make_named(self.scopes.resolve_name(word), is_negated)

    def make_named(self, name: str, is_negated: bool) -> Operand:
        """The register of this name, or a symbol with its offset."""
        if name == "_" or name in self.scopes.registers:
            return Register(name, is_negated)
        return Symbol(name, self.read_offset() if self.accept("+") else 0)

    def read_address(self) -> Address:
        """Read an address after its opening bracket."""
        base = self.read_simple()
        is_float = isinstance(base, Immediate) and isinstance(base.value, float)
        if is_float or not isinstance(base, Register | Symbol | Immediate):
            raise self.make_error("this address is not supported")
        offset = 0
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            offset += sign * self.read_offset()
        self.take("]")
        if isinstance(base, Symbol) and base.offset:
            base, offset = Symbol(base.name), offset + base.offset
        return Address(base, offset)


def _resolve_branch(instruction: Instruction, labels: dict[str, str]) -> Instruction:
    if instruction.parts[0] not in ("bra", "brx"):
        return instruction
    given = instruction.operands
    operands = (Symbol(labels.get(x.name, x.name)) if isinstance(x, Symbol) else x for x in given)
    return replace(instruction, operands=tuple(operands))
