"""Basic blocks of a kernel, how control leaves each, and what is live where."""

from __future__ import annotations

from dataclasses import dataclass, field

from ekc.emulator.ptx.order import run_order
from ekc.emulator.ptx.program import Instruction, KernelText, Operand, Symbol
from ekc.errors import EkcError

_WARP, _WARPGROUP = 32, 128
_WARP_WIDE = ("shfl", "vote", "redux", "match", "activemask", "mma", "ldmatrix", "stmatrix", "movmatrix")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a block ends: jump, branch, exit, barrier or switch."""

    kind: str
    targets: tuple[int, ...] = ()
    """Block numbers: (taken, fall-through) of a branch, (next,) of a jump or a barrier."""
    instruction: Instruction | None = None


@dataclass
class Block:
    """Statements that run one after another, and the way out."""

    number: int
    code: list[Instruction]
    exit: Exit = field(default_factory=lambda: Exit("exit"))
    together: int = 1
    """Threads that must run its first instruction as one: 32 of a warp, 128 of a warpgroup."""

    @property
    def size(self) -> int:
        """Instructions, the closing one included."""
        return len(self.code) + (self.exit.instruction is not None)


def blocks(kernel: KernelText) -> list[Block]:
    """Cut a kernel into blocks, in the order in which they run while lanes stand at several of them."""
    found = _cut(kernel)
    order = run_order([successors(block) for block in found])
    place = {old: new for new, old in enumerate(order)}
    for block in found:
        block.number = place[block.number]
        way = block.exit
        block.exit = Exit(way.kind, tuple(place[t] for t in way.targets), way.instruction)
    return [found[old] for old in order]


def _cut(kernel: KernelText) -> list[Block]:
    """Blocks in the order of the text."""
    starts = _starts(kernel)
    number = {start: i for i, start in enumerate(starts)}
    found = []
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(kernel.code)
        code = kernel.code[start:end]
        block = Block(i, code, together=together(code[0]) if code else 1)
        block.exit = _exit(kernel, code, i + 1 if i + 1 < len(starts) else None, number)
        if block.exit.instruction is not None:
            block.code = code[:-1]
        found.append(block)
    return found


def together(one: Instruction) -> int:
    """Threads that must meet at this instruction: of a warp, of a warpgroup, or 1."""
    if one.parts[0] == "wgmma":
        return _WARPGROUP
    return _WARP if one.parts[0] in _WARP_WIDE or one.opcode.startswith("bar.warp") else 1


def _starts(kernel: KernelText) -> list[int]:
    starts = {0, *kernel.labels.values()}
    for i, one in enumerate(kernel.code):
        if one.ends_block:
            starts.add(i + 1)
        elif together(one) > 1:
            starts.add(i)
    return sorted(s for s in starts if s < len(kernel.code))


def _exit(kernel: KernelText, code: list[Instruction], after: int | None, number: dict[int, int]) -> Exit:
    last = code[-1]
    if not last.ends_block:
        return Exit("jump", (after,)) if after is not None else Exit("exit")
    root = last.parts[0]
    if root == "bra":
        target = _block_of(kernel, last.operands[0], last, number)
        if last.guard is None:
            return Exit("jump", (target,), last)
        return Exit("branch", (target, _need(after, last)), last)
    if root == "brx":
        table = last.operands[-1]
        names = kernel.tables.get(table.name if isinstance(table, Symbol) else "")
        if names is None:
            raise EkcError(f"PTX line {last.line}: {last.text}: the table of branch targets is missing")
        return Exit("switch", tuple(_block_of(kernel, Symbol(n), last, number) for n in names), last)
    if root in ("bar", "barrier"):
        return Exit("barrier", (_need(after, last),), last)
    if last.guard is not None:
        return Exit("exit_if", (_need(after, last),), last)
    return Exit("exit", (), last)


def _block_of(kernel: KernelText, label: Operand, one: Instruction, number: dict[int, int]) -> int:
    name = label.name if isinstance(label, Symbol) else ""
    if name not in kernel.labels or kernel.labels[name] not in number:
        raise EkcError(f"PTX line {one.line}: {one.text}: the label is not in this kernel")
    return number[kernel.labels[name]]


def _need(after: int | None, one: Instruction) -> int:
    if after is None:
        raise EkcError(f"PTX line {one.line}: {one.text}: the kernel ends here without ret: truncated?")
    return after


def successors(block: Block) -> tuple[int, ...]:
    """Blocks that may come next."""
    return block.exit.targets


def live_in(found: list[Block]) -> list[set[str]]:
    """Registers whose value may be read, at the start of each block."""
    uses, kills = [], []
    for block in found:
        use: set[str] = set()
        kill: set[str] = set()
        for one in [*block.code, *([block.exit.instruction] if block.exit.instruction else [])]:
            use.update(n for n in one.reads if n not in kill)
            if one.guard is None:
                kill.update(one.writes)
            else:
                use.update(n for n in one.writes if n not in kill)
        uses.append(use)
        kills.append(kill)
    live: list[set[str]] = [set(u) for u in uses]
    changed = True
    while changed:
        changed = False
        for i in range(len(found) - 1, -1, -1):
            out = set().union(*(live[s] for s in successors(found[i])))
            new = uses[i] | (out - kills[i])
            if len(new) != len(live[i]):
                live[i], changed = new, True
    return live
