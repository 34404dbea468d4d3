"""Splits the PTX text of one kernel into basic blocks of instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ekc.emulator.ptx.constants import parse_constant
from ekc.emulator.ptx.tokens import split_operands
from ekc.errors import EkcError, InvalidInput

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_LABEL = re.compile(r"([\w$]+)\s*:$")
_GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
# A brace that begins a statement is a scope; a vector operand's stands inside its statement.
_TOKEN = re.compile(
    r"\s*(?:(?P<brace>[{}])|(?P<line>\.(?:loc|file)\b[^\n]*)|(?P<label>[\w$]+\s*:)(?!:)|(?P<code>[^;\s][^;]*)?;)"
)
_STOPS = ("ret", "exit", "trap")


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction; `line` counts from 1 in the whole PTX text."""

    line: int
    guard: str
    """Predicate register that must hold, "" where there is none."""
    negated: bool
    """The guard must not hold instead (`@!%p`)."""
    opcode: tuple[str, ...]
    """Split at the dots: ("fma", "rn", "f32")."""
    operands: tuple[str, ...]
    """A vector `{...}` or an address `[...]` is one operand."""

    def __str__(self) -> str:
        return f"{'.'.join(self.opcode)} {', '.join(self.operands)}".rstrip()

    def constant(self, operand: str) -> int | float:
        """The number that an operand is; `EkcError` names the instruction for one that PTX does not allow."""
        try:
            return parse_constant(operand, self.line)
        except EkcError as problem:
            raise EkcError(f"{problem}, in {str(self)!r}") from None

    def whole_number(self, place: int) -> int:
        """The same for a whole number, by the place of the operand."""
        found = self.constant(self.operands[place])
        if isinstance(found, float):
            raise EkcError(f"PTX line {self.line}: {found} is not a whole number, in {str(self)!r}")
        return found


@dataclass(frozen=True)
class Block:
    """Instructions that run one after another, and the indices of the blocks that may follow."""

    label: str
    """As in the text; "" where a block begins without one."""
    line: int
    body: tuple[Instruction, ...]
    next: tuple[int, ...]
    """Block numbers: the branch target first, then the fall-through; empty after `ret`."""


def blocks(ptx: str, kernel: str) -> tuple[Block, ...]:
    """The basic blocks of `kernel`, in text order; block 0 is the entry.

    Raises `InvalidInput` if the text has no such kernel, `EkcError` for a call or an indirect
    branch, which would leave the count incomplete.
    """
    pieces = [_Piece("", 0, [])]
    for line, statement in _statements(*_kernel_text(ptx, kernel)):
        if match := _LABEL.match(statement):
            pieces.append(_Piece(match[1], line, []))
            continue
        instruction = _instruction(line, statement)
        _refuse_jumps(kernel, instruction)
        pieces[-1].body.append(instruction)
        if instruction.opcode[0] in ("bra", *_STOPS):
            pieces.append(_Piece("", line, []))
    by_label = {piece.label: number for number, piece in enumerate(pieces) if piece.label}
    return tuple(
        Block(piece.label, piece.line, tuple(piece.body), _next(pieces, number, by_label))
        for number, piece in enumerate(pieces)
    )


@dataclass
class _Piece:
    """A block in the making."""

    label: str
    line: int
    body: list[Instruction]


def _kernel_text(ptx: str, kernel: str) -> tuple[int, str]:
    """Line number of the kernel's opening brace, and the text from there to the end of the PTX."""
    # Comments become nothing, but their line ends stay: line numbers must hold.
    plain = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), ptx)
    entries = {match[1]: match for match in _ENTRY.finditer(plain)}
    if kernel not in entries:
        raise InvalidInput(f"kernel {kernel!r} is not in the PTX, which has {', '.join(entries) or 'none'}")
    start = plain.index("{", entries[kernel].end())
    return plain.count("\n", 0, start) + 1, plain[start:]


def _statements(line: int, text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each label and instruction up to the brace that closes the body."""
    depth = seen = 0
    for token in _TOKEN.finditer(text):
        if brace := token["brace"]:
            depth += 1 if brace == "{" else -1
            if depth == 0:
                return
        statement = token["label"] or token["code"]
        if statement and not statement.startswith("."):
            start = token.start("label" if token["label"] else "code")
            line += text.count("\n", seen, start)
            seen = start
            yield line, statement


def _instruction(line: int, statement: str) -> Instruction:
    guard = _GUARD.match(statement)
    opcode, *rest = (statement[guard.end() :] if guard else statement).split(maxsplit=1)
    try:
        operands = [piece.strip() for text in rest for piece in split_operands(text, line)]
    except EkcError as problem:
        raise EkcError(f"{problem}, in {' '.join((opcode, *rest))!r}") from None
    return Instruction(
        line=line,
        guard=guard[2] if guard else "",
        negated=bool(guard and guard[1]),
        opcode=tuple(opcode.split(".")),
        operands=tuple(operands),
    )


def _refuse_jumps(kernel: str, instruction: Instruction) -> None:
    """Calls and jump tables: what runs then is not in the straight text."""
    if instruction.opcode[0] in ("call", "brx"):
        raise EkcError(
            f"PTX of {kernel!r}, line {instruction.line}: {'.'.join(instruction.opcode)} cannot be counted; "
            "inline the function (__forceinline__) or use plain branches"
        )


def _next(pieces: list[_Piece], number: int, by_label: dict[str, int]) -> tuple[int, ...]:
    """The blocks that may follow block `number`."""
    last = pieces[number].body[-1] if pieces[number].body else None
    fall = (number + 1,) if number + 1 < len(pieces) else ()
    if last is None or last.opcode[0] not in ("bra", *_STOPS):
        return fall
    taken = (by_label[last.operands[0]],) if last.opcode[0] == "bra" else ()
    return taken + fall if last.guard else taken
