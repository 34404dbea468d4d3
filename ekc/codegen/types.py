"""Element types in C: literals, conversions, vector moves, and which inline functions a kernel needs.

Arithmetic is done in the accumulator's type, `float` or `int`; what is stored otherwise is widened when it is
read and rounded when it is written. `ekc.ir.dtypes.converted` does the same to arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ekc.ir import expr as ex
from ekc.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, TF32, DType, find_read_type
from ekc.ir.nodes import Kernel
from ekc.ir.operator import Compute, Operator, TensorSpec

_MOVES = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_FLOAT_MOVES = {8: "float2", 16: "float4"}
_INT_FUNCTIONS = {"abs": "abs"}
_EXTREMES = {"max": "maximum", "min": "minimum"}
"""Inline functions for floats that keep NaN: `fmaxf` and `fminf` drop it."""
_WRAPPING = {"+": "add", "-": "subtract", "*": "multiply", "abs": "absolute"}
"""Inline functions for int whose results wrap modulo 2**32: C leaves an overflow of its
operators undefined, and the compiler uses that: it drops the maximum in `max(c * c, 0)`."""
_SYMBOLS = {"sum": "+", "prod": "*"}
"""The operators of C by which a reduction takes one more value in."""
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
_TO = {FLOAT16: "to_half", BFLOAT16: "to_bf16", INT8: "to_int8"}


@dataclass(frozen=True)
class Arithmetic:
    """How values of an accumulator's type are written."""

    dtype: DType
    wraps: bool = False
    """Whether results may leave int32, and are written so that they wrap modulo 2**32."""
    floats: frozenset[str] = frozenset()
    """Tensors that are not summed in an int32 accumulator, but compared in float32."""

    @classmethod
    def of(cls, compute: Compute, tensors: Mapping[str, TensorSpec]) -> Arithmetic:
        """The arithmetic of a compute: extents bound the results from int8, nothing those from int32."""
        read = {tensors[load.tensor].dtype for load in ex.loads(compute.body)}
        acc = compute.acc_dtype
        reads = {load.tensor for load in ex.loads(compute.body)}
        floats = frozenset(t for t in reads if find_read_type(tensors[t].dtype, acc) is not acc)
        return cls(acc, acc is INT32 and INT32 in read, floats)

    def choose_comparison(self, e: ex.Where) -> Arithmetic:
        """The arithmetic of the two values that are compared."""
        read = {load.tensor for part in (e.a, e.b) for load in ex.loads(part)}
        return Arithmetic(FLOAT32) if read & self.floats else self

    def find_function(self, operation: str) -> str | None:
        """The inline function that is called for an operation of an expression; None where C has it."""
        table = _WRAPPING if self.wraps else {} if self.dtype.integer else _EXTREMES
        return table.get(operation)

    def literal(self, number: float) -> str:
        """A number; infinities by their bits, which needs no header."""
        if self.dtype.integer:
            # C has no literal for the least int: the minus is an operation on one too large.
            return str(int(number)) if number > self.dtype.limits[0] else f"({int(number) + 1} - 1)"
        if number in (float("inf"), float("-inf")):
            return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
        return f"{float(number)!r}f"

    def cast(self, index: str) -> str:
        """An index as a value."""
        return f"static_cast<{self.dtype.cuda}>({index})"

    def call(self, function: str, argument: str) -> str:
        """A function of one value."""
        names = _INT_FUNCTIONS if self.dtype.integer else _FLOAT_FUNCTIONS
        return f"{self.find_function(function) or names[function]}({argument})"

    def extreme(self, op: str, a: str, b: str) -> str:
        """The smaller ("min") or larger ("max") of two values; NaN where either is."""
        return f"{self.find_function(op) or op}({a}, {b})"

    def combined(self, combine: str, target: str, value: str) -> str:
        """The statement that takes one more value into a reduction."""
        symbol = _SYMBOLS.get(combine)
        if symbol is None:
            return f"{target} = {self.extreme(combine, target, value)};"
        if called := self.find_function(symbol):
            return f"{target} = {called}({target}, {value});"
        return f"{target} {symbol}= {value};"

    def binary(self, e: ex.Binary, a: str, b: str) -> str:
        """`a op b`, with parentheses only where C needs them."""
        if e.op in ("min", "max"):
            return self.extreme(e.op, a, b)
        if called := self.find_function(e.op):
            return f"{called}({a}, {b})"
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
    if source in (FLOAT16, BFLOAT16):
        return f"to_float({value})"
    if source is TF32:
        return f"to_tf32({value})"
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


def helpers(op: Operator) -> frozenset[str]:
    """The types whose inline functions the kernels of an operator need: int8 only where it is written."""
    read, written = {t.dtype for t in op.inputs} - {INT8}, {c.output.dtype for c in op.computes}
    return frozenset(dtype.name for dtype in read | written)


def list_functions(kernels: Iterable[Kernel]) -> frozenset[str]:
    """The inline functions that the arithmetic of some kernels calls."""
    return frozenset(
        name for kernel in kernels for c in _list_computes(kernel) for name in _list_calls(kernel, c)
    )


def _list_computes(kernel: Kernel) -> Iterator[Compute]:
    """All that a kernel computes: what it sums, what is put behind that, what it makes of staged elements."""
    yield kernel.nest.compute
    if kernel.nest.epilogue is not None:
        yield kernel.nest.epilogue
    yield from (s.produced_by for s in kernel.nest.stagings if s.produced_by is not None)


def _list_calls(kernel: Kernel, compute: Compute) -> Iterator[str]:
    written = Arithmetic.of(compute, kernel.tensors)
    found = [*_list_body_calls(compute.body, written)]
    if compute.reduction:
        found.append(written.find_function(_SYMBOLS.get(compute.combine, compute.combine)))
    yield from filter(None, found)


def _list_body_calls(e: ex.Expr, written: Arithmetic) -> Iterator[str | None]:
    """The inline function that each operation of an expression calls, those of its indices left out."""
    if isinstance(e, ex.Load):
        return
    if isinstance(e, (ex.Binary, ex.Call)):
        yield written.find_function(ex.name_operation(e))
    parts = ex.children(e)
    if isinstance(e, ex.Where):
        parts = (e.then, e.otherwise)
        for part in (e.a, e.b):
            yield from _list_body_calls(part, written.choose_comparison(e))
    for part in parts:
        yield from _list_body_calls(part, written)
