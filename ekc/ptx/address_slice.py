"""Slices of a kernel: the instructions that decide branches and addresses, and the bytes of a register in
use.

`slice_addresses` leaves out all instructions that only compute results, so that a kernel's memory accesses
can be surveyed in a fraction of the time of a run.

`count_used_bytes` counts the bytes of a register up to the last one that an instruction reads. NVRTC joins
loads of bytes and halves into words and splits them again by a few instructions (`mov`, `cvt`, `and`, `shl`).
Only these are followed; any other reader counts as a reader of the whole register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from ekc.ptx.cfg import split_blocks
from ekc.ptx.module import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    KernelText,
    Operand,
    Register,
    Vector,
    list_registers,
)


def slice_addresses(kernel: KernelText) -> KernelText:
    """The kernel without the instructions on which no branch and no address depends. Stores write zeros."""
    keep, _ = find_needed(ReachingWrites(kernel), list(map(_is_anchor, kernel.code)))
    before = list(accumulate(keep, initial=0))
    readers = kernel.readers_by_register
    code = [drop_stored_data(one, readers) for one, kept in zip(kernel.code, keep, strict=True) if kept]
    labels = {label: before[place] for label, place in kernel.labels.items()}
    return replace(kernel, code=code, labels=labels)


def find_needed(writes: ReachingWrites, anchors: Sequence[bool]) -> tuple[list[bool], set[int]]:
    """Whether each instruction is an anchor or one on whose result an anchor depends; the numbers of those
    on whose results something depends."""
    kernel, readers = writes.kernel, writes.kernel.readers_by_register
    keep, used = list(anchors), set[int]()
    pending = [number for number, kept in enumerate(keep) if kept]
    while pending:
        number = pending.pop()
        one = kernel.code[number]
        inputs = _list_anchor_inputs(one, readers) if anchors[number] and number not in used else one.reads
        for name in inputs:
            new = writes.find(number, name) - used
            used |= new
            # An anchor whose result is needed depends on all that it reads.
            pending += [n for n in new if not keep[n] or _find_stored_data(kernel.code[n], readers)]
            for n in new:
                keep[n] = True
    return keep, used


class ReachingWrites:
    """The instructions whose result a register may hold at some place of a kernel."""

    def __init__(self, kernel: KernelText) -> None:
        self.kernel, blocks = kernel, split_blocks(kernel)
        self._block_numbers = [block.number for block in blocks for _ in block.instructions]
        self._predecessors: list[list[int]] = [[] for _ in blocks]
        for block in blocks:
            for target in block.exit.targets:
                self._predecessors[target].append(block.number)
        self._writes: dict[str, dict[int, list[int]]] = {}
        """Register -> block -> numbers of its instructions that write the register."""
        for number, one in enumerate(kernel.code):
            for name in one.writes:
                by_block = self._writes.setdefault(name, {})
                by_block.setdefault(self._block_numbers[number], []).append(number)
        self._at_entry: dict[tuple[int, str], set[int]] = {}
        """(block, register) -> numbers of the instructions of earlier blocks that may have written it."""
        self._earlier_blocks = _find_earlier_blocks(self._predecessors)

    def find(self, number: int, name: str) -> set[int]:
        """Numbers of the instructions that may have written a register before an instruction reads it."""
        block = self._block_numbers[number]
        found, is_certain = self._find_in_block(block, name, number)
        return found if is_certain else found | self._find_before_block(block, name)

    def _find_in_block(self, block: int, name: str, before: int) -> tuple[set[int], bool]:
        """Writes within a block before an instruction, and whether one of them surely runs."""
        found = set()
        for number in reversed(self._writes.get(name, {}).get(block, ())):
            if number < before:
                found.add(number)
                if self.kernel.code[number].guard is None:
                    return found, True
        return found, False

    def _find_before_block(self, block: int, name: str) -> set[int]:
        """Numbers of the instructions that may have written a register when a block begins."""
        key = (block, name)
        if key not in self._at_entry:
            writers = tuple(self._writes.get(name, ()))
            if len(writers) == 1:
                # Most registers are written in one block only: no other block overwrites the value.
                is_earlier = self._earlier_blocks[block] >> writers[0] & 1
                last, _ = self._find_in_block(writers[0], name, len(self.kernel.code))
                self._at_entry[key] = last if is_earlier else set()
            else:
                self._at_entry[key] = self._search_earlier_blocks(block, name)
        return self._at_entry[key]

    def _search_earlier_blocks(self, block: int, name: str) -> set[int]:
        found, visited, pending = set[int](), set[int](), list(self._predecessors[block])
        while pending:
            other = pending.pop()
            if other not in visited:
                visited.add(other)
                new, is_certain = self._find_in_block(other, name, len(self.kernel.code))
                found |= new
                pending += () if is_certain else self._predecessors[other]
        return found


def _find_earlier_blocks(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """For each block, the blocks from which control may reach it, one bit of an integer each."""
    earlier, is_changed = [0] * len(predecessors), True
    while is_changed:
        is_changed = False
        for block, own in enumerate(predecessors):
            found = earlier[block]
            for other in own:
                found |= earlier[other] | 1 << other
            is_changed |= found != earlier[block]
            earlier[block] = found
    return earlier


def _is_anchor(instruction: Instruction) -> bool:
    """Whether an instruction stays in the slice in any case: it branches, copies or has an address."""
    has_address = Address in map(type, instruction.operands)
    return instruction.ends_block or instruction.parts[0] == "cp" or has_address


def _list_anchor_inputs(instruction: Instruction, readers: Readers) -> tuple[str, ...]:
    """Registers that an anchor needs: all that it reads, without the data that it only writes to memory."""
    first = _find_stored_data(instruction, readers)
    if first is None:
        return instruction.reads
    guard = [instruction.guard.name] if instruction.guard else []
    return (*list_registers(instruction.operands[first - 1]), *guard)


def _find_stored_data(instruction: Instruction, readers: Readers) -> int | None:
    """Place of the first operand that only goes to memory: of a store, and of an atomic whose result no
    instruction reads. It follows the address."""
    root = instruction.parts[0]
    if root == "atom" and not any(name in readers for name in instruction.writes):
        return 2
    return 1 if root in ("st", "red") else None


def drop_stored_data(instruction: Instruction, readers: Readers) -> Instruction:
    """The instruction with zeros in the place of the data that only go to memory."""
    first = _find_stored_data(instruction, readers)
    if first is None:
        return instruction
    kept, dropped = instruction.operands[:first], instruction.operands[first:]
    return replace(instruction, operands=(*kept, *(_zero_operand(value) for value in dropped)))


def _zero_operand(value: Operand) -> Operand:
    if isinstance(value, Vector):
        return Vector(tuple(Immediate(0) for _ in value.items))
    return Immediate(0)


Readers = Mapping[str, Sequence[Instruction]]
"""The instructions that read each register."""
_INTEGER_TYPES = frozenset(f"{sign}{bits}" for sign in "su" for bits in (8, 16, 32, 64))
MAX_REGISTER_BYTES = 8
"""Bytes of the widest register."""


def count_used_bytes(name: str, readers: Readers) -> int:
    """Bytes of a register up to the last that any reader needs; 0 without a reader."""
    return max((_count_bytes_read(one, name, readers) for one in readers.get(name, ())), default=0)


def _count_bytes_read(instruction: Instruction, name: str, readers: Readers) -> int:
    follow = _BYTE_COUNTERS.get(instruction.parts[0])
    if follow is None or not _reads_only_register(instruction.operands[1:], name):
        return MAX_REGISTER_BYTES
    return min(follow(instruction, readers), MAX_REGISTER_BYTES)


def _reads_only_register(sources: Sequence[Operand], name: str) -> bool:
    """Whether the first source is this register and the others are numbers."""
    return sources[:1] == (Register(name),) and all(isinstance(x, Immediate) for x in sources[1:])


def _count_mov_bytes(instruction: Instruction, readers: Readers) -> int:
    """`mov.b32 {low, high}, r` splits the register: the bytes that readers of the parts need."""
    target = instruction.operands[0]
    if not isinstance(target, Vector):
        return MAX_REGISTER_BYTES
    each = TYPE_BYTES.get(instruction.parts[-1], MAX_REGISTER_BYTES) // len(target.items)
    used = [_count_target_bytes(part, each, readers) for part in target.items]
    return max((i * each + count for i, count in enumerate(used) if count), default=0)


def _count_target_bytes(target: Operand, width: int, readers: Readers) -> int:
    return min(count_used_bytes(target.name, readers), width) if isinstance(target, Register) else width


def _count_cvt_bytes(instruction: Instruction, readers: Readers) -> int:
    """`cvt.s16.s8 s, r` reads as many bytes as its source type has, and of integers no more than are used."""
    width = TYPE_BYTES.get(instruction.parts[-1], MAX_REGISTER_BYTES)
    if not _INTEGER_TYPES.issuperset(instruction.parts[1:]):
        return width
    return _count_target_bytes(instruction.operands[0], width, readers)


def _count_and_bytes(instruction: Instruction, readers: Readers) -> int:
    """`and.b16 s, r, 255` reads the bytes under its mask."""
    mask = instruction.operands[2]
    assert isinstance(mask, Immediate)
    return (int(mask.value).bit_length() + 7) // 8 if int(mask.value) >= 0 else MAX_REGISTER_BYTES


def _count_shl_bytes(instruction: Instruction, readers: Readers) -> int:
    """`shl.b16 s, r, 8` shifts the highest byte out, and does not need it."""
    by = instruction.operands[2]
    assert isinstance(by, Immediate)
    return max(TYPE_BYTES.get(instruction.parts[-1], MAX_REGISTER_BYTES) - int(by.value) // 8, 0)


_BYTE_COUNTERS: Mapping[str, Callable[[Instruction, Readers], int]] = {
    "mov": _count_mov_bytes,
    "cvt": _count_cvt_bytes,
    "and": _count_and_bytes,
    "shl": _count_shl_bytes,
}
