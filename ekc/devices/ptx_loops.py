"""How often each basic block of a kernel runs: its loops, and their trip counts.

Loops are the natural loops of the control flow graph. A trip count is found by following the
few integer instructions that decide the loop's exit, one iteration after another, from the
values that reach the loop. So it does not matter how the compiler has rewritten the counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ekc.devices.ptx_graph import Graph, Loop
from ekc.devices.ptx_text import Block, Instruction
from ekc.devices.ptx_values import State, Value, defs, execute, guard_holds, uses
from ekc.errors import EkcError

_MOST_TRIPS = 1 << 22


def executions(kernel: str, blocks: Sequence[Block]) -> list[float]:
    """Runs of each block per thread, every forward branch taken both ways.

    Raises `EkcError` naming the label and the line of a loop whose trip count cannot be found.
    """
    graph = Graph.of(kernel, blocks)
    runs = [1.0 if number in graph.order else 0.0 for number in range(len(graph.blocks))]
    entries = _entry_states(graph)
    for loop in graph.loops:
        trips, leaving = _trips(graph, loop, entries[loop.header])
        # The last trip stops at the exit: only what leads there runs once more.
        last_trip = graph.leading_to(leaving, loop)
        for number in loop.body:
            runs[number] *= trips if number in last_trip else trips - 1
    return runs[: len(blocks)]


def _entry_states(graph: Graph) -> dict[int, State]:
    """What is known on entry to each block; at a loop's header, on entry to the loop.

    A register is taken to be the same in every trip until a latch is seen to hold another value.
    """
    varying: set[tuple[int, str]] = set()
    while True:
        before, after = _propagate(graph, varying)
        seen = {
            (loop.header, name)
            for loop in graph.loops
            for name in _written(graph, loop.body)
            if any(after[latch].get(name) != before[loop.header].get(name) for latch in loop.latches)
        }
        if seen <= varying:
            return before
        varying |= seen


def _propagate(graph: Graph, varying: set[tuple[int, str]]) -> tuple[dict[int, State], dict[int, State]]:
    """States before and after each block; at a header, the `varying` registers are unknown."""
    before: dict[int, State] = {}
    after: dict[int, State] = {}
    for number in graph.order:
        before[number] = _meet(number, [after[prior] for prior in graph.forward[number]])
        state = dict(before[number])
        state.update({name: Value(0, ("loop", at, name)) for at, name in varying if at == number})
        for instruction in graph.blocks[number].body:
            execute(instruction, state, id(instruction))
        after[number] = state
    return before, after


def _written(graph: Graph, body: frozenset[int]) -> Counter[str]:
    """Registers that a loop writes, and how many instructions in it do."""
    instructions = (instruction for number in body for instruction in graph.blocks[number].body)
    return Counter(name for instruction in instructions for name in defs(instruction))


def _meet(number: int, states: list[State]) -> State:
    """What holds whichever way block `number` was reached."""
    if len(states) == 1:
        return states[0]
    merged: State = {}
    for name in {name for state in states for name in state}:
        values = {state.get(name) for state in states}
        first = values.pop()
        merged[name] = Value(0, ("join", number, name)) if values or first is None else first
    return merged


@dataclass(frozen=True)
class _Step:
    """One instruction of a loop's control, in the order of a trip."""

    instruction: Instruction
    block: int
    always: bool
    """Every trip ends with the value of one run of it."""
    exits: tuple[bool, ...] = ()
    """Of an exit branch: does it leave the loop when (taken, not taken)?"""


def _trips(graph: Graph, loop: Loop, entry: State) -> tuple[int, int]:
    """(trip count, block with the exit that is taken) of one loop."""
    steps = _control(graph, loop)
    names = {name for step in steps for name in (*defs(step.instruction), *uses(step.instruction))}
    state = {name: entry[name] for name in names if name in entry}
    for trip in range(1, _MOST_TRIPS + 1):
        for step in steps:
            if not step.exits:
                _follow(step, state, trip)
                continue
            taken = guard_holds(step.instruction, state) if step.always else None
            if taken is None:
                reason = f"its exit on line {step.instruction.line} depends on run-time data"
                raise _refusal(graph, loop, reason)
            if step.exits[0 if taken else 1]:
                return trip, step.block
    raise _refusal(graph, loop, f"it runs more than {_MOST_TRIPS} times" if steps else "it has no exit")


def _follow(step: _Step, state: State, trip: int) -> None:
    if step.always:
        execute(step.instruction, state, (id(step.instruction), trip))
    else:
        for name in defs(step.instruction):
            state[name] = Value(0, (id(step.instruction), trip, name))


def _control(graph: Graph, loop: Loop) -> list[_Step]:
    """The exit branches of a loop and the instructions in it that they depend on."""
    steps = []
    for number in (number for number in graph.order if number in loop.body):
        each_trip = graph.each_trip(number, loop)
        inner = graph.nested(number, loop)
        changed = _written(graph, inner.body) if inner else None
        for instruction in graph.blocks[number].body:
            always = each_trip and (changed is None or _settled(instruction, changed))
            steps.append(_Step(instruction, number, always, _exits(graph, loop, number, instruction)))
    needed = {step.instruction.guard for step in steps if step.exits}
    grown = -1
    while grown != len(needed):
        grown = len(needed)
        for step in steps:
            if not needed.isdisjoint(defs(step.instruction)):
                needed.update(uses(step.instruction))
    return [step for step in steps if step.exits or not needed.isdisjoint(defs(step.instruction))]


def _settled(instruction: Instruction, changed: Counter[str]) -> bool:
    """Whether an instruction gives the same in all trips of an inner loop that writes `changed`."""
    if instruction.opcode[0] == "bra" or any(name in changed for name in uses(instruction)):
        return False
    return all(changed[name] == 1 for name in defs(instruction))


def _exits(graph: Graph, loop: Loop, number: int, instruction: Instruction) -> tuple[bool, ...]:
    """`_Step.exits` of an instruction; empty for all but a branch out of the loop."""
    follow = graph.blocks[number].next
    if instruction.opcode[0] != "bra" or all(other in loop.body for other in follow):
        return ()
    return tuple(other not in loop.body for other in follow)


def _refusal(graph: Graph, loop: Loop, reason: str) -> EkcError:
    block = graph.blocks[loop.header]
    return EkcError(
        f"PTX of {graph.kernel!r}: the trip count of the loop at {block.label} (line {block.line}) "
        f"cannot be found: {reason}; give the loop constant bounds"
    )
