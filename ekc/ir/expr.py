"""Scalar expressions over loop variables and tensor elements.

An expression is a small frozen tree that gives one element of a compute. Reading a tensor outside its extents
yields 0: convolution padding and the ragged edge of a tile are the same thing, and both become guards only
where a range analysis finds them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput
from ekc.ir.functions import (
    BINARY_FUNCTIONS,
    NUMPY_COMPARISONS,
    NUMPY_FUNCTIONS,
    UnsupportedOperators,
    make_numpy_error,
)
from ekc.ir.validate import check_int


class Expr(UnsupportedOperators):
    """Base of all expressions; carries the arithmetic operators."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Expr:
        return self if _is_neutral(other, 0) else Binary("+", self, as_expr(other))

    def __radd__(self, other: Operand) -> Expr:
        return self if _is_neutral(other, 0) else Binary("+", as_expr(other), self)

    def __sub__(self, other: Operand) -> Expr:
        return self if _is_neutral(other, 0) else Binary("-", self, as_expr(other))

    def __rsub__(self, other: Operand) -> Expr:
        return Binary("-", as_expr(other), self)

    def __mul__(self, other: Operand) -> Expr:
        return self if _is_neutral(other, 1) else Binary("*", self, as_expr(other))

    def __rmul__(self, other: Operand) -> Expr:
        return self if _is_neutral(other, 1) else Binary("*", as_expr(other), self)

    def __truediv__(self, other: Operand) -> Expr:
        return Binary("/", self, _check_divisor(other))

    def __rtruediv__(self, other: Operand) -> Expr:
        return Binary("/", as_expr(other), self)

    def __floordiv__(self, other: Operand) -> Expr:
        return Binary("//", self, as_expr(other))

    def __rfloordiv__(self, other: Operand) -> Expr:
        return Binary("//", as_expr(other), self)

    def __mod__(self, other: Operand) -> Expr:
        return Binary("%", self, as_expr(other))

    def __rmod__(self, other: Operand) -> Expr:
        return Binary("%", as_expr(other), self)

    def __neg__(self) -> Expr:
        return Binary("-", Const(0), self)

    def __abs__(self) -> Expr:
        return Call("abs", self)

    def __pow__(self, exponent: int) -> Expr:
        return _expand_power(self, exponent)

    def __array_ufunc__(self, ufunc: Any, method: str, *values: Any, **options: Any) -> Expr:
        """Take a NumPy scalar as an operand; refuse functions of NumPy, which cannot be traced."""
        own = _NUMPY_OPERATORS.get(ufunc.__name__)
        if own is None or method != "__call__" or options:
            raise make_numpy_error(ufunc.__name__)
        return own(*map(as_expr, values))


Operand = Expr | int | float
MAX_FLOAT32 = float(np.finfo(np.float32).max)
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103
"""The least number that float32 rounds to infinity."""
_MIN_NORMAL, _MIN_SUBNORMAL = 2.0**-126, 2.0**-149
_INFINITIES = (math.inf, -math.inf)
_MAX_EXPONENT = 8
_NUMPY_OPERATORS: Mapping[str, Callable[..., Expr]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
}


@dataclass(frozen=True)
class Const(Expr):
    """A number."""

    value: int | float

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Var(Expr):
    """A loop axis, by name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Load(Expr):
    """One element of a tensor; 0 where an index is outside the tensor."""

    tensor: str
    index: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Binary(Expr):
    """`a op b` with op one of + - * / // % min max."""

    op: str
    a: Expr
    b: Expr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.a}, {self.b})"
        return f"{_parenthesize(self.a, self.op)} {self.op} {_parenthesize(self.b, self.op, right=True)}"


@dataclass(frozen=True)
class Call(Expr):
    """A unary function: exp, log, sqrt, rsqrt, tanh, erf, abs."""

    function: str
    argument: Expr

    def __str__(self) -> str:
        return f"{self.function}({self.argument})"


@dataclass(frozen=True)
class Where(Expr):
    """`then` where `a op b` holds, with op one of == <, else `otherwise`. No comparison with NaN holds."""

    op: str
    a: Expr
    b: Expr
    then: Expr
    otherwise: Expr

    def __str__(self) -> str:
        return f"where({self.a} {self.op} {self.b}, {self.then}, {self.otherwise})"


@dataclass(frozen=True)
class Condition(UnsupportedOperators):
    """A comparison of two values, for `where`. It is no number."""

    op: str
    a: Expr
    b: Expr

    def __str__(self) -> str:
        return f"{self.a} {self.op} {self.b}"

    def _refuse(self, *_: Any) -> NoReturn:
        raise InvalidInput(f"expression: {self} is a condition and no number; use ekc.where({self}, 1, 0)")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __and__ = __or__ = __invert__ = __array_ufunc__ = _refuse


_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2}


