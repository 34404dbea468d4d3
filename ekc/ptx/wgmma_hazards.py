"""Hazards of `wgmma` accumulators: accesses while a product may be in flight, and writes without a fence.

A dataflow analysis over the blocks of a kernel. Copies by `mov` are followed: the compiler copies
accumulators where asm statements are tied to variables, and such a copy counts as the same register.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ekc.ptx.cfg import Block
from ekc.ptx.module import Immediate, Instruction, Register, list_registers

T = TypeVar("T")
InFlightProducts = frozenset[tuple[Instruction, int]]
"""Products that may still write a register, each with the number of commits since its issue."""
WriterInstructions = frozenset[Instruction]
"""Instructions that may have written a register since the last `wgmma.fence`."""


@dataclass(frozen=True)
class AccumulatorAccess:
    """An access of an instruction to an accumulator whose products may be in flight."""

    register: str
    verb: str
    """"reads" or "writes"."""
    products: tuple[Instruction, ...]
    """The products that may be in flight, by line."""


@dataclass
class WgmmaHazards:
    """Instructions of a kernel that need a check when they run."""

    in_flight_accesses: dict[Instruction, AccumulatorAccess] = field(default_factory=dict)
    """Instruction -> its access to an accumulator in flight."""
    unfenced_writes: dict[Instruction, tuple[str, Instruction]] = field(default_factory=dict)
    """Product -> an accumulator of it, and the instruction that wrote that since the last `wgmma.fence`."""


@dataclass
class _AccumulatorState:
    """Facts that hold at one point of the kernel, by register."""

    in_flight: dict[str, InFlightProducts] = field(default_factory=dict)
    last_writers: dict[str, WriterInstructions] = field(default_factory=dict)

    def copy_state(self) -> _AccumulatorState:
        return _AccumulatorState(dict(self.in_flight), dict(self.last_writers))

    def join_state(self, other: _AccumulatorState) -> bool:
        """Add the facts of another path to this point; returns whether any was new."""
        is_new = _join_sets(self.in_flight, other.in_flight)
        return _join_sets(self.last_writers, other.last_writers) or is_new


def _join_sets(into: dict[str, frozenset[T]], more: dict[str, frozenset[T]]) -> bool:
    is_new = False
    for name, facts in more.items():
        old = into.get(name)
        if old is None or not facts <= old:
            into[name], is_new = facts if old is None else old | facts, True
    return is_new


def derive_wgmma_hazards(blocks: Sequence[Block]) -> WgmmaHazards:
    """Analyse a kernel, given by its blocks; the first is the entry."""
    hazards = WgmmaHazards()
    analysis = _HazardAnalysis(blocks)
    if not analysis.accumulators:
        return hazards
    states = {0: _AccumulatorState()}
    pending = [0]
    while pending:
        number = pending.pop()
        out = analysis.transfer_block(blocks[number], states[number].copy_state())
        for after in blocks[number].exit.targets:
            is_visited = after in states
            if states.setdefault(after, _AccumulatorState()).join_state(out) or not is_visited:
                pending.append(after)
    analysis.hazards = hazards
    for number, state in states.items():
        analysis.transfer_block(blocks[number], state)
    return hazards


class _HazardAnalysis:
    """The transfer function of the analysis."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        every = [one for block in blocks for one in block.instructions]
        products = [one for one in every if is_wgmma_product(one)]
        waits = [count_pending_groups(one) for one in every if one.opcode.startswith("wgmma.wait_group")]
        self.max_commit_age = max(waits, default=0) + 1
        """Number of commits after which every wait of the kernel ends a product."""
        sums = {n for one in products for n in list_registers(one.operands[0])}
        self.accumulators = _find_copies(sums, every)
        self.hazards: WgmmaHazards | None = None
        """Where hazards are noted, once the states are known."""

    def transfer_block(self, block: Block, state: _AccumulatorState) -> _AccumulatorState:
        """The state after a block. Its hazards are added to `hazards`, if that is set."""
        for one in block.instructions:
            if one.parts[0] == "wgmma":
                self._transfer_wgmma(one, state)
            elif not self.accumulators.isdisjoint(one.reads) or not self.accumulators.isdisjoint(one.writes):
                self._transfer_other(one, state)
        return state

    def _transfer_wgmma(self, instruction: Instruction, state: _AccumulatorState) -> None:
        what = instruction.parts[1]
        if is_wgmma_product(instruction):
            self._transfer_product(instruction, state)
        elif what == "fence":
            state.last_writers.clear()
        elif what == "commit_group":
            kinds = {*state.in_flight.values()}
            older = {x: frozenset((p, min(age + 1, self.max_commit_age)) for p, age in x) for x in kinds}
            state.in_flight = {name: older[x] for name, x in state.in_flight.items()}
        elif what == "wait_group":
            left = count_pending_groups(instruction)
            ended = {x: frozenset(p for p in x if p[1] <= left) for x in {*state.in_flight.values()}}
            state.in_flight = {name: ended[x] for name, x in state.in_flight.items() if ended[x]}

    def _transfer_product(self, instruction: Instruction, state: _AccumulatorState) -> None:
        product: InFlightProducts = frozenset([(instruction, 0)])
        for name in list_registers(instruction.operands[0]):
            state.in_flight[name] = product
            writers = state.last_writers.pop(name, None)
            if writers and self.hazards is not None:
                first = min(writers, key=lambda w: w.line)
                self.hazards.unfenced_writes.setdefault(instruction, (name, first))

    def _transfer_other(self, instruction: Instruction, state: _AccumulatorState) -> None:
        source = _find_copy_source(instruction)
        if source is None and self.hazards is not None:
            for verb, touched in (("reads", instruction.reads), ("writes", instruction.writes)):
                for name in touched:
                    if name in state.in_flight:
                        products = tuple(sorted({p for p, _ in state.in_flight[name]}, key=lambda p: p.line))
                        access = AccumulatorAccess(name, verb, products)
                        self.hazards.in_flight_accesses.setdefault(instruction, access)
        in_flight: InFlightProducts = state.in_flight.get(source or "", frozenset())
        writers: WriterInstructions = frozenset([instruction])
        if source is not None:
            writers = state.last_writers.get(source, frozenset())
        for name in self.accumulators.intersection(instruction.writes):
            _update_register(state.in_flight, name, in_flight, instruction)
            _update_register(state.last_writers, name, writers, instruction)


