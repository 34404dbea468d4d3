"""Slices of a kernel: the instructions that decide branches and addresses, and the bytes of a register in
use.

`slice_addresses` leaves out all instructions that only compute results, so that a kernel's memory accesses
can be surveyed in a fraction of the time of a run.

`count_used_bytes` counts the bytes of a register up to the last one that an instruction reads. NVRTC joins
loads of bytes and halves into words and splits them again by a few instructions (`mov`, `cvt`, `and`, `shl`).
Only these are followed; any other reader counts as a reader of the whole register.

`find_tile_loads` finds the loads that fill a tile of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
    writers: dict[str, list[int]] = {}
    for number, one in enumerate(kernel.code):
        for name in one.writes:
            writers.setdefault(name, []).append(number)
    keep = [_is_anchor(one) for one in kernel.code]
    needed_registers = {
        name for one, kept in zip(kernel.code, keep, strict=True) if kept for name in _list_anchor_inputs(one)
    }
    pending = list(needed_registers)
    while pending:
        for number in writers.get(pending.pop(), ()):
            if not keep[number]:
                keep[number] = True
                new = set(kernel.code[number].reads) - needed_registers
                needed_registers |= new
                pending += new
    before = [0]
    for kept in keep:
        before.append(before[-1] + kept)
    code = [_drop_stored_data(one) for one, kept in zip(kernel.code, keep, strict=True) if kept]
    labels = {label: before[place] for label, place in kernel.labels.items()}
    return replace(kernel, code=code, labels=labels)


def _is_anchor(instruction: Instruction) -> bool:
    """Whether an instruction stays in the slice in any case: it branches, copies or has an address."""
    has_address = Address in map(type, instruction.operands)
    return instruction.ends_block or instruction.parts[0] == "cp" or has_address


def _list_anchor_inputs(instruction: Instruction) -> tuple[str, ...]:
    """Registers that an anchor needs: all that it reads, without the data of a store."""
    if instruction.parts[0] == "st":
        guard = [instruction.guard.name] if instruction.guard else []
        return (*list_registers(instruction.operands[0]), *guard)
    return instruction.reads


def _drop_stored_data(instruction: Instruction) -> Instruction:
    if instruction.parts[0] != "st":
        return instruction
    address, value = instruction.operands
    return replace(instruction, operands=(address, _zero_operand(value)))


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


_MOVING_OPERATIONS = frozenset(["mov", "cvt", "prmt", "selp", "and", "or", "shl", "shr", "bfe", "bfi"])
"""Operations that only move, choose or repack the bytes of a value."""


def find_tile_loads(kernel: KernelText) -> frozenset[int]:
    """Lines of the loads from global memory whose values are stored to shared memory, perhaps repacked."""
    readers = kernel.readers_by_register
    loads = [one for one in kernel.code if one.parts[0] == "ld" and "global" in one.parts]
    return frozenset(one.line for one in loads if _reaches_shared_store(one, readers))


def _reaches_shared_store(load: Instruction, readers: Readers) -> bool:
    pending, seen = list(load.writes), set(load.writes)
    while pending:
        for reader in readers.get(pending.pop(), ()):
            if reader.parts[0] == "st" and "shared" in reader.parts:
                return True
            if reader.parts[0] in _MOVING_OPERATIONS:
                new = set(reader.writes) - seen
                seen |= new
                pending += new
    return False
