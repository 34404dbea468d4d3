"""Element types in C: literals, conversions, vector moves.

Arithmetic is done in the accumulator's type, `float` or `int`; what is stored otherwise is widened when it is
read and rounded when it is written. `ekc.ir.dtypes.converted` does the same to arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.dtypes import BFLOAT16, FLOAT16, INT8, TF32, DType

_MOVES = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_FLOAT_MOVES = {8: "float2", 16: "float4"}
_INT_FUNCTIONS = {"abs": "abs"}
_FLOAT_FUNCTIONS = {
    "exp": "expf",
    "sqrt": "sqrtf",
    "rsqrt": "rsqrtf",
    "tanh": "tanhf",
    "erf": "erff",
    "abs": "fabsf",
}
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}
"""How strongly the operators of C bind that stand without parentheses of their own."""
_FROM = {FLOAT16: "from_half", BFLOAT16: "from_bf16", TF32: "to_tf32"}
_TO = {FLOAT16: "to_half", BFLOAT16: "to_bf16", INT8: "to_int8"}


@dataclass(frozen=True)
class Arithmetic:
    """How values of an accumulator's type are written."""

    dtype: DType

    def literal(self, number: float) -> str:
        """A number, in the fewest digits that float32 tells apart; infinities by their bits, which needs no
        header."""
        if self.dtype.integer:
            # C has no literal for the least int: the minus is an operation on one too large.
            return str(int(number)) if number > self.dtype.limits[0] else f"({int(number) + 1} - 1)"
        if number in (float("inf"), float("-inf")):
            return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
        with np.errstate(under="ignore"):
            return f"{np.float32(number)}f"

    def cast(self, index: str) -> str:
        """An index as a value."""
        return f"static_cast<{self.dtype.cuda}>({index})"

    def call(self, function: str, argument: str) -> str:
        """A function of one value."""
        names = _INT_FUNCTIONS if self.dtype.integer else _FLOAT_FUNCTIONS
        return f"{names[function]}({argument})"

    def extreme(self, op: str, a: str, b: str) -> str:
        """The smaller ("min") or larger ("max") of two values."""
        return f"{op}({a}, {b})" if self.dtype.integer else f"f{op}f({a}, {b})"

    def combined(self, combine: str, target: str, value: str) -> str:
        """The statement that takes one more value into a reduction."""
        if combine == "sum":
            return f"{target} += {value};"
        return f"{target} = {self.extreme(combine, target, value)};"

    def binary(self, e: ex.Binary, a: str, b: str) -> str:
        """`a op b`, with parentheses only where C needs them."""
        if e.op in ("min", "max"):
            return self.extreme(e.op, a, b)
        left, right = (x.op if isinstance(x, ex.Binary) else "" for x in (e.a, e.b))
        if e.op in ("//", "%"):
            a = f"({a})" if left in _BINDING else a
            down = f"floorf({a} / ({b}))"
            return down if e.op == "//" else f"({a} - {down} * ({b}))"
        if left in _BINDING and _BINDING[left] < _BINDING[e.op]:
            a = f"({a})"
        # C goes from left to right, and another order rounds otherwise.
        if right in _BINDING and _BINDING[right] <= _BINDING[e.op]:
            b = f"({b})"
        return f"{a} {e.op} {b}"


def converted(value: str, source: DType, target: DType) -> str:
    """A value of one type as another."""
    if source is target:
        return value
    if source in _FROM:
        return f"{_FROM[source]}({value})"
    return f"{_TO[target]}({value})" if target in _TO else f"static_cast<{target.cuda}>({value})"


def move_type(dtype: DType, vector: int) -> str:
    """The built-in type that moves `vector` elements at once."""
    size = dtype.bytes * vector
    if vector == 1:
        return dtype.cuda
    return _FLOAT_MOVES[size] if dtype.cuda == "float" else _MOVES[size]


def zero(dtype: DType) -> str:
    """0 of a type as it is stored."""
    if dtype.cuda in ("float", "int", "signed char"):
        return "0.0f" if dtype.cuda == "float" else "0"
    return f"{dtype.cuda}{{0}}"
