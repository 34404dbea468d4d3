"""Calls that a tape need not make: what they give is known from an operand that is the same for all rows.

Walks multiply by the 1 and add to the 0 that their products and sums begin with, everywhere. Without that,
more of what different walks do is the same, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NEUTRAL_OPERANDS = {
    np.add: (0, "fi"),
    np.subtract: (0, "fi"),
    np.multiply: (1, "fi"),
    np.divide: (1, "f"),
    np.floor_divide: (1, "i"),
    np.bitwise_or: (0, "ib"),
    np.bitwise_and: (1, "b"),
}
"""The operand that changes nothing (but the sign of a zero), and for which kinds of result."""
_ABSORBING_OPERANDS = {
    np.multiply: (0, 0, "i"),
    np.bitwise_and: (0, 0, "ib"),
    np.bitwise_or: (1, 1, "b"),
    np.remainder: (1, 0, "i"),
}
"""The operand that leaves nothing of the other, what is left instead, and for which kinds of result."""
_NON_COMMUTATIVE = {np.subtract, np.divide, np.floor_divide, np.remainder}
"""Of these, what must have that operand on the right."""
_COMMUTATIVE = {np.add, np.multiply, np.minimum, np.maximum, np.equal, np.not_equal}
_COMMUTATIVE |= {np.bitwise_and, np.bitwise_or}
_IDEMPOTENT = {np.minimum, np.maximum, np.bitwise_and, np.bitwise_or}
"""What gives an operand that stands on both sides."""

_PLAIN_DTYPES = (np.bool_, np.int64, np.float64)
"""Types that a Python number becomes again: not the int8 of a remainder of booleans."""
_MAX_EXACT_INTEGER = 1 << 53
"""Integers up to here are floats, too."""


def to_python_number(value: Any) -> Any:
    """A Python number for a plain NumPy one; anything else as it is."""
    plain = isinstance(value, np.generic) or (type(value) is np.ndarray and not value.ndim)
    return value.item() if plain and value.dtype in _PLAIN_DTYPES else value


def promote_integers(function: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands with integers beside vectors of floats as floats, which NumPy would make of them each time."""
    floats = any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in operands)
    if not floats or not isinstance(function, np.ufunc):
        return operands
    return tuple(float(x) if type(x) is int and abs(x) < _MAX_EXACT_INTEGER else x for x in operands)


def order_operands(function: Any, operands: tuple[Any, ...], refs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands that may change places in one order, whatever the walk's: numbers last."""
    if function not in _COMMUTATIVE or _is_number(operands[1]):
        return operands
    return operands[::-1] if _is_number(operands[0]) or refs[1] < refs[0] else operands


def fold_call(function: Any, operands: tuple[Any, ...], sample_result: Any) -> Any:
    """What a call gives of any rows: one of its operands, or a number; None where that depends on the rows.

    `found`: what it gave of some, for its type and shape.
    """
    if function is np.where and len(operands) == 3:
        return (
            _match_operand(operands[1], sample_result)
            if operands[0] is True or operands[1] is operands[2]
            else None
        )
    if len(operands) != 2:
        return None
    a, b = operands
    if a is b and function in _IDEMPOTENT:
        return a
    for constant, other in ((b, a),) if function in _NON_COMMUTATIVE else ((b, a), (a, b)):
        if _is_number(constant):
            neutral, kinds = _NEUTRAL_OPERANDS.get(function, (None, ""))
            if constant == neutral and sample_result.dtype.kind in kinds:
                return _match_operand(other, sample_result)
            swallowing, left, kinds = _ABSORBING_OPERANDS.get(function, (None, None, ""))
            if (
                constant == swallowing
                and sample_result.dtype.kind in kinds
                and sample_result.dtype in _PLAIN_DTYPES
            ):
                return sample_result.dtype.type(left).item()
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _match_operand(operand: Any, sample_result: Any) -> Any:
    """An operand, if the call leaves it as it is."""
    same = isinstance(operand, np.ndarray) and (operand.dtype, operand.shape) == (
        sample_result.dtype,
        sample_result.shape,
    )
    return operand if same else None
