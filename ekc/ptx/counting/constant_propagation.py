"""Values of integer registers, as far as they are known before a kernel runs.

A value is a number, or an unknown run-time quantity plus a number. That is all that loop control needs:
counters are numbers, and a pointer and its end share the same unknown start.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ekc.ptx.module import Immediate, Instruction, Operand, Register, Symbol

_INTEGER_TYPE = re.compile(r"([sub])(8|16|32|64)")
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
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
_OPERATORS: dict[str, Callable[..., int]] = {
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
_NUMERIC_OPCODES = frozenset({"cvt", *_OPERATORS})
_LINEAR_OPCODES = frozenset({"mov", "add", "sub", "setp", "selp"})
"""Opcodes that add their arguments, copy one of them, or compare them."""


class OffsetValue(NamedTuple):
    """`base + number`, where the base is an unknown quantity; without a base, the number itself."""

    number: int
    base: Hashable = None
    """Identity of the unknown quantity; None where the value is known."""


Values = dict[str, OffsetValue]
"""Register -> value."""


@dataclass(frozen=True, slots=True)
class State:
    """Values of registers at one point of a kernel.

    A register with a single writer is read only after that has run in the same trip of any loop around it. So
    one value of it serves all points of the kernel.
    """

    single_writer_values: Values
    """Values of registers that one instruction writes; a table that all states share."""
    multi_writer_values: Values
    """Values of the other registers."""

    def read_register(self, name: str) -> OffsetValue:
        """The value of a register; an unknown quantity where nothing is known."""
        return (
            self.multi_writer_values.get(name) or self.single_writer_values.get(name) or OffsetValue(0, name)
        )


Operation = Callable[[Sequence[OffsetValue]], OffsetValue | None]
"""Computes the result of an instruction from its arguments; None where it is unknown."""


class PredicateGuard(NamedTuple):
    """The condition under which an instruction runs."""

    predicate: OffsetValue | str
    """A register, or its value where that never changes."""
    is_negated: bool

    def evaluate(self, state: State) -> bool | None:
        """Whether the instruction runs at this state; None where that is unknown."""
        value = _read_value(self.predicate, state)
        return None if value.base is not None else bool(value.number) != self.is_negated


class Comparison(NamedTuple):
    """The two numbers of a comparison, as integers of its type."""

    left: int
    right: int
    kind: tuple[bool, int]
    """The type: whether it is signed, and its bits."""


@dataclass(frozen=True, eq=False, slots=True)
class PreparedInstruction:
    """An instruction with its operands resolved, so that it can be evaluated many times."""

    written_registers: tuple[str, ...]
    """Registers that the instruction writes."""
    is_only_writer: bool
    """Whether no other instruction writes these registers."""
    arguments: tuple[OffsetValue | str, ...]
    """Registers, or values that never change; empty where the result is always unknown."""
    operation: Operation | None
    """None where the result is always unknown."""
    guard: PredicateGuard | None
    is_linear: bool
    """Whether the result grows by the same amount in each trip where the arguments do."""
    comparison_type: tuple[bool, int] | None
    """The type of a comparison: whether it is signed, and its bits. None for other instructions."""

    def list_reads(self) -> list[str]:
        """Registers on which the result depends."""
        places = (*self.arguments, self.guard.predicate) if self.guard else self.arguments
        return [place for place in places if isinstance(place, str)]

    def read_comparison(self, state: State) -> Comparison | None:
        """The two numbers that a comparison compares; None where its result is unknown."""
        assert self.comparison_type is not None
        left, right = (_read_value(place, state) for place in self.arguments)
        if left.base != right.base:
            return None
        view = _comparison_type(left, self.comparison_type)
        return Comparison(_wrap_to_type(left.number, view), _wrap_to_type(right.number, view), view)

    def apply(self, state: State, new_base: Hashable) -> None:
        """Write the result into `state`; an unknown result gets a base that is made from `new_base`."""
        applies = True if self.guard is None else self.guard.evaluate(state)
        if applies is False:
            return
        result = None
        if self.operation and applies:
            result = self.operation([_read_value(place, state) for place in self.arguments])
        values = state.single_writer_values if self.is_only_writer else state.multi_writer_values
        for name in self.written_registers:
            values[name] = result or OffsetValue(0, (id(self), name, new_base))


def list_uses(instruction: Instruction) -> tuple[str, ...]:
    """Registers on which the result depends: only the guard where the result is always unknown."""
    if _find_operation(instruction):
        return instruction.reads
    return (instruction.guard.name,) if instruction.guard else ()


def prepare_instruction(
    instruction: Instruction, constants: Values, writers: Mapping[str, Sequence[Instruction]]
) -> PreparedInstruction:
    """Resolve the operands of an instruction. `constants`: registers that never change."""
    operation, parts = _find_operation(instruction), instruction.parts
    sources = instruction.operands[1:] if operation else ()
    places = [_resolve_operand(source, constants, writers) for source in sources]
    if parts[0] in _NUMERIC_OPCODES and parts[-1] != "pred":
        # An argument that never changes and is no number makes the result unknown for ever.
        operation = operation if all(isinstance(p, str) or p.base is None for p in places) else None
    guard = None
    if instruction.guard is not None:
        predicate = _resolve_operand(instruction.guard, constants, writers)
        guard = PredicateGuard(predicate, instruction.guard.is_negated)
    names = instruction.writes
    return PreparedInstruction(
        names,
        all(len(writers[name]) == 1 for name in names),
        tuple(places) if operation else (),
        operation,
        guard,
        operation is None or parts[0] in _LINEAR_OPCODES or parts[-1] == "pred",
        _parse_type(parts[-1]) if operation and parts[0] == "setp" else None,
    )


def is_settled(instruction: Instruction, step: PreparedInstruction) -> bool:
    """Whether the results never change, because no argument does."""
    is_constant = step.guard is None and not step.list_reads()
    return is_constant and step.is_only_writer and _find_operation(instruction) is not None


def _find_operation(instruction: Instruction) -> Operation | None:
    return _operation_of(instruction.parts) if all(map(_is_simple, instruction.operands)) else None


def _is_simple(operand: Operand) -> bool:
    """Whether an operand is one value that is read as it is."""
    is_register = isinstance(operand, Register) and not operand.is_negated
    return is_register or isinstance(operand, Immediate | Symbol)


def _resolve_operand(operand: Operand, constants: Values, written: Container[str]) -> OffsetValue | str:
    """The value of an operand that never changes, or the name of the register to read."""
    if isinstance(operand, Register):
        name = operand.name
        return constants.get(name) or (name if name in written else OffsetValue(0, name))
    if isinstance(operand, Immediate) and isinstance(operand.value, int):
        return OffsetValue(operand.value)
    # A special register, a symbol or a float stays one unknown quantity.
    return OffsetValue(0, operand)


def _read_value(place: OffsetValue | str, state: State) -> OffsetValue:
    return state.read_register(place) if isinstance(place, str) else place


@cache
def _operation_of(opcode: tuple[str, ...]) -> Operation | None:
    """The operation of an opcode; None for one whose result is never known."""
    name, kind = opcode[0], _parse_type(opcode[-1])
    if kind is None or "sat" in opcode:
        return None
    match name:
        case "mov":
            return lambda arguments: arguments[0]
        case "add":
            return lambda arguments: _add_values(arguments[0], arguments[1], 1, kind)
        case "sub":
            return lambda arguments: _add_values(arguments[0], arguments[1], -1, kind)
        case "setp" if len(opcode) == 3:
            return lambda arguments: _compare_values(opcode[1], arguments, kind)
        case "selp":
            return lambda arguments: _select_value(*arguments)
        case "cvt":
            return _conversion_of(opcode, kind)
    # A wide mad adds a number of another type than it multiplies.
    if name not in _OPERATORS or "hi" in opcode or opcode[:2] == ("mad", "wide"):
        return None
    return lambda arguments: _compute_number(opcode, arguments, kind)


def _parse_type(name: str) -> tuple[bool, int] | None:
    """(is signed, bits) of an integer or predicate type."""
    if name == "pred":
        return False, 1
    match = _INTEGER_TYPE.fullmatch(name)
    return (match[1] == "s", int(match[2])) if match else None


def _wrap_to_type(number: int, kind: tuple[bool, int]) -> int:
    """`number` wrapped around to the range of a type."""
    signed, bits = kind
    number &= (1 << bits) - 1
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def _add_values(
    left: OffsetValue, right: OffsetValue, sign: int, kind: tuple[bool, int]
) -> OffsetValue | None:
    number = _wrap_to_type(left.number + sign * right.number, (True, kind[1]))
    if right.base is None:
        return OffsetValue(number, left.base)
    if left.base is None and sign > 0:
        return OffsetValue(number, right.base)
    return OffsetValue(number) if left.base == right.base and sign < 0 else None


def _compare_values(
    comparison: str, arguments: Sequence[OffsetValue], kind: tuple[bool, int]
) -> OffsetValue | None:
    """`setp`. Values on one base compare by their numbers: pointers into an array do not wrap."""
    left, right = arguments
    if left.base != right.base:
        return None
    view = _comparison_type(left, kind)
    a, b = _wrap_to_type(left.number, view), _wrap_to_type(right.number, view)
    return OffsetValue(int(_COMPARISONS[comparison](a, b)))


def _comparison_type(value: OffsetValue, kind: tuple[bool, int]) -> tuple[bool, int]:
    """The type in which a comparison compares a value: addresses on one base as signed numbers."""
    return kind if value.base is None else (True, kind[1])


def _select_value(yes: OffsetValue, no: OffsetValue, predicate: OffsetValue) -> OffsetValue | None:
    if predicate.base is not None:
        return yes if yes == no else None
    return yes if predicate.number else no


def _conversion_of(opcode: tuple[str, ...], kind: tuple[bool, int]) -> Operation | None:
    """The operation of a `cvt` between integers."""
    target = _parse_type(opcode[-2])
    if target is None or len(opcode) != 3:
        return None
    signed = (True, target[1])

    def convert(arguments: Sequence[OffsetValue]) -> OffsetValue | None:
        number, base = arguments[0]
        return OffsetValue(_wrap_to_type(_wrap_to_type(number, kind), signed)) if base is None else None

    return convert


def _compute_number(
    opcode: tuple[str, ...], arguments: Sequence[OffsetValue], kind: tuple[bool, int]
) -> OffsetValue | None:
    """Arithmetic on plain numbers."""
    if kind[1] == 1 and (decided := _settle_logic(opcode[0], arguments)):
        return decided
    if any(argument.base is not None for argument in arguments):
        return None
    number = _OPERATORS[opcode[0]](*(_wrap_to_type(argument.number, kind) for argument in arguments))
    bits = 2 * kind[1] if "wide" in opcode else kind[1]
    return OffsetValue(_wrap_to_type(number, (bits > 1, bits)))


def _settle_logic(name: str, arguments: Sequence[OffsetValue]) -> OffsetValue | None:
    """`and` with a known false or `or` with a known true, whatever the other argument is."""
    settling = {"and": 0, "or": 1}.get(name)
    bits = [argument.number & 1 for argument in arguments if argument.base is None]
    return OffsetValue(settling) if settling is not None and settling in bits else None
