"""Runs of each basic block of a kernel, from the trip counts of its loops.

Loops are the natural loops of the control flow graph. A trip count is found by evaluating the few integer
instructions that decide the loop's branches, one trip after another, from the values at the loop's entry. So
it does not matter how the compiler has rewritten the counter.

Trips that repeat are counted at once (`TripStrides`). Where a loop only adds and compares numbers, and two
trips in a row took the same path and added the same amounts, so does every further trip, up to the first one
in which a comparison changes its result or a number leaves the range of its type. That trip is found by
division. So a loop of a billion trips takes as long as one of five.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ekc.errors import EkcError
from ekc.ptx.cfg import Block
from ekc.ptx.counting.constant_propagation import Comparison, OffsetValue, State
from ekc.ptx.counting.dataflow import BranchSlice, LoopFlow, VaryingRegisters, join_states
from ekc.ptx.counting.loops import ControlFlowGraph, NaturalLoop

_UNBOUNDED = 1 << 62
"""Trips of a loop that no comparison ends, as a number."""

Comparisons = Sequence[Comparison | None]


class TripStrides:
    """Growth of the registers of one loop from trip to trip."""

    def __init__(self, registers: Iterable[str]) -> None:
        self._registers = tuple(registers)
        self._growth: dict[str, int] | None = None
        self._comparisons: Comparisons = ()

    def count(self, entry: State, end: State, comparisons: Comparisons) -> int:
        """Number of next trips that repeat this one; 0 where that is not known yet.

        `entry` and `end`: the states at the start and end of this trip. `comparisons`: its compared
        numbers."""
        before, self._comparisons = self._comparisons, comparisons
        growth, self._growth = self._growth, _find_growth(self._registers, entry, end)
        if growth is None or growth != self._growth or len(before) != len(comparisons):
            return 0
        return min(
            (_count_steady_trips(a, b) for a, b in zip(before, comparisons, strict=True)), default=_UNBOUNDED
        )

    def skip_trips(self, state: State, trips: int) -> State:
        """The state that many trips after `state`. To be called only after `count` returned that many."""
        assert self._growth is not None
        moved = {
            name: OffsetValue(value.number + trips * self._growth[name], value.base)
            for name, value in state.multi_writer_values.items()
            if name in self._growth
        }
        self._growth, self._comparisons = None, ()
        return State(state.single_writer_values, state.multi_writer_values | moved)


def _find_growth(registers: Iterable[str], entry: State, end: State) -> dict[str, int] | None:
    """The amount that a trip added to each register; None if a register became another unknown quantity."""
    growth = {}
    for name in registers:
        if name in end.multi_writer_values:
            first, last = entry.read_register(name), end.multi_writer_values[name]
            if first.base != last.base:
                return None
            growth[name] = last.number - first.number
    return growth


def _count_steady_trips(before: Comparison | None, now: Comparison | None) -> int:
    """Number of further trips with the same result of a comparison and numbers in the range of its type."""
    if before is None or now is None:
        return _UNBOUNDED if before is now else 0
    if _sign(before.left - before.right) != _sign(now.left - now.right):
        return 0
    signed, bits = now.kind
    low = -(1 << bits - 1) if signed else 0
    left, right = now.left - before.left, now.right - before.right
    return min(
        _count_steps_within(now.left, left, low, low + (1 << bits) - 1),
        _count_steps_within(now.right, right, low, low + (1 << bits) - 1),
        _count_steps_of_same_sign(now.left - now.right, left - right),
    )


def _count_steps_within(number: int, growth: int, low: int, high: int) -> int:
    """Number of steps for which a number stays within a range."""
    if not growth:
        return _UNBOUNDED
    return (high - number) // growth if growth > 0 else (number - low) // -growth


def _count_steps_of_same_sign(number: int, growth: int) -> int:
    """Number of steps for which a number stays negative, 0 or positive, whichever it is."""
    if not growth or number * growth > 0:
        return _UNBOUNDED
    return (abs(number) - 1) // abs(growth) if number else 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


_MOST_FOLLOWED = 1 << 22
"""Most trips of a loop that are evaluated one by one."""
_MAX_TRIPS = 1 << 40
"""Most trips of a loop that is taken to end: 18 minutes at one trip per nanosecond."""
_PROBED_TRIPS = 2
"""Trips after which only branches that a known predicate decided are followed one way."""


def count_block_runs(kernel: str, blocks: Sequence[Block]) -> list[float]:
    """Runs of each block per thread, where every forward branch on run-time data is taken both ways.

    Two back edges to one header are either two nested loops, or one loop with a branch that skips its rest.
    Only the trip counts show which: nested loops are tried first. `EkcError` names the label and the line of
    a loop whose trip count cannot be found.
    """
    first, single_loop_headers = None, set[int]()
    while True:
        graph = ControlFlowGraph.from_blocks(kernel, blocks, single_loop_headers)
        try:
            return _count_graph_runs(graph)[: len(blocks)]
        except _UncountableLoop as problem:
            first, header = first or problem, graph.find_original_header(problem.header, len(blocks))
            if header not in graph.find_split_headers(len(blocks)):
                raise first from None
            single_loop_headers.add(header)


def _count_graph_runs(graph: ControlFlowGraph) -> list[float]:
    """Runs of each block of a graph per thread."""
    reachable = set(graph.order)
    runs = [1.0 if number in reachable else 0.0 for number in range(len(graph.blocks))]
    code = BranchSlice.from_graph(graph)
    entries, varying = _find_entry_states(graph, code)
    for loop in graph.loops:
        visits = _count_visits(graph, code, loop, entries[loop.header], varying)
        for number in loop.body:
            runs[number] *= visits.get(number, 0)
    return runs


def _find_entry_states(
    graph: ControlFlowGraph, code: BranchSlice
) -> tuple[dict[int, State], VaryingRegisters]:
    """The state on entry to each loop, by its header, and the registers that vary within it.

    A register is taken to be the same in every trip until its value at a latch differs.
    """
    flow = LoopFlow(graph, code, None, ())
    varying: VaryingRegisters = {loop.header: set() for loop in graph.loops}
    while True:
        start = State({}, {})
        before, after = flow.run(start, varying, 0)
        entries: dict[int, State] = {}
        grown = False
        for loop in graph.loops:
            entry = entries[loop.header] = before[flow.node_by_block[loop.header]] or start
            for latch in loop.latches:
                end = after[flow.node_by_block[latch]] or start
                new = {
                    n for n, v in end.multi_writer_values.items() if v != entry.multi_writer_values.get(n)
                } - varying[loop.header]
                varying[loop.header] |= new
                grown |= bool(new)
        if not grown:
            return entries, varying


class _UncountableLoop(EkcError):
    """The trip count of the loop with this header cannot be found."""

    def __init__(self, header: int, text: str) -> None:
        super().__init__(text)
        self.header = header


class _UnknownExit(Exception):
    """A loop may end or go on after a trip; `line` is that of the branch that may end it."""

    def __init__(self, line: int) -> None:
        self.line = line


def _count_visits(
    graph: ControlFlowGraph, code: BranchSlice, loop: NaturalLoop, entry: State, varying: VaryingRegisters
) -> dict[int, int]:
    """Number of trips of a loop in which each of its blocks runs. Nested loops count as running once."""
    if all(loop.body.issuperset(graph.blocks[number].exit.targets) for number in loop.body):
        raise _make_uncountable(graph, loop, "it has no exit")
    try:
        return _follow_trips(graph, code, loop, entry, varying, _PROBED_TRIPS)
    except _UnknownExit:
        pass
    try:
        return _follow_trips(graph, code, loop, entry, varying, _MOST_FOLLOWED)
    except _UnknownExit as unknown:
        reason = f"its exit on line {unknown.line} depends on run-time data"
        raise _make_uncountable(graph, loop, reason) from None


def _follow_trips(
    graph: ControlFlowGraph,
    code: BranchSlice,
    loop: NaturalLoop,
    entry: State,
    varying: VaryingRegisters,
    probed_trips: int,
) -> dict[int, int]:
    """`_count_visits`; branches unknown in the first `probed_trips` are taken as unknown in all."""
    flow = LoopFlow(graph, code, loop, loop.body)
    state = State(entry.single_writer_values.copy(), entry.multi_writer_values)
    strides = TripStrides(flow.registers)
    visits: dict[int, int] = dict.fromkeys(loop.body, 0)
    decided = {number for number in loop.body if not loop.body.issuperset(graph.blocks[number].exit.targets)}
    tally, trips = [0] * len(flow.nodes), 0
    for trip in range(1, _MOST_FOLLOWED + 1):
        compared: list[Comparison | None] | None = [] if flow.is_linear else None
        _, after = flow.run(state, varying, trip, compared)
        tally = [count + (state is not None) for count, state in zip(tally, after, strict=True)]
        going = [end for edge in flow.latches if edge.is_open(after) and (end := after[edge.source])]
        following = join_states(going, ("trip", trip))
        if following is None:
            _add_visits(flow, tally, visits)
            return visits
        if leaving := next((edge for edge in flow.exits if edge.is_open(after)), None):
            raise _UnknownExit(leaving.line)
        more = 0 if compared is None else strides.count(state, following, compared)
        state = strides.skip_trips(following, more) if more else following
        tally = [count + more * (state is not None) for count, state in zip(tally, after, strict=True)]
        trips += 1 + more
        if trips > _MAX_TRIPS:
            raise _make_uncountable(graph, loop, "it does not end")
        if trip <= probed_trips:
            decided |= flow.find_decided_blocks(after)
        if trip == probed_trips:
            _add_visits(flow, tally, visits)
            flow = LoopFlow(graph, code, loop, decided)
            strides = TripStrides(flow.registers)
            tally = [0] * len(flow.nodes)
            own = {name: value for name, value in state.multi_writer_values.items() if name in flow.registers}
            state = State(state.single_writer_values, own)
    reason = f"it runs more than {_MOST_FOLLOWED} times, each trip unlike the others"
    raise _make_uncountable(graph, loop, reason)


def _add_visits(flow: LoopFlow, tally: Iterable[int], visits: dict[int, int]) -> None:
    """Add the trips in which each node ran to `visits` of its blocks."""
    for node, count in zip(flow.nodes, tally, strict=True):
        for number in node.members:
            visits[number] += count


def _make_uncountable(graph: ControlFlowGraph, loop: NaturalLoop, reason: str) -> _UncountableLoop:
    block = graph.blocks[loop.header]
    return _UncountableLoop(
        loop.header,
        f"PTX of {graph.kernel!r}: the trip count of the loop at {block.label} (line {block.line}) "
        f"cannot be found: {reason}; give the loop constant bounds",
    )
