"""Kernels by hand run, agree with NumPy, and are clean."""

from __future__ import annotations

import pytest

from tests.emulator.by_hand import CASES
from tests.emulator.case import Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_matches_numpy_and_is_clean(case: Case) -> None:
    case.check()
