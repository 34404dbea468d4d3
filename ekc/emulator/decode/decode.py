"""Decoding of a kernel: blocks as compiled Python functions, and registers in rows of lanes.

Registers that are never live together share a row (a slot of their class).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import CodeType

from ekc.emulator.decode.arithmetic import ARITHMETIC_WRITERS
from ekc.emulator.decode.bits import BIT_WRITERS
from ekc.emulator.decode.block_writer import BlockWriter, Writer
from ekc.emulator.decode.context import DecodeContext
from ekc.emulator.decode.memory import MEMORY_WRITERS
from ekc.emulator.decode.warp import WARP_WRITERS
from ekc.errors import EkcError
from ekc.ptx import opcodes
from ekc.ptx.cfg import Block, build_blocks, compute_live_in
from ekc.ptx.module import TYPE_BYTES, KernelText, Module
from ekc.ptx.wgmma_hazards import derive_wgmma_hazards

_CLASS_BY_BYTES = {1: "H", 2: "H", 4: "W", 8: "D", 16: "Q"}
"""Classes of rows but "P", that of predicates: H (16 bit), W (32 bit), D (64 bit), Q (not emulated)."""


def compute_lifetimes(blocks: list[Block]) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """First and last place at which each register is live, and the registers that are live at the entry."""
    live = compute_live_in(blocks)
    span: dict[str, tuple[int, int]] = {}
    place = 0

    def touch(name: str, at: int) -> None:
        first, last = span.get(name, (at, at))
        span[name] = (min(first, at), max(last, at))

    for block in blocks:
        for name in live[block.number]:
            touch(name, place)
        for one in block.instructions:
            place += 1
            for name in one.reads + one.writes:
                touch(name, place)
        place += 1
        for after in block.exit.targets:
            for name in live[after]:
                touch(name, place)
    return span, live.get(0, set())


SlotAllocation = tuple[dict[str, tuple[str, int]], dict[str, int], set[str]]
"""(class, row) of every register, the number of rows of each class, and registers live at the entry."""


def allocate_slots(blocks: list[Block], types: dict[str, str]) -> SlotAllocation:
    """Rows that registers share which are never live together."""
    span, early = compute_lifetimes(blocks)
    return *_assign_rows(span, types), early


def allocate_separate_slots(blocks: list[Block], types: dict[str, str]) -> SlotAllocation:
    """As `allocate_slots`, but with a row for each register: faster, with more memory; none is early."""
    code = (one for block in blocks for one in block.instructions)
    names = (name for one in code for name in one.reads + one.writes)
    return *_assign_rows(dict.fromkeys(names, (0, 0)), types), set()


def _assign_rows(
    span: dict[str, tuple[int, int]], types: dict[str, str]
) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    """Class and row of each register, from the places between which it is live; the rows of each class."""
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[int, int]]] = {}
    count: Counter[str] = Counter()
    place: dict[str, tuple[str, int]] = {}
    for name, (first, last) in sorted(span.items(), key=lambda item: item[1]):
        kind = "P" if types[name] == "pred" else _CLASS_BY_BYTES[TYPE_BYTES[types[name]]]
        spare, live = free.setdefault(kind, []), busy.setdefault(kind, [])
        while live and live[0][0] < first:
            heappush(spare, heappop(live)[1])
        slot = heappop(spare) if spare else count[kind]
        count[kind] = max(count[kind], slot + 1)
        place[name] = (kind, slot)
        heappush(live, (last, slot))
    return place, count


SlotAllocator = Callable[[list[Block], dict[str, str]], SlotAllocation]
_CONTROL_OPCODES = ("bra", "brx", "ret", "exit", "trap", "barrier")
_OPERATIONS: dict[str, Writer] = {
    **ARITHMETIC_WRITERS, **BIT_WRITERS, **MEMORY_WRITERS, **WARP_WRITERS,
}  # fmt: skip


@dataclass(frozen=True)
class DecodedKernel:
    """A kernel as compiled functions, ready to be bound to the arrays of a batch."""

    module: Module
    kernel: KernelText
    blocks: tuple[Block, ...]
    context: DecodeContext
    slot_counts: dict[str, int]
    """Rows of each register class."""
    code: CodeType
    """Functions of all blocks for converged lanes."""
    source: str
    """The Python text of `code`."""
    masked_codes: dict[int, CodeType] = field(default_factory=dict)
    """Block -> its masked function, for blocks that needed one so far."""

    def compile_masked(self, number: int) -> CodeType:
        """The masked function of a block, compiled when it is first needed."""
        if number not in self.masked_codes:
            writer = _write_block(self.context, self.blocks[number], is_masked=True)
            text = "\n".join(_format_function(f"m{number}", writer))
            self.masked_codes[number] = compile(text, f"<ptx {self.kernel.name}>", "exec")
        return self.masked_codes[number]


def decode_kernel(module: Module, name: str, allocate: SlotAllocator = allocate_slots) -> DecodedKernel:
    """Decode one kernel, rows by `allocate`. `EkcError` names the first unknown instruction."""
    text = module.find_kernel(name)
    if not text.code:
        raise EkcError(f"kernel {name!r} has no instructions")
    _check_instructions(module, text)
    blocks = build_blocks(text)
    places, slots, early = allocate(blocks, text.registers)
    variables = {v.name: v for v in [*module.variables, *text.variables, *text.parameters]}
    dead = frozenset(text.registers) - text.readers_by_register.keys() | {"_"}
    context = DecodeContext(module, text, places, variables, dead, tuple(sorted(early)))
    context.hazards = derive_wgmma_hazards(blocks)
    lines: list[str] = []
    for block in blocks:
        lines += _format_function(f"b{block.number}", _write_block(context, block, is_masked=False))
    source = "\n".join(lines)
    code = compile(source, f"<ptx {name}>", "exec")
    return DecodedKernel(module, text, tuple(blocks), context, slots, code, source)


def _check_instructions(module: Module, text: KernelText) -> None:
    """Refuse unknown opcodes and modifiers, and registers that are not declared."""
    for one in text.code:
        if one.parts[0] not in _OPERATIONS and one.parts[0] not in _CONTROL_OPCODES:
            unknown = f"unknown instruction {one.opcode!r} (PTX {module.version})"
            raise EkcError(f"PTX line {one.line}: {unknown}: {one.text}")
        opcodes.check_modifiers(module, one)
        for name in one.reads + one.writes:
            if name not in text.registers:
                raise one.make_error(f"register {name} is not declared")


def _write_block(context: DecodeContext, block: Block, is_masked: bool) -> BlockWriter:
    writer = BlockWriter(context, block, is_masked)
    for one in block.code:
        writer.begin_instruction(one)
        try:
            _OPERATIONS[writer.root](writer)
        except (ValueError, IndexError, StopIteration, TypeError, AttributeError, KeyError) as error:
            raise writer.make_error("malformed, or a form that is not emulated") from error
        writer.end_instruction()
    return writer


def _format_function(name: str, writer: BlockWriter) -> list[str]:
    return [f"def {name}(M):", *(f"    {line}" for line in writer.lines or ["pass"])]