def _parenthesize(e: Expr, op: str, right: bool = False) -> str:
    if isinstance(e, Binary) and e.op in _PRECEDENCE:
        inner, outer = _PRECEDENCE[e.op], _PRECEDENCE[op]
        if inner < outer or (right and inner == outer and op != "+"):
            return f"({e})"
    return str(e)


def _is_neutral(value: Operand, number: int) -> bool:
    """Whether adding or multiplying by `value` changes nothing, so that printed indices stay short."""
    return isinstance(value, int) and not isinstance(value, bool) and value == number


def _expand_power(base: Expr, exponent: int) -> Expr:
    """The power as a product of `exponent` factors, from left to right."""
    product = base
    for _ in range(check_int("exponent", exponent, _MAX_EXPONENT) - 1):
        product = Binary("*", product, base)
    return product


def as_expr(value: Operand | Condition) -> Expr:
    """A number as a Const; an expression as itself. `InvalidInput` for what is neither, and for numbers that
    float32 rounds to infinity. Numbers so small that float32 keeps few or none of their digits are rounded to
    it here, for the kernel and its reference to have the same."""
    if isinstance(value, Expr):
        return value
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool):
        raise InvalidInput(
            f"expression: {number} is no number: `==` and `!=` say whether two expressions have the same "
            "text; ekc.where(ekc.equal(i, j), 1, 0) is 1 where i equals j, else 0"
        )
    if isinstance(number, Condition):
        number._refuse()
    if not isinstance(number, (int, float)):
        raise InvalidInput(
            f"expression: {format_value(value)} is neither a number nor an element, as A[i] is"
        )
    if number not in _INFINITIES and not -FLOAT32_OVERFLOW < number < FLOAT32_OVERFLOW:
        # Python writes no whole number of more than 4300 digits.
        shown = f"a whole number of {number.bit_length()} bits" if isinstance(number, int) else repr(value)
        raise InvalidInput(f"expression: {shown} is no number of float32; the largest is {MAX_FLOAT32:.6g}")
    if isinstance(number, float) and -_MIN_NORMAL < number < _MIN_NORMAL:
        with np.errstate(under="ignore"):
            number = float(np.float32(number))
    return Const(number)


def _check_divisor(value: Operand) -> Expr:
    """An expression to divide by; `InvalidInput` for 0, and for what float32 rounds to it."""
    divisor = as_expr(value)
    if isinstance(divisor, Const) and divisor.value == 0:
        note = "" if value == 0 else ", which float32 rounds to 0"
        raise InvalidInput(
            f"expression: {value} is a divisor{note}; the least divisor of float32 is {_MIN_SUBNORMAL:.6g}"
        )
    return divisor


def abs(a: Operand) -> Expr:
    """a without its sign."""
    return Call("abs", as_expr(a))


def maximum(a: Operand, b: Operand) -> Expr:
    """The larger of two values; NaN where either is."""
    return Binary("max", as_expr(a), as_expr(b))


def minimum(a: Operand, b: Operand) -> Expr:
    """The smaller of two values; NaN where either is."""
    return Binary("min", as_expr(a), as_expr(b))


def equal(a: Operand, b: Operand) -> Condition:
    """The condition that two values are equal, for `where`; NaN equals nothing."""
    return Condition("==", as_expr(a), as_expr(b))


def less(a: Operand, b: Operand) -> Condition:
    """The condition that a is less than b, for `where`; it never holds for NaN."""
    return Condition("<", as_expr(a), as_expr(b))


def where(condition: Condition, a: Operand, b: Operand) -> Expr:
    """a where a condition holds, else b: `where(less(x, 0), 0.1 * x, x)`.

    Both values are computed, and one is chosen. Only `equal` and `less` make conditions; for x > y write
    `less(y, x)`, for "unless" exchange a and b. An int32 accumulator may compare elements that it could not
    sum, such as float32: they are compared in float32.
    """
    if not isinstance(condition, Condition):
        raise InvalidInput(
            f"where: {condition} is no condition; write ekc.equal(a, b) or ekc.less(a, b) for a == b or a < b"
        )
    return Where(condition.op, condition.a, condition.b, as_expr(a), as_expr(b))


def relu(a: Operand) -> Expr:
    """max(a, 0), and NaN of NaN."""
    return maximum(a, 0)


def exp(a: Operand) -> Expr:
    """e to the power a."""
    return Call("exp", as_expr(a))


def log(a: Operand) -> Expr:
    """The natural logarithm of a: -inf of 0, NaN below."""
    return Call("log", as_expr(a))


def sqrt(a: Operand) -> Expr:
    """The square root of a."""
    return Call("sqrt", as_expr(a))


def rsqrt(a: Operand) -> Expr:
    """1 / sqrt(a), in one instruction."""
    return Call("rsqrt", as_expr(a))


def tanh(a: Operand) -> Expr:
    """The hyperbolic tangent of a."""
    return Call("tanh", as_expr(a))


