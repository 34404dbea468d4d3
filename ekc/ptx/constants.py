"""Constants in PTX text: literals in every base, `WARP_SZ`, and the constant expressions of C (PTX ISA 4.5).

Integers have 64 bits and are signed unless a literal ends in U or exceeds the signed range. `~` and `%`
work on unsigned numbers, and a shift takes its amount modulo 64, as in ptxas.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from ekc.errors import EkcError
from ekc.ptx.lexer import TokenReader

_BITS = 64
_LITERAL = re.compile(
    r"(?:0[xX](?P<hexadecimal>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9]\d*))"
    r"(?P<unsigned>U?)"
)
_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}
_FLOAT_BITS = re.compile(r"0(?:[fF](?P<single>[0-9a-fA-F]{8})|[dD](?P<double>[0-9a-fA-F]{16}))")
_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+")
_CONSTANT_START = re.compile(r"[-+~!(\s]*(?:\d|\.\d|\.[su]64\b|WARP_SZ(?![\w$]))")
WARP_SIZE = 32
_CAST_SIGNS = {".s64": True, ".u64": False}

_ABOVE_ADDITIVE = 10
"""Precedence of the operators that bind closer than + and -."""


def _divide(a: int, b: int) -> int:
    """The quotient, rounded towards zero."""
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


_OPERATORS: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: bool(a or b)),
    "&&": (2, lambda a, b: bool(a and b)),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, operator.eq),
    "!=": (6, operator.ne),
    "<": (7, operator.lt),
    "<=": (7, operator.le),
    ">": (7, operator.gt),
    ">=": (7, operator.ge),
    "<<": (8, lambda a, b: a << b % _BITS),
    ">>": (8, lambda a, b: a >> b % _BITS),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _divide),
    "%": (10, operator.mod),
}
"""Operator of two operands -> its precedence, and what it computes of integers."""
_FLOAT_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip


class _Constant(NamedTuple):
    """A value; `signed` applies to integers only."""

    number: int | float
    signed: bool = True


def is_constant_start(text: str, position: int = 0) -> bool:
    """Whether a constant (and no register, name or address) begins at a place of the text."""
    return _CONSTANT_START.match(text, position) is not None


class ConstantReader(TokenReader):
    """A token reader that also reads constant expressions."""

    def read_constant(self, min_precedence: int = 0) -> int | float:
        """Read the constant that begins here, up to an operator of lower precedence than `min_precedence`."""
        return self._read_conditional(min_precedence).number

    def read_integer(self, min_precedence: int = 0) -> int:
        """Read a constant that is a whole number."""
        value = self.read_constant(min_precedence)
        if isinstance(value, float):
            raise self.make_error(f"{value} where a whole number was expected")
        return value

    def read_offset(self) -> int:
        """Read one term of an address such as `[%rd1+8+4]`."""
        return self.read_integer(_ABOVE_ADDITIVE)

    def _read_conditional(self, min_precedence: int) -> _Constant:
        """`a ? b : c`, or what it is made of."""
        condition = self._read_binary(max(min_precedence, 1))
        if min_precedence or not self.accept("?"):
            return condition
        yes = self._read_conditional(0)
        self.take(":")
        no = self._read_conditional(0)
        return yes if condition.number else no

    def _read_binary(self, min_precedence: int) -> _Constant:
        """Operators of two operands, by precedence climbing; all of them associate to the left."""
        left = self._read_unary()
        while (precedence := _OPERATORS.get(self.peek(), (0,))[0]) >= min_precedence:
            line, symbol = self.current_line(), self.take()
            left = _apply_binary(symbol, left, self._read_binary(precedence + 1), line)
        return left

    def _read_unary(self) -> _Constant:
        symbol = self.peek()
        if symbol in ("-", "+", "~", "!"):
            line = self.current_line()
            self.take()
            return _apply_unary(symbol, self._read_unary(), line)
        if not self.accept("("):
            return self._read_literal()
        cast = _CAST_SIGNS.get(self.peek())
        if cast is not None:
            self.take()
            self.take(")")
            return _wrap_64_bits(self._read_unary().number, cast)
        inner = self._read_conditional(0)
        self.take(")")
        return inner

    def _read_literal(self) -> _Constant:
        text, _, _ = self.peek_token()
        if text == "WARP_SZ":
            constant: _Constant | None = _Constant(WARP_SIZE)
        else:
            constant = _parse_float_literal(text) or _parse_integer_literal(text)
        if constant is None:
            raise self.make_error(
                f"{text or 'nothing'!r} is not a number; write 16, 0x10, 020, 0b10000, 16U, 1.5 or 0f3FC00000"
            )
        if isinstance(constant.number, int) and constant.number >= 1 << _BITS:
            raise self.make_error(f"{text} has more than 64 bits; use at most 0x{'F' * 16}")
        self.take()
        return constant


def _parse_float_literal(text: str) -> _Constant | None:
    if bits := _FLOAT_BITS.fullmatch(text):
        code, digits = (">f", bits["single"]) if bits["single"] else (">d", bits["double"])
        return _Constant(float(struct.unpack(code, bytes.fromhex(digits))[0]))
    return _Constant(float(text)) if _FLOAT.fullmatch(text) else None


def _parse_integer_literal(text: str) -> _Constant | None:
    match = _LITERAL.fullmatch(text)
    if match is None:
        return None
    base, digits = next((base, match[name]) for name, base in _BASES.items() if match[name])
    number = int(digits, base)
    return _Constant(number, signed=not match["unsigned"] and number < 1 << (_BITS - 1))


def _wrap_64_bits(number: int | float, signed: bool) -> _Constant:
    """An integer as 64 bits hold it; a float as it is."""
    if isinstance(number, float):
        return _Constant(number)
    number &= (1 << _BITS) - 1
    return _Constant(number - (1 << _BITS) if signed and number >> (_BITS - 1) else number, signed)


def _apply_unary(symbol: str, operand: _Constant, line: int) -> _Constant:
    """An operator of one operand."""
    number, signed = operand
    if symbol == "+":
        return operand
    if symbol == "-":
        return _wrap_64_bits(-number, signed)
    if isinstance(number, float):
        raise EkcError(f"PTX line {line}: {symbol} of the float {number}; it takes whole numbers")
    return _Constant(int(not number)) if symbol == "!" else _wrap_64_bits(~number, signed=False)


def _apply_binary(symbol: str, left: _Constant, right: _Constant, line: int) -> _Constant:
    """An operator of two operands."""
    a, b = left.number, right.number
    if isinstance(a, float) and isinstance(b, float) and symbol in _FLOAT_OPERATORS:
        return _Constant(_FLOAT_OPERATORS[symbol](a, b) if symbol != "/" or b else float("nan"))
    if isinstance(a, float) or isinstance(b, float):
        raise EkcError(f"PTX line {line}: {a} {symbol} {b}: operators take integers, + - * / also two floats")
    signed = left.signed and (symbol in ("<<", ">>") or (right.signed and symbol != "%"))
    a, b = int(_wrap_64_bits(a, signed).number), int(_wrap_64_bits(b, signed).number)
    if b == 0 and symbol in ("/", "%"):
        raise EkcError(f"PTX line {line}: {a} {symbol} 0 divides by zero")
    result = _OPERATORS[symbol][1](a, b)
    return _Constant(int(result)) if isinstance(result, bool) else _wrap_64_bits(result, signed)
