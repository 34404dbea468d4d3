"""The control flow of a kernel: basic blocks, how control leaves each, and live registers.

`split_blocks` gives the blocks in the order of the text. `build_blocks` gives them in an order for execution.
While the lanes of a warp are at different blocks, the block with the lowest number runs first. Lanes that
took different paths meet again only if every block of both paths comes before the block where the paths join.
The order of the text does not guarantee that: it may put one arm of a branch behind the join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ekc.ptx.constants import WARP_SIZE
from ekc.ptx.module import Instruction, KernelText, Operand, Symbol, split_opcode

Edges = Mapping[int, Sequence[int]]


def order_blocks(edges: Sequence[Sequence[int]]) -> list[int]:
    """Nodes 0 to n - 1 (0 is the entry) in the order in which they run.

    Both arms of a branch come before the node where they join, and a whole loop comes before its successors.
    Nodes that cannot be reached come last.
    """
    edges_by_node = dict(enumerate(edges))
    order = list(_arrange_nodes(edges_by_node, edges_by_node, 0))
    reached = set(order)
    return order + [node for node in edges_by_node if node not in reached]


def _arrange_nodes(nodes: Iterable[int], edges: Edges, entry: int) -> Iterator[int]:
    """The nodes that can be reached from `entry`: each loop in one piece, likewise from its header."""
    inside = set(nodes)
    for loop in _find_components(inside, edges, entry):
        if len(loop) == 1:
            yield loop[0]
        else:
            # The last node is the header. Without the edges back to it the loop has an order.
            head = loop[-1]
            cut = {node: [n for n in edges[node] if n != head] for node in loop}
            yield from _arrange_nodes(loop, cut, head)


def _find_components(nodes: set[int], edges: Edges, entry: int) -> list[list[int]]:
    """Tarjan's strongly connected components in topological order.

    The last node of each component is the one that the search reached first. Of the two arms of a branch, the
    one that is first in the text comes first."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    finished: set[int] = set()
    components: list[list[int]] = []
    path: list[tuple[int, Iterator[int]]] = []

    def enter(node: int) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        path.append((node, iter(sorted((n for n in edges[node] if n in nodes), reverse=True))))

    enter(entry)
    while path:
        node, left = path[-1]
        following = next(left, None)
        if following is None:
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            if lowest[node] == number[node]:
                first = stack.index(node)
                components.append(stack[first:][::-1])
                finished.update(stack[first:])
                del stack[first:]
        elif following not in number:
            enter(following)
        elif following not in finished:
            lowest[node] = min(lowest[node], number[following])
    return components[::-1]


