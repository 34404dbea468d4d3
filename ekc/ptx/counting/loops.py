"""The control flow graph of a PTX kernel: order, dominators and natural loops.

Splits the PTX text of one kernel into basic blocks of instructions.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from ekc.errors import EkcError, InvalidInput
from ekc.ptx.constants import parse_constant
from ekc.ptx.lexer import split_operands

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_LABEL = re.compile(r"([\w$]+)\s*:$")
_GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
# A brace that begins a statement is a scope; a vector operand's stands inside its statement.
_TOKEN = re.compile(
    r"\s*(?:(?P<brace>[{}])|(?P<line>\.(?:loc|file)\b[^\n]*)|(?P<label>[\w$]+\s*:)(?!:)|(?P<code>[^;\s][^;]*)?;)"
)
_STOPS = ("ret", "exit", "trap")


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction; `line` counts from 1 in the whole PTX text."""

    line: int
    guard: str
    """Predicate register that must hold, "" where there is none."""
    negated: bool
    """The guard must not hold instead (`@!%p`)."""
    opcode: tuple[str, ...]
    """Split at the dots: ("fma", "rn", "f32")."""
    operands: tuple[str, ...]
    """A vector `{...}` or an address `[...]` is one operand."""

    def __str__(self) -> str:
        return f"{'.'.join(self.opcode)} {', '.join(self.operands)}".rstrip()

    def constant(self, operand: str) -> int | float:
        """The number that an operand is; `EkcError` names the instruction for one that PTX does not allow."""
        try:
            return parse_constant(operand, self.line)
        except EkcError as problem:
            raise EkcError(f"{problem}, in {str(self)!r}") from None

    def whole_number(self, place: int) -> int:
        """The same for a whole number, by the place of the operand."""
        found = self.constant(self.operands[place])
        if isinstance(found, float):
            raise EkcError(f"PTX line {self.line}: {found} is not a whole number, in {str(self)!r}")
        return found


@dataclass(frozen=True)
class Block:
    """Instructions that run one after another, and the indices of the blocks that may follow."""

    label: str
    """As in the text; "" where a block begins without one."""
    line: int
    body: tuple[Instruction, ...]
    next: tuple[int, ...]
    """Block numbers: the branch target first, then the fall-through; empty after `ret`."""


def blocks(ptx: str, kernel: str) -> tuple[Block, ...]:
    """The basic blocks of `kernel`, in text order; block 0 is the entry.

    Raises `InvalidInput` if the text has no such kernel, `EkcError` for a call or an indirect
    branch, which would leave the count incomplete.
    """
    pieces = [_Piece("", 0, [])]
    for line, statement in _statements(*_kernel_text(ptx, kernel)):
        if match := _LABEL.match(statement):
            pieces.append(_Piece(match[1], line, []))
            continue
        instruction = _instruction(line, statement)
        _refuse_jumps(kernel, instruction)
        pieces[-1].body.append(instruction)
        if instruction.opcode[0] in ("bra", *_STOPS):
            pieces.append(_Piece("", line, []))
    by_label = {piece.label: number for number, piece in enumerate(pieces) if piece.label}
    return tuple(
        Block(piece.label, piece.line, tuple(piece.body), _next(pieces, number, by_label))
        for number, piece in enumerate(pieces)
    )


@dataclass
class _Piece:
    """A block in the making."""

    label: str
    line: int
    body: list[Instruction]


def _kernel_text(ptx: str, kernel: str) -> tuple[int, str]:
    """Line number of the kernel's opening brace, and the text from there to the end of the PTX."""
    # Comments become nothing, but their line ends stay: line numbers must hold.
    plain = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), ptx)
    entries = {match[1]: match for match in _ENTRY.finditer(plain)}
    if kernel not in entries:
        raise InvalidInput(f"kernel {kernel!r} is not in the PTX, which has {', '.join(entries) or 'none'}")
    start = plain.index("{", entries[kernel].end())
    return plain.count("\n", 0, start) + 1, plain[start:]


