"""The control flow graph of a kernel whose instructions are counted: order, dominators, natural loops."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from ekc.errors import EkcError
from ekc.ptx.cfg import Block, BlockExit


@dataclass(frozen=True)
class NaturalLoop:
    """A natural loop, which is entered only at its header."""

    header: int
    """Block number."""
    body: frozenset[int]
    """Block numbers, those of the header and of nested loops included."""
    latches: frozenset[int]
    """Blocks that branch back to the header."""


@dataclass(frozen=True)
class ControlFlowGraph:
    """Blocks by number, and the control flow between those that can be reached."""

    kernel: str
    """Name of the kernel, for messages."""
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    """Reachable blocks in topological order, where back edges do not count."""
    forward_predecessors: dict[int, tuple[int, ...]]
    """Predecessors of each reachable block, without the back edges."""
    loops: tuple[NaturalLoop, ...]
    """By the order of their headers: outer loops before those nested in them."""
    innermost_loops: dict[int, NaturalLoop]
    """Block -> smallest loop that contains it, for blocks within loops."""

    @classmethod
    def from_blocks(
        cls, kernel: str, blocks: Sequence[Block], single_loop_headers: Container[int] = ()
    ) -> ControlFlowGraph:
        """Analyse the blocks; `EkcError` for a loop with two entries.

        Nested loops that share a header get separate headers: empty blocks are added at the end. A header in
        `single_loop_headers` begins one loop and stays as it is.
        """
        order = _order_blocks(blocks)
        rank = {number: position for position, number in enumerate(order)}
        prior: dict[int, tuple[int, ...]] = dict.fromkeys(order, ())
        for number in order:
            for other in dict.fromkeys(blocks[number].exit.targets):
                prior[other] += (number,)
        above = _find_dominators(rank, prior)
        back = _find_back_edges(kernel, blocks, rank, prior, above)
        if shared := _find_shared_header([n for n in order if n not in single_loop_headers], back, prior):
            return cls.from_blocks(kernel, _split_header(blocks, *shared), single_loop_headers)
        forward = {n: tuple(p for p in prior[n] if rank[p] < rank[n]) for n in order}
        headers = sorted({header for _, header in back}, key=lambda header: rank[header])
        loops = tuple(_build_loop(header, back, prior) for header in headers)
        # From the largest to the smallest: the smallest stays.
        by_size = sorted(loops, key=lambda loop: -len(loop.body))
        innermost = {number: loop for loop in by_size for number in loop.body}
        return cls(kernel, tuple(blocks), order, forward, loops, innermost)

    def find_original_header(self, number: int, block_count: int) -> int:
        """The given block before which a block was added. The first `block_count` blocks are given ones."""
        while number >= block_count:
            number = self.blocks[number].exit.targets[0]
        return number

    def find_split_headers(self, block_count: int) -> set[int]:
        """The given blocks that were split into the headers of several loops."""
        added = range(block_count, len(self.blocks))
        return {self.find_original_header(number, block_count) for number in added}


def _order_blocks(blocks: Sequence[Block]) -> tuple[int, ...]:
    """Reverse postorder from block 0, without recursion: kernels can have many blocks."""
    finished: list[int] = []
    visited = {0}
    path = [(0, iter(blocks[0].exit.targets))]
    while path:
        number, rest = path[-1]
        following = next((other for other in rest if other not in visited), None)
        if following is None:
            finished.append(number)
            path.pop()
        else:
            visited.add(following)
            path.append((following, iter(blocks[following].exit.targets)))
    return tuple(reversed(finished))


def _find_dominators(rank: dict[int, int], prior: dict[int, tuple[int, ...]]) -> dict[int, int]:
    """The immediate dominator of each block: the last block before it on every path from the entry.

    After Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
    """
    entry, *others = rank
    above = {entry: entry}
    changed = True
    while changed:
        changed = False
        for number in others:
            common, *others_before = [p for p in prior[number] if p in above]
            for other in others_before:
                while common != other:
                    if rank[common] > rank[other]:
                        common = above[common]
                    else:
                        other = above[other]
            changed |= above.get(number) != common
            above[number] = common
    return above


def _find_back_edges(
    kernel: str,
    blocks: Sequence[Block],
    rank: dict[int, int],
    prior: dict[int, tuple[int, ...]],
    above: dict[int, int],
) -> set[tuple[int, int]]:
    """(latch, header) of all back edges; `EkcError` for one whose target does not dominate its source."""
    back = {(p, number) for number in rank for p in prior[number] if rank[p] >= rank[number]}
    for latch, header in back:
        dominator = latch
        while rank[dominator] > rank[header]:
            dominator = above[dominator]
        if dominator != header:
            block = blocks[header]
            raise EkcError(
                f"PTX of {kernel!r}: the loop at {block.label} (line {block.line}) has two entries "
                "and cannot be counted; use plain for loops"
            )
    return back


def _find_shared_header(
    order: Sequence[int], back: set[tuple[int, int]], prior: dict[int, tuple[int, ...]]
) -> tuple[int, int] | None:
    """(header, latch of the inner loop) of nested loops that begin at the same block, if any.

    The smaller loop is taken for the inner one. Where that is wrong, one of the two has its exit within the
    other, and no trip count is found: a branch back to the header then only skips the rest of one loop.
    """
    for header in order:
        edges = sorted(edge for edge in back if edge[1] == header)
        if len(edges) > 1:
            inner = min(edges, key=lambda edge: len(_build_loop(header, {edge}, prior).body))
            return header, inner[0]
    return None


def _split_header(blocks: Sequence[Block], header: int, latch: int) -> list[Block]:
    """Add an empty block before `header`, the outer header. All edges but that of `latch` lead there."""
    added = len(blocks)
    moved = [_redirect_exit(block, header, added) for block in blocks]
    moved[latch] = blocks[latch]
    return [*moved, replace(blocks[header], number=added, code=[], exit=BlockExit("jump", (header,)))]


def _redirect_exit(block: Block, target: int, new_target: int) -> Block:
    """The block with `new_target` in the place of `target`."""
    if target not in block.exit.targets:
        return block
    targets = tuple(new_target if other == target else other for other in block.exit.targets)
    return replace(block, exit=replace(block.exit, targets=targets))


def _build_loop(header: int, back: set[tuple[int, int]], prior: dict[int, tuple[int, ...]]) -> NaturalLoop:
    """The natural loop of `header`: all blocks from which a back edge is reached without passing `header`."""
    latches = frozenset(latch for latch, target in back if target == header)
    body, pending = {header}, list(latches)
    while pending:
        number = pending.pop()
        if number not in body:
            body.add(number)
            pending += prior[number]
    return NaturalLoop(header, frozenset(body), latches)
