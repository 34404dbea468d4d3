"""How much of a register anybody looks at: its bytes up to the last that some reader needs.

NVRTC joins loads of bytes and halves into words, and takes them apart again by a few instructions. Only these
are followed; any other reader needs the whole register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekc.emulator.ptx.program import TYPE_BYTES, Immediate, Instruction, Operand, Register, Vector

Readers = Mapping[str, Sequence[Instruction]]
"""The instructions that read each register."""
WHOLE = 8
"""Bytes of the widest register."""


def bytes_used(name: str, readers: Readers) -> int:
    """Of a register, by all that read it; 0 where nobody does."""
    return max((_by(one, name, readers) for one in readers.get(name, ())), default=0)


def _by(one: Instruction, name: str, readers: Readers) -> int:
    follow = _FOLLOWED.get(one.parts[0])
    plain = follow is not None and len(one.operands) > 1 and _only(one.operands[1:], name)
    return min(follow(one, readers), WHOLE) if follow and plain else WHOLE


def _only(sources: Sequence[Operand], name: str) -> bool:
    """Whether a register comes first among sources, and the others are numbers."""
    return sources[0] == Register(name) and all(isinstance(x, Immediate) for x in sources[1:])


def _moved(one: Instruction, readers: Readers) -> int:
    """`mov.b32 {low, high}, r` takes it apart."""
    target = one.operands[0]
    if not isinstance(target, Vector):
        return WHOLE
    each = TYPE_BYTES.get(one.parts[-1], WHOLE) // len(target.items)
    used = [_of(part, each, readers) for part in target.items]
    return max((i * each + count for i, count in enumerate(used) if count), default=0)


def _of(target: Operand, width: int, readers: Readers) -> int:
    return min(bytes_used(target.name, readers), width) if isinstance(target, Register) else width


def _converted(one: Instruction, readers: Readers) -> int:
    """`cvt.s16.s8 s, r` looks at as much as its source type has."""
    return TYPE_BYTES.get(one.parts[-1], WHOLE)


def _masked(one: Instruction, readers: Readers) -> int:
    """`and.b16 s, r, 255`."""
    mask = one.operands[2]
    assert isinstance(mask, Immediate)
    return (int(mask.value).bit_length() + 7) // 8 if int(mask.value) >= 0 else WHOLE


def _shifted_up(one: Instruction, readers: Readers) -> int:
    """`shl.b16 s, r, 8` loses the highest byte."""
    by = one.operands[2]
    assert isinstance(by, Immediate)
    return max(TYPE_BYTES.get(one.parts[-1], WHOLE) - int(by.value) // 8, 0)


_FOLLOWED: Mapping[str, Callable[[Instruction, Readers], int]] = {
    "mov": _moved,
    "cvt": _converted,
    "and": _masked,
    "shl": _shifted_up,
}
