"""The functions of elementwise nodes as expressions of ekc."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.models.graph import Node

Operands = Sequence[ex.Operand]
_MAX_POWER = 8


def _is_truth_value(e: ex.Where) -> bool:
    return (e.then, e.otherwise) == (ex.Const(1), ex.Const(0))


def _choose(condition: ex.Operand, a: ex.Operand, b: ex.Operand) -> ex.Expr:
    """a where a truth value is not 0, else b."""
    if isinstance(condition, ex.Where) and _is_truth_value(condition):
        return ex.Where(condition.op, condition.a, condition.b, ex.as_expr(a), ex.as_expr(b))
    return ex.where(ex.equal(condition, 0), b, a)


def _negate(condition: ex.Operand) -> ex.Expr:
    return _choose(condition, 0, 1)


def _hardsigmoid(a: ex.Operand) -> ex.Expr:
    return ex.minimum(ex.maximum(ex.as_expr(a) / 6 + 0.5, 0), 1)


_UNARY_FUNCTIONS: Mapping[str, Callable[[ex.Operand], ex.Operand]] = {
    "relu": ex.relu,
    "silu": ex.silu,
    "sigmoid": ex.sigmoid,
    "tanh": ex.tanh,
    "erf": ex.erf,
    "exp": ex.exp,
    "log": ex.log,
    "sqrt": ex.sqrt,
    "rsqrt": ex.rsqrt,
    "neg": lambda a: -ex.as_expr(a),
    "gelu": ex.gelu,
    "gelu_tanh": lambda a: ex.gelu(a, "tanh"),
    "hardswish": lambda a: ex.as_expr(a) * _hardsigmoid(a),
    "hardsigmoid": _hardsigmoid,
    "reciprocal": lambda a: 1 / ex.as_expr(a),
    "square": lambda a: ex.as_expr(a) * a,
    "abs": ex.abs,
    "sign": lambda a: ex.where(ex.less(a, 0), -1, ex.where(ex.less(0, a), 1, a)),
    "logical_not": _negate,
}
_BINARY_FUNCTIONS: Mapping[str, Callable[[ex.Operand, ex.Operand], ex.Operand]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": ex.maximum,
    "minimum": ex.minimum,
    "equal": lambda a, b: ex.where(ex.equal(a, b), 1, 0),
    "not_equal": lambda a, b: ex.where(ex.equal(a, b), 0, 1),
    "less": lambda a, b: ex.where(ex.less(a, b), 1, 0),
    "greater": lambda a, b: ex.where(ex.less(b, a), 1, 0),
    "less_equal": lambda a, b: ex.maximum(ex.where(ex.less(a, b), 1, 0), ex.where(ex.equal(a, b), 1, 0)),
    "greater_equal": lambda a, b: ex.maximum(ex.where(ex.less(b, a), 1, 0), ex.where(ex.equal(a, b), 1, 0)),
    "logical_and": lambda a, b: _choose(a, _choose(b, 1, 0), 0),
    "logical_or": lambda a, b: _choose(a, 1, _choose(b, 1, 0)),
}
COMMUTATIVE_FUNCTIONS = frozenset({"add", "mul", "maximum", "minimum"})
_OTHER_FUNCTIONS = frozenset({"div", "power", "where", "clamp", "leaky_relu", "elu"})
SUPPORTED_FUNCTIONS = frozenset({*_UNARY_FUNCTIONS, *_BINARY_FUNCTIONS, *_OTHER_FUNCTIONS, "causal_mask"})
"""Functions that `write_function` knows; causal_mask also needs the index."""


def write_function(node: Node, operands: Operands) -> ex.Operand:
    """The value of an elementwise node for the values of its inputs.

    Raises `InvalidInput` for a function that ekc's expressions do not have.
    """
    function, options = str(node.attributes["function"]), node.attributes
    if function in _UNARY_FUNCTIONS:
        return _UNARY_FUNCTIONS[function](operands[0])
    if function in _BINARY_FUNCTIONS:
        a, b = operands
        if function in COMMUTATIVE_FUNCTIONS and not isinstance(a, ex.Expr):
            a, b = b, a
        return _BINARY_FUNCTIONS[function](a, b)
    x = operands[0]
    match function:
        case "div":
            return _divide(x, operands[1])
        case "power":
            return _raise_power(node, x, operands[1])
        case "where":
            return _choose(x, operands[1], operands[2])
        case "clamp":
            return _clamp(x, options)
        case "leaky_relu":
            return ex.where(ex.less(x, 0), ex.as_expr(x) * options["slope"], x)
        case "elu":
            return ex.where(ex.less(x, 0), (ex.exp(x) - 1) * float(options.get("alpha", 1.0)), x)
    raise InvalidInput(f"ekc has no function {function}")


def _divide(a: ex.Operand, b: ex.Operand) -> ex.Operand:
    """A quotient; a product where the divisor is a power of two, which gives the same numbers."""
    if not isinstance(b, ex.Expr) and b and math.frexp(abs(b))[0] == 0.5:
        return ex.as_expr(a) * (1 / b)
    return ex.as_expr(a) / b


def _raise_power(node: Node, base: ex.Operand, exponent: ex.Operand) -> ex.Operand:
    """A power with an exponent that is a constant."""
    a = ex.as_expr(base)
    if isinstance(exponent, ex.Expr):
        raise InvalidInput("ekc has no powers whose exponent is a tensor")
    if exponent == int(exponent) and 1 <= exponent <= _MAX_POWER:
        return a ** int(exponent)
    roots = {0.5: ex.sqrt, -0.5: ex.rsqrt}
    if exponent in roots:
        return roots[float(exponent)](a)
    if exponent == int(exponent) and -_MAX_POWER <= exponent < 0:
        return 1 / a ** -int(exponent)
    raise InvalidInput(f"ekc has no power of {exponent:g}, only whole ones up to {_MAX_POWER} and roots")


def _clamp(x: ex.Operand, options: Mapping[str, Any]) -> ex.Operand:
    low, high = options.get("minimum"), options.get("maximum")
    y = x if low is None else ex.maximum(x, low)
    return y if high is None else ex.minimum(y, high)
