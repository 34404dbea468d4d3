"""Integer instructions on numbers that are the same for all threads, and on arrays of them.

A value is a Python number where all threads and trips have the same, else an array with the register's width:
int16, int32, int64, or bool for predicates. Numbers are kept with a sign whatever the type of the
instruction, so that a register has one form. None is a value that is not known before the launch.

A path through a kernel has the threads that take it. A branch on unknown data is taken both ways by all
threads, so a path also has the sides of such branches that it took. A value that was written on one side is
known on that side only.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Value = Any
"""int or bool; NDArray of int16, int32, int64 or bool; None where unknown."""
Operation = Callable[..., Value]
"""Computes the result of an instruction from known arguments; a pair of results for two predicates."""
Array = NDArray[Any]

_INTEGER_TYPE = re.compile(r"([subf])(8|16|32|64)")
_COMPARISONS: dict[str, Operation] = {
    "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_LOGIC: dict[str, Operation] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
_LARGEST_SHIFT = 64


class IntegerType(NamedTuple):
    """Type of an instruction."""

    is_signed: bool
    bits: int


def parse_type(name: str) -> IntegerType | None:
    """The type that the last part of an opcode names; None for floats and predicates."""
    match = _INTEGER_TYPE.fullmatch(name)
    return IntegerType(match[1] == "s", int(match[2])) if match and match[1] != "f" else None


def fit(value: Value, bits: int) -> Value:
    """The lowest bits of a value, with a sign."""
    if isinstance(value, int):
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value
    return value.astype(f"i{bits // 8}", copy=False)


def view_as(value: Value, kind: IntegerType) -> Value:
    """A value as a number of this type."""
    if isinstance(value, int):
        return fit(value, kind.bits) if kind.is_signed else value & ((1 << kind.bits) - 1)
    value = fit(value, kind.bits)
    return value if kind.is_signed else value.view(f"u{kind.bits // 8}")


@cache
def find_operation(parts: tuple[str, ...]) -> Operation | None:
    """The operation of an opcode, split at its dots; None for one whose result stays unknown."""
    name = parts[0]
    if name == "setp":
        return _make_comparison(parts)
    if parts[-1] == "pred":
        return {
            **_LOGIC,
            "not": lambda a: a ^ True,
            "mov": lambda a: a if isinstance(a, np.ndarray) else bool(a),
        }.get(name)
    kind = parse_type(parts[-1])
    if kind is None or "sat" in parts or "cc" in parts:
        return None
    if name in ("mul", "mad"):
        return _make_product(parts, kind)
    if name == "cvt":
        return _make_conversion(parts, kind)
    if name in ("shl", "shr"):
        return _make_shift(name, kind)
    if name == "selp":
        return lambda yes, no, choice: choose(choice, yes, no, kind.bits)
    plain = _OPERATIONS.get(name)
    if plain is None:
        return None
    return lambda *values: fit(plain(kind, *(view_as(one, kind) for one in values)), kind.bits)


def choose(condition: Value, yes: Value, no: Value, bits: int) -> Value:
    """One of two values, thread by thread; `bits` is 1 for predicates."""
    if not isinstance(condition, np.ndarray):
        return yes if condition else no
    if not isinstance(yes, np.ndarray) and not isinstance(no, np.ndarray) and yes == no:
        return yes
    chosen: Value = np.where(condition, yes, no)
    return chosen.astype(np.bool_, copy=False) if bits == 1 else fit(chosen, bits)


def _make_comparison(parts: tuple[str, ...]) -> Operation | None:
    """`setp`, with or without a predicate that is combined with the result."""
    kind, compare = parse_type(parts[-1]), _COMPARISONS.get(parts[1])
    if kind is None or compare is None or len(parts) not in (3, 4):
        return None
    if len(parts) == 3:
        return lambda a, b: compare(view_as(a, kind), view_as(b, kind))
    combine = _LOGIC.get(parts[2])
    return combine and (lambda a, b, c: combine(compare(view_as(a, kind), view_as(b, kind)), c))


def _make_product(parts: tuple[str, ...], kind: IntegerType) -> Operation | None:
    """`mul` and `mad`, of which `lo` keeps the lower half, `hi` the upper and `wide` the whole."""
    bits, part = kind.bits, parts[1]

    def multiply(a: Value, b: Value) -> Value:
        a, b = view_as(a, kind), view_as(b, kind)
        if part == "lo":
            return fit(a * b, bits)
        if bits == 64:
            return _multiply_high(a, b)
        wide = f"{'i' if kind.is_signed else 'u'}{bits // 4}"
        if not isinstance(a, int):
            a = a.astype(wide)
        elif not isinstance(b, int):
            b = b.astype(wide)
        return fit(a * b >> bits, bits) if part == "hi" else fit(a * b, 2 * bits)

    if parts[0] == "mul":
        return multiply
    width = 2 * bits if part == "wide" else bits
    return lambda a, b, c: fit(multiply(a, b) + c, width)


def _multiply_high(a: Value, b: Value) -> Value:
    """The upper 64 bits of a product of 64 bits, by Python's long numbers."""
    if isinstance(a, int) and isinstance(b, int):
        return fit(a * b >> 64, 64)
    long = np.asarray(a).astype(object) * np.asarray(b).astype(object) >> 64
    return (long & ((1 << 64) - 1)).astype(np.uint64).view(np.int64)


