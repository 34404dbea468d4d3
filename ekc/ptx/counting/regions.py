"""A kernel as nested regions: the kernel itself, its loops, and theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ekc.ptx.cfg import RegisterAccess, solve_liveness
from ekc.ptx.counting.branch_slice import SliceStep
from ekc.ptx.counting.loops import ControlFlowGraph, NaturalLoop
from ekc.tables import group_pairs

Steps = Mapping[int, Sequence[SliceStep]]
"""Block -> the instructions on which branches depend."""


@dataclass(frozen=True)
class LoopRegion:
    """A loop, or the whole kernel."""

    depth: int
    """Loops around its blocks, itself included; 0 of the whole kernel."""
    header: int
    """Block with which each trip begins."""
    blocks: frozenset[int]
    """All its blocks, those of nested loops included."""
    items: tuple[int, ...]
    """Its blocks in the order in which they run; a nested loop is its header."""
    children: Mapping[int, LoopRegion]
    """Header -> nested loop."""
    exits: tuple[int, ...]
    """Blocks behind the loop."""
    may_return: bool
    """Whether the kernel may end within the region."""
    carried: tuple[str, ...]
    """Registers that begin a trip with the value of the trip before."""
    trip_steps: Steps
    """Block -> those steps on which the trips of this loop depend."""
    shortcuts: Mapping[int, int]
    """Where nothing matters for the trips: header of a nested loop, or block that ends with a branch -> the
    block where all ways go on."""


def build_regions(graph: ControlFlowGraph, steps: Steps) -> LoopRegion:
    """The region of the whole kernel."""
    live = _find_live(graph, steps)
    return _build_region(graph, steps, live, 0, frozenset(graph.order), graph.loops, 0)


def _build_region(
    graph: ControlFlowGraph,
    steps: Steps,
    live: Mapping[int, set[str]],
    header: int,
    blocks: frozenset[int],
    loops: Sequence[NaturalLoop],
    depth: int,
) -> LoopRegion:
    """The region of these blocks; `loops`: those inside."""
    children: dict[int, LoopRegion] = {}
    left = list(loops)
    while left:
        outer = max(left, key=lambda one: len(one.body))
        inside = [one for one in left if one is not outer and one.body <= outer.body]
        children[outer.header] = _build_region(
            graph, steps, live, outer.header, outer.body, inside, depth + 1
        )
        left = [one for one in left if one is not outer and one not in inside]
    nested = frozenset[int]().union(*(child.blocks for child in children.values()))
    items = tuple(n for n in graph.order if n in blocks and (n in children or n not in nested))
    ends = [graph.blocks[n].exit for n in blocks]
    written = {step.target for n in blocks for step in steps[n]}
    carried = tuple(sorted(live[header] & written))
    trips = _TripSlice(graph, steps, header, items, children)
    needed = trips.find_needed(carried) if depth else set[str]()
    return LoopRegion(
        depth=depth,
        header=header,
        blocks=blocks,
        items=items,
        children=children,
        exits=tuple(sorted({target for end in ends for target in end.targets if target not in blocks})),
        may_return=any(end.kind in ("exit", "exit_if") for end in ends),
        carried=carried,
        trip_steps={n: [step for step in steps[n] if step.target in needed] for n in items},
        shortcuts=trips.shortcuts,
    )


class _TripSlice:
    """Registers and loops that decide the trips of one loop."""

    def __init__(
        self,
        graph: ControlFlowGraph,
        steps: Steps,
        header: int,
        items: Sequence[int],
        children: Mapping[int, LoopRegion],
    ) -> None:
        self._graph, self._steps, self._header = graph, steps, header
        self._items, self._children = items, children
        self._writers = group_pairs((s.target, s) for n in self._list_blocks(items) for s in steps[n])
        self.shortcuts: dict[int, int] = {}

    def find_needed(self, carried: Iterable[str]) -> set[str]:
        """The registers that decide the trips. Sets `shortcuts` around what does not."""
        passed: dict[int, tuple[int, list[int]]] = {}
        needed = set(carried)
        for number in self._items:
            way = self._find_way_around(number)
            if way is None:
                needed |= self._list_deciding(number)
            else:
                passed[number] = way
        while True:
            needed = self._close(needed)
            blocked = [
                n
                for n, (_, content) in passed.items()
                if any(x.target in needed for b in self._list_blocks(content) for x in self._steps[b])
            ]
            if not blocked:
                break
            for number in blocked:
                del passed[number]
                needed |= self._list_deciding(number)
        self.shortcuts = {number: join for number, (join, _) in passed.items()}
        return needed

    def _find_way_around(self, number: int) -> tuple[int, list[int]] | None:
        """The item where all ways from an item meet again, and the items before it; None if they do not, or
        if there is one way only."""
        child = self._children.get(number)
        if child is not None:
            is_plain = len(child.exits) == 1 and not child.may_return and child.exits[0] in self._items
            return (child.exits[0], [number]) if is_plain and child.exits[0] != self._header else None
        if self._graph.blocks[number].exit.kind != "branch":
            return None
        pending, content = set(self._graph.blocks[number].exit.targets), list[int]()
        for item in self._items[self._items.index(number) + 1 :]:
            if pending == {item}:
                return item, content
            if item in pending:
                pending.remove(item)
                child = self._children.get(item)
                pending |= set(child.exits if child else self._graph.blocks[item].exit.targets)
                if child.may_return if child else self._graph.blocks[item].exit.kind in ("exit", "exit_if"):
                    return None
                content.append(item)
        return None

    def _list_deciding(self, number: int) -> set[str]:
        """Registers that decide which way an item takes: a nested loop runs with all that it reads."""
        child = self._children.get(number)
        if child is None:
            guard = _find_guard(self._graph, number)
            return {guard} if guard else set()
        reads = {name for n in child.blocks for step in self._steps[n] for name in step.reads}
        return reads | {guard for n in child.blocks if (guard := _find_guard(self._graph, n))}

    def _close(self, needed: set[str]) -> set[str]:
        """These registers, and all on which they depend within a trip."""
        pending, found = list(needed), set(needed)
        while pending:
            new = {name for step in self._writers.get(pending.pop(), ()) for name in step.reads} - found
            found |= new
            pending += new
        return found

    def _list_blocks(self, items: Iterable[int]) -> list[int]:
        """All blocks of these items."""
        return [
            n for item in items for n in (self._children[item].blocks if item in self._children else (item,))
        ]


def _find_live(graph: ControlFlowGraph, steps: Steps) -> dict[int, set[str]]:
    """Registers whose value at the start of each block may be read."""
    accesses: dict[int, list[RegisterAccess]] = {}
    for number in graph.order:
        guard = _find_guard(graph, number)
        accesses[number] = [(step.reads, (step.target,), step.guard is None) for step in steps[number]]
        accesses[number].append(((guard,) if guard else (), (), True))
    return solve_liveness(accesses, {number: graph.blocks[number].exit.targets for number in graph.order})


def _find_guard(graph: ControlFlowGraph, number: int) -> str | None:
    """Register that guards the end of a block."""
    end = graph.blocks[number].exit.instruction
    return end.guard.name if end is not None and end.guard is not None else None
