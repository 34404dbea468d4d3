"""Registers that hold the sums of `wgmma`: who touches them while a product may be in flight, or writes them
without a fence before the next product.

A dataflow over the blocks of a kernel, once. `mov` is followed: the compiler copies sums where asm statements
are tied to variables, and the copy stands for the same register.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ekc.emulator.ptx.cfg import Block, successors
from ekc.emulator.ptx.program import Immediate, Instruction, Register, names

T = TypeVar("T")
Flying = frozenset[tuple[Instruction, int]]
"""Products that may hold a register, each with the commits since its issue."""
Writers = frozenset[Instruction]


@dataclass(frozen=True)
class Touch:
    """A statement that reads or writes a register of products which may be in flight there."""

    register: str
    verb: str
    products: tuple[Instruction, ...]


@dataclass
class Hazards:
    """What to look at when a kernel runs."""

    touches: dict[Instruction, Touch] = field(default_factory=dict)
    unfenced: dict[Instruction, tuple[str, Instruction]] = field(default_factory=dict)
    """Of a product: a register, and the statement that wrote it since the last `wgmma.fence`."""


@dataclass
class _State:
    """By register, at one place of the kernel."""

    flying: dict[str, Flying] = field(default_factory=dict)
    written: dict[str, Writers] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.flying), dict(self.written))

    def join(self, other: _State) -> bool:
        """Take in what holds on another way here; whether that is news."""
        news = [_join(self.flying, other.flying), _join(self.written, other.written)]
        return any(news)


def _join(into: dict[str, frozenset[T]], more: dict[str, frozenset[T]]) -> bool:
    news = False
    for name, found in more.items():
        known = into.get(name)
        if known is None or not found <= known:
            into[name], news = found if known is None else known | found, True
    return news


def hazards(blocks: Sequence[Block]) -> Hazards:
    """Of a whole kernel; the first block is the entry."""
    found = Hazards()
    walk = _Walk(blocks)
    if not walk.sums:
        return found
    states = {0: _State()}
    left = [0]
    while left:
        number = left.pop()
        out = walk.through(blocks[number], states[number].copy(), None)
        for after in successors(blocks[number]):
            known = after in states
            if states.setdefault(after, _State()).join(out) or not known:
                left.append(after)
    for number, state in states.items():
        walk.through(blocks[number], state, found)
    return found


def _statements(block: Block) -> Iterator[Instruction]:
    yield from block.code
    if block.exit.instruction is not None:
        yield block.exit.instruction


class _Walk:
    """The effect of statements."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        every = [one for block in blocks for one in _statements(block)]
        products = [one for one in every if is_product(one)]
        waits = [left_of(one) for one in every if one.opcode.startswith("wgmma.wait_group")]
        self.oldest = max(waits, default=0) + 1
        """Commits beyond which every wait ends a product."""
        self.sums = _copied({n for one in products for n in names(one.operands[0])}, every)

    def through(self, block: Block, state: _State, found: Hazards | None) -> _State:
        """The state behind a block; told on the way what is wrong."""
        for one in _statements(block):
            if one.parts[0] == "wgmma":
                self._group(one, state, found)
            elif not self.sums.isdisjoint(one.reads) or not self.sums.isdisjoint(one.writes):
                self._other(one, state, found)
        return state

    def _group(self, one: Instruction, state: _State, found: Hazards | None) -> None:
        what = one.parts[1]
        if is_product(one):
            self._product(one, state, found)
        elif what == "fence":
            state.written.clear()
        elif what == "commit_group":
            kinds = {*state.flying.values()}
            older = {x: frozenset((p, min(age + 1, self.oldest)) for p, age in x) for x in kinds}
            state.flying = {name: older[x] for name, x in state.flying.items()}
        elif what == "wait_group":
            left = left_of(one)
            ended = {x: frozenset(p for p in x if p[1] <= left) for x in {*state.flying.values()}}
            state.flying = {name: ended[x] for name, x in state.flying.items() if ended[x]}

    def _product(self, one: Instruction, state: _State, found: Hazards | None) -> None:
        held: Flying = frozenset([(one, 0)])
        for name in names(one.operands[0]):
            state.flying[name] = held
            writers = state.written.pop(name, None)
            if writers and found is not None:
                found.unfenced.setdefault(one, (name, min(writers, key=lambda w: w.line)))

    def _other(self, one: Instruction, state: _State, found: Hazards | None) -> None:
        source = _source(one)
        if source is None and found is not None:
            for verb, touched in (("reads", one.reads), ("writes", one.writes)):
                for name in touched:
                    if name in state.flying:
                        products = tuple(sorted({p for p, _ in state.flying[name]}, key=lambda p: p.line))
                        found.touches.setdefault(one, Touch(name, verb, products))
        flying: Flying = state.flying.get(source or "", frozenset())
        writers: Writers = state.written.get(source or "", frozenset())
        for name in self.sums.intersection(one.writes):
            _put(state.flying, name, flying, one)
            _put(state.written, name, writers if source is not None else frozenset([one]), one)


def _put(table: dict[str, frozenset[T]], name: str, value: frozenset[T], one: Instruction) -> None:
    """What a register is after a statement; a guarded one may leave it as it was."""
    value = value if one.guard is None else value | table.get(name, frozenset())
    if value:
        table[name] = value
    else:
        table.pop(name, None)


def is_product(one: Instruction) -> bool:
    """Whether a statement issues a product of a warpgroup."""
    return one.opcode.startswith("wgmma.mma_async")


def left_of(one: Instruction) -> int:
    """The number of groups that a `wgmma.wait_group` leaves in flight."""
    number = one.operands[0]
    return int(number.value) if isinstance(number, Immediate) else 0


def _source(one: Instruction) -> str | None:
    """What a plain `mov` copies: a register, or "" where it is anything else. None for other statements."""
    if one.parts[0] != "mov" or not isinstance(one.operands[0], Register):
        return None
    source = one.operands[1]
    if isinstance(source, Register):
        return source.name
    return None if names(source) else ""


def _copied(wanted: set[str], every: Iterable[Instruction]) -> set[str]:
    """These registers, and those whose value comes to them or from them by copies alone."""
    near: dict[str, set[str]] = {}
    for one in every:
        source = _source(one)
        for name in one.writes if source else ():
            near.setdefault(name, set()).add(source or "")
            near.setdefault(source or "", set()).add(name)
    left = list(wanted)
    while left:
        new = near.get(left.pop(), set()) - wanted
        wanted |= new
        left += new
    return wanted