def _make_conversion(parts: tuple[str, ...], source: IntegerType) -> Operation | None:
    """`cvt` between integers."""
    target = parse_type(parts[-2])
    if target is None or len(parts) != 3:
        return None
    narrow = IntegerType(target.is_signed, min(target.bits, source.bits))
    return lambda a: fit(view_as(view_as(a, source), narrow), max(target.bits, 16))


def _make_shift(name: str, kind: IntegerType) -> Operation:
    """`shl` and `shr`, whose amount is an unsigned number of 32 bits."""
    shift = operator.lshift if name == "shl" else operator.rshift
    array_type = f"{'i' if kind.is_signed else 'u'}{kind.bits // 8}"

    def compute(a: Value, by: Value) -> Value:
        a, by = view_as(a, kind), view_as(by, IntegerType(False, 32))
        if isinstance(a, int) and isinstance(by, int):
            return fit(shift(a, min(by, _LARGEST_SHIFT)), kind.bits)
        amount = np.asarray(np.minimum(by, kind.bits - 1), array_type)
        shifted = shift(np.asarray(a, array_type), amount)
        keeps_sign = name == "shr" and kind.is_signed
        return fit(shifted if keeps_sign else np.where(np.less(by, kind.bits), shifted, 0), kind.bits)

    return compute


