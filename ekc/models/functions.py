"""The functions of elementwise nodes, one row each: as an expression of ekc, in NumPy, and by the names that
they have in ONNX and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.functions import NUMPY_FUNCTIONS

Array = np.ndarray[Any, Any]
_MAX_POWER = 8


@dataclass(frozen=True)
class Function:
    """A function of the elements of its operands; its parameters come behind them."""

    name: str
    inputs: int
    """Number of operands."""
    numpy: Callable[..., Any]
    """On arrays."""
    expression: Callable[..., ex.Operand] | None = None
    """On expressions; None where ekc has no such function. `causal_mask` takes the indices of the last two
    dimensions before its parameter."""
    onnx: str = ""
    """Operator of ONNX with the same inputs and no attributes; "" where there is none."""
    torch: str = ""
    """Name in ATen, and of the function in `torch` or `torch.nn.functional`; "" where there is none."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the node -> what they are where the node has none."""
    is_commutative: bool = False

    def list_parameters(self, attributes: Mapping[str, Any]) -> list[Any]:
        """The parameters of a node with these attributes, in order."""
        return [attributes.get(name, default) for name, default in self.parameters.items()]

    def evaluate(self, arrays: Sequence[Array], attributes: Mapping[str, Any]) -> Any:
        """The function in NumPy, in the types of its operands."""
        return np.asarray(self.numpy(*arrays, *self.list_parameters(attributes)))

    def write(self, operands: Sequence[ex.Operand], attributes: Mapping[str, Any]) -> ex.Operand:
        """The function as an expression of its operands. Raises `InvalidInput` where ekc has none."""
        if self.expression is None:
            raise InvalidInput(f"ekc has no function {self.name}")
        if self.is_commutative and not isinstance(operands[0], ex.Expr):
            operands = operands[::-1]
        return self.expression(*operands, *self.list_parameters(attributes))


def _choose(condition: ex.Operand, a: ex.Operand, b: ex.Operand) -> ex.Expr:
    """a where a truth value is not 0, else b."""
    if isinstance(condition, ex.Where) and (condition.then, condition.otherwise) == (
        ex.Const(1),
        ex.Const(0),
    ):
        return ex.Where(condition.op, condition.a, condition.b, ex.as_expr(a), ex.as_expr(b))
    return ex.where(ex.equal(condition, 0), b, a)


def _less(a: ex.Operand, b: ex.Operand) -> ex.Expr:
    return ex.where(ex.less(a, b), 1, 0)


def _equal(a: ex.Operand, b: ex.Operand) -> ex.Expr:
    return ex.where(ex.equal(a, b), 1, 0)


def _hardsigmoid(a: ex.Operand) -> ex.Expr:
    return ex.minimum(ex.maximum(ex.as_expr(a) / 6 + 0.5, 0), 1)


def _divide(a: ex.Operand, b: ex.Operand) -> ex.Operand:
    """A quotient; a product where the divisor is a power of two, which gives the same numbers."""
    if not isinstance(b, ex.Expr) and b and math.frexp(abs(b))[0] == 0.5:
        return ex.as_expr(a) * (1 / b)
    return ex.as_expr(a) / b


def _raise_power(base: ex.Operand, exponent: ex.Operand) -> ex.Operand:
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


def _limit(x: ex.Operand, low: float | None, high: float | None) -> ex.Operand:
    y = x if low is None else ex.maximum(x, low)
    return y if high is None else ex.minimum(y, high)


def _clip(x: Array, low: float | None, high: float | None) -> Any:
    """Limits of an array; those of integers are whole numbers within the range of their type."""
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        low, high = (b if b is None else int(min(max(b, limits.min), limits.max)) for b in (low, high))
    return np.clip(x, low, high)


def _mask_causal(x: Array, offset: int) -> Any:
    rows, columns = np.indices(x.shape[-2:], sparse=True)
    return np.where(columns > rows + offset, -inf, x)


def _np_sigmoid(a: Array) -> Any:
    return 1 / (1 + np.exp(-a))


def _np_hardsigmoid(a: Array) -> Any:
    return np.clip(a / 6 + 0.5, 0, 1)