def erf(a: Operand) -> Expr:
    """The error function of a: 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to a."""
    return Call("erf", as_expr(a))


def sigmoid(a: Operand) -> Expr:
    """1 / (1 + exp(-a))."""
    return 1 / (1 + exp(-as_expr(a)))


def silu(a: Operand) -> Expr:
    """a * sigmoid(a), also called swish."""
    return as_expr(a) / (1 + exp(-as_expr(a)))


def gelu(a: Operand, approximate: str = "none") -> Expr:
    """a times the standard normal distribution function of a, by erf; "tanh" is the form without erf.

    Both forms and their names are those of PyTorch; they differ by up to 5e-4.
    """
    a = as_expr(a)
    if approximate == "none":
        return 0.5 * a * (1 + erf(a * math.sqrt(0.5)))
    if approximate == "tanh":
        return 0.5 * a * (1 + tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a)))
    raise InvalidInput(f"gelu: approximate={approximate!r} is neither 'none' nor 'tanh'; try 'tanh'")


def walk_expr(e: Expr) -> Iterator[Expr]:
    """Every node of the tree, parents first."""
    left = [e]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(children(node)))


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions of a node."""
    if isinstance(e, Binary):
        return (e.a, e.b)
    if isinstance(e, Call):
        return (e.argument,)
    if isinstance(e, Where):
        return (e.a, e.b, e.then, e.otherwise)
    return e.index if isinstance(e, Load) else ()


def name_operation(e: Binary | Call | Where) -> str:
    """The operator or the function of a node."""
    return e.function if isinstance(e, Call) else e.op if isinstance(e, Binary) else "where"


def find_loads(e: Expr) -> tuple[Load, ...]:
    """The distinct tensor reads of an expression, in order of appearance."""
    return tuple(dict.fromkeys(n for n in walk_expr(e) if isinstance(n, Load)))


def has_where(e: Expr) -> bool:
    """Whether an expression contains a `where`."""
    return any(isinstance(n, Where) for n in walk_expr(e))


def find_variables(e: Expr) -> frozenset[str]:
    """The axis names an expression depends on."""
    return frozenset(n.name for n in walk_expr(e) if isinstance(n, Var))


def list_factors(e: Expr) -> tuple[Expr, ...]:
    """The factors of a product: a * b * c -> (a, b, c)."""
    if isinstance(e, Binary) and e.op == "*":
        return list_factors(e.a) + list_factors(e.b)
    return (e,)


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression with each named Var replaced."""
    # One Python call a level: bodies that are joined are deep, and a recursion ends at some 1000 calls.
    if isinstance(e, Var):
        return values.get(e.name, e)
    if isinstance(e, Binary):
        return Binary(e.op, substitute(e.a, values), substitute(e.b, values))
    if isinstance(e, Call):
        return Call(e.function, substitute(e.argument, values))
    if isinstance(e, Load):
        return Load(e.tensor, tuple([substitute(i, values) for i in e.index]))
    return Where(e.op, *[substitute(part, values) for part in children(e)]) if isinstance(e, Where) else e


def replace_loads(e: Expr, replacement: Callable[[Load], Expr]) -> Expr:
    """The expression with each tensor read replaced."""
    if isinstance(e, Load):
        return replacement(e)
    if isinstance(e, Binary):
        return Binary(e.op, replace_loads(e.a, replacement), replace_loads(e.b, replacement))
    if isinstance(e, Where):
        return Where(e.op, *[replace_loads(part, replacement) for part in children(e)])
    return Call(e.function, replace_loads(e.argument, replacement)) if isinstance(e, Call) else e


def _round_constant(value: Any) -> Any:
    """A Python float as the nearest float32; arrays and whole numbers as they are."""
    return float(np.float32(value)) if type(value) is float else value


def evaluate(e: Expr, axes: Mapping[str, Any], load: Callable[[Load], Any]) -> Any:
    """The value of an expression; `axes` gives each Var, `load` each tensor read (arrays broadcast).

    A constant that is compared is the float32 that a kernel has, also among numbers of float64: 0.7 is not
    less than the float32 next to it.
    """
    if isinstance(e, Const):
        return e.value
    if isinstance(e, Var):
        return axes[e.name]
    if isinstance(e, Load):
        return load(e)
    if isinstance(e, Call):
        return NUMPY_FUNCTIONS[e.function](evaluate(e.argument, axes, load))
    if isinstance(e, Where):
        a, b, then, otherwise = (evaluate(part, axes, load) for part in children(e))
        return np.where(NUMPY_COMPARISONS[e.op](_round_constant(a), _round_constant(b)), then, otherwise)
    assert isinstance(e, Binary)
    return BINARY_FUNCTIONS[e.op](evaluate(e.a, axes, load), evaluate(e.b, axes, load))
