"""What is known where in a stretch of a kernel without back edges, whichever way control went.

A branch on an unknown predicate flows both ways, one on a known predicate flows one way. Where
ways meet, a register keeps its value if all of them agree on it. An inner loop is passed once:
what varies from trip to trip within it is unknown from its header on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ekc.ptx.cfg import Block, list_successors
from ekc.ptx.counting.constant_propagation import (
    Comparison,
    PredicateGuard,
    PreparedInstruction,
    State,
    Value,
    Values,
    is_settled,
    list_uses,
    prepare_instruction,
)
from ekc.ptx.counting.loops import ControlFlowGraph, NaturalLoop
from ekc.ptx.module import Instruction, Register

VaryingRegisters = dict[int, set[str]]
"""By loop header: the registers that may change from trip to trip."""


@dataclass(frozen=True)
class BranchSlice:
    """What may decide a branch within a loop; the rest of the kernel is left out."""

    steps: dict[int, tuple[PreparedInstruction, ...]]
    """By block."""
    guards: dict[int, PredicateGuard]
    """Conditions of the branches that end blocks within loops, where they may become known."""

    @classmethod
    def from_graph(cls, graph: ControlFlowGraph) -> BranchSlice:
        """Slice the kernel, and evaluate once what is the same throughout."""
        writers: dict[str, list[Instruction]] = {}
        for number in graph.order:
            for instruction in graph.blocks[number].code:
                for name in instruction.writes:
                    writers.setdefault(name, []).append(instruction)
        conditions = {
            number: guard
            for number in graph.innermost_loops
            if (guard := _find_branch_condition(graph.blocks[number])) is not None
        }
        needed = _find_needed_instructions(writers, {guard.name for guard in conditions.values()})
        constants: Values = {}
        steps = {
            number: tuple(_prepare_steps(graph.blocks[number].code, needed, constants, writers))
            for number in graph.order
        }
        guards = {
            number: PredicateGuard(constants.get(guard.name, guard.name), guard.is_negated)
            for number, guard in conditions.items()
            if guard.name not in constants or constants[guard.name].base is None
        }
        return cls(steps, guards)


def _find_branch_condition(block: Block) -> Register | None:
    """The predicate that decides which of two blocks follows; None where one does."""
    instruction = block.exit.instruction
    return instruction.guard if instruction is not None and block.exit.kind == "branch" else None


def _find_needed_instructions(writers: dict[str, list[Instruction]], registers: set[str]) -> set[int]:
    """Identities of the instructions on which the wanted registers depend."""
    found: set[int] = set()
    seen, pending = set(registers), list(registers)
    while pending:
        for instruction in writers.get(pending.pop(), ()):
            found.add(id(instruction))
            new = set(list_uses(instruction)) - seen
            seen |= new
            pending += new
    return found


def _prepare_steps(
    body: Sequence[Instruction],
    needed: set[int],
    constants: Values,
    writers: dict[str, list[Instruction]],
) -> Iterable[PreparedInstruction]:
    """The steps of one block; what does not vary goes to `constants` instead."""
    for instruction in body:
        if id(instruction) not in needed:
            continue
        prepared = prepare_instruction(instruction, constants, writers)
        if is_settled(instruction, prepared):
            prepared.apply(State(constants, {}), 0)
        else:
            yield prepared


@dataclass(frozen=True)
class FlowEdge:
    """A way from the end of a node; with a guard, only where that gives `taken`."""

    source: int
    guard: PredicateGuard | None
    is_taken: bool
    line: int

    def is_open(self, after: Sequence[State | None]) -> bool:
        """Whether control may come this way."""
        state = after[self.source]
        if state is None or self.guard is None:
            return state is not None
        return self.guard.evaluate(state) in (None, self.is_taken)


@dataclass
class _FlowNode:
    """Blocks that run together, and the steps to follow at the first of them."""

    block: int
    sources: list[FlowEdge]
    steps: list[PreparedInstruction]
    is_loop_header: bool
    """Begins a nested loop."""
    members: list[int] = field(default_factory=list)


class LoopFlow:
    """A loop's body, or the whole kernel, as an acyclic graph of as few nodes as matter."""

    def __init__(
        self, graph: ControlFlowGraph, code: BranchSlice, loop: NaturalLoop | None, decided: Iterable[int]
    ) -> None:
        """Of the branches, those that end the `decided` blocks may flow one way, if `code` has them."""
        self._graph, self._code, self._loop = graph, code, loop
        self._decided = {number for number in decided if number in code.guards and self._is_decidable(number)}
        self.nodes: list[_FlowNode] = []
        self.node_by_block: dict[int, int] = {}
        """By block: the node after which the state is the one at the block's end."""
        region = [n for n in graph.order if loop is None or n in loop.body]
        self.registers = self._find_needed_registers(region)
        for number in region:
            self._add_block(number)
        exits = [
            (n, target)
            for n in region
            for target in list_successors(graph.blocks[n])
            if target not in self.node_by_block
        ]
        self.exits = [edge for number, target in exits for edge in self._find_edges(number, target)]
        latches = sorted(loop.latches) if loop else ()
        self.latches = [edge for number in latches for edge in self._find_edges(number, region[0])]
        self.is_linear = all(each.is_linear for node in self.nodes for each in node.steps)
        """Whether numbers are only added and compared: see `strides.py`."""

    def run(
        self,
        entry: State,
        varying: VaryingRegisters,
        trip: int,
        comparisons: list[Comparison | None] | None = None,
    ) -> tuple[list[State | None], list[State | None]]:
        """(before, after): states around each node, None for one that is not reached. `compared` gains the
        numbers of each comparison that is passed."""
        before: list[State | None] = []
        after: list[State | None] = []
        for node in self.nodes:
            open_edges = (edge for edge in node.sources if edge.is_open(after))
            states = [state for edge in open_edges if (state := after[edge.source])] if before else [entry]
            state = join_states(states, (node.block, trip))
            before.append(state)
            if state is not None and (node.steps or node.is_loop_header):
                state = State(state.single_writer_values, state.multi_writer_values.copy())
                for name in varying.get(node.block, ()) if node.is_loop_header else ():
                    state.multi_writer_values[name] = Value(0, ("loop", node.block, name, trip))
                for each in node.steps:
                    if comparisons is not None and each.comparison_type:
                        comparisons.append(each.read_comparison(state))
                    each.apply(state, trip)
            after.append(state)
        return before, after

    def find_decided_blocks(self, after: Sequence[State | None]) -> set[int]:
        """The decided blocks whose branches went one way."""
        ends = ((number, after[self.node_by_block[number]]) for number in self._decided)
        guards = self._code.guards
        return {number for number, state in ends if state and guards[number].evaluate(state) is not None}

    def _is_decidable(self, number: int) -> bool:
        """Whether one trip tells where a branch goes: not if that ends a trip of a nested loop."""
        inner = self._graph.innermost_loops[number]
        if inner is self._loop:
            return True
        following = list_successors(self._graph.blocks[number])
        return all(other in inner.body and other != inner.header for other in following)

    def _find_needed_registers(self, region: Sequence[int]) -> set[str]:
        """Registers on which the decided branches depend; without a loop, all."""
        if self._loop is None:
            return {
                name
                for number in region
                for step in self._code.steps[number]
                for name in step.written_registers
            }
        writers: dict[str, list[PreparedInstruction]] = {}
        for number in region:
            for each in self._code.steps[number]:
                for name in each.written_registers:
                    writers.setdefault(name, []).append(each)
        predicates = (self._code.guards[number].predicate for number in self._decided)
        pending = [name for name in predicates if isinstance(name, str)]
        found = set(pending)
        while pending:
            read = {name for each in writers.get(pending.pop(), ()) for name in each.list_reads()} - found
            found |= read
            pending += read
        return found

    def _find_edges(self, number: int, target: int) -> list[FlowEdge]:
        """The ways from one block to another."""
        block, source = self._graph.blocks[number], self.node_by_block[number]
        line = block.instructions[-1].line if block.instructions else block.line
        if number not in self._decided:
            return [FlowEdge(source, None, True, line)]
        guard = self._code.guards[number]
        ways = zip(list_successors(block), (True, False), strict=True)
        return [FlowEdge(source, guard, taken, line) for other, taken in ways if other == target]

    def _add_block(self, number: int) -> None:
        """Put a block into the node that it always runs with, or into a new one."""
        first = not self.nodes
        sources = (
            []
            if first
            else [e for p in self._graph.forward_predecessors[number] for e in self._find_edges(p, number)]
        )
        steps = [
            each for each in self._code.steps[number] if not self.registers.isdisjoint(each.written_registers)
        ]
        header = not first and self._graph.innermost_loops.get(number) is not None
        header = header and self._graph.innermost_loops[number].header == number
        plain = {edge.source if edge.guard is None else -1 for edge in sources}
        if steps or header or len(plain) != 1 or -1 in plain:
            self.nodes.append(_FlowNode(number, sources, steps, header))
            self.node_by_block[number] = len(self.nodes) - 1
        else:
            self.node_by_block[number] = plain.pop()
        self.nodes[self.node_by_block[number]].members.append(number)


def join_states(states: Sequence[State], new_base: Hashable) -> State | None:
    """What holds whichever of these states control comes with; None without any."""
    if len(states) < 2:
        return states[0] if states else None
    first, *others = (state.multi_writer_values for state in states)
    own = first.copy()
    for other in others:
        for name in first.keys() | other.keys():
            if first.get(name) != other.get(name):
                own[name] = Value(0, ("join", name, new_base))
    return State(states[0].single_writer_values, own)