def derive_loop_ranges(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """First and last node of each loop, outer loops first. A loop reaches from the target of a backward edge
    (source, target) to its source, as compilers lay loops out."""
    ends: dict[int, int] = {}
    for source, target in edges:
        if target <= source:
            ends[target] = max(ends.get(target, 0), source)
    return sorted(ends.items(), key=lambda loop: (loop[0], -loop[1]))


WARPGROUP_SIZE = 4 * WARP_SIZE
"""Threads of a warpgroup: four warps."""
_WARP_WIDE_ROOTS = (
    *("shfl", "vote", "redux", "match", "activemask"),
    *("mma", "ldmatrix", "stmatrix", "movmatrix"),
)


@dataclass(frozen=True, slots=True)
class BlockExit:
    """How control leaves a block."""

    kind: str
    """"jump", "branch", "switch", "barrier", "exit" or "exit_if" (a guarded exit)."""
    targets: tuple[int, ...] = ()
    """Block numbers: (taken, fall-through) of a branch, (next,) of a jump or a barrier."""
    instruction: Instruction | None = None
    """The instruction that ends the block; None where control only falls through to a label."""


@dataclass
class Block:
    """Instructions that run one after another, and the exit after them."""

    number: int
    code: list[Instruction]
    """Without the instruction of the exit."""
    exit: BlockExit = field(default_factory=lambda: BlockExit("exit"))
    convergence_width: int = 1
    """Threads that must run the first instruction together: 32 of a warp, 128 of a warpgroup, or 1."""
    label: str = ""
    """As in the PTX text; "" where the block begins without one."""
    line: int = 0
    """Line of the PTX text where the block begins."""

    @property
    def instructions(self) -> list[Instruction]:
        """All instructions, that of the exit included."""
        return [*self.code, self.exit.instruction] if self.exit.instruction else self.code

    @property
    def instruction_count(self) -> int:
        """Instructions, that of the exit included."""
        return len(self.code) + (self.exit.instruction is not None)


def build_blocks(kernel: KernelText) -> list[Block]:
    """Split a kernel into blocks, numbered in the order in which they run while lanes have diverged."""
    blocks = split_blocks(kernel)
    order = order_blocks([block.exit.targets for block in blocks])
    place = {old: new for new, old in enumerate(order)}
    for block in blocks:
        block.number = place[block.number]
        old = block.exit
        block.exit = BlockExit(old.kind, tuple(place[t] for t in old.targets), old.instruction)
    return [blocks[old] for old in order]


def split_blocks(kernel: KernelText) -> list[Block]:
    """Split a kernel into blocks in the order of the text; block 0 is the entry."""
    starts = _find_block_starts(kernel)
    number = {start: i for i, start in enumerate(starts)}
    labels = {start: label for label, start in kernel.labels.items()}
    blocks = []
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(kernel.code)
        code = kernel.code[start:end]
        block = Block(i, code, convergence_width=derive_convergence_width(code[0].opcode), line=code[0].line)
        if label := labels.get(start):
            # Labels of inline assembly are distinguished by a number after an @.
            block.label, block.line = label.partition("@")[0], kernel.label_lines[label]
        block.exit = _build_exit(kernel, code, i + 1 if i + 1 < len(starts) else None, number)
        if block.exit.instruction is not None:
            block.code = code[:-1]
        blocks.append(block)
    return blocks


@lru_cache(maxsize=4096)
def derive_convergence_width(opcode: str) -> int:
    """Threads that must run an instruction together: those of a warpgroup, those of a warp, or 1."""
    root = split_opcode(opcode)[0]
    if root == "wgmma":
        return WARPGROUP_SIZE
    return WARP_SIZE if root in _WARP_WIDE_ROOTS or opcode.startswith("bar.warp") else 1


def _find_block_starts(kernel: KernelText) -> list[int]:
    starts = {0, *kernel.labels.values()}
    for i, one in enumerate(kernel.code):
        if one.ends_block:
            starts.add(i + 1)
        elif derive_convergence_width(one.opcode) > 1:
            starts.add(i)
    return sorted(s for s in starts if s < len(kernel.code))


def _build_exit(
    kernel: KernelText, code: list[Instruction], next_block: int | None, block_numbers: dict[int, int]
) -> BlockExit:
    last = code[-1]
    if not last.ends_block:
        return BlockExit("jump", (next_block,)) if next_block is not None else BlockExit("exit")
    root = last.parts[0]
    if root == "bra":
        target = _find_block(kernel, _get_label(last.operands[0]), last, block_numbers)
        if last.guard is None:
            return BlockExit("jump", (target,), last)
        return BlockExit("branch", (target, _require_next_block(next_block, last)), last)
    if root == "brx":
        names = kernel.branch_tables.get(_get_label(last.operands[-1]))
        if names is None:
            raise last.make_error("the table of branch targets is missing")
        targets = tuple(_find_block(kernel, n, last, block_numbers) for n in names)
        return BlockExit("switch", targets, last)
    if root in ("bar", "barrier"):
        return BlockExit("barrier", (_require_next_block(next_block, last),), last)
    if last.guard is not None:
        return BlockExit("exit_if", (_require_next_block(next_block, last),), last)
    return BlockExit("exit", (), last)


def _get_label(operand: Operand) -> str:
    return operand.name if isinstance(operand, Symbol) else ""


def _find_block(kernel: KernelText, name: str, instruction: Instruction, numbers: dict[int, int]) -> int:
    if name not in kernel.labels or kernel.labels[name] not in numbers:
        raise instruction.make_error("the label is not in this kernel")
    return numbers[kernel.labels[name]]


def _require_next_block(next_block: int | None, instruction: Instruction) -> int:
    if next_block is None:
        raise instruction.make_error("the kernel ends here without ret: truncated?")
    return next_block


RegisterAccess = tuple[Sequence[str], Sequence[str], bool]
"""Registers that are read, then those that are written, and whether they surely are."""


def compute_live_in(blocks: Sequence[Block]) -> dict[int, set[str]]:
    """For each block, the registers whose value at its start may be read."""
    accesses = {
        block.number: [(one.reads, one.writes, one.guard is None) for one in block.instructions]
        for block in blocks
    }
    return solve_liveness(accesses, {block.number: block.exit.targets for block in blocks})


def solve_liveness(accesses: Mapping[int, Iterable[RegisterAccess]], edges: Edges) -> dict[int, set[str]]:
    """The registers whose value at the start of each node may be read, from the accesses of all nodes."""
    uses: dict[int, set[str]] = {}
    kills: dict[int, set[str]] = {}
    for node, found in accesses.items():
        use, kill = uses.setdefault(node, set()), kills.setdefault(node, set())
        for reads, writes, is_certain in found:
            use.update(n for n in (reads if is_certain else (*reads, *writes)) if n not in kill)
            kill.update(writes if is_certain else ())
    live = {node: set(use) for node, use in uses.items()}
    is_changed = True
    while is_changed:
        is_changed = False
        for node in reversed(live):
            out = set[str]().union(*(live[after] for after in edges[node]))
            new = uses[node] | (out - kills[node])
            if len(new) != len(live[node]):
                live[node], is_changed = new, True
    return live
