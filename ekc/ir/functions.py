"""Functions and operators of expressions: their NumPy implementations, and the Python operators refused.

One rule for NaN, for all float types: a result is NaN where an operand is. `max` and `min` keep NaN too, in
expressions and in reductions, as `np.maximum` does and unlike `fmaxf` of C.

Python operators that no kernel could execute (`if`, `<`, `float()`) raise an error of one line. Without that,
an `if` would choose once for all elements.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from ekc.errors import InvalidInput

_ERF_CHUNK = 1 << 20


def _erf(a: Any) -> Any:
    """The error function of the C library, element by element, in double precision: NumPy has none."""
    values = np.asarray(a)
    flat = values.astype(np.float64).ravel()
    out = np.empty_like(flat)
    for start in range(0, flat.size, _ERF_CHUNK):
        part = flat[start : start + _ERF_CHUNK]
        out[start : start + part.size] = np.fromiter(map(math.erf, part.tolist()), np.float64, part.size)
    kept = values.dtype if np.issubdtype(values.dtype, np.floating) else np.float64
    return out.reshape(values.shape).astype(kept)[()]


NUMPY_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "tanh": np.tanh,
    "erf": _erf,
    "abs": np.abs,
}


NUMPY_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"==": np.equal, "<": np.less}


BINARY_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": np.minimum,
    "max": np.maximum,
}
"""Functions of two numbers or arrays, by the operation of a `Binary`."""


class UnsupportedOperators:
    """Python operators that are refused while a body is traced; `Expr` and `Condition` inherit them."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise InvalidInput(
            f"expression: {self} is neither true nor false: `if`, `and`, `or` and `not` cannot choose "
            "between elements; use ekc.where, ekc.maximum or ekc.minimum"
        )

    def _refuse_ordering(self, other: Any) -> NoReturn:
        raise InvalidInput(
            f"expression: {self} cannot be compared with {other}; use ekc.maximum, ekc.minimum, or ekc.less "
            "and ekc.equal in ekc.where"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _refuse_ordering

    def __getitem__(self, index: Any) -> NoReturn:
        raise InvalidInput(
            f"expression: {self} is one value and has no [{index}]; write all indices at once, as A[i, j]"
        )

    def _refuse_conversion(self) -> NoReturn:
        raise InvalidInput(
            f"expression: {self} has no value yet; use ekc.exp and the like, not those of math"
        )

    __float__ = __int__ = _refuse_conversion

    def __rpow__(self, base: Any) -> NoReturn:
        raise InvalidInput(f"expression: {base} ** ({self}) is no product; use ekc.exp")


def make_numpy_error(function: str) -> InvalidInput:
    """The refusal of a function of NumPy that was given an expression."""
    name = {"absolute": "abs", "fabs": "abs", "power": "exp"}.get(function, function)
    names = (*NUMPY_FUNCTIONS, "maximum", "minimum", "equal", "less")
    near = f"ekc.{name}" if name in names else f"one of {', '.join(names)} of ekc"
    return InvalidInput(f"expression: numpy.{function} takes no expression; use {near}")
