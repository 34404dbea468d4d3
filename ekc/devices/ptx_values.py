"""What integer PTX instructions compute, as far as it is known before a kernel runs.

A value is a number, or an unknown run-time quantity plus a number. That is all loop control
needs: counters are numbers, and a pointer and its end share the same unknown start.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ekc.devices.ptx_text import Instruction

_NAME = re.compile(r"[%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?")
_INTEGER_TYPE = re.compile(r"([sub])(8|16|32|64)")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
_COMPUTE: dict[str, Callable[..., int]] = {
    "mul": operator.mul,
    "mad": lambda a, b, c: a * b + c,
    "shl": lambda a, b: a << min(b, 64),
    "shr": lambda a, b: a >> min(b, 64),
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "neg": operator.neg,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Value:
    """`base + number`; without a base, the number itself."""

    number: int
    base: Hashable = None


State = dict[str, Value]
"""Values by register name."""


def defs(instruction: Instruction) -> tuple[str, ...]:
    """Registers that the instruction writes (a store or a branch writes none)."""
    if not instruction.operands or instruction.operands[0].startswith("["):
        return ()
    return tuple(_NAME.findall(instruction.operands[0]))


def uses(instruction: Instruction) -> tuple[str, ...]:
    """Names that the instruction reads, its guard among them."""
    names = [name for operand in instruction.operands[1:] for name in _NAME.findall(operand)]
    return (*names, instruction.guard) if instruction.guard else tuple(names)


def execute(instruction: Instruction, state: State, fresh: Hashable) -> None:
    """Write what the instruction computes into `state`; what is unknown gets the base `fresh`."""
    applies = guard_holds(instruction, state)
    if applies is False:
        return
    result = _result(instruction, state) if applies else None
    for name in defs(instruction):
        state[name] = result or Value(0, (fresh, name))


def guard_holds(instruction: Instruction, state: State) -> bool | None:
    """Whether the guard lets the instruction run; None where that is unknown."""
    if not instruction.guard:
        return True
    value = _read(instruction.guard, state)
    return None if value.base is not None else bool(value.number) != instruction.negated


def _read(operand: str, state: State) -> Value:
    """A register, a number, or a name that stays one unknown quantity (`%tid.x`, a symbol)."""
    if operand in state:
        return state[operand]
    if _NUMBER.fullmatch(operand):
        return Value(int(operand.rstrip("U"), 0))
    return Value(0, operand)


def _result(instruction: Instruction, state: State) -> Value | None:
    """The value of the first operand, None if it cannot be told."""
    kind = _type(instruction.opcode[-1])
    if kind is None or "sat" in instruction.opcode:
        return None
    arguments = [_read(operand, state) for operand in instruction.operands[1:]]
    match instruction.opcode[0]:
        case "mov":
            return arguments[0]
        case "add":
            return _add(arguments[0], arguments[1], 1, kind)
        case "sub":
            return _add(arguments[0], arguments[1], -1, kind)
        case "setp":
            return _compare(instruction, arguments, kind)
        case "selp":
            return _select(*arguments)
        case "cvt":
            return _convert(instruction, arguments[0], kind)
    return _compute(instruction, arguments, kind)


def _type(name: str) -> tuple[bool, int] | None:
    """(is signed, bits) of an integer or predicate type."""
    if name == "pred":
        return False, 1
    match = _INTEGER_TYPE.fullmatch(name)
    return (match[1] == "s", int(match[2])) if match else None


def _wrap(number: int, kind: tuple[bool, int]) -> int:
    """`number` as the type holds it."""
    signed, bits = kind
    number &= (1 << bits) - 1
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def _add(left: Value, right: Value, sign: int, kind: tuple[bool, int]) -> Value | None:
    number = _wrap(left.number + sign * right.number, (True, kind[1]))
    if right.base is None:
        return Value(number, left.base)
    if left.base is None and sign > 0:
        return Value(number, right.base)
    return Value(number) if left.base == right.base and sign < 0 else None


def _compare(instruction: Instruction, arguments: list[Value], kind: tuple[bool, int]) -> Value | None:
    """`setp`. Values on one base compare by their numbers: pointers into an array do not wrap."""
    left, right = arguments[0], arguments[1]
    if len(instruction.opcode) != 3 or left.base != right.base or "|" in instruction.operands[0]:
        return None
    view = kind if left.base is None else (True, kind[1])
    return Value(int(_COMPARE[instruction.opcode[1]](_wrap(left.number, view), _wrap(right.number, view))))


def _select(yes: Value, no: Value, predicate: Value) -> Value | None:
    if predicate.base is not None:
        return None
    return yes if predicate.number else no


def _convert(instruction: Instruction, argument: Value, kind: tuple[bool, int]) -> Value | None:
    target = _type(instruction.opcode[-2])
    if target is None or argument.base is not None or len(instruction.opcode) != 3:
        return None
    return Value(_wrap(_wrap(argument.number, kind), (True, target[1])))


def _compute(instruction: Instruction, arguments: list[Value], kind: tuple[bool, int]) -> Value | None:
    """Arithmetic on plain numbers."""
    opcode = instruction.opcode
    compute = _COMPUTE.get(opcode[0])
    # A wide mad adds a number of another type than it multiplies.
    if compute is None or "hi" in opcode or opcode[:2] == ("mad", "wide"):
        return None
    if kind[1] == 1 and (decided := _logic(opcode[0], arguments)):
        return decided
    if any(argument.base is not None for argument in arguments):
        return None
    number = compute(*(_wrap(argument.number, kind) for argument in arguments))
    bits = 2 * kind[1] if "wide" in opcode else kind[1]
    return Value(_wrap(number, (bits > 1, bits)))


def _logic(name: str, arguments: list[Value]) -> Value | None:
    """`and` with a known false, `or` with a known true: settled whatever the other one is."""
    settling = {"and": 0, "or": 1}.get(name)
    known = [argument.number for argument in arguments if argument.base is None]
    return Value(settling) if settling is not None and settling in known else None
