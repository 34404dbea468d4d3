"""Arrays that NumPy protects, constants and parameters are read only: who changes them is told."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.case import integers, told

COPY = "void k(const int* __restrict__ a, int* b) { int t = threadIdx.x; b[t] = a[t]; CHANGE }"


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ("", set()),
        ("const_cast<int*>(a)[t] = 7;", {"read-only"}),
        ("atomicAdd(const_cast<int*>(a) + t, 7);", {"read-only"}),
        ("if (t == 3) *(t > 2 ? const_cast<int*>(a) : b) = 7;", {"read-only"}),
        ("(t % 2 ? const_cast<int*>(a) : b)[t] = 7;", {"read-only"}),
    ],
)
@pytest.mark.parametrize("protected", [True, False])
def test_a_change_of_an_input_is_told(change: str, kinds: set[str], protected: bool) -> None:
    given = np.arange(32, dtype=np.int32)
    given.flags.writeable = not protected
    assert told(COPY.replace("CHANGE", change), [given, integers(32)], 32) == (kinds if protected else set())
