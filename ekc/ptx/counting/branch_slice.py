"""The instructions of a kernel on which its branches depend, prepared so that they can run on arrays.

`Threads` are the threads of a launch for which they run, and what these threads read: their numbers and the
parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ekc.ptx.constants import WARP_SIZE
from ekc.ptx.counting.integers import IntegerType, Operation, Value, find_operation, fit, parse_type
from ekc.ptx.counting.loops import ControlFlowGraph
from ekc.ptx.module import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    KernelText,
    Operand,
    Pair,
    Register,
    Symbol,
)
from ekc.tables import group_pairs

Shape = tuple[int, int, int]
_SETTLING: Mapping[tuple[str, ...], bool] = {("and", "pred"): False, ("or", "pred"): True}
_ARRAY_SHIFT, _VARIABLE_SHIFT = 40, 16
"""Arrays and variables get addresses that are multiples of these powers of two: branches compare pointers
into the same array."""


@dataclass(frozen=True)
class Threads:
    """Whole warps of some blocks of a launch. A warp that the block does not fill is filled with threads like
    its last one."""

    grid: Shape = (1, 1, 1)
    block: Shape = (WARP_SIZE, 1, 1)
    blocks: tuple[int, ...] = (0,)
    """Linear numbers, x fastest."""
    arguments: tuple[Any, ...] = ()
    """Values of the parameters, in order: numbers, or anything else for arrays. All are arrays where there
    are no values."""

    @cached_property
    def special_registers(self) -> Mapping[str, Value]:
        """Numbers of the threads and warps, [threads], those of the blocks, [blocks, 1], and extents."""
        (bx, by, bz), (gx, gy, gz) = self.block, self.grid
        count = bx * by * bz
        warps = -(-count // WARP_SIZE)
        lane = np.arange(warps * WARP_SIZE)
        thread, number = np.minimum(lane, count - 1), np.array(self.blocks, np.int64).reshape(-1, 1)
        own: dict[str, Value] = {
            "tid.x": thread % bx, "tid.y": thread // bx % by, "tid.z": thread // (bx * by),
            "ctaid.x": number % gx, "ctaid.y": number // gx % gy, "ctaid.z": number // (gx * gy),
            "laneid": lane % WARP_SIZE, "warpid": lane // WARP_SIZE,
            "ntid.x": bx, "ntid.y": by, "ntid.z": bz, "nctaid.x": gx, "nctaid.y": gy, "nctaid.z": gz,
        }  # fmt: skip
        return {f"%{name}": _shorten(value) for name, value in own.items()}


def _shorten(value: Value) -> Value:
    """Equal numbers as one, others as an array of int32."""
    if isinstance(value, int):
        return value
    return int(value.flat[0]) if (value == value.flat[0]).all() else value.astype(np.int32)


ONE_WARP = Threads()


@dataclass(frozen=True, eq=False, slots=True)
class SliceStep:
    """An instruction of the slice, with its operands resolved."""

    target: str
    """Register that it writes."""
    is_only_writer: bool
    """Whether no other instruction writes that register."""
    bits: int
    """Bits of the register; 1 of a predicate."""
    arguments: tuple[Value, ...]
    """Names of registers, or values that never change."""
    operation: Operation | None
    """None where the result is unknown."""
    guard: Register | None
    comparison: IntegerType | None
    """The type of a comparison of two integers; None for others."""
    settling: bool | None
    """The argument that decides the result whatever the other is: false of `and`, true of `or`."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Registers that are read."""
        names = tuple(one for one in self.arguments if isinstance(one, str))
        return (*names, self.guard.name) if self.guard else names

    def settle(self, values: Sequence[Value]) -> Value:
        """The result where some arguments are unknown (None); mostly None as well."""
        if self.settling is None or self.settling not in [one for one in values if isinstance(one, bool)]:
            return None
        return self.settling


