"""The part of a kernel that decides where it goes and which addresses it touches, without its results."""

from __future__ import annotations

from dataclasses import replace

from ekc.emulator.ptx.program import Address, Immediate, Instruction, KernelText, Operand, Vector, names


def slice_of(text: KernelText) -> KernelText:
    """The kernel without the instructions that no branch and no address depends on. Stores write zeros."""
    writers: dict[str, list[int]] = {}
    for number, one in enumerate(text.code):
        for name in one.writes:
            writers.setdefault(name, []).append(number)
    keep = [_anchors(one) for one in text.code]
    asked = {name for one, kept in zip(text.code, keep, strict=True) if kept for name in _wanted(one)}
    left = list(asked)
    while left:
        for number in writers.get(left.pop(), ()):
            if not keep[number]:
                keep[number] = True
                new = set(text.code[number].reads) - asked
                asked |= new
                left += new
    before = [0]
    for kept in keep:
        before.append(before[-1] + kept)
    code = [_without_data(one) for one, kept in zip(text.code, keep, strict=True) if kept]
    labels = {label: before[place] for label, place in text.labels.items()}
    return replace(text, code=code, labels=labels)


def _anchors(one: Instruction) -> bool:
    """Whether an instruction stays whatever its results are for."""
    return one.ends_block or one.parts[0] == "cp" or Address in map(type, one.operands)


def _wanted(one: Instruction) -> tuple[str, ...]:
    """Registers that an anchor needs: all it reads, but not the data that a store writes."""
    if one.parts[0] == "st":
        return (*names(one.operands[0]), *([one.guard.name] if one.guard else []))
    return one.reads


def _without_data(one: Instruction) -> Instruction:
    if one.parts[0] != "st":
        return one
    address, value = one.operands
    return replace(one, operands=(address, _zeros(value)))


def _zeros(value: Operand) -> Operand:
    if isinstance(value, Vector):
        return Vector(tuple(Immediate(0) for _ in value.items))
    return Immediate(0)
