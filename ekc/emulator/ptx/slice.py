"""The part of a kernel that decides where it goes and which addresses it touches, without its results."""

from __future__ import annotations

from dataclasses import replace

from ekc.emulator.ptx.program import (
    Address,
    Immediate,
    Instruction,
    KernelText,
    Operand,
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