def _divide(_kind: IntegerType, a: Value, b: Value) -> Value:
    """Division towards zero. That by zero gives anything."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    quotient = np.floor_divide(a, b)
    return quotient + ((quotient < 0) & (quotient * b != a))


def _take_remainder(kind: IntegerType, a: Value, b: Value) -> Value:
    return a - _divide(kind, a, b) * b


def _extract_bits(kind: IntegerType, a: Value, start: Value, length: Value) -> Value:
    """`bfe` with a fixed place within the word."""
    start, length = start & 0xFF, length & 0xFF
    field = (a >> start) & ((1 << length) - 1)
    return field - ((field >> (length - 1)) << length) if kind.is_signed and length else field


def _insert_bits(kind: IntegerType, a: Value, b: Value, start: Value, length: Value) -> Value:
    """`bfi` with a fixed place within the word."""
    every = (1 << kind.bits) - 1
    ones = (((1 << (length & 0xFF)) - 1) << (start & 0xFF)) & every
    return (b & (every ^ ones)) | ((a << (start & 0xFF)) & ones)


def _look_up_logic(_kind: IntegerType, a: Value, b: Value, c: Value, table: Value) -> Value:
    """`lop3`: any function of three bits, by its table of eight."""
    result: Value = 0
    for row in range(8):
        if table >> row & 1:
            result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    return result


_OPERATIONS: dict[str, Operation] = {
    "mov": lambda _kind, a: a,
    "add": lambda _kind, a, b: a + b,
    "sub": lambda _kind, a, b: a - b,
    "and": lambda _kind, a, b: a & b,
    "or": lambda _kind, a, b: a | b,
    "xor": lambda _kind, a, b: a ^ b,
    "not": lambda _kind, a: ~a,
    "neg": lambda _kind, a: -a,
    "abs": lambda _kind, a: abs(a),
    "min": lambda kind, a, b: choose(a < b, a, b, kind.bits),
    "max": lambda kind, a, b: choose(a > b, a, b, kind.bits),
    "div": _divide,
    "rem": _take_remainder,
    "bfe": _extract_bits,
    "bfi": _insert_bits,
    "lop3": _look_up_logic,
}


Sides = frozenset[tuple[int, bool]]
"""(block that ends with a branch on unknown data, whether the branch was taken)."""


@dataclass(frozen=True, slots=True)
class Path:
    """Threads at one place of a kernel."""

    lanes: Value = True
    """True for all threads and trips, else an array of them."""
    sides: Sides = frozenset()

    def narrow(self, condition: Value) -> Path | None:
        """Those threads for which a known condition holds; None without any."""
        if condition is True or condition is False:
            return self if condition else None
        lanes = condition if self.lanes is True else self.lanes & condition
        return Path(lanes, self.sides) if lanes.any() else None

    def unite_trips(self) -> Path:
        """The threads that are on this path in any trip of the loops around."""
        if self.lanes is True or self.lanes.ndim <= 2:
            return self
        return Path(self.lanes.any(axis=tuple(range(self.lanes.ndim - 2))), self.sides)


def join_paths(paths: Iterable[Path]) -> Path:
    """The path of the threads of several ones, where these meet."""
    first, *others = paths
    if not others:
        return first
    lanes, sides = first.lanes, first.sides
    for other in others:
        lanes = True if lanes is True or other.lanes is True else lanes | other.lanes
        sides &= other.sides
    return Path(True if lanes is True or lanes.all() else lanes, sides)


@dataclass
class RegisterValues:
    """Values by register, the newest first where they were written on different sides."""

    values: dict[str, tuple[tuple[Value, Sides], ...]] = field(default_factory=dict)

    def copy(self) -> RegisterValues:
        """Values that change on their own from here on."""
        return RegisterValues(self.values.copy())

    def read(self, name: str, sides: Sides) -> Value:
        """The value of a register on a path; None where it is unknown."""
        for value, written in self.values.get(name, ()):
            if written <= sides:
                return value
            if not any((block, not is_taken) in sides for block, is_taken in written):
                return None
        return None

    def set(self, name: str, value: Value, path: Path) -> None:
        """Write a register for all threads of a path, and any value for others."""
        kept = [one for one in self.values.get(name, ()) if not path.sides <= one[1]] if path.sides else ()
        self.values[name] = ((value, path.sides), *kept)

    def merge(self, name: str, value: Value, path: Path, bits: int) -> None:
        """Write a register for the threads of a path; others keep what they have."""
        if path.lanes is not True and name in self.values:
            old = self.read(name, path.sides)
            value = None if old is None or value is None else choose(path.lanes, value, old, bits)
        self.set(name, value, path)

    def take_changes(self, changed: RegisterValues, select: Callable[[Value], Value]) -> None:
        """Take what differs in a later copy, each value through `select`."""
        for name, entries in changed.values.items():
            if self.values.get(name) is not entries:
                self.values[name] = tuple((select(value), sides) for value, sides in entries)
