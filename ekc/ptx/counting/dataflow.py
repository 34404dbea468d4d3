"""Dataflow of register values through a loop body or a whole kernel, without its back edges.

A branch on an unknown predicate is followed both ways, a branch on a known predicate one way. Where paths
join, a register keeps its value if all of them agree on it. A nested loop is passed once: registers that vary
from trip to trip within it are unknown from its header on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from ekc.ptx.cfg import Block
from ekc.ptx.counting.constant_propagation import (
    Comparison,
    OffsetValue,
    PredicateGuard,
    PreparedInstruction,
    State,
    Values,
    is_settled,
    list_uses,
    prepare_instruction,
)
from ekc.ptx.counting.loops import ControlFlowGraph, NaturalLoop
from ekc.ptx.module import Instruction, Register

VaryingRegisters = dict[int, set[str]]
"""Header of a loop -> registers that may change from trip to trip."""


@dataclass(frozen=True)
class BranchSlice:
    """The instructions on which branches within loops depend; all others are left out."""

    steps: dict[int, tuple[PreparedInstruction, ...]]
    """Block -> its instructions that matter."""
    guards: dict[int, PredicateGuard]
    """Block within a loop -> condition of its branch, where that may become known."""

    @classmethod
    def from_graph(cls, graph: ControlFlowGraph) -> BranchSlice:
        """Slice the kernel; instructions whose results never change are evaluated once."""
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
        steps = {}
        for number in graph.order:
            steps[number] = tuple(_prepare_steps(graph.blocks[number].code, needed, constants, writers))
        guards = {
            number: PredicateGuard(constants.get(guard.name, guard.name), guard.is_negated)
            for number, guard in conditions.items()
            if guard.name not in constants or constants[guard.name].base is None
        }
        return cls(steps, guards)


def _find_branch_condition(block: Block) -> Register | None:
    """The guard of the branch that ends a block; None where the block has one successor."""
    instruction = block.exit.instruction
    return instruction.guard if instruction is not None and block.exit.kind == "branch" else None


def _find_needed_instructions(writers: dict[str, list[Instruction]], registers: set[str]) -> set[int]:
    """`id` of every instruction on which these registers depend."""
    needed: set[int] = set()
    visited, pending = set(registers), list(registers)
    while pending:
        for instruction in writers.get(pending.pop(), ()):
            needed.add(id(instruction))
            new = set(list_uses(instruction)) - visited
            visited |= new
            pending += new
    return needed


def _prepare_steps(
    body: Sequence[Instruction],
    needed: set[int],
    constants: Values,
    writers: dict[str, list[Instruction]],
) -> Iterable[PreparedInstruction]:
    """The steps of one block. Results that never change go to `constants` instead."""
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
    """An edge from the end of a node. With a guard it is open only where the guard equals `is_taken`."""

    source: int
    """Index of the node that the edge leaves."""
    guard: PredicateGuard | None
    is_taken: bool
    line: int
    """Line of the PTX text of the branch."""

    def is_open(self, after: Sequence[State | None]) -> bool:
        """Whether control may take this edge."""
        state = after[self.source]
        if state is None or self.guard is None:
            return state is not None
        return self.guard.evaluate(state) in (None, self.is_taken)


@dataclass
class _FlowNode:
    """Blocks that run together, and the steps of the first of them."""

    block: int
    """Number of the first block."""
    sources: list[FlowEdge]
    """Edges into the node."""
    steps: list[PreparedInstruction]
    is_loop_header: bool
    """Whether a nested loop begins here."""
    members: list[int] = field(default_factory=list)
    """Numbers of all blocks of the node."""


class LoopFlow:
    """A loop's body, or the whole kernel, as an acyclic graph with as few nodes as possible."""

    def __init__(
        self, graph: ControlFlowGraph, code: BranchSlice, loop: NaturalLoop | None, decided: Iterable[int]
    ) -> None:
        """Branches of `decided` blocks may be followed one way, if `code` has their conditions."""
        self._graph, self._code, self._loop = graph, code, loop
        self._decided = {number for number in decided if number in code.guards and self._is_decidable(number)}
        self.nodes: list[_FlowNode] = []
        self.node_by_block: dict[int, int] = {}
        """Block -> the node whose end state is that of the block."""
        region = [n for n in graph.order if loop is None or n in loop.body]
        self.registers = self._find_needed_registers(region)
        for number in region:
            self._add_block(number)
        targets = ((n, target) for n in region for target in graph.blocks[n].exit.targets)
        exits = [(n, target) for n, target in targets if target not in self.node_by_block]
        self.exits = [edge for number, target in exits for edge in self._find_edges(number, target)]
        latches = sorted(loop.latches) if loop else ()
        self.latches = [edge for number in latches for edge in self._find_edges(number, region[0])]
        self.is_linear = all(each.is_linear for node in self.nodes for each in node.steps)
        """Whether numbers are only added and compared: see `TripStrides`."""

    def run(
        self,
        entry: State,
        varying: VaryingRegisters,
        trip: int,
        comparisons: list[Comparison | None] | None = None,
    ) -> tuple[list[State | None], list[State | None]]:
        """(before, after): the states at the start and end of each node; None for a node that is not reached.

        The numbers of each comparison on the path are added to `comparisons`."""
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
                    state.multi_writer_values[name] = OffsetValue(0, ("loop", node.block, name, trip))
                for each in node.steps:
                    if comparisons is not None and each.comparison_type:
                        comparisons.append(each.read_comparison(state))
                    each.apply(state, trip)
            after.append(state)
        return before, after

    def find_decided_blocks(self, after: Sequence[State | None]) -> set[int]:
        """The decided blocks whose branches were followed one way."""
        ends = ((number, after[self.node_by_block[number]]) for number in self._decided)
        guards = self._code.guards
        return {number for number, state in ends if state and guards[number].evaluate(state) is not None}

    def _is_decidable(self, number: int) -> bool:
        """Whether one trip decides a branch. A branch that ends a trip of a nested loop goes both ways."""
        inner = self._graph.innermost_loops[number]
        if inner is self._loop:
            return True
        following = self._graph.blocks[number].exit.targets
        return all(other in inner.body and other != inner.header for other in following)

    def _find_needed_registers(self, region: Sequence[int]) -> set[str]:
        """Registers on which the decided branches depend; all registers for a whole kernel."""
        if self._loop is None:
            steps = (step for number in region for step in self._code.steps[number])
            return {name for step in steps for name in step.written_registers}
        writers: dict[str, list[PreparedInstruction]] = {}
        for number in region:
            for each in self._code.steps[number]:
                for name in each.written_registers:
                    writers.setdefault(name, []).append(each)
        predicates = (self._code.guards[number].predicate for number in self._decided)
        pending = [name for name in predicates if isinstance(name, str)]
        needed = set(pending)
        while pending:
            read = {name for each in writers.get(pending.pop(), ()) for name in each.list_reads()} - needed
            needed |= read
            pending += read
        return needed

    def _find_edges(self, number: int, target: int) -> list[FlowEdge]:
        """The edges from one block to another."""
        block, source = self._graph.blocks[number], self.node_by_block[number]
        line = block.instructions[-1].line if block.instructions else block.line
        if number not in self._decided:
            return [FlowEdge(source, None, True, line)]
        guard = self._code.guards[number]
        successors = zip(block.exit.targets, (True, False), strict=True)
        return [FlowEdge(source, guard, taken, line) for other, taken in successors if other == target]

    def _add_block(self, number: int) -> None:
        """Add a block to the node that it always runs with, or to a new node."""
        first = not self.nodes
        before = () if first else self._graph.forward_predecessors[number]
        sources = [edge for other in before for edge in self._find_edges(other, number)]
        own = self._code.steps[number]
        steps = [each for each in own if not self.registers.isdisjoint(each.written_registers)]
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
    """The facts that hold in all of these states; None without any state."""
    if len(states) < 2:
        return states[0] if states else None
    first, *others = (state.multi_writer_values for state in states)
    own = first.copy()
    for other in others:
        for name in first.keys() | other.keys():
            if first.get(name) != other.get(name):
                own[name] = OffsetValue(0, ("join", name, new_base))
    return State(states[0].single_writer_values, own)