def _statements(line: int, text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each label and instruction up to the brace that closes the body."""
    depth = seen = 0
    for token in _TOKEN.finditer(text):
        if brace := token["brace"]:
            depth += 1 if brace == "{" else -1
            if depth == 0:
                return
        statement = token["label"] or token["code"]
        if statement and not statement.startswith("."):
            start = token.start("label" if token["label"] else "code")
            line += text.count("\n", seen, start)
            seen = start
            yield line, statement


def _instruction(line: int, statement: str) -> Instruction:
    guard = _GUARD.match(statement)
    opcode, *rest = (statement[guard.end() :] if guard else statement).split(maxsplit=1)
    try:
        operands = [piece.strip() for text in rest for piece in split_operands(text, line)]
    except EkcError as problem:
        raise EkcError(f"{problem}, in {' '.join((opcode, *rest))!r}") from None
    return Instruction(
        line=line,
        guard=guard[2] if guard else "",
        negated=bool(guard and guard[1]),
        opcode=tuple(opcode.split(".")),
        operands=tuple(operands),
    )


def _refuse_jumps(kernel: str, instruction: Instruction) -> None:
    """Calls and jump tables: what runs then is not in the straight text."""
    if instruction.opcode[0] in ("call", "brx"):
        raise EkcError(
            f"PTX of {kernel!r}, line {instruction.line}: {'.'.join(instruction.opcode)} cannot be counted; "
            "inline the function (__forceinline__) or use plain branches"
        )


def _next(pieces: list[_Piece], number: int, by_label: dict[str, int]) -> tuple[int, ...]:
    """The blocks that may follow block `number`."""
    last = pieces[number].body[-1] if pieces[number].body else None
    fall = (number + 1,) if number + 1 < len(pieces) else ()
    if last is None or last.opcode[0] not in ("bra", *_STOPS):
        return fall
    taken = (by_label[last.operands[0]],) if last.opcode[0] == "bra" else ()
    return taken + fall if last.guard else taken


@dataclass(frozen=True)
class NaturalLoop:
    """A natural loop: one header, entered only there."""

    header: int
    body: frozenset[int]
    """Block numbers, header and nested loops included."""
    latches: frozenset[int]
    """Blocks that branch back to the header."""


@dataclass(frozen=True)
class ControlFlowGraph:
    """Blocks by number, and how control moves between those that can be reached."""

    kernel: str
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    """Reachable blocks; each comes after all that lead to it but for the back edges."""
    forward_predecessors: dict[int, tuple[int, ...]]
    """Predecessors of each reachable block, without the back edges."""
    loops: tuple[NaturalLoop, ...]
    """By the order of their headers: outer loops before those nested in them."""
    innermost_loops: dict[int, NaturalLoop]
    """The smallest loop that holds a block, for those within loops."""

    @classmethod
    def from_blocks(
        cls, kernel: str, blocks: Sequence[Block], single_loop_headers: Container[int] = ()
    ) -> ControlFlowGraph:
        """Analyse the blocks; `EkcError` for a loop that is entered in two places.

        Empty blocks are added at the end to keep apart nested loops that share a header, but for those
        headers that are known to begin one loop, a `whole` one.
        """
        order = _order_blocks(blocks)
        rank = {number: position for position, number in enumerate(order)}
        prior: dict[int, tuple[int, ...]] = dict.fromkeys(order, ())
        for number in order:
            for other in dict.fromkeys(blocks[number].next):
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
        """The block of the `count` given ones before which this one was added; a given one is its own."""
        while number >= block_count:
            number = self.blocks[number].next[0]
        return number

    def find_split_headers(self, block_count: int) -> set[int]:
        """Those of the `count` given blocks at which loops were kept apart."""
        return {
            self.find_original_header(added, block_count) for added in range(block_count, len(self.blocks))
        }


def _order_blocks(blocks: Sequence[Block]) -> tuple[int, ...]:
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


def _find_dominators(rank: dict[int, int], prior: dict[int, tuple[int, ...]]) -> dict[int, int]:
    """For each block but the entry, the last that every way from the entry to it passes before it.

    After Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001).
    """
    entry, *others = rank
    above = {entry: entry}
    changed = True
    while changed:
        changed = False
        for number in others:
            known = [p for p in prior[number] if p in above]
            common = known[0]
            for other in known[1:]:
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
    """(latch, header) of all edges that lead back; refuses those to no header."""
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

    The smaller one is taken for the inner one. Were that wrong, the exit of one of the two would
    lie within the other, and no trip count would be found; so it is where a branch back to the header
    skips the rest of one loop.
    """
    for header in order:
        edges = sorted(edge for edge in back if edge[1] == header)
        if len(edges) > 1:
            inner = min(edges, key=lambda edge: len(_build_loop(header, {edge}, prior).body))
            return header, inner[0]
    return None


def _split_header(blocks: Sequence[Block], header: int, latch: int) -> list[Block]:
    """Put an empty block before `header`, which all but `latch` reach it by: the outer header."""
    added = len(blocks)
    moved = [
        block
        if number == latch
        else replace(block, next=tuple(added if other == header else other for other in block.next))
        for number, block in enumerate(blocks)
    ]
    return [*moved, replace(blocks[header], body=(), next=(header,))]


def _build_loop(header: int, back: set[tuple[int, int]], prior: dict[int, tuple[int, ...]]) -> NaturalLoop:
    """All blocks from which a back edge to `header` is reached without passing it."""
    latches = frozenset(latch for latch, target in back if target == header)
    body, pending = {header}, list(latches)
    while pending:
        number = pending.pop()
        if number not in body:
            body.add(number)
            pending += prior[number]
    return NaturalLoop(header, frozenset(body), latches)
