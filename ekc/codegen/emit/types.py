"""Element types in C: literals, conversions, vector moves.

Arithmetic is done in the accumulator's type, `float` or `int`; what is stored otherwise is widened when it is
read and rounded when it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, TF32, DType, find_read_type

_MOVE_TYPES = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_FLOAT_MOVE_TYPES = {8: "float2", 16: "float4"}
_INT_FUNCTIONS = {"abs": "abs"}
_EXTREME_FUNCTIONS = {"max": "maximum", "min": "minimum"}
"""Inline functions for floats that keep NaN: `fmaxf` and `fminf` drop it."""
_WRAPPING_FUNCTIONS = {"+": "add", "-": "subtract", "*": "multiply", "abs": "absolute"}
"""Inline functions for int whose results wrap modulo 2**32. C leaves overflow of its operators undefined, and
the compiler uses that: it drops the maximum in `max(c * c, 0)`."""
_COMBINE_OPERATORS = {"sum": "+", "prod": "*"}
"""C operators that combine an accumulator with a value, by kind of reduction."""
_FLOAT_FUNCTIONS = {name: f"{name}f" for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf")} | {
    "abs": "fabsf"
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
"""Precedence of C operators that are written without parentheses of their own."""
_READ_CONVERSIONS = {FLOAT16: "from_half", BFLOAT16: "from_bf16", TF32: "to_tf32"}
_WRITE_CONVERSIONS = {FLOAT16: "to_half", BFLOAT16: "to_bf16", INT8: "to_int8"}


@dataclass(frozen=True)
class Arithmetic:
    """C text of values and operations in the type of an accumulator."""

    dtype: DType
    wraps_int32: bool = False
    """Whether results may leave int32; operations are then written so that they wrap modulo 2**32."""
    float_tensors: frozenset[str] = frozenset()
    """Tensors that an int32 accumulator does not sum, but that are compared in float32."""

    @classmethod
    def for_compute(cls, compute: Compute, tensors: Mapping[str, TensorSpec]) -> Arithmetic:
        """The arithmetic of a compute. The extents bound results from int8, but not those from int32."""
        read = {tensors[load.tensor].dtype for load in ex.find_loads(compute.body)}
        acc = compute.acc_dtype
        reads = {load.tensor for load in ex.find_loads(compute.body)}
        floats = frozenset(t for t in reads if find_read_type(tensors[t].dtype, acc) is not acc)
        return cls(acc, acc is INT32 and INT32 in read, floats)

    def choose_comparison(self, e: ex.Where) -> Arithmetic:
        """The arithmetic of the two values that a condition compares."""
        read = {load.tensor for part in (e.a, e.b) for load in ex.find_loads(part)}
        return Arithmetic(FLOAT32) if read & self.float_tensors else self

    def find_function(self, operation: str) -> str | None:
        """The inline function for an operation of an expression; None where C has the operation."""
        if self.wraps_int32:
            return _WRAPPING_FUNCTIONS.get(operation)
        return None if self.dtype.is_integer else _EXTREME_FUNCTIONS.get(operation)

    def format_literal(self, number: float) -> str:
        """A number as a literal in the fewest digits of float32; infinities by their bits."""
        if self.dtype.is_integer:
            # C has no literal for the least int: the minus would be applied to a literal that is too large.
            return str(int(number)) if number > self.dtype.integer_limits[0] else f"({int(number) + 1} - 1)"
        if number in (float("inf"), float("-inf")):
            return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
        with np.errstate(under="ignore"):
            return f"{np.float32(number)}f"

    def format_call(self, function: str, argument: str) -> str:
        """A call of a function of one value."""
        names = _INT_FUNCTIONS if self.dtype.is_integer else _FLOAT_FUNCTIONS
        return f"{self.find_function(function) or names[function]}({argument})"

    def format_extreme(self, op: str, a: str, b: str) -> str:
        """The smaller ("min") or larger ("max") of two values; NaN where either is."""
        return f"{self.find_function(op) or op}({a}, {b})"

    def format_combine(self, combine: str, target: str, value: str) -> str:
        """The statement that combines an accumulator with one more value."""
        symbol = _COMBINE_OPERATORS.get(combine)
        if symbol is None:
            return f"{target} = {self.format_extreme(combine, target, value)};"
        if called := self.find_function(symbol):
            return f"{target} = {called}({target}, {value});"
        return f"{target} {symbol}= {value};"

    def format_binary(self, e: ex.Binary, a: str, b: str) -> str:
        """`a op b`, with parentheses only where C needs them."""
        if e.op in ("min", "max"):
            return self.format_extreme(e.op, a, b)
        if called := self.find_function(e.op):
            return f"{called}({a}, {b})"
        left, right = (x.op if isinstance(x, ex.Binary) else "" for x in (e.a, e.b))
        if e.op in ("//", "%"):
            a = f"({a})" if left in _PRECEDENCE else a
            down = f"floorf({a} / ({b}))"
            return down if e.op == "//" else f"({a} - {down} * ({b}))"
        if left in _PRECEDENCE and _PRECEDENCE[left] < _PRECEDENCE[e.op]:
            a = f"({a})"
        # C evaluates from left to right; another order rounds differently.
        if right in _PRECEDENCE and _PRECEDENCE[right] <= _PRECEDENCE[e.op]:
            b = f"({b})"
        return f"{a} {e.op} {b}"


def format_conversion(value: str, source: DType, target: DType) -> str:
    """C text of a value of one type converted to another."""
    if source is target:
        return value
    if source in _READ_CONVERSIONS:
        return f"{_READ_CONVERSIONS[source]}({value})"
    return f"{_WRITE_CONVERSIONS.get(target) or f'static_cast<{target.cuda_name}>'}({value})"


def choose_move_type(dtype: DType, vector: int) -> str:
    """The built-in type that moves `vector` elements at once."""
    size = dtype.bytes * vector
    if vector == 1:
        return dtype.cuda_name
    return _FLOAT_MOVE_TYPES[size] if dtype.cuda_name == "float" else _MOVE_TYPES[size]


def format_zero(dtype: DType) -> str:
    """C text of 0 in a storage type."""
    if dtype.cuda_name in ("float", "int", "signed char"):
        return "0.0f" if dtype.cuda_name == "float" else "0"
    return f"{dtype.cuda_name}{{0}}"