def slice_branches(
    graph: ControlFlowGraph, kernel: KernelText, threads: Threads
) -> dict[int, tuple[SliceStep, ...]]:
    """Block -> its instructions on which a guarded branch of the kernel depends."""
    code = (one for number in graph.order for one in graph.blocks[number].code)
    writers = group_pairs((name, one) for one in code for name in one.writes)
    guards = (end.guard for n in graph.order if (end := graph.blocks[n].exit.instruction) is not None)
    needed = _find_needed(writers, {guard.name for guard in guards if guard is not None})
    resolver = _Resolver(kernel, threads)
    return {
        number: tuple(
            step
            for one in graph.blocks[number].code
            if one in needed
            for step in resolver.make_steps(one, writers)
        )
        for number in graph.order
    }


def _find_needed(writers: Mapping[str, Sequence[Instruction]], registers: Iterable[str]) -> set[Instruction]:
    """The instructions on which these registers depend."""
    needed: set[Instruction] = set()
    visited = set(registers)
    pending = list(visited)
    while pending:
        for one in writers.get(pending.pop(), ()):
            needed.add(one)
            is_known = find_operation(one.parts) is not None or one.parts[0] == "cvta"
            reads = one.reads if is_known else ([one.guard.name] if one.guard else [])
            new = set(reads) - visited
            visited |= new
            pending += new
    return needed


class _Resolver:
    """Makes steps of instructions, for one kernel and its launch."""

    def __init__(self, kernel: KernelText, threads: Threads) -> None:
        self._types, self._special = kernel.registers, threads.special_registers
        self._parameters: dict[str, int] = {}
        for place, one in enumerate(kernel.parameters):
            value = threads.arguments[place] if place < len(threads.arguments) else None
            address = (place + 1) << _ARRAY_SHIFT
            self._parameters[one.name] = int(value) if isinstance(value, int | np.integer) else address
        self._variables = {
            one.name: (place + 1) << _VARIABLE_SHIFT for place, one in enumerate(kernel.variables)
        }

    def make_steps(
        self, one: Instruction, writers: Mapping[str, Sequence[Instruction]]
    ) -> Iterable[SliceStep]:
        """One step for each register that an instruction writes."""
        first = one.operands[0]
        targets = (first.first, first.second) if isinstance(first, Pair) else (first,)
        names = [x.name for x in targets if isinstance(x, Register)]
        operation, arguments = self._find_operation(one)
        for name in one.writes:
            own = operation if name in names else None
            if own is not None and isinstance(first, Pair) and name == names[-1]:
                own = _negate(own)
            comparison = parse_type(one.parts[-1]) if own and one.parts[0] == "setp" else None
            yield SliceStep(
                target=name,
                is_only_writer=len(writers[name]) == 1,
                bits=self._count_bits(name),
                arguments=arguments if own else (),
                operation=own,
                guard=one.guard,
                comparison=comparison,
                settling=_SETTLING.get(one.parts),
            )

    def _count_bits(self, name: str) -> int:
        kind = self._types.get(name, "b32")
        return 1 if kind == "pred" else max(8 * TYPE_BYTES.get(kind, 4), 16)

    def _find_operation(self, one: Instruction) -> tuple[Operation | None, tuple[Value, ...]]:
        """Operation of an instruction, and its arguments."""
        if one.parts[:2] == ("ld", "param"):
            value = self._read_parameter(one)
            return (None, ()) if value is None else ((lambda: value), ())
        operation = (lambda a: a) if one.parts[0] == "cvta" else find_operation(one.parts)
        if operation is None:
            return None, ()
        arguments = tuple(self._resolve(operand) for operand in one.operands[1:])
        return (None, ()) if any(x is None for x in arguments) else (operation, arguments)

    def _read_parameter(self, one: Instruction) -> Value:
        kind, place = parse_type(one.parts[-1]), one.operands[1]
        if (
            kind is None
            or not isinstance(place, Address)
            or place.offset
            or not isinstance(place.base, Symbol)
        ):
            return None
        return fit(self._parameters[place.base.name], kind.bits)

    def _resolve(self, operand: Operand) -> Value:
        """Name of a register, or a value; None where it is unknown."""
        if isinstance(operand, Register) and not operand.is_negated:
            return operand.name
        if isinstance(operand, Immediate) and isinstance(operand.value, int):
            return operand.value
        if isinstance(operand, Symbol):
            place = self._variables.get(operand.name)
            return self._special.get(operand.name) if place is None else place + operand.offset
        return None


def _negate(operation: Operation) -> Operation:
    return lambda *values: operation(*values) ^ True
