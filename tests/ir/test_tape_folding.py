"""What a tape leaves out gives what NumPy gives, in type and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ekc.ir.trace.recorder import RECORDING_ROWS, record_walks

FUNCTIONS = (
    *(np.add, np.subtract, np.multiply, np.divide, np.floor_divide, np.remainder),
    *(np.minimum, np.maximum, np.equal, np.bitwise_and, np.bitwise_or),
)
NUMBERS = (0, 1, 2, -1, 0.0, 1.0, 0.5, False, True, np.asarray(0), np.asarray(1.0), np.True_, np.int64(1))
VECTORS = {
    "whole": np.arange(RECORDING_ROWS) - 9,
    "real": np.linspace(-3.5, 7.25, RECORDING_ROWS),
    "truth": np.arange(RECORDING_ROWS) % 3 == 0,
}
EITHER = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(tuple(VECTORS)))


def recorded(function: Any, left: Any, right: Any) -> tuple[Any, int]:
    """What a tape of one call gives, and its length."""

    def walk(columns: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        yield [("it", (function(*(columns[x] if isinstance(x, str) else x for x in (left, right))),))]

    (tape,) = record_walks([walk], VECTORS)
    (found,), _ = tape(VECTORS, [0, RECORDING_ROWS])
    return found.values[0], tape.call_count


@given(function=st.sampled_from(FUNCTIONS), left=EITHER, right=EITHER)
@example(function=np.remainder, left="truth", right=True)
def test_a_call_that_is_left_out_gave_nothing_else(function: Any, left: Any, right: Any) -> None:
    operands = [VECTORS[x] if isinstance(x, str) else x for x in (left, right)]
    with np.errstate(all="ignore"):
        try:
            expected = function(*operands)
        except TypeError:
            return
        found, _ = recorded(function, left, right)
    assert np.asarray(found).dtype == expected.dtype
    np.testing.assert_array_equal(np.broadcast_to(found, np.shape(expected)), expected)


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (np.multiply, 1, "whole"),
        (np.multiply, "real", np.asarray(1)),
        (np.multiply, "whole", 0),
        (np.add, 0.0, "real"),
        (np.bitwise_and, np.True_, "truth"),
        (np.bitwise_or, "truth", True),
        (np.remainder, "whole", 1),
        (np.minimum, "real", "real"),
        (lambda a, b: np.where(True, a, b), "whole", 0),
    ],
)
def test_what_changes_nothing_is_left_out(function: Any, left: Any, right: Any) -> None:
    assert recorded(function, left, right)[1] == 0


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        # Another type, another side, another number; and of an infinity, no times are nothing.
        (np.multiply, "whole", 1.0),
        (np.subtract, 0, "whole"),
        (np.floor_divide, "real", 1),
        (np.remainder, 1, "whole"),
        (np.multiply, "real", 0.0),
        (np.bitwise_and, "whole", 1),
    ],
)
def test_what_changes_something_is_not(function: Any, left: Any, right: Any) -> None:
    assert recorded(function, left, right)[1] == 1


def test_operands_that_may_change_places_are_one_call() -> None:
    def walk(columns: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
        whole, real = columns["whole"], columns["real"]
        products = whole * real, real * whole, 2 * whole, whole * np.asarray(2)
        yield [("it", (*products, whole - real, real - whole))]

    (tape,) = record_walks([walk], VECTORS)
    assert tape.call_count == 4
