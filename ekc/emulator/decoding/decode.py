"""A kernel decoded once: blocks as Python text, and everything that text refers to by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType

from ekc.emulator.decoding.op_arith import ARITHMETIC_WRITERS
from ekc.emulator.decoding.op_bits import BIT_WRITERS
from ekc.emulator.decoding.op_memory import MEMORY_WRITERS
from ekc.emulator.decoding.op_warp import WARP_WRITERS
from ekc.emulator.decoding.op_warpgroup import WARPGROUP_WRITERS
from ekc.emulator.decoding.shelf import DecodeContext
from ekc.emulator.decoding.slots import allocate_slots
from ekc.emulator.decoding.writer import BlockWriter
from ekc.emulator.ptx import modifiers
from ekc.emulator.ptx.cfg import Block, build_blocks
from ekc.emulator.ptx.program import Instruction, KernelText, Module
from ekc.emulator.ptx.sums import find_wgmma_hazards
from ekc.errors import EkcError

SlotAllocator = Callable[
    [list[Block], dict[str, str]], tuple[dict[str, tuple[str, int]], dict[str, int], set[str]]
]
"""(class, row) of every register, rows of each class, registers live at the entry."""
_OPERATIONS: dict[str, Callable[[BlockWriter, Instruction], None]] = {
    **ARITHMETIC_WRITERS,
    **BIT_WRITERS,
    **MEMORY_WRITERS,
    **WARP_WRITERS,
    **WARPGROUP_WRITERS,
}


@dataclass(frozen=True)
class DecodedKernel:
    """A kernel that is ready to be bound to arrays."""

    module: Module
    kernel: KernelText
    blocks: tuple[Block, ...]
    context: DecodeContext
    slot_counts: dict[str, int]
    """Rows of each register class."""
    code: CodeType
    source: str

    masked_codes: dict[int, CodeType] = field(default_factory=dict)
    """The masked forms of blocks that were needed so far."""

    def compile_masked(self, number: int) -> CodeType:
        """The masked form of one block, written when it is first needed."""
        if number not in self.masked_codes:
            writer = _write_block(self.context, self.blocks[number], is_masked=True)
            text = "\n".join(_format_function(f"m{number}", writer))
            self.masked_codes[number] = compile(text, f"<ptx {self.kernel.name}>", "exec")
        return self.masked_codes[number]


def decode_kernel(module: Module, name: str, allocate: SlotAllocator = allocate_slots) -> DecodedKernel:
    """Decode one kernel, its registers in rows as `rows` allots them; `EkcError` names the first instruction
    that is unknown."""
    if name not in module.kernels:
        known = ", ".join(module.kernels) or "none"
        raise EkcError(f"kernel {name!r} is not in this PTX; it has: {known}")
    text = module.kernels[name]
    if not text.code:
        raise EkcError(f"kernel {name!r} has no instructions")
    _check_opcodes(module, text)
    found = build_blocks(text)
    _check_registers(text)
    places, slots, early = allocate(found, text.registers)
    variables = {v.name: v for v in [*module.variables, *text.variables, *text.parameters]}
    dead = frozenset(text.registers) - text.readers_by_register.keys() | {"_"}
    shelf = DecodeContext(module, text, places, dict(text.registers), variables, dead, tuple(sorted(early)))
    shelf.hazards = find_wgmma_hazards(found)
    lines: list[str] = []
    for block in found:
        lines += _format_function(f"b{block.number}", _write_block(shelf, block, is_masked=False))
    source = "\n".join(lines)
    code = compile(source, f"<ptx {name}>", "exec")
    return DecodedKernel(module, text, tuple(found), shelf, slots, code, source)


def _check_registers(text: KernelText) -> None:
    for one in text.code:
        for name in one.reads + one.writes:
            if name not in text.registers:
                raise EkcError(f"PTX line {one.line}: {one.text}: register {name} is not declared")


def _check_opcodes(module: Module, text: KernelText) -> None:
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
        modifiers.check_modifiers(module, one)


def _write_block(shelf: DecodeContext, block: Block, is_masked: bool) -> BlockWriter:
    writer = BlockWriter(shelf, block, is_masked)
    for one in block.code:
        writer.begin_instruction(one)
        try:
            _OPERATIONS[one.parts[0]](writer, one)
        except (ValueError, IndexError, StopIteration, TypeError, AttributeError, KeyError) as error:
            raise writer.make_error("malformed, or a form that is not emulated") from error
        writer.end_instruction()
    return writer


def _format_function(name: str, writer: BlockWriter) -> list[str]:
    return [f"def {name}(M):", *(f"    {line}" for line in writer.lines or ["pass"])]
