"""The part of a kernel that decides where it goes and which addresses it touches, without its results.

How much of a register anybody looks at: its bytes up to the last that some reader needs.

NVRTC joins loads of bytes and halves into words, and takes them apart again by a few instructions. Only these
are followed; any other reader needs the whole register.
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
    """The kernel without the instructions that no branch and no address depends on. Stores write zeros."""
    writers: dict[str, list[int]] = {}
    for number, one in enumerate(kernel.code):
        for name in one.writes:
            writers.setdefault(name, []).append(number)
    keep = [_is_anchor(one) for one in kernel.code]
    asked = {
        name for one, kept in zip(kernel.code, keep, strict=True) if kept for name in _list_anchor_inputs(one)
    }
    left = list(asked)
    while left:
        for number in writers.get(left.pop(), ()):
            if not keep[number]:
                keep[number] = True
                new = set(kernel.code[number].reads) - asked
                asked |= new
                left += new
    before = [0]
    for kept in keep:
        before.append(before[-1] + kept)
    code = [_drop_stored_data(one) for one, kept in zip(kernel.code, keep, strict=True) if kept]
    labels = {label: before[place] for label, place in kernel.labels.items()}
    return replace(kernel, code=code, labels=labels)


def _is_anchor(instruction: Instruction) -> bool:
    """Whether an instruction stays whatever its results are for."""
    return (
        instruction.ends_block or instruction.parts[0] == "cp" or Address in map(type, instruction.operands)
    )


def _list_anchor_inputs(instruction: Instruction) -> tuple[str, ...]:
    """Registers that an anchor needs: all it reads, but not the data that a store writes."""
    if instruction.parts[0] == "st":
        return (
            *list_registers(instruction.operands[0]),
            *([instruction.guard.name] if instruction.guard else []),
        )
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
MAX_REGISTER_BYTES = 8
"""Bytes of the widest register."""


def count_used_bytes(name: str, readers: Readers) -> int:
    """Of a register, by all that read it; 0 where nobody does."""
    return max((_count_bytes_read(one, name, readers) for one in readers.get(name, ())), default=0)


def _count_bytes_read(instruction: Instruction, name: str, readers: Readers) -> int:
    follow = _BYTE_COUNTERS.get(instruction.parts[0])
    plain = (
        follow is not None
        and len(instruction.operands) > 1
        and _reads_only_register(instruction.operands[1:], name)
    )
    return min(follow(instruction, readers), MAX_REGISTER_BYTES) if follow and plain else MAX_REGISTER_BYTES


def _reads_only_register(sources: Sequence[Operand], name: str) -> bool:
    """Whether a register comes first among sources, and the others are numbers."""
    return sources[0] == Register(name) and all(isinstance(x, Immediate) for x in sources[1:])


def _count_mov_bytes(instruction: Instruction, readers: Readers) -> int:
    """`mov.b32 {low, high}, r` takes it apart."""
    target = instruction.operands[0]
    if not isinstance(target, Vector):
        return MAX_REGISTER_BYTES
    each = TYPE_BYTES.get(instruction.parts[-1], MAX_REGISTER_BYTES) // len(target.items)
    used = [_count_target_bytes(part, each, readers) for part in target.items]
    return max((i * each + count for i, count in enumerate(used) if count), default=0)


def _count_target_bytes(target: Operand, width: int, readers: Readers) -> int:
    return min(count_used_bytes(target.name, readers), width) if isinstance(target, Register) else width


def _count_cvt_bytes(instruction: Instruction, readers: Readers) -> int:
    """`cvt.s16.s8 s, r` looks at as much as its source type has."""
    return TYPE_BYTES.get(instruction.parts[-1], MAX_REGISTER_BYTES)


def _count_and_bytes(instruction: Instruction, readers: Readers) -> int:
    """`and.b16 s, r, 255`."""
    mask = instruction.operands[2]
    assert isinstance(mask, Immediate)
    return (int(mask.value).bit_length() + 7) // 8 if int(mask.value) >= 0 else MAX_REGISTER_BYTES


def _count_shl_bytes(instruction: Instruction, readers: Readers) -> int:
    """`shl.b16 s, r, 8` loses the highest byte."""
    by = instruction.operands[2]
    assert isinstance(by, Immediate)
    return max(TYPE_BYTES.get(instruction.parts[-1], MAX_REGISTER_BYTES) - int(by.value) // 8, 0)


_BYTE_COUNTERS: Mapping[str, Callable[[Instruction, Readers], int]] = {
    "mov": _count_mov_bytes,
    "cvt": _count_cvt_bytes,
    "and": _count_and_bytes,
    "shl": _count_shl_bytes,
}
