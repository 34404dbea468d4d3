"""The control flow graph of a kernel whose instructions are counted: order and natural loops."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
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
    loops: tuple[NaturalLoop, ...]
    """By the order of their headers: outer loops before those nested in them."""

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
        back = [(p, n) for n in order for p in prior[n] if rank[p] >= rank[n]]
        headers = dict.fromkeys(header for _, header in back)
        loops = [_build_loop(header, {p for p, n in back if n == header}, prior) for header in headers]
        for loop in loops:
            if loop.header != order[0] and order[0] in loop.body:
                # The entry of the kernel leads to a latch without passing the header.
                block = blocks[loop.header]
                raise EkcError(
                    f"PTX of {kernel!r}: the loop at {block.label} (line {block.line}) has two entries "
                    "and cannot be counted; use plain for loops"
                )
            if len(loop.latches) > 1 and loop.header not in single_loop_headers:
                split = _split_header(blocks, loop.header, _find_inner_latch(loop, prior))
                return cls.from_blocks(kernel, split, single_loop_headers)
        return cls(kernel, tuple(blocks), order, tuple(loops))

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


def _find_inner_latch(loop: NaturalLoop, prior: Mapping[int, Sequence[int]]) -> int:
    """The latch of the inner one of nested loops that begin at the same block.

    The smaller loop is taken for the inner one. Where that is wrong, one of the two has its exit within the
    other, and no trip count is found: a branch back to the header then only skips the rest of one loop.
    """
    return min(sorted(loop.latches), key=lambda latch: len(_build_loop(loop.header, {latch}, prior).body))


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


def _build_loop(header: int, latches: Set[int], prior: Mapping[int, Sequence[int]]) -> NaturalLoop:
    """The natural loop of `header`: all blocks from which a latch is reached without passing `header`."""
    body, pending = {header}, list(latches)
    while pending:
        number = pending.pop()
        if number not in body:
            body.add(number)
            pending += prior[number]
    return NaturalLoop(header, frozenset(body), frozenset(latches))
