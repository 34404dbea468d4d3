"""A kernel decoded once: blocks as Python text, and everything that text refers to by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType

from ekc.emulator.decoding.op_arith import ARITHMETIC
from ekc.emulator.decoding.op_bits import BITS
from ekc.emulator.decoding.op_memory import MEMORY
from ekc.emulator.decoding.op_warp import WARP
from ekc.emulator.decoding.op_warpgroup import WARPGROUP
from ekc.emulator.decoding.shelf import Shelf
from ekc.emulator.decoding.slots import allot
from ekc.emulator.decoding.writer import Writer
from ekc.emulator.ptx import modifiers
from ekc.emulator.ptx.cfg import Block, blocks
from ekc.emulator.ptx.program import Instruction, KernelText, Module
from ekc.emulator.ptx.sums import hazards
from ekc.errors import EkcError

Allotment = Callable[
    [list[Block], dict[str, str]], tuple[dict[str, tuple[str, int]], dict[str, int], set[str]]
]
"""(class, row) of every register, rows of each class, registers live at the entry."""
_OPERATIONS: dict[str, Callable[[Writer, Instruction], None]] = {
    **ARITHMETIC,
    **BITS,
    **MEMORY,
    **WARP,
    **WARPGROUP,
}


@dataclass(frozen=True)
class Decoded:
    """A kernel that is ready to be bound to arrays."""

    module: Module
    text: KernelText
    blocks: tuple[Block, ...]
    shelf: Shelf
    slots: dict[str, int]
    """Rows of each register class."""
    code: CodeType
    source: str

    masked: dict[int, CodeType] = field(default_factory=dict)
    """The masked forms of blocks that were needed so far."""

    def masked_code(self, number: int) -> CodeType:
        """The masked form of one block, written when it is first needed."""
        if number not in self.masked:
            writer = _write(self.shelf, self.blocks[number], masked=True)
            text = "\n".join(_function(f"m{number}", writer))
            self.masked[number] = compile(text, f"<ptx {self.text.name}>", "exec")
        return self.masked[number]


def decode(module: Module, name: str, rows: Allotment = allot) -> Decoded:
    """Decode one kernel, its registers in rows as `rows` allots them; `EkcError` names the first instruction
    that is unknown."""
    if name not in module.kernels:
        known = ", ".join(module.kernels) or "none"
        raise EkcError(f"kernel {name!r} is not in this PTX; it has: {known}")
    text = module.kernels[name]
    if not text.code:
        raise EkcError(f"kernel {name!r} has no instructions")
    _check_known(module, text)
    found = blocks(text)
    _check_declared(text)
    places, slots, early = rows(found, text.registers)
    variables = {v.name: v for v in [*module.variables, *text.variables, *text.parameters]}
    dead = frozenset(text.registers) - text.readers.keys() | {"_"}
    shelf = Shelf(module, text, places, dict(text.registers), variables, dead, tuple(sorted(early)))
    shelf.hazards = hazards(found)
    lines: list[str] = []
    for block in found:
        lines += _function(f"b{block.number}", _write(shelf, block, masked=False))
    source = "\n".join(lines)
    code = compile(source, f"<ptx {name}>", "exec")
    return Decoded(module, text, tuple(found), shelf, slots, code, source)


def _check_declared(text: KernelText) -> None:
    for one in text.code:
        for name in one.reads + one.writes:
            if name not in text.registers:
                raise EkcError(f"PTX line {one.line}: {one.text}: register {name} is not declared")


def _check_known(module: Module, text: KernelText) -> None:
    for one in text.code:
        if one.parts[0] not in _OPERATIONS and one.parts[0] not in (
            "bra",
            "brx",
            "ret",
            "exit",
            "trap",
            "barrier",
        ):
            raise EkcError(
                f"PTX line {one.line}: unknown instruction {one.opcode!r} (PTX {module.version}): {one.text}"
            )
        modifiers.check(module, one)


def _write(shelf: Shelf, block: Block, masked: bool) -> Writer:
    writer = Writer(shelf, block, masked)
    for one in block.code:
        writer.begin(one)
        try:
            _OPERATIONS[one.parts[0]](writer, one)
        except (ValueError, IndexError, StopIteration, TypeError, AttributeError, KeyError) as error:
            raise writer.fail("malformed, or a form that is not emulated") from error
        writer.end()
    return writer


def _function(name: str, writer: Writer) -> list[str]:
    return [f"def {name}(M):", *(f"    {line}" for line in writer.lines or ["pass"])]
