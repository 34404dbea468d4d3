"""What Python lets one write of an expression and no kernel could do: each refused in one line.

Without these, an `if` would choose once for all elements, and others would end in a TypeError of Python's.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ekc.errors import InvalidInput
from ekc.ir.meaning import NUMPY_FUNCTIONS


class UnsupportedOperators:
    """What is refused while a body is written, for `Expr` to inherit."""

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
    known = (*NUMPY_FUNCTIONS, "maximum", "minimum", "equal", "less")
    near = f"ekc.{name}" if name in known else f"one of {', '.join(known)} of ekc"
    return InvalidInput(f"expression: numpy.{function} takes no expression; use {near}")
