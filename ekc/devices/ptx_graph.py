"""The control flow graph of a PTX kernel: order, dominators and natural loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ekc.devices.ptx_text import Block
from ekc.errors import EkcError


@dataclass(frozen=True)
class Loop:
    """A natural loop: one header, entered only there."""

    header: int
    body: frozenset[int]
    """Block numbers, header and nested loops included."""
    latches: frozenset[int]
    """Blocks that branch back to the header."""


@dataclass(frozen=True)
class Graph:
    """Blocks by number, and how control moves between those that can be reached."""

    kernel: str
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    """Reachable blocks; each comes after all that lead to it but for the back edges."""
    forward: dict[int, tuple[int, ...]]
    """Predecessors of each reachable block, without the back edges."""
    dominators: dict[int, frozenset[int]]
    loops: tuple[Loop, ...]

    @classmethod
    def of(cls, kernel: str, blocks: Sequence[Block]) -> Graph:
        """Analyse the blocks; `EkcError` for a loop that is entered in two places.

        Empty blocks are added at the end to keep apart nested loops that share a header.
        """
        order = _order(blocks)
        prior = {number: tuple(p for p in order if number in blocks[p].next) for number in order}
        dominators = _dominators(order, prior)
        back = {(p, n) for n in order for p in prior[n] if n in dominators[p]}
        if shared := _shared_header(order, back, prior):
            return cls.of(kernel, _split(blocks, *shared))
        forward = {n: tuple(p for p in prior[n] if (p, n) not in back) for n in order}
        rank = {number: position for position, number in enumerate(order)}
        for number in order:
            if any(rank[p] >= rank[number] for p in forward[number]):
                block = blocks[number]
                raise EkcError(
                    f"PTX of {kernel!r}: the loop at {block.label} (line {block.line}) has two entries "
                    "and cannot be counted; use plain for loops"
                )
        loops = tuple(_loop(header, back, prior) for header in order if header in {h for _, h in back})
        return cls(kernel, tuple(blocks), order, forward, dominators, loops)

    def each_trip(self, number: int, loop: Loop) -> bool:
        """Whether a block of `loop` runs in every whole trip, once or (in a nested loop) more often."""
        return all(number in self.dominators[latch] for latch in loop.latches)

    def nested(self, number: int, loop: Loop) -> Loop | None:
        """The largest loop within `loop` that holds the block, None if it is in none."""
        inner = [other for other in self.loops if other != loop and other.header in loop.body]
        holding = [other for other in inner if number in other.body]
        return max(holding, key=lambda other: len(other.body), default=None)

    def leading_to(self, target: int, loop: Loop) -> frozenset[int]:
        """Blocks of `loop` from which `target` can be reached within the same trip, with itself."""
        others = {other.header: other.latches for other in self.loops if other != loop}
        found, pending = {target}, [target]
        while pending:
            number = pending.pop()
            sources = {*self.forward[number], *others.get(number, ())}
            new = (sources & loop.body) - found if number != loop.header else set()
            found |= new
            pending += new
        return frozenset(found)


def _order(blocks: Sequence[Block]) -> tuple[int, ...]:
    """Reverse postorder from block 0, without recursion: kernels can have many blocks."""
    finished: list[int] = []
    seen = {0}
    path = [(0, iter(blocks[0].next))]
    while path:
        number, rest = path[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            finished.append(number)
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(blocks[following].next)))
    return tuple(reversed(finished))


def _dominators(order: tuple[int, ...], prior: dict[int, tuple[int, ...]]) -> dict[int, frozenset[int]]:
    """For each block, those that every way from the entry to it passes, itself included."""
    found = {number: frozenset(order) for number in order}
    found[order[0]] = frozenset(order[:1])
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            common = frozenset.intersection(*(found[p] for p in prior[number])) | {number}
            changed |= common != found[number]
            found[number] = common
    return found


def _shared_header(
    order: tuple[int, ...], back: set[tuple[int, int]], prior: dict[int, tuple[int, ...]]
) -> tuple[int, int] | None:
    """(header, latch of the inner loop) of nested loops that begin at the same block, if any.

    The smaller one is taken for the inner one. Were that wrong, the exit of one of the two would
    lie within the other, and no trip count would be found.
    """
    for header in order:
        edges = sorted(edge for edge in back if edge[1] == header)
        if len(edges) > 1:
            inner = min(edges, key=lambda edge: len(_loop(header, {edge}, prior).body))
            return header, inner[0]
    return None


def _split(blocks: Sequence[Block], header: int, latch: int) -> list[Block]:
    """Put an empty block before `header`, which all but `latch` reach it by: the outer header."""
    added = len(blocks)
    moved = [
        block
        if number == latch
        else replace(block, next=tuple(added if other == header else other for other in block.next))
        for number, block in enumerate(blocks)
    ]
    return [*moved, replace(blocks[header], body=(), next=(header,))]


def _loop(header: int, back: set[tuple[int, int]], prior: dict[int, tuple[int, ...]]) -> Loop:
    """All blocks from which a back edge to `header` is reached without passing it."""
    latches = frozenset(latch for latch, target in back if target == header)
    body, pending = {header}, list(latches)
    while pending:
        number = pending.pop()
        if number not in body:
            body.add(number)
            pending += prior[number]
    return Loop(header, frozenset(body), latches)