def _update_register(
    table: dict[str, frozenset[T]], name: str, value: frozenset[T], instruction: Instruction
) -> None:
    """Set the fact of a register after an instruction; a guarded one may leave the old fact true."""
    value = value if instruction.guard is None else value | table.get(name, frozenset())
    if value:
        table[name] = value
    else:
        table.pop(name, None)


def is_wgmma_product(instruction: Instruction) -> bool:
    """Whether an instruction issues a product of a warpgroup."""
    return instruction.opcode.startswith("wgmma.mma_async")


def count_pending_groups(instruction: Instruction) -> int:
    """The number of groups that may still be in flight after a `wgmma.wait_group`."""
    number = instruction.operands[0]
    return int(number.value) if isinstance(number, Immediate) else 0


def _find_copy_source(instruction: Instruction) -> str | None:
    """The register that a `mov` copies, "" where it copies anything else; None for other instructions."""
    if instruction.parts[0] != "mov" or not isinstance(instruction.operands[0], Register):
        return None
    source = instruction.operands[1]
    if isinstance(source, Register):
        return source.name
    return None if list_registers(source) else ""


def _find_copies(registers: set[str], instructions: Iterable[Instruction]) -> set[str]:
    """These registers, and all registers that are connected with them by copies."""
    neighbours: dict[str, set[str]] = {}
    for one in instructions:
        source = _find_copy_source(one)
        for name in one.writes if source else ():
            neighbours.setdefault(name, set()).add(source or "")
            neighbours.setdefault(source or "", set()).add(name)
    pending = list(registers)
    while pending:
        new = neighbours.get(pending.pop(), set()) - registers
        registers |= new
        pending += new
    return registers
