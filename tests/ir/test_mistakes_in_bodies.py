"""What Python lets one write in a body and no kernel could do: one clear line, never another meaning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ekc
import ekc.ir.operators as o
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator

MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "equal": (
        lambda A, i, j: A[i, j] * (i == j),
        r"False is no number: .*ekc.where\(ekc.equal\(i, j\), 1, 0\)",
    ),
    "unequal": (lambda A, i, j: A[i, j] * (i != j), r"True is no number"),
    "equal to itself": (lambda A, i, j: A[i, j] + (i == i), r"True is no number"),
    "an index that is true": (lambda A, i, j: A[i, True], r"True is no number"),
    "true": (lambda A, i, j: True, r"True is no number"),
    "if": (lambda A, i, j: A[i, j] if i else 0, r"i is neither true nor false"),
    "and": (lambda A, i, j: A[i, j] and A[j, i], r"A\[i, j\] is neither true nor false"),
    "not": (lambda A, i, j: not A[i, j], r"is neither true nor false"),
    "less": (lambda A, i, j: A[i, j] * (i < j), r"i cannot be compared with j; use ekc.maximum"),
    "max": (lambda A, i, j: max(A[i, j], 0), r"A\[i, j\] cannot be compared with 0; use ekc.maximum"),
    "numpy": (lambda A, i, j: np.exp(A[i, j]), r"numpy.exp takes no expression; use ekc.exp"),
    "numpy abs": (lambda A, i, j: np.abs(A[i, j]), r"numpy.absolute takes no expression; use ekc.abs"),
    "numpy sin": (lambda A, i, j: np.sin(A[i, j]), r"use one of exp, sqrt, .* of ekc"),
    "math": (lambda A, i, j: math.exp(A[i, j]), r"A\[i, j\] has no value yet; use ekc.exp"),
    "index by index": (lambda A, i, j: A[i, j][0], r"A\[i, j\] is one value and has no \[0\]"),
    "sum of an element": (lambda A, i, j: sum(A[i, j]), r"is one value and has no \[0\]"),
    "half a power": (lambda A, i, j: A[i, j] ** 0.5, r"exponent: 0.5 is not a whole number"),
    "large power": (lambda A, i, j: A[i, j] ** 9, r"exponent: 9 is outside 1 to 8; .* is 8"),
    "power of two": (lambda A, i, j: 2 ** A[i, j], r"2 \*\* \(A\[i, j\]\) is no product; use ekc.exp"),
    "array": (lambda A, i, j: np.array([1, 2]) * A[i, j], r"array\(\[1, 2\]\) is neither a number nor"),
    "sum of a tensor": (lambda A, i, j: sum(A), r"A is a whole tensor; index it .*: A\[i\]"),
    "in a tensor": (lambda A, i, j: 1 in A, r"A is a whole tensor"),
    "tensor and number": (lambda A, i, j: A + 1, r"A is a whole tensor"),
    "tensor and element": (lambda A, i, j: A[i, j] * A, r"is neither a number nor an element"),
    "numpy of a tensor": (lambda A, i, j: np.exp(A), r"A is a whole tensor"),
}


def square(body: Callable[..., Any]) -> Operator:
    return o.compute("square", axes={"i": 4, "j": 4}, inputs={"A": (4, 4)}, body=body)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_body_is_told_in_one_line(name: str) -> None:
    body, message = MISTAKES[name]
    with pytest.raises(InvalidInput, match=message) as found:
        square(body)
    assert "\n" not in str(found.value)


def test_the_mask_that_the_message_names_is_one() -> None:
    op = square(lambda A, i, j: A[i, j] * ekc.where(ekc.equal(i, j), 1, 0))
    assert np.array_equal(op.reference(np.ones((4, 4), np.float32)), np.eye(4))


@pytest.mark.parametrize(
    ("body", "right"),
    [
        (lambda A, i, j: A[i, j] ** 3, lambda a: a**3),
        (lambda A, i, j: abs(A[i, j]), np.abs),
        (lambda A, i, j: 7 // A[i, j] + 7 % A[i, j], lambda a: 7 // a + 7 % a),
        (lambda A, i, j: ekc.abs(A[i, j]), np.abs),
        (lambda A, i, j: np.float32(2) * A[i, j], lambda a: 2 * a),
        (lambda A, i, j: np.sqrt(2) / A[i, j] - np.int64(1), lambda a: math.sqrt(2) / a - 1),
        (lambda A, i, j: A[i + np.int64(0), np.int64(1) * j], lambda a: a),
    ],
)
def test_arithmetic_of_python_and_of_numpy_scalars(
    body: Callable[..., Any], right: Callable[[Any], Any]
) -> None:
    a = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    assert np.allclose(square(body).reference(a), right(a.astype(np.float64)), rtol=1e-6)
