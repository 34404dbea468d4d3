"""How often each basic block of a kernel runs: its loops, and their trip counts.

Loops are the natural loops of the control flow graph. A trip count is found by following the
few integer instructions that decide the loop's branches, one iteration after another, from the
values that reach the loop. So it does not matter how the compiler has rewritten the counter. Trips
that only go on adding are counted at once (`strides.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ekc.devices.ptx.flow import Code, Flow, Varying, meet
from ekc.devices.ptx.graph import Graph, Loop
from ekc.devices.ptx.strides import Strides
from ekc.devices.ptx.text import Block
from ekc.devices.ptx.values import Comparison, State
from ekc.errors import EkcError

_MOST_FOLLOWED = 1 << 22
"""Trips that are followed one by one."""
_MOST_TRIPS = 1 << 40
"""Trips of a loop that ends: 18 minutes at a trip a nanosecond."""
_PROBED_TRIPS = 2
"""Trips after which only those branches are followed that a known predicate has decided."""


def executions(kernel: str, blocks: Sequence[Block]) -> list[float]:
    """Runs of each block per thread, every forward branch on run-time data taken both ways.

    Two ways back to one header are nested loops, or one loop with a way that skips the rest of it: which,
    nothing but the trip counts tells. Raises `EkcError` naming the label and the line of a loop whose trip
    count cannot be found.
    """
    first, whole = None, set[int]()
    while True:
        graph = Graph.of(kernel, blocks, whole)
        try:
            return _executions(graph)[: len(blocks)]
        except _Uncountable as problem:
            first, header = first or problem, graph.header(problem.header, len(blocks))
            if header not in graph.shared(len(blocks)):
                raise first from None
            whole.add(header)


def _executions(graph: Graph) -> list[float]:
    """`executions` of all blocks of a graph."""
    reachable = set(graph.order)
    runs = [1.0 if number in reachable else 0.0 for number in range(len(graph.blocks))]
    code = Code.of(graph)
    entries, varying = _entry_states(graph, code)
    for loop in graph.loops:
        visits = _visits(graph, code, loop, entries[loop.header], varying)
        for number in loop.body:
            runs[number] *= visits.get(number, 0)
    return runs


def _entry_states(graph: Graph, code: Code) -> tuple[dict[int, State], Varying]:
    """What is known on entry to each loop, by its header, and what varies within it.

    A register is taken to be the same in every trip until a latch is seen to hold another value.
    """
    flow = Flow(graph, code, None, ())
    varying: Varying = {loop.header: set() for loop in graph.loops}
    while True:
        start = State({}, {})
        before, after = flow.run(start, varying, 0)
        entries: dict[int, State] = {}
        grown = False
        for loop in graph.loops:
            entry = entries[loop.header] = before[flow.place[loop.header]] or start
            for latch in loop.latches:
                end = after[flow.place[latch]] or start
                new = {n for n, v in end.own.items() if v != entry.own.get(n)} - varying[loop.header]
                varying[loop.header] |= new
                grown |= bool(new)
        if not grown:
            return entries, varying


class _Uncountable(EkcError):
    """The loop that begins at a block has no trip count."""

    def __init__(self, header: int, text: str) -> None:
        super().__init__(text)
        self.header = header


class _Unknown(Exception):
    """A trip after which a loop may go on and may end; `line` is of the branch that ends it."""

    def __init__(self, line: int) -> None:
        self.line = line


def _visits(graph: Graph, code: Code, loop: Loop, entry: State, varying: Varying) -> dict[int, int]:
    """In how many trips of a loop each of its blocks runs; all of a nested loop's as if it ran once."""
    if all(target in loop.body for number in loop.body for target in graph.blocks[number].next):
        raise _refusal(graph, loop, "it has no exit")
    try:
        return _follow(graph, code, loop, entry, varying, _PROBED_TRIPS)
    except _Unknown:
        pass
    try:
        return _follow(graph, code, loop, entry, varying, _MOST_FOLLOWED)
    except _Unknown as unknown:
        reason = f"its exit on line {unknown.line} depends on run-time data"
        raise _refusal(graph, loop, reason) from None


def _follow(
    graph: Graph, code: Code, loop: Loop, entry: State, varying: Varying, probed: int
) -> dict[int, int]:
    """`_visits`, where branches that stay unknown in the `probed` first trips are so in all."""
    flow, state = Flow(graph, code, loop, loop.body), State(entry.shared.copy(), entry.own)
    strides = Strides(flow.names)
    visits: dict[int, int] = dict.fromkeys(loop.body, 0)
    known = {number for number in loop.body if any(n not in loop.body for n in graph.blocks[number].next)}
    tally, trips = [0] * len(flow.nodes), 0
    for trip in range(1, _MOST_FOLLOWED + 1):
        compared: list[Comparison | None] | None = [] if flow.linear else None
        _, after = flow.run(state, varying, trip, compared)
        tally = [count + (state is not None) for count, state in zip(tally, after, strict=True)]
        going = [end for edge in flow.latches if edge.open(after) and (end := after[edge.source])]
        following = meet(going, ("trip", trip))
        if following is None:
            _book(flow, tally, visits)
            return visits
        if leaving := next((edge for edge in flow.exits if edge.open(after)), None):
            raise _Unknown(leaving.line)
        more = 0 if compared is None else strides.count(state, following, compared)
        state = strides.jump(following, more) if more else following
        tally = [count + more * (state is not None) for count, state in zip(tally, after, strict=True)]
        trips += 1 + more
        if trips > _MOST_TRIPS:
            raise _refusal(graph, loop, "it does not end")
        if trip <= probed:
            known |= flow.known(after)
        if trip == probed:
            _book(flow, tally, visits)
            flow = Flow(graph, code, loop, known)
            strides = Strides(flow.names)
            tally = [0] * len(flow.nodes)
            own = {name: value for name, value in state.own.items() if name in flow.names}
            state = State(state.shared, own)
    raise _refusal(graph, loop, f"it runs more than {_MOST_FOLLOWED} times, each as no other")


def _book(flow: Flow, tally: Iterable[int], visits: dict[int, int]) -> None:
    """Add the trips in which each node ran to `visits` of its blocks."""
    for node, count in zip(flow.nodes, tally, strict=True):
        for number in node.members:
            visits[number] += count


def _refusal(graph: Graph, loop: Loop, reason: str) -> _Uncountable:
    block = graph.blocks[loop.header]
    return _Uncountable(
        loop.header,
        f"PTX of {graph.kernel!r}: the trip count of the loop at {block.label} (line {block.line}) "
        f"cannot be found: {reason}; give the loop constant bounds",
    )
