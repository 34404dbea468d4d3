"""Functions and operators of expressions, implemented in NumPy.

One rule for NaN, for all float types: a result is NaN where an operand is. `max` and `min` keep NaN too, in
expressions and in reductions, as `np.maximum` does and unlike `fmaxf` of C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "tanh": np.tanh,
    "erf": _erf,
    "abs": np.abs,
}


NUMPY_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {"==": np.equal, "<": np.less}


def apply_binary(op: str, a: Any, b: Any) -> Any:
    """`a op b` on numbers or arrays."""
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a / b
        case "//":
            return a // b
        case "%":
            return a % b
        case "min":
            return np.minimum(a, b)
        case "max":
            return np.maximum(a, b)
    raise ValueError(f"unknown operation {op!r}")