_ROWS = (
    Function("relu", 1, lambda a: np.maximum(a, 0), ex.relu, "Relu", "relu"),
    Function("silu", 1, lambda a: a * _np_sigmoid(a), ex.silu, "", "silu"),
    Function("sigmoid", 1, _np_sigmoid, ex.sigmoid, "Sigmoid", "sigmoid"),
    Function("tanh", 1, np.tanh, ex.tanh, "Tanh", "tanh"),
    Function("erf", 1, NUMPY_FUNCTIONS["erf"], ex.erf, "Erf", "erf"),
    Function("exp", 1, np.exp, ex.exp, "Exp", "exp"),
    Function("log", 1, np.log, ex.log, "Log", "log"),
    Function("sqrt", 1, np.sqrt, ex.sqrt, "Sqrt", "sqrt"),
    Function("rsqrt", 1, lambda a: 1 / np.sqrt(a), ex.rsqrt, "", "rsqrt"),
    Function("neg", 1, np.negative, lambda a: -ex.as_expr(a), "Neg", "neg"),
    Function(
        "gelu",
        1,
        lambda a: 0.5 * a * (1 + NUMPY_FUNCTIONS["erf"](a * math.sqrt(0.5))),
        ex.gelu,
        torch="gelu",
    ),
    Function(
        "gelu_tanh",
        1,
        lambda a: 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a))),
        lambda a: ex.gelu(a, "tanh"),
    ),
    Function(
        "hardswish",
        1,
        lambda a: a * _np_hardsigmoid(a),
        lambda a: ex.as_expr(a) * _hardsigmoid(a),
        "HardSwish",
        "hardswish",
    ),
    Function("hardsigmoid", 1, _np_hardsigmoid, _hardsigmoid, "", "hardsigmoid"),
    Function("reciprocal", 1, lambda a: 1 / a, lambda a: 1 / ex.as_expr(a), "Reciprocal", "reciprocal"),
    Function("square", 1, np.square, lambda a: ex.as_expr(a) * a, "", "square"),
    Function("abs", 1, np.abs, ex.abs, "Abs", "abs"),
    Function("sin", 1, np.sin, None, "Sin", "sin"),
    Function("cos", 1, np.cos, None, "Cos", "cos"),
    Function("floor", 1, np.floor, None, "Floor", "floor"),
    Function("ceil", 1, np.ceil, None, "Ceil", "ceil"),
    Function("round", 1, np.rint, None, "Round", "round"),
    Function(
        "sign",
        1,
        np.sign,
        lambda a: ex.where(ex.less(a, 0), -1, ex.where(ex.less(0, a), 1, a)),
        "Sign",
        "sign",
    ),
    Function("logical_not", 1, np.logical_not, lambda a: _choose(a, 0, 1), "Not", "logical_not"),
    Function("clamp", 1, _clip, _limit, "", "clamp", {"minimum": None, "maximum": None}),
    Function(
        "leaky_relu",
        1,
        lambda x, slope: np.where(x < 0, x * slope, x),
        lambda x, slope: ex.where(ex.less(x, 0), ex.as_expr(x) * slope, x),
        "",
        "leaky_relu",
        {"slope": 0.01},
    ),
    Function(
        "elu",
        1,
        lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
        lambda x, alpha: ex.where(ex.less(x, 0), (ex.exp(x) - 1) * float(alpha), x),
        "",
        "elu",
        {"alpha": 1.0},
    ),
    Function(
        "causal_mask",
        1,
        _mask_causal,
        lambda x, row, column, offset: ex.where(ex.less(row + offset, column), -inf, x),
        parameters={"offset": 0},
    ),
    Function("add", 2, np.add, lambda a, b: a + b, "Add", "add", is_commutative=True),
    Function("sub", 2, np.subtract, lambda a, b: a - b, "Sub", "sub"),
    Function("mul", 2, np.multiply, lambda a, b: a * b, "Mul", "mul", is_commutative=True),
    Function("div", 2, np.divide, _divide, "Div", "div"),
    Function("maximum", 2, np.maximum, ex.maximum, "", "maximum", is_commutative=True),
    Function("minimum", 2, np.minimum, ex.minimum, "", "minimum", is_commutative=True),
    Function("power", 2, np.power, _raise_power, "", "pow"),
    Function("remainder", 2, np.remainder, None, "", "remainder"),
    Function("equal", 2, np.equal, _equal, "Equal", "eq"),
    Function("not_equal", 2, np.not_equal, lambda a, b: ex.where(ex.equal(a, b), 0, 1), "Xor", "ne"),
    Function("less", 2, np.less, _less, "Less", "lt"),
    Function(
        "less_equal",
        2,
        np.less_equal,
        lambda a, b: ex.maximum(_less(a, b), _equal(a, b)),
        "LessOrEqual",
        "le",
    ),
    Function("greater", 2, np.greater, lambda a, b: _less(b, a), "Greater", "gt"),
    Function(
        "greater_equal",
        2,
        np.greater_equal,
        lambda a, b: ex.maximum(_less(b, a), _equal(a, b)),
        "GreaterOrEqual",
        "ge",
    ),
    Function(
        "logical_and", 2, np.logical_and, lambda a, b: _choose(a, _choose(b, 1, 0), 0), "And", "logical_and"
    ),
    Function(
        "logical_or", 2, np.logical_or, lambda a, b: _choose(a, 1, _choose(b, 1, 0)), "Or", "logical_or"
    ),
    Function("where", 3, np.where, _choose, "Where", "where"),
)
FUNCTIONS: Mapping[str, Function] = {row.name: row for row in _ROWS}
"""Function of an elementwise node by name. A bound of `clamp` that is None is no bound. `causal_mask` gives
minus infinity where the index of the last dimension is greater than that of the one before it plus `offset`;
fusion makes it from causal attention."""
ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "sigmoid", "hardswish", "hardsigmoid", "relu", "tanh")
"""Functions that are recognised where they are written out."""
